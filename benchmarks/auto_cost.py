"""What ``auto`` and ``auto(fast)`` cost at scoring, as multiples of ``knn(10)`` alone on the same inputs.

``python benchmarks/auto_cost.py`` takes what both chose for a network of `auto.py`'s results, fits it on made features
of as many classes (time depends on sizes, not on what features show) in banks of several sizes, and scores the same
queries with all, in turns. It writes ``results/auto_cost.json``: processor time of one thread, which other programs on
the machine change little, its medians and their ratios.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import offmap
from offmap import Activations, Head
from offmap.errors import OffmapWarning

RESULTS = Path(__file__).with_name("results") / "auto_cost.json"
CHOSEN = RESULTS.with_name("auto.json")
NETWORK = "CLINC150"
BANKS = (10_000, 50_000)
WIDTH, CLASSES, QUERIES, TURNS = 512, 150, 2_000, 2
SPREAD = 1.5  # of a class's inputs, in units of the spread of class means
ALONE = "knn(10)"


def features_of(labels: np.ndarray, means: np.ndarray, seed: int) -> np.ndarray:
    """Rectified normal features round the means of their classes."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), WIDTH)).astype(np.float32)
    return np.maximum(means[labels] + SPREAD * noise, 0)


def made(count: int, seed: int) -> Activations:
    """Activations of `count` inputs of all classes, with a head that points at the class means."""
    means = np.random.default_rng(0).normal(size=(CLASSES, WIDTH)).astype(np.float32)
    labels = np.arange(count) % CLASSES
    return Activations(features_of(labels, means, seed), head=Head(means / WIDTH**0.5), labels=labels)


def seconds(detector: Any, queries: Activations) -> float:
    """How much processor time one scoring of all queries takes."""
    started = time.process_time()
    detector.score(queries)
    return time.process_time() - started


def measure(bank: int, chosen: dict[str, str], turns: int) -> dict[str, Any]:
    """Fit all on one bank and let them take turns."""
    known, queries = made(bank, 1), made(QUERIES, 2)
    fitted = {name: offmap.detector(spec).fit(known) for name, spec in {ALONE: ALONE, **chosen}.items()}
    taken: dict[str, list[float]] = {name: [] for name in fitted}
    for turn in range(turns + 1):
        for name, detector in fitted.items():
            found = seconds(detector, queries)
            if turn:  # the first one warms up
                taken[name].append(found)
    medians = {name: float(np.median(times)) for name, times in taken.items()}
    ratios = {name: medians[name] / medians[ALONE] for name in chosen}
    return {"bank": bank, "seconds": taken, "ratio": ratios}


def main() -> None:
    """Choose, measure, print the ratios, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--banks", type=int, nargs="+", default=BANKS)
    parser.add_argument("--chosen", type=Path, default=CHOSEN, help="results of auto.py")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", OffmapWarning)
    torch.set_num_threads(1)
    networks = json.loads(arguments.chosen.read_text())["development"]["networks"]
    chosen = {spec: networks[NETWORK]["methods"][spec]["chosen"] for spec in ("auto", "auto(fast)")}
    setting = {"features": WIDTH, "classes": CLASSES, "queries": QUERIES, "threads": 1, "chosen for": NETWORK}
    rows = []
    for bank in arguments.banks:
        with threadpool_limits(1):
            rows.append(measure(bank, chosen, arguments.turns))
        print(bank, {name: round(ratio, 2) for name, ratio in rows[-1]["ratio"].items()}, flush=True)
    arguments.out.write_text(json.dumps({"setting": setting, "chosen": chosen, "banks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
