"""Keep classes of earlier rounds apart, unless the links of their inputs say that they are one class.

Groups are formed anew in every round. Where the graph is in doubt, two groupings of nearly the same inputs differ, and
a class that people use would vanish in a larger one without a reason. A class that comes apart keeps its number for the
larger part, so splits are left as they are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offmap.discovery.exchanging import link_shares
from offmap.discovery.parts import least_link
from offmap.discovery.regrouping import vote
from offmap.graph import knn_graph
from offmap.neighbors import Bank
from offmap.typing import Float32Array, FloatArray, IntArray

NEIGHBORS = 10
MOST_ROWS = 30_000  # that links are counted between
VOTERS = 5

Pair = tuple[int, int]


def keep_apart(
    rows: Float32Array,
    labels: IntArray,
    earlier: IntArray,
    labelled: npt.NDArray[np.bool_],
    n_known: int,
    seed: int = 0,
    asked: frozenset[Pair] = frozenset(),
) -> tuple[IntArray, frozenset[Pair]]:
    """Return groups in which classes of earlier rounds are one group, or part of a known one, only where links say so.

    Known classes show how strong links are between the halves of one class, and between a class and the one next to it.
    Two classes whose inputs are mostly in one group stay apart where theirs are nearer to the latter, unless they were
    in one group the last time too. Other inputs of that group follow their nearest neighbours.

    Parameters
    ----------
    rows : array
        One row per input, in the space that they were grouped in.
    labels : array of int
        The group of each row; known class i is group i.
    earlier : array of int
        The class that each row is taken for since earlier rounds, numbered from `n_known`; others are none.
    labelled : array of bool
        Which rows people labelled.
    n_known : int
        The number of known classes; with fewer than three that can be halved nothing is changed.
    seed : int, default 0
        Draws the halves, and the rows that are looked at where there are very many.
    asked : frozenset of tuple of int, optional
        The pairs of classes that the grouping before put into one group.

    Returns
    -------
    tuple
        The same groups, and new ones after them; the pairs of classes that were kept apart.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(6), 60)
    >>> rows = (9 * np.eye(6)[truth] + rng.normal(size=(360, 6))).astype(np.float32)
    >>> merged = np.minimum(truth, 4)                                # classes 4 and 5 in one group
    >>> learned = np.where((truth > 3) & (np.arange(360) % 2 == 0), truth, -1)
    >>> found, pairs = keep_apart(rows, merged, learned, truth < 4, 4)
    >>> np.bincount(found).tolist(), pairs
    ([60, 60, 60, 60, 60, 60], frozenset({(4, 5)}))
    """
    shared = _find_shared(labels, earlier, n_known)
    if not shared:
        return labels, frozenset()
    at = np.arange(len(rows))
    if len(rows) > MOST_ROWS:
        at = np.sort(np.random.default_rng(seed).choice(len(rows), MOST_ROWS, replace=False))
    graph = knn_graph(rows[at], min(NEIGHBORS, len(at) - 1))
    limit = least_link(rows[at], graph, labels[at], n_known, seed)
    if limit is None:
        return labels, frozenset()
    apart: set[Pair] = set()
    found, fresh = labels.copy(), int(labels.max()) + 1
    for group, classes in shared.items():
        inside = labels == group
        first = [] if group >= n_known else [group]
        part = np.where(inside & labelled, 0, -1) if first else np.full(len(labels), -1)
        for number, one in enumerate(classes, len(first)):
            part[inside & (earlier == one)] = number
        shares = link_shares(graph, part[at] + 1, len(first) + len(classes) + 1)[1:, 1:]  # other rows are no part
        target, pairs = _join_linked([*first, *classes], shares, limit, asked)
        apart |= pairs
        part = np.where(part < 0, -1, target[part])
        if part.max() > 0:
            numbers = np.append(group, fresh + np.arange(part.max()))
            fresh += int(part.max())
            found[inside] = numbers[_follow(rows[inside], part[inside])]
    return found, frozenset(apart)


def _find_shared(labels: IntArray, earlier: IntArray, n_known: int) -> dict[int, list[int]]:
    """Return per group the earlier classes that most of their rows are in, largest first, where it has not one alone.

    A known class holds itself, so it has not one alone as soon as it holds one.
    """
    held: dict[int, list[tuple[int, int]]] = {}
    for one in np.unique(earlier[earlier >= n_known]).tolist():
        counts = np.bincount(labels[earlier == one])
        group = int(counts.argmax())
        if 2 * counts[group] > counts.sum():
            held.setdefault(group, []).append((-int(counts[group]), one))
    return {group: [one for _, one in sorted(ones)] for group, ones in held.items() if group < n_known or len(ones) > 1}


def _join_linked(
    classes: list[int], shares: FloatArray, limit: float, asked: frozenset[Pair]
) -> tuple[IntArray, set[Pair]]:
    """Return the part that each class is in, and the pairs that stay apart.

    A class joins the earlier one that it is linked to most, where links say one class or this was asked for before.
    """
    target, apart = [0], set()
    for number in range(1, len(classes)):
        linked = shares[number, :number]
        best = int(linked.argmax())
        pair = (classes[best], classes[number])
        if linked[best] >= limit or pair in asked or pair[::-1] in asked:
            target.append(target[best])
        else:
            target.append(max(target) + 1)
            apart.add(pair)
    return np.array(target), apart


def _follow(rows: Float32Array, part: IntArray) -> IntArray:
    """Return the part of each row; one that has none goes where most of its nearest rows with one are."""
    held, free = np.flatnonzero(part >= 0), np.flatnonzero(part < 0)
    if not len(free):
        return part
    near = Bank.of(rows[held], normalize=False).search(rows[free], min(VOTERS, len(held)))[1]
    found = part.copy()
    found[free] = vote(part[held][near])[0]
    return found
