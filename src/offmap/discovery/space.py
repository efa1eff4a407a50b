"""The space rows are grouped in: whitened by the known classes, smoothed over neighbours, chosen without novel labels.

Known classes show which directions vary inside a class and should not count. How far to trust them (shrinkage), and
whether to average rows with their neighbours, is settled by hiding some known classes and seeing which space finds
them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offmap.discovery.assign import Floats, Labels, Metric, Rows, unit
from offmap.discovery.kmeans import class_means, lloyd
from offmap.discovery.tree import ward_tree
from offmap.metrics.clustering import open_world_accuracy
from offmap.neighbors import Bank

SMOOTHING_STEPS = 2
TRIALS = 3
TRIAL_ROWS = 6000
GAIN = 0.01  # a richer space must find this much more of the hidden classes than the plain one


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
    """Constrained Ward tree, then semi-supervised k-means: groups and centres, known class i in group i."""
    tree = ward_tree(rows, k, np.random.default_rng(seed), labels, n_known)
    fit = lloyd(rows, tree.means(k, rows.metric), forced=labels, max_iter=max_iter)
    return fit.labels, fit.centres


def default_spaces(width: int) -> list[Space]:
    """The spaces that are tried, plain ones first; whitening starts at strong shrinkage for narrow data."""
    plain = [Space("cosine"), Space("euclidean")] if width > 1 else [Space("euclidean")]
    shrunk: list[float | None] = [None, 0.5, 0.2, 0.05]
    return plain + [
        Space("cosine" if width > 1 else "euclidean", shrinkage, neighbours)
        for neighbours in (0, 10)
        for shrinkage in shrunk
        if shrinkage is not None or neighbours
    ]


def hidden_class_scores(
    features: Any, labels: Labels, spaces: Sequence[Space], seed: int = 0, trials: int = TRIALS
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How well each space finds known classes that were hidden: accuracies, spaces × trials.

    In each trial half of the known classes lose their labels, and half of the others' samples too. Groups are
    formed over the labelled samples; the accuracy (v2) counts those that lost their labels.

    Parameters
    ----------
    features, labels
        Rows, and their known class from 0, -1 where unknown; only labelled rows are used, at most 6,000.
    spaces, seed, trials
        What is compared, and how often.
    """
    rng = np.random.default_rng(seed)
    labelled = np.flatnonzero(labels >= 0)
    if len(labelled) > TRIAL_ROWS:
        labelled = np.sort(rng.choice(labelled, TRIAL_ROWS, replace=False))
    rows, truth = np.asarray(features[labelled], np.float32), labels[labelled]
    classes = np.unique(truth)
    scores = np.zeros((len(spaces), trials))
    for trial in range(trials):
        shown = np.sort(rng.permutation(classes)[: max(len(classes) // 2, 1)])
        keep = np.isin(truth, shown) & (rng.random(len(truth)) < 0.5)
        shown = np.unique(truth[keep])
        if not len(shown) or keep.all():
            continue
        given = np.where(keep, np.searchsorted(shown, truth), -1)
        for i, space in enumerate(spaces):
            prepared = Rows(space.prepare(rows, given), space.metric)
            found, _ = group(prepared, len(classes), seed + trial, given, len(shown), max_iter=20)
            scores[i, trial] = open_world_accuracy(truth[~keep], found[~keep], shown).all
    return scores


def choose_space(features: Any, labels: Labels, seed: int = 0) -> tuple[Space, list[tuple[Space, float]]]:
    """The space that finds hidden known classes best, and the mean accuracy of each that was tried.

    With fewer than four known classes nothing can be hidden, and the plain cosine is returned.
    """
    spaces = default_spaces(features.shape[1])
    if len(np.unique(labels[labels >= 0])) < 4:
        return spaces[0], []
    scores = hidden_class_scores(features, labels, spaces, seed).mean(axis=1)
    best = int(np.argmax(scores))
    plain = int(np.argmax(scores[:2]))
    chosen = best if scores[best] > scores[plain] + GAIN else plain
    return spaces[chosen], list(zip(spaces, scores.tolist(), strict=True))
