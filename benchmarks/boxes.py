"""Measure a guard per box on generated scenes of real digits: 0 to 5 are taught, 6 to 9 are unknown.

``python benchmarks/boxes.py`` trains a small detector per seed, guards it with a few methods, and writes
``results/boxes.json``: the shares of digits that get a box, of boxes called unknown, and of known ones that are right.
Nothing is chosen on the test scenes.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import offmap
from offmap.bench.scenes import count_found, make_scenes, train_scene_detector
from offmap.report import versions

RESULTS = Path(__file__).with_name("results") / "boxes.json"
KNOWN = range(6)
METHODS = ("auto", "msp", "maxlogit + knn(5)", "mahalanobis")
SEEDS = (0, 1, 2)
SIZES = {"train": 600, "held-out": 300, "test": 300}


def measure(seed: int) -> dict[str, dict[str, float]]:
    """Train one detector and return what each guard does."""
    scenes = {
        part: make_scenes(n, KNOWN if part != "test" else range(10), part, seed=seed) for part, n in SIZES.items()
    }
    model = train_scene_detector(scenes["train"], len(KNOWN), steps=200, seed=seed)
    found = {}
    for method in METHODS:
        held_out = scenes["held-out"].batches()
        guarded = offmap.boxes(model, scenes["train"].batches(), held_out=held_out, head=model.head, detector=method)
        found[method] = count_found(guarded, scenes["test"], KNOWN)
        print(f"seed {seed}, {method}: " + ", ".join(f"{name} {value:.3f}" for name, value in found[method].items()))
    return found


def main() -> None:
    """Measure every seed and write means."""
    runs = [measure(seed) for seed in SEEDS]
    means = {
        method: {name: round(100 * statistics.mean(run[method][name] for run in runs), 1) for name in runs[0][method]}
        for method in METHODS
    }
    found = {
        "about": "per cent; generated scenes of scikit-learn's digits, 0 to 5 known; means over seeds",
        "scenes": SIZES, "seeds": list(SEEDS), "tpr": 0.95, "means": means, "runs": runs, "versions": versions(),
    }  # fmt: skip
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
