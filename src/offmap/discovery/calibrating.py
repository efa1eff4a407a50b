"""Fit the merge test and the count to the data set at hand, by known classes that are hidden for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from offmap.discovery.class_sizes import SMALLEST, sizes_like_known
from offmap.discovery.merging import MergeTree
from offmap.typing import Float32Array, IntArray

FEWEST_CLASSES = 4  # to hide some and still have some
SHIFTS = (1.0, 2.0, 3.0)  # of the log-odds that two groups are one class, beside 0
FEWEST_NOVEL = 3  # groups, to say how large novel classes are
MUCH_LARGER = 2.0  # times, novel groups than known ones: known classes cannot be made that large
LARGE = 50  # rows of a class that its neighbourhoods show
HIDDEN = 50  # classes at least, over all trials
LEAST_SEEN = 0.6  # the share that is taken at least: trials vary
ALL_SEEN = 2.0  # hidden classes that are taken to be found, beside those that were hidden
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
        shown = _without(codes, hidden, n_known)
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


def hide_and_group(tree: MergeTree, neighbors: IntArray, codes: IntArray, n_known: int, seed: int = 0) -> IntArray:
    """Return the sizes of the groups that known classes fall into when their labels are hidden, half of them in turn.

    Labels hold a known class together; without them a large or loose one comes apart, as novel ones do. Nothing is
    returned with fewer than eight known classes, or where most of the hidden ones are in no group of their own.

    Parameters
    ----------
    tree, neighbors, codes, n_known, seed
        As `calibrate` takes them.
    """
    nothing = np.zeros(0, np.int64)
    if n_known < 2 * FEWEST_CLASSES:
        return nothing
    order = np.random.default_rng(seed).permutation(n_known)
    found = nothing
    for hidden in (order[::2], order[1::2]):
        shown = _without(codes, hidden, n_known)
        sizes = sizes_like_known(neighbors, shown, n_known - len(hidden))
        groups = tree.cut(0.0, shown, sizes.group_score(int((shown >= 0).sum())))
        counts = np.bincount(groups)
        own = np.bincount(groups[np.isin(codes, hidden)], minlength=len(counts))
        others = np.bincount(groups[shown >= 0], minlength=len(counts))
        share = own.sum() / max(counts[own > others].sum(), 1)  # of the rows of a hidden class that have a label
        found = np.concatenate([found, counts[(own > others) & (2 * own > share * counts)]])
    found = found[found >= SMALLEST]
    return found if 2 * len(found) >= n_known else nothing


def share_counted(
    rows: Float32Array,
    labels: IntArray,
    codes: IntArray,
    n_known: int,
    count: Callable[[Float32Array, IntArray, int], int],
    seed: int = 0,
) -> float:
    """Return which share of the novel classes a count sees, at most 1: small ones hide among others.

    Half of the known classes are hidden and keep as many rows as novel groups have, the rest stay as they are, and
    what is counted then is compared with what was hidden. Then the other half, and again with few known classes.
    Nothing is known, and 1 returned, with fewer than eight known classes or three novel groups, and where most novel
    rows are in groups of more than 50 rows, which are seen, or of twice as many as known classes have.

    Parameters
    ----------
    rows : ndarray of float32
        In the space that they were grouped in.
    labels : ndarray of int64
        The group of each row, known class i being group i.
    codes : ndarray of int64
        Known class per row from 0, -1 where unknown.
    n_known : int
        The number of known classes.
    count : callable
        Takes rows, known classes and their number, and returns how many classes there are.
    seed : int, default=0
        Draws what is hidden.
    """
    sizes = np.bincount(labels, minlength=n_known)
    known, novel = sizes[:n_known], sizes[n_known:][sizes[n_known:] > 0]
    if n_known < 2 * FEWEST_CLASSES or len(novel) < FEWEST_NOVEL:
        return 1.0
    if typical_size(novel) > min(LARGE, MUCH_LARGER * typical_size(known)):
        return 1.0
    rng = np.random.default_rng(seed)
    trials = -(-HIDDEN // n_known)
    seen = 0
    for _ in range(trials):
        order = rng.permutation(n_known)
        for hidden in (order[::2], order[1::2]):
            left = [np.flatnonzero((labels < n_known) & ~np.isin(labels, hidden))]
            by_size = hidden[np.argsort(known[hidden], kind="stable")]  # the largest stay the largest
            thinned = np.sort(np.resize(rng.permutation(novel), len(hidden)))
            left += [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(by_size, thinned, strict=True)]
            at = np.sort(np.concatenate(left))
            shown = _without(codes[at], hidden, n_known)
            seen += count(rows[at], shown, n_known - len(hidden)) - (n_known - len(hidden))
    share = (seen / trials + ALL_SEEN) / (n_known + ALL_SEEN)
    return float(np.clip(share, LEAST_SEEN, 1.0))


def _without(codes: IntArray, hidden: IntArray, n_known: int) -> IntArray:
    """Return known classes per row, those hidden being unknown and the others numbered without gaps."""
    number = np.full(n_known + 1, -1)
    number[np.setdiff1d(np.arange(n_known), hidden)] = np.arange(n_known - len(hidden))
    return number[codes]  # -1 picks the last entry, which is -1


def typical_size(sizes: IntArray) -> float:
    """Return the size such that half of the rows are in groups of at most that size; 0 without groups.

    Examples
    --------
    >>> typical_size(np.array([1, 1, 1, 1, 90, 100]))
    100.0
    """
    if not len(sizes):
        return 0.0
    ordered = np.sort(sizes)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)])
