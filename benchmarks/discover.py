"""Discovery measured: accuracy of every method, the class count, hard piles, speed and memory.

    OFFMAP_DATA=/path/to/data python benchmarks/discover.py [PART …] [--sets …] [--seeds …]

Parts: accuracy, count, piles, outliers, speed, memory.

Each part adds its numbers to ``benchmarks/results/discover.json``. Constants of the library were settled on splits 0, 1
and 10 to 34; what is reported comes from splits 2 to 6. ``discover_speed.py`` holds the parts with a clock.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import kept
from discover_speed import memory, speed
from offmap.discovery import Space, discover
from offmap.discovery.assign import Rows
from offmap.discovery.counting import count_classes
from offmap.discovery.inputs import read_labels
from offmap.discovery.outliers import conformal_limit, outlier_distances
from offmap.metrics.clustering import class_count_error, open_world_accuracy

RESULTS = Path(__file__).parent / "results" / "discover.json"
SETS = ("digits", "fashion-mnist", "banking77", "clinc150", "cifar100")
TEXTS = ("clinc150", "banking77")
SEEDS = (2, 3, 4, 5, 6)
PLAIN, WHITE = Space("cosine"), Space("cosine", 0.5)
METHODS: dict[str, tuple[str, Space | None]] = {
    "kmeans": ("kmeans", None),
    "gcd": ("gcd", None),
    "ss-kmeans": ("ss-kmeans", PLAIN),
    "whitened ss-kmeans": ("ss-kmeans", WHITE),
    "spectral": ("spectral", PLAIN),
    "whitened spectral": ("spectral", WHITE),
    "vmf": ("vmf", PLAIN),
    "gmm": ("gmm", PLAIN),
    "hdbscan": ("hdbscan", PLAIN),
    "auto": ("auto", None),
}
LOST = (0.01, 0.02, 0.05, 0.1)


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and true classes; no feature has seen labels but those of CIFAR-100, whose network knew all classes."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.data.astype(np.float32), digits.target
    if name == "fashion-mnist":
        from sklearn.decomposition import PCA

        from offmap.bench.sets import FASHION
        from offmap.data.idx import read_idx

        pixels = read_idx(FASHION / "t10k-images-idx3-ubyte.gz").reshape(10_000, -1).astype(np.float32) / 255
        truth = read_idx(FASHION / "t10k-labels-idx1-ubyte.gz").astype(np.int64)
        return PCA(64, svd_solver="randomized", random_state=0).fit_transform(pixels), truth
    folder = Path(os.environ["OFFMAP_DATA"])
    if name == "cifar100":
        held = np.load(folder / "features" / "cifar100-densenet__cifar100_test.npz")
        return held["features"].astype(np.float32), held["labels"].astype(np.int64)
    held = np.load(folder / "text" / f"{name}_minilm.npz")
    return held["train_features"].astype(np.float32), held["train_labels"].astype(np.int64)


def split(truth: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of the classes known, half of their samples labelled."""
    rng = np.random.default_rng(seed)
    classes = np.unique(truth)
    known = np.sort(rng.permutation(classes)[: len(classes) // 2])
    labels = np.where(np.isin(truth, known) & (rng.random(len(truth)) < 0.5), truth, -1)
    return labels, known


def accuracy(sets: list[str], seeds: list[int], methods: list[str]) -> None:
    for name in sets:
        rows, truth = load(name)
        k = len(np.unique(truth))
        for seed in seeds:
            labels, known = split(truth, seed)
            pile = labels < 0
            for column in methods:
                method, space = METHODS[column]
                found = discover(rows, labels, k, method, seed, space=space)
                got = open_world_accuracy(truth[pile], found.labels[pile], known)
                cell: dict[str, Any] = {part: round(100 * getattr(got, part), 2) for part in got._fields}
                cell |= {"classes": found.n_classes, "outliers": round(100 * float((found.labels < 0).mean()), 1)}
                if column == "auto":
                    cell["chosen"] = f"{found.settings['method']}; {found.settings['space']}"
                print(name, seed, column, cell, flush=True)
                save({"accuracy": {name: {column: {str(seed): cell}}}})


def count(sets: list[str], seeds: list[int]) -> None:
    for name in sets:
        rows, truth = load(name)
        for seed in seeds:
            labels, _ = split(truth, seed)
            cell = counted(rows, labels, len(np.unique(truth)), seed)
            print(name, seed, cell, flush=True)
            save({"count": {name: {str(seed): cell}}})


def counted(rows: np.ndarray, labels: np.ndarray, true: int, seed: int) -> dict[str, Any]:
    """What the estimate says, beside the truth."""
    got = count_classes(rows, read_labels(labels, len(labels)).codes, seed)
    low, high = got.interval
    return {
        "true": true,
        "found": got.n_classes,
        "error": round(class_count_error(got.n_classes, true), 4),
        "interval": [low, high],
        "covers": low <= true <= high,
        "criteria": {key: round(value, 1) for key, value in got.criteria.items()},
    }


def piles(sets: list[str], seeds: list[int]) -> None:
    """A long tail of 1:50, then novel classes of five samples."""
    for name in sets:
        rows, truth = load(name)
        for seed in seeds:
            few = few_of(truth, long_tail(truth, np.random.default_rng(seed).permutation(np.unique(truth))))
            _pile(name, "long tail 1:50", rows[few], truth[few], seed, *split(truth[few], seed))
        for seed in seeds:
            labels, known = split(truth, seed)
            novel = np.setdiff1d(truth, known)
            few = few_of(truth, dict.fromkeys(novel[: max(len(novel) // 4, 1)].tolist(), 5))
            _pile(name, "a quarter of the novel classes have 5", rows[few], truth[few], seed, labels[few], known)


def long_tail(truth: np.ndarray, classes: np.ndarray) -> dict[int, int]:
    """How many rows each class may keep: sizes fall geometrically to a fiftieth."""
    largest = int(np.bincount(truth).max())
    sizes = np.maximum(np.round(largest * np.geomspace(1, 1 / 50, len(classes))), 2).astype(int)
    return dict(zip(classes.tolist(), sizes.tolist(), strict=True))


def few_of(truth: np.ndarray, most: dict[int, int]) -> np.ndarray:
    """The rows that are left when classes keep at most so many, the first ones."""
    keep = np.ones(len(truth), bool)
    for label, size in most.items():
        keep[np.flatnonzero(truth == label)[size:]] = False
    return keep


def _pile(
    name: str, title: str, rows: np.ndarray, truth: np.ndarray, seed: int, labels: np.ndarray, known: np.ndarray
) -> None:
    k, pile = len(np.unique(truth)), labels < 0
    cell: dict[str, Any] = {"sizes": [int(size) for size in np.quantile(np.bincount(truth)[np.unique(truth)], [0, 1])]}
    for column in ("kmeans", "whitened ss-kmeans", "auto"):
        method, space = METHODS[column]
        found = discover(rows, labels, k, method, seed, space=space)
        for convention in ("v2", "v2-balanced"):
            got = open_world_accuracy(truth[pile], found.labels[pile], known, convention)
            cell[f"{column} {convention}"] = [round(100 * value, 2) for value in got]
    cell["count"] = counted(rows, labels, k, seed)
    print(name, title, seed, cell, flush=True)
    save({"piles": {name: {title: {str(seed): cell}}}})


def outliers(sets: list[str], seeds: list[int]) -> None:
    """Strange rows added to the pile: how many are flagged, how many of the flagged are strange, what is lost."""
    for name in sets:
        rows, truth = load(name)
        rng = np.random.default_rng(0)
        n = int(0.75 * len(rows) * 0.3 / 0.7)  # three quarters of the rows are in the pile
        spread = rows.std(axis=0).mean()
        strange = {
            "30 % random directions": rows.mean(axis=0) + spread * rng.normal(size=(n, rows.shape[1])),
            "30 % with columns of different rows": np.stack([rng.choice(column, n) for column in rows.T], axis=1),
        }
        if name == "clinc150":
            held = np.load(Path(os.environ["OFFMAP_DATA"]) / "text" / "clinc150_minilm.npz")
            oos = [held[f"oos_{part}_features"] for part in ("train", "val", "test")]
            strange["real out-of-scope queries"] = np.concatenate(oos)
        for title, extra in strange.items():
            lonely = outlier_distances(
                Rows(np.concatenate([rows, extra]).astype(np.float32), "cosine")
            )  # no labels in it
            for seed in seeds:
                labels, _ = split(truth, seed)
                cell = {str(lost): _flagged(lonely, labels, lost) for lost in LOST}
                print(name, title, seed, cell, flush=True)
                save({"outliers": {name: {title: {str(seed): cell}}}})


def _flagged(lonely: np.ndarray, labels: np.ndarray, lost: float) -> dict[str, float]:
    n, pile = len(labels), labels < 0
    flagged = lonely > conformal_limit(lonely[:n][~pile], lost)
    right, wrong = flagged[n:], flagged[:n][pile]
    return {
        "recall": round(100 * float(right.mean()), 1),
        "precision": round(100 * float(right.sum() / max(right.sum() + wrong.sum(), 1)), 1),
        "real rows lost": round(100 * float(wrong.mean()), 1),
    }


def save(part: dict[str, Any]) -> None:
    """Add to the results."""
    kept.add(RESULTS, part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["accuracy", "count", "piles", "outliers", "speed", "memory"])
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--n-init", type=int, default=10)
    asked = parser.parse_args()
    for part in asked.parts:
        if part == "accuracy":
            accuracy(asked.sets, asked.seeds, asked.methods)
        elif part == "count":
            count(asked.sets, asked.seeds)
        elif part == "piles":
            piles([name for name in asked.sets if name in TEXTS], asked.seeds)
        elif part == "outliers":
            outliers([name for name in asked.sets if name in TEXTS], asked.seeds)
        elif part == "speed":
            save({"speed": speed(asked.rows, asked.n_init)})
        elif part == "memory":
            save({"memory": memory(20 * asked.rows)})
        else:
            parser.error(f"{part}: the parts are accuracy, count, piles, outliers, speed, memory")


if __name__ == "__main__":
    main()
