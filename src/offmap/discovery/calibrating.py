"""Fit the merge test to the data set at hand, by known classes that are hidden for the purpose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from offmap.discovery.class_sizes import sizes_like_known
from offmap.discovery.merging import MergeTree
from offmap.typing import IntArray

FEWEST_CLASSES = 4  # to hide some and still have some
SHIFTS = (1.0, 2.0, 3.0)  # of the log-odds that two groups are one class, beside 0
DOUBT = 0.1  # hidden classes that must be gained for a shift by 1, by 2 four times as many


def calibrate(tree: MergeTree, neighbors: IntArray, codes: IntArray, n_known: int, seed: int = 0) -> MergeTree:
    """Return the tree with the shift of its merge test under which hidden known classes are found best.

    The test was fitted on other sets. Classes of this one may be finer or coarser than theirs, which known classes
    show: each half of them is hidden in turn, and the rows that carry their labels say how well they are found.

    Parameters
    ----------
    tree : MergeTree
        The order in which rows join; it has not seen the labels.
    neighbors : ndarray of int64
        For each row the numbers of its nearest others.
    codes : ndarray of int64
        Known class per row from 0, -1 where unknown.
    n_known : int
        The number of known classes; with fewer than four the tree is returned as it is.
    seed : int, default=0
        Draws the halves.
    """
    if n_known < FEWEST_CLASSES:
        return tree
    order = np.random.default_rng(seed).permutation(n_known)
    found = np.zeros(1 + len(SHIFTS))
    for hidden in (order[::2], order[1::2]):
        number = np.full(n_known + 1, -1)
        number[np.setdiff1d(order, hidden)] = np.arange(n_known - len(hidden))
        shown = number[codes]  # -1 picks the last entry, which is -1
        sizes = sizes_like_known(neighbors, shown, n_known - len(hidden))
        score = sizes.group_score(int((shown >= 0).sum()))
        rows = np.flatnonzero(np.isin(codes, hidden))
        for i, shift in enumerate((0.0, *SHIFTS)):
            groups = tree.cut(shift, shown, score)
            found[i] += len(hidden) * matched_share(np.searchsorted(np.sort(hidden), codes[rows]), groups[rows])
    found -= DOUBT * np.square((0.0, *SHIFTS))
    best = float((0.0, *SHIFTS)[int(np.argmax(found))])
    return replace(tree, evidence=tree.evidence + best) if best else tree


def matched_share(truth: IntArray, groups: IntArray) -> float:
    """Return the share of rows whose group is the one matched to their class, classes weighing alike.

    Examples
    --------
    >>> matched_share(np.array([0, 0, 0, 1]), np.array([5, 5, 7, 7]))
    0.833...
    """
    _, place = np.unique(groups, return_inverse=True)
    table = np.zeros((int(truth.max()) + 1, int(place.max()) + 1))
    np.add.at(table, (truth, place), 1)
    table /= table.sum(axis=1, keepdims=True)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(table))
