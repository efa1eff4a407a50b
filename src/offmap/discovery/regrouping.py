"""Groups as labels over a graph: number them, let rows follow their neighbours, merge the likest, count their links."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from offmap.discovery.class_sizes import SMALLEST
from offmap.discovery.merging import one_class_odds
from offmap.graph.adjacency import Matrix
from offmap.typing import Float32Array, FloatArray, IntArray

KEPT = (0.01, 0.999)  # the share of links that do not lead anywhere, at least and at most


def name_groups(found: IntArray, codes: IntArray, n_known: int) -> IntArray:
    """Number groups so that known class i is i and novel ones follow; rows of tiny groups get -1.

    A group belongs to the class most of its labelled rows have, unless it has far fewer labels (a third) than that
    class' main group: then the class is a novel one, with some labelled rows astray. Labelled rows keep their class.

    Parameters
    ----------
    found
        Groups formed without regard to numbers.
    codes, n_known
        Known class per row, -1 where unknown; how many there are.
    """
    count = int(found.max()) + 1
    sizes = np.bincount(found, minlength=count)
    labelled = codes >= 0
    table = np.zeros((count, max(n_known, 1)))
    np.add.at(table, (found[labelled], codes[labelled]), 1)
    most, largest = table.argmax(axis=1), table.max(axis=1)
    main = np.zeros(max(n_known, 1))  # the share of labelled rows in each class' main group
    for one in np.argsort(largest, kind="stable"):
        main[most[one]] = largest[one] / sizes[one]
    number = np.where((largest > 0) & (largest / sizes >= main[most] / 3), most, -1)
    novel = (number < 0) & (sizes - table.sum(axis=1) >= SMALLEST)
    number[novel] = n_known + np.arange(int(novel.sum()))
    named: IntArray = np.where(labelled, codes, number[found])
    if named.max(initial=-1) < 0:
        named[:] = 0
    return named


def follow_neighbors(graph: Matrix, labels: IntArray, free: IntArray, rounds: int = 5) -> IntArray:
    """Give these rows the group that most of the weight of their links leads to, again and again.

    Rows marked -1 do not vote; one that nothing with a group is linked to ends in the largest group.
    """
    labels = labels.copy()
    width = int(labels.max()) + 1
    for _ in range(rounds):
        votes = graph[free] @ members_of(labels, labels >= 0, width)
        best = np.asarray(votes.argmax(axis=1)).ravel()
        some = np.asarray(votes.sum(axis=1)).ravel() > 0
        new = np.where(some, best, labels[free])
        if (new == labels[free]).all():
            break
        labels[free] = new
    labels[labels < 0] = int(np.bincount(labels[labels >= 0]).argmax())
    return labels


def vote(near: IntArray) -> tuple[IntArray, Float32Array]:
    """Return the most frequent group among those of each row's neighbours, nearest first, and its share of them.

    Of groups that are equally frequent the nearest is taken.

    Examples
    --------
    >>> vote(np.array([[4, 7, 7], [2, 3, 5]]))
    (array([7, 2]), array([0.6666667 , 0.33333334], dtype=float32))
    """
    counts = (near[:, :, None] == near[:, None, :]).sum(axis=2)
    best = near[np.arange(len(near)), counts.argmax(axis=1)]
    return best, (counts.max(axis=1) / near.shape[1]).astype(np.float32)


def merge_groups(
    graph: Matrix, labels: IntArray, n_known: int, k: int, *, among: IntArray | None = None, least: float = -np.inf
) -> IntArray:
    """Merge the two groups that look most like one class until `k` are left; two known classes never meet.

    Parameters
    ----------
    graph
        Weighted links between rows.
    labels
        Groups from 0 without gaps, the first `n_known` being known classes.
    n_known
        The number of known classes.
    k
        How many groups to stop at.
    among
        Novel groups of which one must be in every merge, and no known class; all groups by default.
    least
        The log-odds of one class below which no two groups are merged.
    """
    sizes = np.bincount(labels, minlength=n_known).astype(np.float64)
    degree = max(float(graph.sum()) / len(labels), 1e-300)
    volume = np.bincount(labels, np.asarray(graph.sum(axis=1)).ravel(), minlength=n_known) / degree
    inside = members_of(labels, np.ones(len(labels), bool), len(sizes))
    links = (inside.T @ graph @ inside).toarray() / degree

    def odds_of(one: int) -> FloatArray:
        less, means = np.minimum(sizes[one], sizes), volume / np.maximum(sizes, 1)
        own = np.where(
            sizes < sizes[one], means, np.where(sizes > sizes[one], means[one], np.minimum(means, means[one]))
        )
        return one_class_odds(links[one], less, np.maximum(sizes[one], sizes), own)

    odds = np.stack([odds_of(one) for one in range(len(sizes))])
    np.fill_diagonal(odds, -np.inf)
    odds[:n_known, :n_known] = -np.inf
    if among is not None:
        asked = np.isin(np.arange(len(sizes)), among)
        odds[~asked[:, None] & ~asked[None, :]] = -np.inf
        odds[:n_known], odds[:, :n_known] = -np.inf, -np.inf
    target = np.arange(len(sizes))
    for _ in range(len(sizes) - k):
        a, b = sorted(int(i) for i in np.unravel_index(int(odds.argmax()), odds.shape))
        if odds[a, b] == -np.inf or odds[a, b] < least:
            break
        target[target == b] = a
        links[a] += links[b]
        links[:, a] += links[:, b]
        sizes[a] += sizes[b]
        volume[a] += volume[b]
        new = odds_of(a)
        new[~np.isfinite(odds[a]) | ~np.isfinite(odds[b])] = -np.inf  # two known classes, or gone already
        odds[a], odds[:, a] = new, new
        odds[b], odds[:, b] = -np.inf, -np.inf
    return close_gaps(target, n_known)[labels]


def close_gaps(numbers: IntArray, n_known: int) -> IntArray:
    """Return numbers of groups without gaps; known classes keep theirs, whether they are among them or not.

    Examples
    --------
    >>> close_gaps(np.array([0, 7, 4, 7]), 2)
    array([0, 3, 2, 3])
    """
    kept = np.unique(np.concatenate([np.arange(n_known), numbers]))
    return np.asarray(np.searchsorted(kept, numbers), np.int64)


def vote_share(graph: Matrix, labels: IntArray) -> Float32Array:
    """Return per row the share of the weight of its links that leads to its own group; 1 for a row without links."""
    edges = graph.tocoo()
    same = labels[edges.row] == labels[edges.col]
    own = np.bincount(edges.row[same], edges.data[same], minlength=len(labels))
    total = np.bincount(edges.row, edges.data, minlength=len(labels))
    return np.where(total > 0, own / np.where(total > 0, total, 1), 1).astype(np.float32)


def link_information(same: FloatArray, labels: IntArray) -> float:
    """Return what the links of a row tell about its group beyond chance, on average over rows.

    A link stays in the group of its row, or leads anywhere: then it stays by the share of all rows that the group
    holds. So a group of nearly all rows tells nothing, and as many equal groups as there are tell the most.

    Parameters
    ----------
    same
        Per row, the share of its links that stay inside its group.
    labels
        The group of each row.

    Examples
    --------
    >>> halves, heap = np.repeat([0, 1], [50, 50]), np.repeat([0, 1], [99, 1])
    >>> [round(link_information(np.ones(100), labels), 1) for labels in (halves, heap)]  # log 2 at most
    [0.7, 0.1]
    """
    chance = (np.bincount(labels) / len(labels))[labels]
    kept = float(np.clip((same.mean() - chance.mean()) / max(1 - chance.mean(), 1e-9), *KEPT))
    return float((same * np.log(kept / chance + 1 - kept) + (1 - same) * np.log(1 - kept)).mean())


def members_of(labels: IntArray, kept: Any, k: int | None = None) -> Matrix:
    """Rows × groups, 1 where a kept row is in a group."""
    at = np.flatnonzero(kept)
    width = int(labels.max()) + 1 if k is None else k
    return sparse.csr_array((np.ones(len(at)), (at, labels[at])), shape=(len(labels), width))
