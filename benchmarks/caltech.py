"""Discovery on photographs: Caltech-101 by features of a ResNet-50 that was trained on ImageNet.

    OFFMAP_DATA=/path/to/data python benchmarks/caltech.py [--seeds 2 3 4 5 6]

Half of the 101 classes are known and half of their pictures labelled; accuracy is over the unlabelled ones. The network
saw ImageNet's classes, many of which are Caltech's too, so these numbers say how well classes are found among good
features, not how well a network learns new ones. Results go to ``benchmarks/results/caltech.json``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import kept
from discover import split
from offmap.discovery import discover
from offmap.metrics.clustering import class_count_error, open_world_accuracy

RESULTS = Path(__file__).parent / "results" / "caltech.json"
METHODS = ("kmeans", "gcd", "ss-kmeans", "auto")


def load(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and classes, without the pictures that show no class."""
    with np.load(data / "features" / "resnet50__caltech101.npz") as arrays:
        names = arrays["classes"][arrays["labels"]]
        shown = names != "BACKGROUND_Google"
        return arrays["features"][shown].astype(np.float32), arrays["labels"][shown].astype(np.int64)


def measure(rows: np.ndarray, truth: np.ndarray, seed: int, method: str, given: bool) -> dict[str, Any]:
    """All, known and novel accuracy of the unlabelled pictures, with the number of classes given or estimated."""
    labels, known = split(truth, seed)
    true = len(np.unique(truth))
    found = discover(rows, labels, true if given else "auto", method, seed)
    got = open_world_accuracy(truth[labels < 0], found.labels[labels < 0], known)
    cell: dict[str, Any] = {part: round(100 * getattr(got, part), 2) for part in got._fields}
    return cell | {"classes": found.n_classes, "count error": round(class_count_error(found.n_classes, true), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[2, 3, 4, 5, 6])
    rows, truth = load(Path(os.environ["OFFMAP_DATA"]))
    for seed in parser.parse_args().seeds:
        for method in METHODS:
            for given in (True, False):
                if not given and method != "auto":
                    continue
                name = method if given else f"{method}, number estimated"
                cell = measure(rows, truth, seed, method, given)
                kept.add(RESULTS, {name: {str(seed): cell}})
                print(seed, name, cell, flush=True)


if __name__ == "__main__":
    main()
