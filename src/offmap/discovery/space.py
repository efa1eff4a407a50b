"""The space rows are grouped in: whitened by the known classes, smoothed over neighbours.

Known classes show which directions vary inside a class and should not count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.discovery.assign import Floats, Labels, Metric, Rows
from offmap.discovery.kmeans import best_of, class_means, lloyd, plus_plus
from offmap.discovery.tree import TREE_GROUPS, ward_tree
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit

SMOOTHING_STEPS = 2
ANCHORS = 30_000
WRITTEN = 8192  # rows at a time
FEW_GROUPS = 20
MORE_STARTS = 4


@dataclass(frozen=True)
class Space:
    """How rows are prepared before they are grouped.

    Parameters
    ----------
    metric : Metric, default="cosine"
        ``"cosine"`` scales rows to length 1, before and after whitening.
    shrinkage : float or None, default=None
        How far the within-class covariance is pulled towards a multiple of the identity, above 0 and at most 1;
        `None` does not whiten.
    neighbours : int, default=0
        Average each row with so many nearest ones, twice; 0 does not.
    standardize : bool, default=False
        Give every column mean 0 and standard deviation 1 first.
    """

    metric: Metric = "cosine"
    shrinkage: float | None = None
    neighbours: int = 0
    standardize: bool = False

    def __str__(self) -> str:
        parts: list[str] = [self.metric]
        if self.standardize:
            parts.append("columns standardized")
        if self.shrinkage is not None:
            parts.append(f"whitened by known classes (shrinkage {self.shrinkage:g})")
        if self.neighbours:
            parts.append(f"smoothed over {self.neighbours} neighbours")
        return ", ".join(parts)

    def prepare(self, features: Any, labels: Labels | None = None) -> Floats:
        """Return the rows in this space; `labels` number the known classes from 0, -1 where unknown.

        Rows of a memory map are written to a temporary file, which vanishes with the answer, block by block.

        Examples
        --------
        >>> Space("cosine").prepare(np.array([[3.0, 4.0]]))
        array([[0.6, 0.8]], dtype=float32)
        """
        rows = _scratch(features)
        source = Rows(features, self.metric)
        if self.standardize:
            centre, spread = column_spread(features)
            _in_blocks(rows, lambda start, stop: self._ended((features[start:stop] - centre) / spread))
        else:
            _in_blocks(rows, source.block)
        if self.shrinkage is not None and labels is not None and (labels >= 0).any():
            white = whitening(rows, labels, self.shrinkage)
            centre = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
            _in_blocks(rows, lambda start, stop: self._ended((rows[start:stop] - centre) @ white))
        if self.neighbours and len(rows) > self.neighbours:
            smooth(rows, self.neighbours)
            _in_blocks(rows, lambda start, stop: self._ended(rows[start:stop]))
        return rows

    def _ended(self, rows: Floats) -> Floats:
        return np.asarray(unit(rows) if self.metric == "cosine" else rows, np.float32)

    def to_json(self) -> dict[str, Any]:
        """Plain values to save."""
        return asdict(self)


def column_spread(features: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the mean and the standard deviation of every column, 1 for a column that never changes."""
    total, squares, shift = 0.0, 0.0, np.asarray(features[0], np.float64)
    for start in range(0, len(features), WRITTEN):
        block = np.asarray(features[start : start + WRITTEN], np.float64) - shift
        total, squares = total + block.sum(axis=0), squares + (block**2).sum(axis=0)
    mean = total / len(features)
    spread = np.sqrt(np.maximum(squares / len(features) - mean**2, 0))
    return shift + mean, np.where(spread > 1e-9 * np.maximum(np.abs(shift + mean), 1e-300), spread, 1.0)


