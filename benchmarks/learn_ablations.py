"""OpenCon's questions of the thesis, asked of BANKING77's embeddings: which parts of the loss, the gate, the labels.

``python benchmarks/learn_ablations.py --data FOLDER --seeds 2`` writes results/learn_ablations.json; finished runs in
the file are kept. The gate reads the first view, where a question does not say otherwise; all other settings are the
defaults for embeddings, and nothing is chosen here. Accuracies are v2 over unlabelled rows.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import kept
from learn import RESULTS, measured, training_rows
from offmap.data import open_world_split
from offmap.learning import learn

# By question (and the thesis' place), by what is changed: settings, and the split where it differs.
QUESTIONS: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "all as it is": {"": ({}, {})},
    "parts of the loss (section 8.5, table 8.4)": {
        "without L_l": ({"weight_labelled": 0.0}, {}),
        "without L_u": ({"weight_unlabelled": 0.0}, {}),
        "without L_n": ({"weight_novel": 0.0}, {}),
        "L_known for L_l (appendix B.3.4, eq. B.34)": ({"known_too": True}, {}),
    },
    "the gate's percentile (section 8.2.2, eq. 8.2)": {f"p = {p}": ({"percentile": float(p)}, {}) for p in (30, 90)},
    "whose embeddings the gate reads (appendix B.3.2)": {"both views": ({"gate_views": "both"}, {})},
    "classes (section 8.2.2, eq. 8.6)": {
        "by prototypes": ({"assign": "prototypes"}, {}),
        "by prototypes that started at random": ({"start": "random", "assign": "prototypes"}, {}),
    },
    "share of labelled rows (section 8.5, table 8.6)": {f"{r:.0%}": ({}, {"ratio": r}) for r in (0.1, 0.25)},
    "known classes of 77 (section 8.5, table 8.6)": {str(n): ({}, {"known": n}) for n in (20, 58)},
}

# What the committed figures were measured with.
OPENCON: dict[str, Any] = {"objective": "opencon", "gate_views": "first"}


def one(data: Path, seed: int, settings: dict[str, Any], given: dict[str, Any]) -> list[float]:
    """All, Known and Novel of one run; of OpenCon where the settings name no other objective."""
    rows, truth = training_rows(data, "banking77")
    split = open_world_split(truth, **{"known": 38, "ratio": 0.5, "seed": seed, "pick": "random", **given})
    own = settings if "objective" in settings else {**OPENCON, **settings}
    model = learn(rows, split.labels, 77, seed=seed, progress=False, **own)
    return measured(truth, model.predict(rows), split.labels)["v2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("OFFMAP_DATA", ".")))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "learn_ablations.json")
    arguments = parser.parse_args()
    done = kept.read(arguments.out)
    for seed in range(arguments.seeds):
        for question, changes in QUESTIONS.items():
            for name, (settings, given) in changes.items():
                runs = done.setdefault(question, {}).setdefault(name, {})
                if str(seed) not in runs:
                    runs[str(seed)] = one(arguments.data, seed, settings, given)
                    kept.add(arguments.out, {question: {name: runs}})
                    print(question, name, seed, runs[str(seed)], flush=True)
    for question, changes in done.items():
        for name, runs in changes.items():
            print(f"{question:>34} {name:>30}", np.mean(list(runs.values()), axis=0).round(1))


if __name__ == "__main__":
    main()
