"""Do offmap and pytorch-ood give the same scores? Every method that both have, on features of a real network.

``python benchmarks/agree.py`` fits both on 10,000 CIFAR-10 training features of the folder ``OFFMAP_DATA``, scores the
test set and SVHN, prints a table and writes ``results/agree.json``. Where scores differ, the reason is beside them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import detect
import peers
from references import REFERENCES
from worker import THREADS, Worker

RESULTS = Path(__file__).with_name("results") / "agree.json"
SCORED = 4_000
ODIN_PICTURES = 128
SAME = "the same"
NOTES = {
    "msp": "offmap gives log p, which orders confident inputs where p rounds to 1 in float32",
    "mcm": "offmap gives log p",
    "entropy": "pytorch-ood cuts probabilities at 1e-7",
    "gen": "pytorch-ood cuts probabilities at 1e-7, and averages where the paper sums",
    "temperature_scaling|msp": "pytorch-ood's search of T hardly leaves 1, far from the largest likelihood",
    "openmax(tail=25)": "P(unknown); pytorch-ood, like libMR, shifts distances by 10,000 before it fits",
    "mahalanobis": "pytorch-ood inverts in float32; it halves the distance and does not divide the scatter by n",
    "rmds": "pytorch-ood inverts in float32 and does not divide the scatters by n",
    "gmm": "another model: pytorch-ood has one Gaussian per labelled class, offmap a mixture that needs no labels",
    "vim": "pytorch-ood takes the origin and the eigenvectors in float32",
    "pnml": "pytorch-ood inverts in float32, and divides by log C",
    "gradnorm": "pytorch-ood averages over classes where the authors sum",
    "vra(60, 95)|energy": "pytorch-ood has thresholds per unit and lifts weak values to the lower one; the paper has "
    "one pair for all units and sets weak values to 0",
}
TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "msp": np.exp,
    "temperature_scaling|msp": np.exp,
    "mcm": np.exp,
    "openmax(tail=25)": lambda log_odds: -1 / (1 + np.exp(log_odds)),
}
METHODS = [
    "msp", "maxlogit", "energy", "entropy", "gen", "kl_matching", "temperature_scaling|msp", "openmax(tail=25)",
    "mahalanobis", "rmds", "gmm", "knn(50)", "nnguide(10, alpha=1.0)", "vim", "she", "fdbd", "nci", "pnml", "gradnorm",
    "dice(0.7)|energy", "react(90)|energy", "vra(60, 95)|energy", "ash_p(65)|energy", "ash_b(65)|energy",
    "ash_s(90)|energy", "scale(85)|energy", "lts(95)|energy", "mcm",
]  # fmt: skip
NOT_COMPARED = {
    "mc_dropout": "random masks of different generators",
    "gram": "pytorch-ood draws the held-out inputs at random; offmap chooses them by a hash of their content",
    "nac": "pytorch-ood's bins have other widths; compared with its authors' code by agree_authors.py",
    "rankfeat": "needs a network cut in two; tested against NumPy's singular value decomposition instead",
}


def arrays(folder: Path, data: Path) -> None:
    """Features of the CIFAR-10 network: training inputs to fit on, test inputs and SVHN to score."""
    from safetensors.numpy import load_file

    head = load_file(data / "weights" / "densenet100bc_cifar10.safetensors")
    parts = {name: np.load(data / "features" / f"cifar10-densenet__{name}.npz") for name in SETS}
    made = {
        "known": parts["cifar10_train10k"]["features"].astype(np.float32),
        "labels": parts["cifar10_train10k"]["labels"].astype(np.int64),
        "test": np.concatenate([parts[name]["features"][: SCORED // 2] for name in SETS[1:]]).astype(np.float32),
        "weight": head["fc.weight"],
        "bias": head["fc.bias"],
    }
    for name, array in made.items():
        np.save(folder / f"{name}.npy", array)


SETS = ("cifar10_train10k", "cifar10_test", "svhn_test10k")


def scores(worker: Worker, method: str, file: Path) -> np.ndarray:
    """One side's answer."""
    worker("fit", method=method)
    worker("score", method=method)
    worker("write", file=str(file))
    return np.load(file)


def measure(data: Path) -> dict[str, Any]:
    """The agreement of each method."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(sys.executable, "detect_offmap.py") as ours,
        Worker(peers.environment(), "detect_pytorch_ood.py") as theirs,
    ):
        folder = Path(scratch)
        arrays(folder, data)
        for worker in (ours, theirs):
            worker("load", folder=scratch)
        plain = {
            file.stem: np.load(file) if file.stem == "labels" else np.load(file).astype(float)
            for file in folder.glob("*.npy")
        }
        found: dict[str, Any] = {}
        for method in METHODS:
            mine, other = (scores(worker, method, folder / "scores.npy") for worker in (ours, theirs))
            if method in TRANSFORMS:
                mine = TRANSFORMS[method](mine)
            found[method] = detect.agreement(mine, other)
            if method in REFERENCES:
                truth = REFERENCES[method](plain)
                found[method] |= {
                    "offmap_from_float64": detect.agreement(truth, mine)["error"],
                    "pytorch_ood_from_float64": detect.agreement(truth, other)["error"],
                }
            print(f"{method} ...", file=sys.stderr, flush=True)
        found["odin"] = _odin(ours, theirs, folder, data)
    return found


def _odin(ours: Worker, theirs: Worker, folder: Path, data: Path) -> dict[str, float]:
    from offmap.data import scale_images, tiles

    known, unknown = (tiles(name, data).inputs[: ODIN_PICTURES // 2] for name in ("cifar10_test", "svhn_test10k"))
    np.save(folder / "test.npy", scale_images(np.concatenate([known, unknown]), detect.MEAN, detect.STD))
    answers = []
    for worker in (ours, theirs):
        weights = str(data / "weights" / "densenet100bc_cifar10.safetensors")
        worker("odin", folder=str(folder), weights=weights, file=str(folder / "odin.npy"), epsilon=0.0014)
        answers.append(np.load(folder / "odin.npy"))
    return detect.agreement(np.exp(answers[0]), answers[1])


def main() -> None:
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA does not name a folder with the data sets")
    found = measure(Path(data))
    lines = [
        "errors are relative to the largest score, after the factor; from float64: of offmap and of pytorch-ood",
        f"{'method':<26}{'rank corr.':>12}{'error':>10}{'factor':>11}{'from float64':>20}",
    ]
    for method, values in found.items():
        same = values["rank"] > 1 - 1e-6 and values["error"] < 1e-4
        values["note"] = NOTES.get(method, "") or (SAME if same else "")
        apart = [values.get(f"{name}_from_float64") for name in ("offmap", "pytorch_ood")]
        shown = "".join("" if error is None else f"{error:>10.1e}" for error in apart)
        numbers = f"{values['rank']:>12.7f}{values['error']:>10.1e}{values['factor']:>11.5g}{shown:>20}"
        lines.append(f"{method:<26}{numbers}  {values['note']}")
    lines += [f"{method:<26}{'not compared':>24}  {reason}" for method, reason in NOT_COMPARED.items()]
    print("\n".join(lines))
    results = {"threads": THREADS, "versions": peers.versions(), "methods": found, "not_compared": NOT_COMPARED}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
