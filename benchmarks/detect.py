"""Detection side by side with pytorch-ood: equal answers first, then time and memory, as ratios within one run.

``python benchmarks/detect.py`` runs all cases, prints the table and writes ``results/detect.json``; ``--only NAME``
runs one case, ``--show`` prints the table of the last run. From pictures to a table of AUROCs is in ``suite.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import peers
from worker import REPEATS, THREADS, Worker, ratio, side_by_side

RESULTS = Path(__file__).with_name("results") / "detect.json"
INPUTS, CLASSES, WIDTH, KNOWN = 2_000, 1_000, 512, 10_000
MAPPED = ["react(90)|energy", "dice(0.7)|energy", "mahalanobis", "vim", "rmds", "kl_matching", "she"]
MAPPED_ROWS = 2**20
BATCHES = (None, 128)
MEGABYTE = 10**6


def arrays(folder: Path) -> None:
    """Rectified features of 1,000 classes, as a large network gives them, and a head."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(CLASSES, WIDTH))
    mixing = np.eye(WIDTH) + 0.02 * rng.normal(size=(WIDTH, WIDTH))

    def features(labels: np.ndarray) -> np.ndarray:
        return np.maximum(means[labels] + rng.normal(size=(len(labels), WIDTH)) @ mixing, 0).astype(np.float32)

    labels = np.arange(KNOWN) % CLASSES
    made = {
        "labels": labels,
        "known": features(labels),
        "test": features(rng.integers(0, CLASSES, INPUTS)),
        "weight": rng.normal(size=(CLASSES, WIDTH)).astype(np.float32) / WIDTH**0.5,
        "bias": rng.normal(size=CLASSES).astype(np.float32),
    }
    for name, array in made.items():
        np.save(folder / f"{name}.npy", array)


def agreement(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Rank correlation, and the largest relative error once theirs are multiplied by the factor that fits best."""
    from scipy.stats import spearmanr

    factor = float(ours @ theirs / (theirs @ theirs))
    error = np.abs(ours - factor * theirs).max() / np.abs(ours).max()
    return {"rank": float(spearmanr(ours, theirs).statistic), "factor": factor, "error": float(error)}


def require_equal(name: str, found: dict[str, float]) -> None:
    """Stop unless both libraries gave the same answer."""
    if found["rank"] < 1 - 1e-6 or found["error"] > 1e-4:
        raise SystemExit(f"{name}: the answers differ, so times mean nothing: {found}")


def scoring(method: str, at_least: float) -> dict[str, Any]:
    """Scoring 2,000 inputs of 512 features, 1,000 classes."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(sys.executable, "detect_offmap.py") as ours,
        Worker(peers.environment(), "detect_pytorch_ood.py") as theirs,
    ):
        folder = Path(scratch)
        arrays(folder)
        answers, peaks = [], {}
        for name, worker in (("offmap", ours), ("pytorch-ood", theirs)):
            worker("load", folder=scratch)
            worker("fit", method=method)
            peaks[name] = worker.peak("score", method=method)
            worker("write", file=str(folder / "scores.npy"))
            answers.append(np.load(folder / "scores.npy"))
        found = agreement(*answers)
        require_equal(method, found)
        ours("products", classes=CLASSES)
        tried = {}
        for batch in BATCHES:  # pytorch-ood gets the batch size that suits it better
            theirs("score", method=method, batch=batch)
            tried[theirs.seconds] = batch
        batch = tried[min(tried)]
        own, other, bare = side_by_side(
            [
                (ours, "score", {"method": method}),
                (theirs, "score", {"method": method, "batch": batch}),
                (ours, "products", {"classes": CLASSES}),
            ]
        )
        result = {
            "what": f"{method}: scoring {INPUTS} inputs, {CLASSES} classes, {WIDTH} features",
            "agreement": found,
            "their_batch": batch,
            "seconds": {"offmap": own, "pytorch-ood": other, "two matrix products": bare},
            "ratio": ratio(other, own),
            "ratio_of_cpu_time": ratio(other, own, "cpu"),
            "at_least": at_least,
            "peak_megabytes": {name: peak / MEGABYTE for name, peak in peaks.items()},
        }
        if method == "mahalanobis":
            result |= {
                "over_products": ratio(own, bare),
                "over_products_of_cpu_time": ratio(own, bare, "cpu"),
                "over_products_at_most": 2.0,
            }
        return result


def mapped() -> dict[str, Any]:
    """Anonymous memory above the baseline while fitting on 2 GB of activations mapped from disk."""
    from offmap.activation_files import array_file, write_meta
    from offmap.activations import Activations, Head

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = folder / array_file("features")
        features = np.lib.format.open_memmap(file, "w+", np.float32, (MAPPED_ROWS, WIDTH))
        for start in range(0, MAPPED_ROWS, 8192):
            features[start : start + 8192] = np.maximum(rng.standard_normal((8192, WIDTH), np.float32), 0)
        np.save(folder / array_file("labels"), np.arange(MAPPED_ROWS) % CLASSES)
        head = Head(rng.standard_normal((CLASSES, WIDTH), np.float32))
        write_meta(folder, {"features": MAPPED_ROWS, "labels": MAPPED_ROWS}, head.arrays())
        assert len(Activations.open(folder)) == MAPPED_ROWS
        peaks = {}
        for method in MAPPED:
            with Worker(sys.executable, "detect_offmap.py") as ours:
                ours("warm_up")
                peaks[method] = ours.peak("fit_mapped", method=method, folder=scratch) / MEGABYTE
        return {
            "what": f"fitting on {file.stat().st_size / 1e9:.2f} GB of features, {CLASSES} classes",
            "peak_megabytes_above_baseline": peaks,
            "at_most": 500.0,
        }


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "mahalanobis": lambda: scoring("mahalanobis", 100.0),
    "dice": lambda: scoring("dice(0.7)|energy", 20.0),
    "gradnorm": lambda: scoring("gradnorm", 50.0),
    "mapped": mapped,
}


def table(results: dict[str, Any]) -> str:
    """The results as lines of text."""
    lines = [f"{'':<12}{'times faster':>13}{'in CPU time':>13}{'goal':>7}{'peak MB, offmap':>17}{'pytorch-ood':>13}"]
    for name, case in results["cases"].items():
        if "ratio" in case:
            peaks = case["peak_megabytes"]
            lines.append(
                f"{name:<12}{case['ratio']:>13.1f}{case['ratio_of_cpu_time']:>13.1f}{case['at_least']:>7.0f}"
                f"{peaks['offmap']:>17.0f}{peaks['pytorch-ood']:>13.0f}"
            )
        if "over_products" in case:
            lines.append(f"  its time is {case['over_products']:.2f} of two bare matrix products (goal: at most 2)")
        if "at_most" in case:
            peaks = case["peak_megabytes_above_baseline"]
            shown = ", ".join(f"{method} {peak:.0f}" for method, peak in peaks.items())
            lines.append(f"{name:<12}{case['what']}: peak MB {shown} (goal: at most {case['at_most']:.0f})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CASES, action="append", help="run this case; may be given several times")
    parser.add_argument("--show", action="store_true", help="print the table of the last run")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    if not options.show:
        for name in options.only or CASES:
            print(f"{name} ...", file=sys.stderr, flush=True)
            load = os.getloadavg()[0]
            case = CASES[name]() | {"load_average_before": round(load, 2)}
            done = results["cases"] | {name: case}
            results["cases"] = {known: done[known] for known in CASES if known in done}
            results |= {"threads": THREADS, "repeats": REPEATS, "versions": peers.versions()}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
