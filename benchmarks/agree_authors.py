"""Do methods that no peer library has give what their authors' code gives? On random inputs, one file of each clone.

``python benchmarks/agree_authors.py --clones FOLDER`` expects clones of the repositories below in that folder, runs the
methods' own files in the peers' environment (see `agree_authors_worker.py`), prints a table and writes
``results/agree_authors.json``. Nothing of that code is part of offmap.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import detect
import offmap
import peers
from offmap.detection.scores.weiper import WeiPer
from offmap.models.cnn import CNN
from worker import Worker

RESULTS = Path(__file__).with_name("results") / "agree_authors.json"
CLONES = {
    "maha-norm": "https://github.com/mueller-mp/maha-norm",
    "CADRef": "https://github.com/LingAndZero/CADRef",
    "weiper": "https://github.com/mgranz/weiper",
    "OpenOOD": "https://github.com/Jingkang50/OpenOOD",
    "NegLabel": "https://github.com/XueJiang16/NegLabel",
}
KNOWN, TEST, CLASSES, WIDTH, SIDE = 400, 120, 5, 24, 8
REPEATS = 20  # perturbed heads of WeiPer: fewer than by default, as every one is compared
SOURCES = {
    "mahalanobis_pp": "maha-norm",
    "rmds_pp": "maha-norm",
    "cadref": "CADRef",
    "weiper": "weiper",
    "adascale_a": "OpenOOD",
    "adascale_l": "OpenOOD",
    "grood": "OpenOOD",
    "nac": "weiper",  # whose copy of OpenOOD holds it, from NAC's authors
    "neglabel": "NegLabel",
}
SPECS = {
    "nac": "nac(full=50)",  # as the authors have it, however few inputs there are
    "neglabel": "neglabel(2, temperature=0.1, groups=3)",
    "weiper": repr(WeiPer(repeats=REPEATS)),
    "adascale_a": "adascale_a(correction=10, shifted=20)|energy",
    "adascale_l": "adascale_l(correction=10, shifted=20)|energy",
}


def inputs() -> dict[str, Any]:
    """Random features round class means with a head that names them, and random pictures with a network for them."""
    rng = np.random.default_rng(0)
    means = 3 * rng.random((CLASSES, WIDTH)).astype(np.float32)
    labels = np.arange(KNOWN) % CLASSES
    known = np.maximum(means[labels] + 0.5 * rng.normal(size=(KNOWN, WIDTH)), 0).astype(np.float32)
    test = np.maximum(rng.normal(1.5, 1.0, size=(TEST, WIDTH)), 0).astype(np.float32)
    noise = torch.randn(REPEATS, CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))  # WeiPer's of seed 0
    return {
        "known": known,
        "labels": labels,
        "test": test,
        "weight": means,
        "bias": (-(means**2).sum(axis=1) / 2).astype(np.float32),
        "noise": noise.numpy(),
        "pictures": rng.random((KNOWN, 3, SIDE, SIDE)).astype(np.float32),
        "test_pictures": rng.normal(size=(TEST, 3, SIDE, SIDE)).astype(np.float32),
    }


def ours(method: str, arrays: dict[str, Any], model: CNN) -> np.ndarray:
    """offmap's scores."""
    made = offmap.detector(SPECS.get(method, method))
    if method.startswith("adascale"):
        net = offmap.Network(model)
        wanted = made.requirements
        sets = (arrays["pictures"], arrays["test_pictures"])
        known, test = (net.extract(rows, requirements=wanted, progress=False) for rows in sets)
        return made.fit(known).score(test)
    head = offmap.Head(arrays["weight"], arrays["bias"])
    known = offmap.Activations(arrays["known"], head, labels=arrays["labels"])
    return made.fit(known).score(offmap.Activations(arrays["test"], head))


def commit_of(clone: Path) -> str:
    """The commit that a clone stands at."""
    found = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def measure(clones: Path) -> dict[str, Any]:
    """The agreement of each method."""
    arrays, model = inputs(), CNN(CLASSES, channels=3).eval()
    weights = {f"cnn.{name}": value.detach().numpy() for name, value in model.state_dict().items()}
    python = peers.environment()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, array in {**arrays, **weights}.items():
            np.save(Path(scratch) / f"{name}.npy", array)
        for method, source in SOURCES.items():
            with Worker(python, "agree_authors_worker.py") as theirs:  # one each: clones share module names
                theirs("scores", method=method, folder=scratch, clones=str(clones))
            answer = np.load(Path(scratch) / "answer.npy")
            agreement = detect.agreement(ours(method, arrays, model), answer)
            found[method] = agreement | {"source": CLONES[source], "commit": commit_of(clones / source)}
    return found


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path, required=True, help="folder with the clones")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    lacking = [f"git clone {url}" for name, url in CLONES.items() if not (arguments.clones / name).is_dir()]
    if lacking:
        sys.exit(f"in {arguments.clones} first: " + "; ".join(lacking))
    found = measure(arguments.clones)
    for method, values in found.items():
        print(f"{method:<16} rank {values['rank']:.7f}  error {values['error']:.1e}  factor {values['factor']:.5g}")
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
