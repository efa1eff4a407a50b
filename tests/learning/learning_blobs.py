"""Small sets whose classes anyone can find, and thirty intents of real sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def blobs(
    n_classes: int = 6, n_known: int = 3, size: int = 30, width: int = 12, spread: float = 0.15, seed: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows, their classes, and labels: half of the rows of the first classes have one."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_classes), size)
    centres = rng.normal(size=(n_classes, width))
    rows = (centres[truth] + spread * rng.normal(size=(len(truth), width))).astype(np.float32)
    labels = np.where((truth < n_known) & (rng.random(len(truth)) < 0.5), truth, -1)
    return rows, truth, labels


def pictures(n_classes: int = 4, size: int = 20, seed: int = 0) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """8 × 8 pictures, each class bright in its own corner, with noise."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_classes), size)
    out = rng.integers(0, 60, size=(len(truth), 8, 8))
    for i, c in enumerate(truth):
        top, left = 4 * (c // 2), 4 * (c % 2)
        out[i, top : top + 4, left : left + 4] += 150
    return out.astype(np.uint8), truth


def thirty_intents(data: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows, classes and labels of BANKING77's first thirty intents: fifteen known, half of their rows labelled."""
    held = np.load(data / "text" / "banking77_minilm.npz")
    part = held["train_labels"] < 30
    rows, truth = held["train_features"][part].astype(np.float32), held["train_labels"][part].astype(np.int64)
    rng = np.random.default_rng(0)
    return rows, truth, np.where((truth < 15) & (rng.random(len(truth)) < 0.5), truth, -1)
