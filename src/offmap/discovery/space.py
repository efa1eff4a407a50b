"""The space rows are grouped in: whitened by the known classes, smoothed over neighbours.

Known classes show which directions vary inside a class and should not count.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offmap.discovery.assign import Floats, Labels, Metric, Rows, unit
from offmap.discovery.kmeans import best_of, class_means, lloyd, plus_plus
from offmap.discovery.tree import TREE_GROUPS, ward_tree
from offmap.neighbors import Bank

SMOOTHING_STEPS = 2
FEW_GROUPS = 20
MORE_STARTS = 4


@dataclass(frozen=True)
class Space:
    """How rows are prepared before they are grouped.

    Parameters
    ----------
    metric
        ``"cosine"`` scales rows to length 1, before and after whitening.
    shrinkage
        How far the within-class covariance is pulled towards a multiple of the identity, above 0 and at most 1;
        `None` does not whiten.
    neighbours
        Average each row with so many nearest ones, twice; 0 does not.
    """

    metric: Metric = "cosine"
    shrinkage: float | None = None
    neighbours: int = 0

    def __str__(self) -> str:
        parts: list[str] = [self.metric]
        if self.shrinkage is not None:
            parts.append(f"whitened by known classes (shrinkage {self.shrinkage:g})")
        if self.neighbours:
            parts.append(f"smoothed over {self.neighbours} neighbours")
        return ", ".join(parts)

    def prepare(self, features: Any, labels: Labels | None = None) -> Floats:
        """The rows in this space; `labels` number the known classes from 0, -1 where unknown.

        Examples
        --------
        >>> Space("cosine").prepare(np.array([[3.0, 4.0]]))
        array([[0.6, 0.8]], dtype=float32)
        """
        rows: Floats = np.asarray(features, np.float32)
        if self.metric == "cosine":
            rows = unit(rows)
        if self.shrinkage is not None and labels is not None and (labels >= 0).any():
            rows = (rows - rows.mean(axis=0)) @ whitening(rows, labels, self.shrinkage)
            if self.metric == "cosine":
                rows = unit(rows)
        if self.neighbours and len(rows) > self.neighbours:
            rows = smoothed(rows, self.neighbours)
            if self.metric == "cosine":
                rows = unit(rows)
        return np.ascontiguousarray(rows, np.float32)

    def to_json(self) -> dict[str, Any]:
        """Plain values to save."""
        return asdict(self)


def whitening(features: Any, labels: Labels, shrinkage: float) -> Floats:
    """``W`` with ``(1−s)·S + s·(tr S / d)·I = (W Wᵀ)⁻¹``, S the covariance inside known classes.

    Multiplying rows by it makes the known classes round; shrinkage as in Ledoit & Wolf (2004), but chosen by
    what is found, not by what is estimated best.

    Parameters
    ----------
    features, labels
        Rows, and their known class from 0; rows marked -1 are left out.
    shrinkage
        Above 0, so that W exists; 1 only scales.

    Examples
    --------
    >>> rows = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> whitening(rows, np.zeros(4, int), 1.0)
    array([[0.7745..., 0.        ],
           [0.        , 0.7745...]], dtype=float32)
    """
    rows = Rows(np.asarray(features, np.float32))
    n_known = int(labels.max()) + 1
    labelled = np.flatnonzero(labels >= 0)
    inside = rows.take(labelled) - class_means(rows, labels, n_known)[labels[labelled]]
    freedom = max(len(labelled) - len(np.unique(labels[labelled])), 1)
    scatter = (inside.T @ inside).astype(np.float64) / freedom
    width = len(scatter)
    level = max(float(np.trace(scatter)) / width, 1e-12)
    values, vectors = np.linalg.eigh((1 - shrinkage) * scatter + shrinkage * level * np.eye(width))
    return np.asarray((vectors / np.sqrt(np.maximum(values, 1e-9 * level))) @ vectors.T, np.float32)


def smoothed(rows: Floats, neighbours: int) -> Floats:
    """Each row averaged with its nearest ones, `SMOOTHING_STEPS` times: a low-pass filter on the neighbour graph.

    Rows of one class share noise that differs between neighbours; the average keeps what they have in common
    (Zhang et al. 2019, adaptive graph convolution, with a fixed number of steps).
    """
    _, near = Bank.of(rows, normalize=False).search(rows, neighbours + 1)
    for _ in range(SMOOTHING_STEPS):
        total = np.zeros_like(rows)
        for column in near.T:
            total += rows[column]
        rows = np.asarray((rows + total / len(near.T)) / 2, np.float32)
    return rows


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