def whitening(features: Any, labels: Labels, shrinkage: float) -> Floats:
    """``W`` with ``(1−s)·S + s·(tr S / d)·I = (W Wᵀ)⁻¹``, S the covariance inside known classes.

    Multiplying rows by it makes the known classes round; shrinkage as in Ledoit & Wolf (2004), but chosen by
    what is found, not by what is estimated best.

    Parameters
    ----------
    features, labels : array-like and ndarray of int64
        Rows, and their known class from 0; rows marked -1 are left out.
    shrinkage : float
        Above 0, so that W exists; 1 only scales.

    Examples
    --------
    >>> rows = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> whitening(rows, np.zeros(4, int), 1.0)
    array([[0.7745..., 0.        ],
           [0.        , 0.7745...]], dtype=float32)
    """
    rows = Rows(np.asarray(features))
    means = class_means(rows, labels, int(labels.max()) + 1)
    labelled = np.flatnonzero(labels >= 0)
    scatter = np.zeros((rows.width, rows.width))
    for start in range(0, len(labelled), WRITTEN):
        part = labelled[start : start + WRITTEN]
        inside = rows.take(part) - means[labels[part]]
        scatter += inside.T @ inside
    scatter /= max(len(labelled) - len(np.unique(labels[labelled])), 1)
    width = len(scatter)
    level = max(float(np.trace(scatter)) / width, 1e-12)
    values, vectors = np.linalg.eigh((1 - shrinkage) * scatter + shrinkage * level * np.eye(width))
    return np.asarray((vectors / np.sqrt(np.maximum(values, 1e-9 * level))) @ vectors.T, np.float32)


def smooth(rows: Floats, neighbours: int) -> None:
    """Average each row, in place, with its nearest ones, `SMOOTHING_STEPS` times: a low-pass filter on their graph.

    Rows of one class share noise that differs between neighbours; the average keeps what they have in common
    (Zhang et al. 2019, adaptive graph convolution, with a fixed number of steps). Of more than 30,000 rows, so many
    spread evenly serve as everybody's neighbours.

    Examples
    --------
    >>> rows = np.array([[0.0], [8.0], [100.0], [108.0]], np.float32)
    >>> smooth(rows, 1)
    >>> rows.ravel().tolist()
    [3.0, 5.0, 103.0, 105.0]
    """
    anchors = np.linspace(0, len(rows) - 1, min(len(rows), ANCHORS)).astype(np.int64)
    bank = Bank.of(rows[anchors], normalize=False)
    near = np.empty((len(rows), neighbours + 1), np.int32)
    _in_blocks(near, lambda start, stop: bank.search(rows[start:stop], neighbours + 1)[1])
    for _ in range(SMOOTHING_STEPS):
        held = np.array(rows[anchors])

        def averaged(start: int, stop: int, held: Floats = held) -> Floats:
            total = np.zeros_like(rows[start:stop])
            for column in near[start:stop].T:
                total += held[column]
            return np.asarray((rows[start:stop] + total / near.shape[1]) / 2, np.float32)

        _in_blocks(rows, averaged)


def picked(rows: Floats, index: Labels) -> Floats:
    """Return a copy of these rows, in memory or in a file as they are themselves."""
    out = _scratch(rows, len(index))
    _in_blocks(out, lambda start, stop: rows[index[start:stop]])
    return out


def _scratch(features: Any, n: int | None = None) -> Floats:
    """Room for so many rows as float32: in memory, or in a nameless file when the features are in a file too."""
    shape = (len(features) if n is None else n, features.shape[1])
    if not isinstance(features, np.memmap):
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=shape)


def _in_blocks(rows: npt.NDArray[Any], made: Callable[[int, int], npt.NDArray[Any]]) -> None:
    """Fill rows from a function of where a block starts and stops."""
    for start in range(0, len(rows), WRITTEN):
        stop = min(start + WRITTEN, len(rows))
        rows[start:stop] = made(start, stop)


def group(
    rows: Rows, k: int, seed: int, labels: Labels | None = None, n_known: int = 0, max_iter: int = 100
) -> tuple[Labels, Floats]:
    """Constrained Ward tree, then semi-supervised k-means: groups and centres, known class i in group i.

    With few groups one wrong merge in the tree costs much and further starts cost little: up to 20 groups, four
    starts by k-means++ are tried too, and the lowest sum of squares wins. Thousands of groups have no tree.
    """
    rng = np.random.default_rng(seed)
    starts = [ward_tree(rows, k, rng, labels, n_known).means(k, rows.metric)] if k <= TREE_GROUPS else []
    if k <= FEW_GROUPS or not starts:
        held = labels if labels is not None and n_known else None
        given = None if held is None else class_means(rows, held, n_known)
        free = None if held is None else np.flatnonzero(held < 0)
        starts += [plus_plus(rows, k, rng, given=given, free=free) for _ in range(MORE_STARTS)]
    fit = best_of(lloyd(rows, start, forced=labels, max_iter=max_iter) for start in starts)
    return fit.labels, fit.centres
