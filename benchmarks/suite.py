"""The CIFAR suites side by side with pytorch-ood: the same networks, the same pictures, the same methods.

``python benchmarks/suite.py`` sends pictures of each suite through both libraries, each in a process of its own, from
pictures to the table of AUROCs. First the tables must agree (to 1e-4, or a reason stands beside), then times and peak
memory are compared within one run. It writes ``results/suite.json``. OpenOOD is not run: importing its evaluator needs
torchvision's compiled operators, and it is made of scripts around folders of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import detect
import peers
from offmap.bench.sets import load_set
from offmap.bench.suites import Suite, load_suite
from offmap.data import scaled
from worker import THREADS, Worker, ratio, side_by_side

RESULTS = Path(__file__).with_name("results") / "suite.json"
SUITES = ("cifar10-densenet", "cifar100-densenet")
TOLERANCE = 1e-4
REASONS = {
    "msp": "pytorch-ood's probabilities round to 1 in float32, so confident inputs tie",
    "mahalanobis": "pytorch-ood inverts the covariance in float32",
    "rmds": "pytorch-ood inverts the covariances in float32",
    "gen": "pytorch-ood cuts probabilities at 1e-7",
    "vim": "pytorch-ood takes eigenvectors in float32",
    "knn(50)": "ties between neighbours at float32 precision",
}


def pictures(suite: Suite, data: Path, folder: Path, fitted: int, tested: int) -> None:
    """The suite's own pictures as both libraries take them; known ones to fit on come from the test set too."""
    options = suite.networks[0].options
    known = load_set(suite.test, data).part(fitted + tested)
    order = np.random.default_rng(1).permutation(len(known))
    sets = {"known": known.samples[order[:fitted]], "test": known.samples[order[fitted:]]}
    sets |= {f"ood-{ood.name}": load_set(ood, data).part(tested).samples for ood in suite.ood}
    for name, samples in sets.items():
        np.save(folder / f"{name}.npy", scaled(samples.inputs, options["mean"], options["std"]))
    for name, key in (("labels", "known"), ("test_labels", "test")):
        np.save(folder / f"{name}.npy", sets[key].labels)


def measured(name: str, data: Path, fitted: int, tested: int, repeats: int) -> dict[str, Any]:
    """One suite through both libraries."""
    suite = load_suite(name)
    weights = str(data / suite.networks[0].options["weights"])
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(sys.executable, "detect_offmap.py") as ours,
        Worker(peers.environment(), "detect_pytorch_ood.py") as theirs,
    ):
        pictures(suite, data, Path(scratch), fitted, tested)
        arguments = {"methods": detect.METHODS, "folder": scratch, "weights": weights, "batch": 64}
        peaks = {"offmap": ours.peak("compare", **arguments), "pytorch-ood": theirs.peak("compare", **arguments)}
        mine, other = ours("compare", **arguments), theirs("compare", **arguments)
        differences = {
            method: max(abs(row["auroc"] - other[method][ood]["auroc"]) for ood, row in mine[method].items())
            for method in detect.METHODS
        }
        unexplained = {m: d for m, d in differences.items() if d > TOLERANCE and m not in REASONS}
        if unexplained:
            raise SystemExit(f"{name}: the tables differ, so times mean nothing: {unexplained}")
        own, benchmark = side_by_side([(ours, "compare", arguments), (theirs, "compare", arguments)], repeats=repeats)
        return {
            "methods": detect.METHODS,
            "inputs": {"fitted": fitted, "tested, each set": tested, "unknown sets": len(suite.ood)},
            "auroc_difference": differences,
            "reasons": {m: REASONS[m] for m, d in differences.items() if d > TOLERANCE},
            "seconds": {"offmap": own, "pytorch-ood": benchmark},
            "times_faster": ratio(benchmark, own),
            "at_least": 5.0,
            "peak_megabytes": {library: peak / detect.MEGABYTE for library, peak in peaks.items()},
            "times_less_memory": peaks["pytorch-ood"] / peaks["offmap"],
            "memory_at_least": 3.0,
            "load_average": round(os.getloadavg()[0], 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fitted", type=int, default=1000, help="known pictures to fit on")
    parser.add_argument("--tested", type=int, default=500, help="pictures of each test set")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=SUITES, action="append")
    options = parser.parse_args()
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA must name the folder with the data sets")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"suites": {}}
    for name in options.only or SUITES:
        results["suites"][name] = measured(name, Path(data), options.fitted, options.tested, options.repeats)
        results |= {"threads": THREADS, "versions": peers.versions()}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        case = results["suites"][name]
        print(
            f"{name}: {case['times_faster']:.1f} times faster, {case['times_less_memory']:.1f} times less memory, "
            f"largest difference of AUROC {max(case['auroc_difference'].values()):.1e}"
        )


if __name__ == "__main__":
    main()
