"""The CIFAR suites side by side with pytorch-ood: the same networks, the same pictures, the same methods.

``python benchmarks/suite.py`` sends pictures of each suite through both libraries, each in a process of its own, from
pictures to the table of AUROCs. The tables must agree (to 1e-4, or a reason stands beside); times and peak memory are
compared within one run, turn by turn. pytorch-ood is measured twice: as its documentation shows, with its benchmark
around the network, and by hand, by someone who extracts features once and calls its methods on them. The script writes
``results/suite.json``; ``--repeats 1`` (the default) keeps it under a quarter of an hour on one core. OpenOOD is not
run: importing its evaluator needs torchvision's compiled operators, and it is made of scripts around folders of its
own.
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

import peers
from at_hand import keep_sets_at_hand
from offmap.bench.sets import load_set
from offmap.bench.suites import SetSpec, Suite, load_suite
from offmap.data import scale_images
from worker import THREADS, Times, Worker, ratio

RESULTS = Path(__file__).with_name("results") / "suite.json"
SUITES = {
    "cifar10-densenet": "cifar100_test",
    "cifar100-densenet": "cifar10_test",
}  # with the other CIFAR as a third set
METHODS = [
    "msp", "maxlogit", "energy", "gen", "kl_matching", "mahalanobis", "rmds", "knn(50)", "vim", "she",
    "dice(0.7)|energy", "react(90)|energy",
]  # fmt: skip
TOLERANCE = 1e-4
MEGABYTE = 10**6
REASONS = {
    "msp": "in float32 the probabilities of confident inputs round to 1 and tie",
    "gen": "pytorch-ood cuts probabilities at 1e-7",
    "kl_matching": "pytorch-ood adds 1e-7 to probabilities",
    "mahalanobis": "pytorch-ood inverts the covariance in float32",
    "rmds": "pytorch-ood inverts the covariances in float32",
    "vim": "pytorch-ood takes eigenvectors in float32",
}


def pictures(suite: Suite, data: Path, folder: Path, fitted: int, tested: int) -> None:
    """The suite's own pictures as both libraries take them; known ones to fit on come from the test set too."""
    options = suite.networks[0].options
    known = load_set(suite.test, data)
    order = np.random.default_rng(1).permutation(len(known))
    parts = {"known": order[:fitted], "test": order[fitted : fitted + tested]}
    sets = {name: known.samples[rows] for name, rows in parts.items()}
    unknown = (*suite.ood, SetSpec("other-cifar", {"tiles": SUITES[suite.name]}))
    sets |= {f"ood-{ood.name}": load_set(ood, data).part(tested).samples for ood in unknown}
    for name, samples in sets.items():
        np.save(folder / f"{name}.npy", scale_images(samples.inputs, options["mean"], options["std"]))
    for name, key in (("labels", "known"), ("test_labels", "test")):
        np.save(folder / f"{name}.npy", sets[key].labels)


def measure_suite(name: str, data: Path, fitted: int, tested: int, batch: int, repeats: int) -> dict[str, Any]:
    """One suite through both libraries."""
    suite = keep_sets_at_hand(load_suite(name), data)
    weights = str(data / suite.networks[0].options["weights"])
    own: dict[str, Any] = {"methods": METHODS, "weights": weights, "batch": batch}
    tables, peaks, times = {}, {}, {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(sys.executable, "detect_offmap.py") as ours,
        Worker(peers.environment(), "detect_pytorch_ood.py") as theirs,
        Worker(peers.environment(), "detect_pytorch_ood.py") as hand,
    ):
        few, whole = Path(scratch) / "few", Path(scratch) / "whole"
        for folder, sizes in ((few, (200, 20)), (whole, (fitted, tested))):
            folder.mkdir()
            pictures(suite, data, folder, *sizes)
        calls = {"offmap": (ours, "compare"), "pytorch-ood": (theirs, "compare"),
                 "pytorch-ood by hand": (hand, "compare_by_hand")}  # fmt: skip
        idle = {library: worker.idle() for library, (worker, _) in calls.items()}
        for worker, task in calls.values():  # warms up
            worker(task, **{**own, "methods": ["energy"]}, folder=str(few))
        for _ in range(repeats):
            for library, (worker, task) in calls.items():
                peak = worker.peak(task, idle[library], **own, folder=str(whole))
                peaks[library] = max(peak, peaks.get(library, 0))
                taken: Times = times.setdefault(library, {"wall": [], "cpu": []})
                taken["wall"].append(worker.seconds)
                taken["cpu"].append(worker.cpu)
                tables[library] = worker.result
    differences = {
        method: max(abs(row["auroc"] - tables["pytorch-ood"][method][ood]["auroc"]) for ood, row in found.items())
        for method, found in tables["offmap"].items()
    }
    return {
        "methods": METHODS,
        "inputs": {"fitted": fitted, "tested, each set": tested, "unknown sets": len(suite.ood) + 1, "batch": batch},
        "auroc": tables["offmap"],
        "auroc_difference": differences,
        "reasons": {m: REASONS.get(m, "not found") for m, d in differences.items() if d > TOLERANCE},
        "seconds": times,
        "times_faster": ratio(times["pytorch-ood"], times["offmap"]),
        "times_faster_in_cpu_time": ratio(times["pytorch-ood"], times["offmap"], "cpu"),
        "times_faster_than_by_hand": ratio(times["pytorch-ood by hand"], times["offmap"], "cpu"),
        "at_least": 5.0,
        "peak_megabytes": {library: peak / MEGABYTE for library, peak in peaks.items()},
        "times_less_memory": peaks["pytorch-ood"] / peaks["offmap"],
        "memory_at_least": 3.0,
        "repeats": repeats,
        "load_average": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fitted", type=int, default=1000, help="known pictures to fit on")
    parser.add_argument("--tested", type=int, default=200, help="pictures of each test set")
    parser.add_argument("--batch", type=int, default=64, help="pictures per pass, for both libraries")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", choices=SUITES, action="append")
    options = parser.parse_args()
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA must name the folder with the data sets")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"suites": {}}
    for name in options.only or SUITES:
        sizes = (options.fitted, options.tested, options.batch)
        results["suites"][name] = measure_suite(name, Path(data), *sizes, options.repeats)
        results |= {"threads": THREADS, "versions": peers.versions()}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        case = results["suites"][name]
        print(
            f"{name}: {case['times_faster']:.1f} times faster, {case['times_less_memory']:.1f} times less memory, "
            f"largest difference of AUROC {max(case['auroc_difference'].values()):.1e}"
        )


if __name__ == "__main__":
    main()
