"""Detectors on tables of numbers: the 43 sets of ADBench beside scikit-learn and PyOD.

    python benchmarks/tables.py --sets FOLDER [--only wine …] [--seeds 0] [--methods "offmap pca" … --again]

The folder holds ADBench's ``Classical/*.npz`` (arrays ``X`` and ``y``, 1 for an anomaly; github.com/Minqi824/ADBench).
Detectors see normal rows only, 70 % of them and at most 2,000, standardised column by column; AUROC is measured on the
others (at most 2,000) and the anomalies (at most 2,000). Parameters are everyone's defaults. PyOD is measured when it
is installed. Results go to ``benchmarks/results/tables.json``; sets that are there already are not run again unless
``--again`` is given, with ``--methods`` for those alone.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import OneClassSVM

import kept
import offmap

RESULTS = Path(__file__).parent / "results" / "tables.json"
MOST = 2000
OURS = ("auto", "knn(10, normalize=false)", "knn(10)", "lof", "gmm", "pca", "ssd", "iforest", "ocsvm", "loda")
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


def ours(spec: str) -> Score:
    """An offmap detector; higher means known."""

    def score(train: np.ndarray, test: np.ndarray) -> np.ndarray:
        return offmap.detector(spec).fit(offmap.Activations(train)).score(test)

    return score


def scikit_learn(make: Callable[[], Any]) -> Score:
    """An outlier detector of scikit-learn."""
    return lambda train, test: make().fit(train).score_samples(test)


def pyod(name: str) -> Score:
    """A detector of PyOD; its scores are higher for anomalies."""

    def score(train: np.ndarray, test: np.ndarray) -> np.ndarray:
        if name == "ECOD":
            from pyod.models.ecod import ECOD as Made
        else:
            from pyod.models.copod import COPOD as Made
        made = Made()
        made.fit(train)
        return -made.decision_function(test)

    return score


def methods() -> dict[str, Score]:
    """All methods by name."""
    return {f"offmap {spec}": ours(spec) for spec in OURS} | {
        "scikit-learn IForest": scikit_learn(lambda: IsolationForest(random_state=0)),
        "scikit-learn LOF": scikit_learn(lambda: LocalOutlierFactor(novelty=True)),
        "scikit-learn OCSVM": scikit_learn(OneClassSVM),
        "PyOD ECOD": pyod("ECOD"),
        "PyOD COPOD": pyod("COPOD"),
    }


def divide(file: Path, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal rows to fit on, rows to test, and whether those are normal."""
    with np.load(file, allow_pickle=False) as arrays:
        rows, anomalous = arrays["X"].astype(np.float32), arrays["y"].astype(int) == 1
    rng = np.random.default_rng(seed)
    normal, strange = rng.permutation(np.flatnonzero(~anomalous)), rng.permutation(np.flatnonzero(anomalous))[:MOST]
    cut = round(0.7 * len(normal))
    fit, held = normal[:cut][:MOST], normal[cut:][:MOST]
    mean, spread = rows[fit].mean(axis=0), rows[fit].std(axis=0)
    scaled = (rows - mean) / np.where(spread > 0, spread, 1)
    test = np.concatenate([held, strange])
    return scaled[fit], scaled[test], np.arange(len(test)) < len(held)


def measure(file: Path, seed: int, chosen: Sequence[str]) -> dict[str, Any]:
    """AUROC of each method on one set, in per cent; a reason where it cannot run."""
    train, test, normal = divide(file, seed)
    found: dict[str, Any] = {"rows": [len(train), int(normal.sum()), int((~normal).sum())], "columns": train.shape[1]}
    auroc, seconds, refused = {}, {}, {}
    for name, score in methods().items():
        if name not in chosen:
            continue
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                auroc[name] = round(100 * roc_auc_score(normal, score(train, test)), 2)
        except (offmap.errors.OffmapError, ImportError) as error:
            refused[name] = " ".join(str(error).split())[:200]
        seconds[name] = round(time.perf_counter() - started, 3)
    return found | {"auroc": auroc, "seconds": seconds, "refused": refused}


def summary(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean AUROC and mean rank (1 is best) over the sets that every method could be measured on."""
    names = list(methods())
    rows = [entry["auroc"] for runs in found.values() for entry in runs.values()]
    whole = np.array([[row[name] for name in names] for row in rows if all(name in row for name in names)])
    ranks = (
        (whole[:, None, :] > whole[:, :, None]).sum(axis=2)
        + 1
        + ((whole[:, None, :] == whole[:, :, None]).sum(axis=2) - 1) / 2
    )
    return {
        name: {
            "auroc": round(float(whole[:, place].mean()), 2),
            "rank": round(float(ranks[:, place].mean()), 2),
            "runs": len(whole),
        }
        for place, name in enumerate(names)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--methods", nargs="*", choices=list(methods()), default=list(methods()))
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    there = kept.read(RESULTS).get("sets", {})
    for file in sorted(given.sets.glob("*.npz"), key=lambda file: file.stat().st_size):
        name = file.stem.partition("_")[2]
        for seed in given.seeds:
            if (given.only and name not in given.only) or (str(seed) in there.get(name, {}) and not given.again):
                continue
            entry = measure(file, seed, given.methods)
            kept.add(RESULTS, {"sets": {name: {str(seed): entry}}})
            print(name, entry["rows"], entry["columns"], entry["auroc"], flush=True)
    whole = kept.read(RESULTS)["sets"]
    kept.add(RESULTS, {"summary": summary(whole)})
    for name, numbers in sorted(summary(whole).items(), key=lambda item: item[1]["rank"]):
        print(f"{name:<34}{numbers['auroc']:8.2f}{numbers['rank']:8.2f}")


if __name__ == "__main__":
    main()
