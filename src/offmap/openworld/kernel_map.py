"""A map of features under which a linear head draws curved boundaries, and the test whether that helps.

Features of a good encoder are told apart by a linear head. Raw ones, such as pixels, are not: classes that a linear
head confuses lie apart for a Gaussian kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap.activations import Head
from offmap.columns import has_mixed_scales
from offmap.typing import Array, Float32Array, FloatArray, IntArray

if TYPE_CHECKING:
    from torch import nn

LANDMARKS = 500
REACH = 2.0  # the kernel of two rows at the median distance is exp(-2)
LEAST_EIGENVALUE = 1e-4  # of the largest: what is below is noise that the map would enlarge
FOLDS = 3
TRIAL_ROWS = 2000
TRIAL_CLASSES = 20
LEVEL = 0.02  # every round asks again, so a chance in ten would come up sooner or later
_BLOCK = 4096

FitHead = Callable[[Array, IntArray, int], Head]


@dataclass(frozen=True)
class KernelMap:
    """Features whose dot products are about those of a Gaussian kernel (Nyström; Williams and Seeger 2001).

    Parameters
    ----------
    centre : ndarray of shape (width,)
        Taken from every row first.
    scale : ndarray of shape (width,)
        What columns are multiplied with then.
    landmarks : ndarray of shape (m, width)
        Rows that others are compared with, centred and scaled.
    weight : ndarray of shape (m, n_features)
        From kernel values to features.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(50, 4))
    >>> made = fit_kernel_map(rows)
    >>> made(rows).shape, made.width
    ((50, 50), 4)
    """

    centre: Float32Array = field(repr=False)
    scale: Float32Array = field(repr=False)
    landmarks: Float32Array = field(repr=False)
    weight: Float32Array = field(repr=False)

    @property
    def width(self) -> int:
        """How many features it reads."""
        return len(self.centre)

    def __call__(self, rows: Array) -> Float32Array:
        """Return the mapped features, block by block."""
        parts = [self._map(np.asarray(rows[i : i + _BLOCK])) for i in range(0, max(len(rows), 1), _BLOCK)]
        return np.concatenate(parts)

    def _map(self, rows: Array) -> Float32Array:
        moved = (rows - self.centre) * self.scale
        return np.asarray(np.exp(-squared_distances(moved, self.landmarks)) @ self.weight, np.float32)

    def arrays(self) -> dict[str, Float32Array]:
        """Return its arrays by name, as they are saved."""
        return {"centre": self.centre, "scale": self.scale, "landmarks": self.landmarks, "kernel": self.weight}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> KernelMap | None:
        """Make it from what `arrays` gave; `None` where there is none."""
        if "kernel" not in arrays:
            return None
        return cls(*(np.asarray(arrays[name], np.float32) for name in ("centre", "scale", "landmarks", "kernel")))

    def module(self) -> nn.Module:
        """Return it as a torch layer, such as to export it."""
        return _kernel_module(self)


def fit_kernel_map(rows: Array, seed: int = 0, landmarks: int = LANDMARKS) -> KernelMap:
    """Fit a map by comparing rows with a sample of themselves.

    The width of the kernel follows the median distance of rows. Columns are standardised where one would drown the
    others.

    Parameters
    ----------
    rows : array
        One row of features per input.
    seed : int, default 0
        Draws the sample.
    landmarks : int, default 500
        How many rows to compare with at most.
    """
    given = np.asarray(rows, np.float64)
    centre = given.mean(axis=0)
    spread = given.std(axis=0) if has_mixed_scales(given) else np.ones(given.shape[1])
    scale = 1 / np.maximum(spread, 1e-6 * max(float(spread.max()), 1e-300))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(given))[:landmarks])
    points = (given[chosen] - centre) * scale
    distances = squared_distances(points, points)
    apart = distances[np.triu_indices(len(points), 1)]
    stretch = np.sqrt(REACH / max(float(np.median(apart)) if len(apart) else 1.0, 1e-12))
    values, vectors = np.linalg.eigh(np.exp(-distances * stretch**2))
    kept = values > LEAST_EIGENVALUE * values[-1]
    return KernelMap(
        *(
            np.asarray(one, np.float32)
            for one in (centre, scale * stretch, points * stretch, vectors[:, kept] / np.sqrt(values[kept]))
        )
    )


def squared_distances(one: Array, other: Array) -> FloatArray:
    """Return the squared distance of each row of one to each row of the other.

    Examples
    --------
    >>> squared_distances(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([[25.,  1.]])
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return np.maximum((a * a).sum(axis=1)[:, None] - 2 * a @ b.T + (b * b).sum(axis=1), 0)


def prefers_kernel(rows: Array, labels: IntArray, fit_plain: FitHead, fit_mapped: FitHead, seed: int = 0) -> bool:
    """Tell whether a head over mapped features is significantly better on left-out rows than one over plain ones.

    Of the rows that just one of both gets right, more than half are the mapped one's: an exact one-sided test (McNemar)
    at a level of 0.02. Where there is no clear difference, the plain head is the simpler one.

    Parameters
    ----------
    rows, labels : array
        Labelled rows; of many, a sample of rows and classes is looked at.
    fit_plain, fit_mapped : callable
        From rows, labels and the number of classes to a head.
    seed : int, default 0
        Draws the sample and the folds.

    Examples
    --------
    >>> from offmap.openworld.learners import linear_head, mapped_head
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(400, 2))
    >>> ring = (np.square(rows).sum(axis=1) > 1.4).astype(int)
    >>> prefers_kernel(rows, ring, linear_head, mapped_head)
    True
    >>> prefers_kernel(rows, (rows[:, 0] > 0).astype(int), linear_head, mapped_head)
    False
    """
    from scipy.stats import binom

    rng = np.random.default_rng(seed)
    classes = np.flatnonzero(np.bincount(labels, minlength=1) >= FOLDS)
    classes = np.sort(rng.permutation(classes)[:TRIAL_CLASSES])
    inside = rng.permutation(np.flatnonzero(np.isin(labels, classes)))[:TRIAL_ROWS]
    points, truth = np.asarray(rows)[inside], np.searchsorted(classes, labels[inside])
    fold = np.empty(len(inside), np.int64)
    fold[np.argsort(truth, kind="stable")] = np.arange(len(inside)) % FOLDS  # every class goes to all folds
    only = np.zeros(2, np.int64)
    for number in range(FOLDS if len(classes) > 1 else 0):
        out = fold == number
        if len(np.unique(truth[~out])) < len(classes):
            return False
        mapped = fit_kernel_map(points[~out], seed)(points)
        plain, curved = (
            fit(view[~out], truth[~out], len(classes))(view[out]).argmax(axis=1) == truth[out]
            for view, fit in ((points, fit_plain), (mapped, fit_mapped))
        )
        only += int((plain & ~curved).sum()), int((curved & ~plain).sum())
    return bool(binom.sf(only[1] - 1, only.sum(), 0.5) < LEVEL)


def _kernel_module(given: KernelMap) -> nn.Module:
    import torch
    from torch import nn

    class KernelLayer(nn.Module):
        """The map as a layer; the squares of landmarks are computed once."""

        centre: torch.Tensor
        scale: torch.Tensor
        landmarks: torch.Tensor
        kernel: torch.Tensor
        squares: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            for name, array in given.arrays().items():
                self.register_buffer(name, torch.from_numpy(np.array(array)))
            self.register_buffer("squares", self.landmarks.double().square().sum(dim=1).float())

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            moved = (rows - self.centre) * self.scale
            apart = (moved * moved).sum(dim=1, keepdim=True) - 2 * moved @ self.landmarks.T + self.squares
            return torch.exp(-apart.clamp(min=0)) @ self.kernel

    return KernelLayer()
