"""From features to classes: semi-supervised k-means, balanced for a while when hidden known classes gain from it."""

from __future__ import annotations

import numpy as np

from offmap.discovery.assign import Rows
from offmap.discovery.inputs import hide_classes
from offmap.discovery.kmeans import class_means, lloyd
from offmap.discovery.space import group, smooth
from offmap.metrics.clustering import open_world_accuracy
from offmap.neighbors.vectors import unit
from offmap.typing import Float32Array, IntArray

BALANCED_ITERATIONS = 30
TRIALS = 3


def group_rows(
    features: Float32Array, k: int, codes: IntArray, n_known: int, seed: int, balanced: bool = False, smoothing: int = 0
) -> tuple[IntArray, Float32Array]:
    """Group rows by semi-supervised k-means from a constrained Ward tree; always `k` centres.

    Parameters
    ----------
    features : ndarray of float32
        Rows of length 1.
    k, codes, n_known : int and ndarray of int64
        Classes in all; per row its known class or -1; how many known classes there are.
    seed : int
        Seed of the tree.
    balanced : bool, default=False
        Iterate with groups of equal size first: it parts what was merged and joins what was split. Sizes are left
        free again in the end.
    smoothing : int, default=0
        Group rows averaged with so many nearest ones instead; centres are still of the rows themselves.

    Returns
    -------
    tuple of ndarray
        The group of each row, and `k` centres of length 1.

    Examples
    --------
    >>> rows = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float32)
    >>> group_rows(rows, 2, np.array([-1, -1, 0, -1]), 1, seed=0)[0]
    array([1, 1, 0, 0])
    """
    if 0 < smoothing < len(features):
        calm = np.array(features)
        smooth(calm, smoothing)
        labels, _ = group_rows(np.asarray(unit(calm), np.float32), k, codes, n_known, seed, balanced)
        return labels, class_means(Rows(features, "cosine"), labels, k)
    rows = Rows(features, "cosine")
    forced = codes if n_known else None
    labels, centres = group(rows, k, seed, forced, n_known)
    if balanced and len(centres) == k:
        even = lloyd(rows, centres, forced=forced, balance=np.full(k, 1 / k), max_iter=BALANCED_ITERATIONS)
        fit = lloyd(rows, even.centres, forced=forced)
        labels, centres = fit.labels, fit.centres
    if len(centres) < k:  # fewer distinct rows than classes: the rest are never chosen
        centres = np.concatenate([centres, np.zeros((k - len(centres), centres.shape[1]), np.float32)])
    return labels, centres


def balance_helps(features: Float32Array, codes: IntArray, seed: int) -> bool:
    """Tell whether balanced groups find hidden known classes better: classes of like sizes gain, others lose.

    Half of the known classes are hidden, and half of the labels of the others, three times; only labelled rows are
    looked at, in a space that has not seen their labels.

    Parameters
    ----------
    features : ndarray of float32
        Rows of length 1.
    codes : ndarray of int64
        The known class of each row, or -1.
    seed : int
        Seed of the draws.

    Returns
    -------
    bool
        Whether to balance.
    """
    labelled = np.flatnonzero(codes >= 0)
    if len(np.unique(codes[labelled])) < 4:
        return False
    rows, truth = features[labelled], codes[labelled]
    gains = []
    for trial in range(TRIALS):
        given, shown = hide_classes(truth, seed + trial)
        hidden = given < 0
        known = np.where(hidden, -1, np.searchsorted(shown, given))
        k = len(np.unique(truth))
        both = [group_rows(rows, k, known, len(shown), seed, balanced)[0] for balanced in (False, True)]
        free, even = (open_world_accuracy(truth[hidden], found[hidden], shown).all for found in both)
        gains.append(even - free)
    return float(np.mean(gains)) > 0
