"""offmap's side of `detect.py` and `agree.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import offmap
from offmap.models.densenet import DenseNet
from worker import THREADS, serve

torch.set_num_threads(THREADS)
HELD: dict[str, Any] = {}


def load(folder: str) -> None:
    """Read the arrays of a case: features and labels to fit on, features to score, the head."""
    arrays = {file.stem: np.load(file) for file in Path(folder).glob("*.npy")}
    head = offmap.Head(arrays["weight"], arrays["bias"])
    HELD["known"] = offmap.Activations(arrays["known"], head, labels=arrays["labels"])
    HELD["test"] = offmap.Activations(arrays["test"], head)


def fit(method: str) -> None:
    """Fit."""
    HELD[method] = offmap.detector(method).fit(HELD["known"])


def score(method: str) -> None:
    """Score; the answer stays here until `write`."""
    HELD["scores"] = HELD[method].score(HELD["test"])


def forget(method: str) -> None:
    """Give up a fitted detector, so that its memory does not count for the next one."""
    del HELD[method]


def write(file: str) -> None:
    """Save the last scores."""
    np.save(file, HELD["scores"])


def products(classes: int) -> None:
    """The two float32 matrix products without which no Mahalanobis distance to all class means can be had."""
    features = torch.from_numpy(HELD["test"].features)
    width = features.shape[1]
    if "whitening" not in HELD:
        HELD.update(whitening=torch.randn(width, width), means=torch.randn(width, classes))
    HELD["product"] = (features @ HELD["whitening"]) @ HELD["means"]


def compare(methods: list[str], folder: str, weights: str, batch: int) -> dict[str, dict[str, dict[str, float]]]:
    """From pictures to the table: one pass of the network over each set, then `offmap.compare`."""
    pictures = {file.stem: np.load(file) for file in Path(folder).glob("*.npy")}
    net = offmap.Network(DenseNet.load(weights))

    def activations(name: str, labels: str | None = None) -> offmap.Activations:
        given = None if labels is None else pictures[labels]
        return net.extract(pictures[name], labels=given, batch_size=batch, progress=False)

    ood = {name.removeprefix("ood-"): activations(name) for name in sorted(pictures) if name.startswith("ood-")}
    table = offmap.compare(methods, activations("known", "labels"), activations("test", "test_labels"), ood)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in methods}
    for row in table.rows:
        if row.ood in ood:
            found[row.method][row.ood] = {"fpr95": row.fpr95, "auroc": row.auroc}
    return found


def odin(folder: str, weights: str, file: str, epsilon: float) -> None:
    """ODIN's scores of pictures."""
    pictures = np.load(Path(folder) / "test.npy")
    made = offmap.detector(f"odin(epsilon={epsilon})").finalize()
    acts = offmap.Network(DenseNet.load(weights)).extract(pictures, requirements=made.requirements, progress=False)
    np.save(file, made.score(acts))


def warm_up() -> None:
    """Import and start what any fit needs, so that it does not count as memory of one."""
    rng = np.random.default_rng(0)
    acts = offmap.Activations(rng.random((64, 8)), offmap.Head(rng.random((4, 8))), labels=np.arange(64) % 4)
    offmap.detector("vim").fit(acts)


def fit_mapped(method: str, folder: str) -> None:
    """Fit on activations mapped from a folder."""
    offmap.detector(method).fit(offmap.Activations.open(folder))


if __name__ == "__main__":
    tasks = (load, fit, score, forget, write, products, compare, odin, warm_up, fit_mapped)
    serve({task.__name__: task for task in tasks})
