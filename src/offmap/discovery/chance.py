"""Novel groups that chance makes: how many are found when the labels of known classes are drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from offmap.discovery.calibrating import FEWEST_CLASSES
from offmap.discovery.exchanging import sum_links
from offmap.discovery.regrouping import close_gaps
from offmap.graph.adjacency import Matrix
from offmap.typing import IntArray

RARE = 0.15  # of the unlabelled rows: so few novel ones may be chance
DRAWS = 3
MOST_CHANCE = 0.5  # of the novel groups of some size and more


def drop_chance(
    labels: IntArray,
    graph: Matrix,
    codes: IntArray,
    n_known: int,
    regroup: Callable[[IntArray], IntArray],
    seed: int = 0,
) -> IntArray:
    """Return groups without those novel ones that chance makes as often, where novel rows are few.

    Some part of a known class has no label by chance, and looks novel. How many there are is seen when the labels of
    known classes are drawn anew, so that no class is new: three times, and of the novel groups of some size and more at
    most half as many may be found then. Smaller ones go to the known class that they are linked to most.

    Parameters
    ----------
    labels : array of int
        The group of each row, known class i being group i.
    graph : Matrix
        Weighted links between rows.
    codes : array of int
        Per row its known class or -1.
    n_known : int
        The number of known classes; with fewer than four nothing is changed.
    regroup : callable
        Takes other labels in place of `codes`, and returns groups of the same rows.
    seed : int, default 0
        Draws the labels.
    """
    n_novel = int((labels >= n_known).sum())
    if n_known < FEWEST_CLASSES or not 0 < n_novel <= RARE * (codes < 0).sum():
        return labels
    own = np.arange(int(labels.max()) + 1)
    links = sum_links(graph, labels, len(own))[n_known:, :n_known]
    nearest = np.where(links.max(axis=1) > 0, links.argmax(axis=1), own[n_known:])  # or itself: a part of none
    known = np.append(own[:n_known], nearest)
    rng = np.random.default_rng(seed)
    drawn = [regroup(draw_labels(known[labels], codes, n_known, rng)) for _ in range(DRAWS)]
    counts = np.bincount(labels)
    least = least_size(_novel_sizes(labels, n_known), [_novel_sizes(one, n_known) for one in drawn])
    target = np.where((own < n_known) | (counts >= least), own, known)
    if np.array_equal(target, own):
        return labels
    return close_gaps(target, n_known)[labels]


def draw_labels(classes: IntArray, codes: IntArray, n_known: int, rng: np.random.Generator) -> IntArray:
    """Draw which rows of each known class are labelled, as many as are.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> drawn = draw_labels(np.array([0, 0, 0, 1, 1]), np.array([0, 0, -1, 1, -1]), 2, rng)
    >>> np.bincount(drawn + 1).tolist()
    [2, 2, 1]
    """
    drawn = np.full(len(codes), -1)
    for label, count in enumerate(np.bincount(codes[codes >= 0], minlength=n_known)):
        drawn[rng.permutation(np.flatnonzero(classes == label))[:count]] = label
    return drawn


def least_size(sizes: IntArray, by_chance: Sequence[IntArray]) -> int:
    """Return the size from which on at most half of the novel groups may be chance.

    Parameters
    ----------
    sizes : array of int
        Of the novel groups that were found.
    by_chance : sequence of arrays of int
        Of those that were found in each draw in which no class was new.

    Examples
    --------
    >>> least_size(np.array([8, 9, 40]), [np.array([8, 10, 12]), np.array([9, 9])])
    40
    >>> least_size(np.array([8, 9]), [np.array([]), np.array([])])
    8
    """
    for least in np.unique(sizes):
        chance = np.mean([(drawn >= least).sum() for drawn in by_chance])
        if chance <= MOST_CHANCE * (sizes >= least).sum():
            return int(least)
    return int(sizes.max()) + 1


def _novel_sizes(labels: IntArray, n_known: int) -> IntArray:
    sizes = np.bincount(labels, minlength=n_known)[n_known:]
    return sizes[sizes > 0]
