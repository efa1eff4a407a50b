"""How much OpenCon and NSCL hang on their parameters, and which detector makes the best gate (appendices B.1.4, B.3.4).

``python benchmarks/learn_sensitivity.py --data FOLDER`` writes results/learn_sensitivity.json and the two pictures of
docs/learning-results.md; finished runs in the file are kept. One parameter is changed at a time, all others are the
defaults for embeddings, but OpenCon's gate reads the first view. BANKING77, split as in `learn_ablations`; seeds 0 and
1 were used in development too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import kept
from learn import RESULTS, training_rows
from learn_ablations import OPENCON, one
from offmap import Activations, Head, detector
from offmap.data import open_world_split
from offmap.learning import learn, objective
from offmap.metrics.detection import auroc, fpr_at_tpr
from theory_figures import chart

DOCS = Path(__file__).parent.parent / "docs"
# The values around the default of each parameter, a factor of two to ten away.
VALUES: dict[str, dict[str, tuple[float, ...]]] = {
    "opencon": {
        "weight_novel": (0.05, 0.8),
        "weight_labelled": (0.1, 1.4),
        "weight_unlabelled": (0.2, 2.6),
        "temperature_novel": (0.05, 0.4),
        "temperature_labelled": (0.05, 0.4),
        "temperature_unlabelled": (0.05, 0.4),
    },
    "nscl": {
        "alpha": (0.005, 0.02, 0.2, 0.8),
        "beta": (0.25, 0.5, 2.0, 4.0),
        "learning_rate": (1e-4, 3e-4, 3e-3, 1e-2),
    },
}
GATES = {"msp": "msp", "energy": "energy", "Mahalanobis": "mahalanobis", "OpenCon's": "maxlogit", "k-NN": "knn(10)"}
BINS = np.linspace(-0.2, 1.0, 61)


def default_of(name: str, parameter: str) -> float:
    """What the parameter is when nothing is changed."""
    kind = objective(name)
    known = {**kind.settings, **kind.embeddings, "learning_rate": 1e-3}
    return float(known[parameter])


def sweep(data: Path, file: Path, seeds: int) -> None:
    """Run what is missing in the file."""
    for seed in range(seeds):
        for name, parameters in VALUES.items():
            runs = {f"{name}|as it is": {}} | {
                f"{name}|{parameter}={value:g}": {parameter: value}
                for parameter, values in parameters.items()
                for value in values
            }
            for key, settings in runs.items():
                if not kept.holds(file, ["runs", key, str(seed)]):
                    own = OPENCON if name == "opencon" else {"objective": name}
                    found = one(data, seed, {**own, **settings}, {})
                    kept.add(file, {"runs": {key: {str(seed): found}}})
                    print(key, seed, found, flush=True)


def gate(data: Path, seed: int) -> dict[str, Any]:
    """Scores of unlabelled rows by several detectors on OpenCon's features and known prototypes, and their spread."""
    rows, truth = training_rows(data, "banking77")
    split = open_world_split(truth, known=38, ratio=0.5, seed=seed, pick="random")
    model = learn(rows, split.labels, 77, assign="prototypes", seed=seed, progress=False, **OPENCON)
    n_known = model.n_known
    weight, bias = (value.numpy()[:n_known] for value in (model.net.classifier.weight, model.net.classifier.bias))
    codes = np.searchsorted(model.class_ids[:n_known], split.labels[split.labelled])
    features, head = model.transform(rows), Head(weight, bias)
    fitted = Activations(features[split.labelled], head, labels=codes)
    hidden = split.unlabelled
    known = np.isin(split.targets[hidden], split.known)
    free = Activations(features[hidden], head)
    out: dict[str, Any] = {"detectors": {}}
    for name, spec in GATES.items():
        made = detector(spec).fit(fitted)
        scores, labelled = made.score(free), made.score(fitted)
        inside, outside = scores[known], scores[~known]
        passed = float(np.quantile(labelled, 0.05))
        out["detectors"][name] = {
            "fpr95": 100 * float(fpr_at_tpr(inside, outside)),
            "auroc": 100 * float(auroc(inside, outside)),
            "novel taken for known, threshold on labelled rows": 100 * float((outside >= passed).mean()),
            "known accepted there": 100 * float((inside >= passed).mean()),
        }
    cosines = (features[hidden] @ (weight / np.linalg.norm(weight, axis=1, keepdims=True)).T).max(axis=1)
    of_labelled = (features[split.labelled] @ (weight / np.linalg.norm(weight, axis=1, keepdims=True)).T).max(axis=1)
    out["scores"] = {
        "bins": BINS.round(4).tolist(),
        "known": np.histogram(np.clip(cosines[known], -0.2, 1), BINS)[0].tolist(),
        "novel": np.histogram(np.clip(cosines[~known], -0.2, 1), BINS)[0].tolist(),
        "lambda": float(np.quantile(of_labelled, 0.3)),
        "novel above lambda": 100 * float((cosines[~known] >= np.quantile(of_labelled, 0.3)).mean()),
        "known below lambda": 100 * float((cosines[known] < np.quantile(of_labelled, 0.3)).mean()),
    }
    return out


def draw(file: Path, folder: Path = DOCS) -> None:
    """Draw both pictures from the file."""
    held = kept.read(file)
    series = {}
    for name, parameters in VALUES.items():
        for parameter, values in parameters.items():
            middle = default_of(name, parameter)
            at = sorted([*values, middle])
            keys = [f"{name}|as it is" if value == middle else f"{name}|{parameter}={value:g}" for value in at]
            means = [np.mean([run[0] for run in held["runs"][key].values()]) for key in keys]
            series[f"{name}, {parameter}"] = (np.log10(np.array(at) / middle).tolist(), means)
    chart(
        "sensitivity.svg", "One parameter changed at a time, BANKING77", "log10 of value over default",
        "v2 All, per cent", series, dots=True, folder=folder,
    )  # fmt: skip
    scores = held["gate"]["0"]["scores"]
    middles = (BINS[:-1] + BINS[1:]) / 2
    shares = {part: np.array(scores[part]) / sum(scores[part]) for part in ("known", "novel")}
    chart(
        "gate.svg", "OpenCon's score of unlabelled rows, BANKING77", "largest cosine with a known prototype", "share",
        {part: (middles.tolist(), share.tolist()) for part, share in shares.items()},
        verticals=[scores["lambda"]], folder=folder,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("OFFMAP_DATA", ".")))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "learn_sensitivity.json")
    given = parser.parse_args()
    for seed in range(given.seeds):
        if not kept.holds(given.out, ["gate", str(seed)]):
            kept.add(given.out, {"gate": {str(seed): gate(given.data, seed)}})
            print("gate", seed, flush=True)
    sweep(given.data, given.out, given.seeds)
    draw(given.out)


if __name__ == "__main__":
    main()
