"""Parts of one class: find proposed groups that belong together, by what parts of known classes look like.

A class that is written in two ways, or said in two, is easily found as two groups. Known classes say how strongly two
parts of one class are linked, and how large a class is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.discovery.exchanging import link_shares, part_rows, sum_links
from offmap.discovery.regrouping import close_gaps
from offmap.typing import Float32Array, FloatArray, IntArray

FEWEST_KNOWN = 3  # classes that are halved to compare with
FEWEST_ROWS = 10  # of a known class that is halved
LEAST_SPREAD = 0.3  # of the logarithms of class sizes
MOST_BY_SIZE = 2.0  # what sizes add at most: links a seventh as strong as between halves of a class are always needed
CLEARLY = 0.3  # above the logarithm of the usual link: one group of two classes is worse than two groups of one
WEAKEST = 1e-4  # of links: none at all are as good as so few
MOST_UNLIKE = 0.3  # between the logarithms of the sizes of novel and known groups, for known ones to say anything


def are_alike_in_size(labels: IntArray, n_known: int) -> bool:
    """Tell whether novel groups have about the size of known classes, so that these say how large a class is.

    Half of the rows of novel groups are in groups of at most the size that is compared.

    Parameters
    ----------
    labels : array of int
        The group of each row; known class i is group i.
    n_known : int
        The number of known classes.

    Examples
    --------
    >>> are_alike_in_size(np.repeat(np.arange(4), [50, 60, 55, 45]), 2)
    True
    >>> are_alike_in_size(np.repeat(np.arange(4), [50, 60, 10, 12]), 2)
    False
    """
    sizes = np.bincount(labels, minlength=n_known).astype(np.float64)
    novel = np.sort(sizes[n_known:])
    if not n_known or not novel.any():
        return False
    typical = novel[np.searchsorted(np.cumsum(novel), novel.sum() / 2)]
    known = float(np.log(np.maximum(sizes[:n_known], 1)).mean())
    return bool(abs(np.log(typical) - known) < MOST_UNLIKE)


def merge_parts(labels: IntArray, rows: Float32Array, graph: Any, n_known: int, seed: int = 0) -> IntArray:
    """Merge novel groups that look like parts of one class.

    Every known class is halved by k-means, which gives the usual strength of the links between two parts of one class:
    the weight of the links between them as a share of all links of the part that has fewer. Two novel groups become one
    when theirs, times how much likelier the sizes of known classes make one group than two, is clearly larger. The pair
    that fits best goes first. Known classes stay as they are.

    Parameters
    ----------
    labels : array of int
        The group of each row; known class i is group i.
    rows : array
        One row per input, in the space that they were grouped in.
    graph : sparse matrix
        Links between rows, symmetric.
    n_known : int
        The number of known classes; with fewer than three nothing is merged.
    seed : int, default 0
        Seed of the halving.

    Returns
    -------
    array of int
        The groups, numbered without gaps.

    Examples
    --------
    >>> from offmap.graph import knn_graph
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(6), 60)
    >>> rows = (9 * np.eye(6)[truth] + rng.normal(size=(360, 6))).astype(np.float32)
    >>> found = np.where((truth == 5) & (rows[:, 0] > 0), 6, truth)  # class 5 in two parts
    >>> np.bincount(merge_parts(found, rows, knn_graph(rows, 10), 4)).tolist()
    [60, 60, 60, 60, 60, 60]
    """
    k = int(labels.max()) + 1
    if k - n_known < 2:
        return labels
    usual = _usual_link(rows, graph, labels, n_known, np.random.default_rng(seed))
    if usual is None:
        return labels
    pairs = _Pairs(sum_links(graph, labels, k), np.bincount(labels, minlength=k).astype(np.float64), n_known, usual)
    target = np.arange(k)
    while True:
        a, b = pairs.find_best()
        if a == b:
            break
        target[target == b] = a
        pairs.merge(a, b)
    return close_gaps(target, n_known)[labels]


class _Pairs:
    """By how much one class is likelier than two, for each pair of novel groups."""

    def __init__(self, links: FloatArray, sizes: FloatArray, n_known: int, usual: float) -> None:
        self.links, self.sizes, self.usual, self.n_known = links, sizes, usual, n_known
        logs = np.log(np.maximum(sizes[:n_known], 1))
        self.centre, self.spread = logs.mean(), max(logs.std(), LEAST_SPREAD)
        self.gains = np.full(links.shape, -np.inf)
        for a in range(n_known, len(sizes)):
            self._compare(a)

    def find_best(self) -> tuple[int, int]:
        """Return the pair with the largest gain, or the same group twice when none gains."""
        a, b = (int(i) for i in np.unravel_index(int(self.gains.argmax()), self.gains.shape))
        return (a, b) if self.gains[a, b] > 0 else (a, a)

    def merge(self, a: int, b: int) -> None:
        """Put group `b` into group `a`."""
        self.links[a] += self.links[b]
        self.links[:, a] += self.links[:, b]
        self.sizes[a] += self.sizes[b]
        self.links[b], self.links[:, b], self.sizes[b] = 0, 0, 0
        self.gains[b], self.gains[:, b] = -np.inf, -np.inf
        self._compare(a)

    def _compare(self, a: int) -> None:
        others = np.flatnonzero((self.links[a] > 0) & (np.arange(len(self.sizes)) >= self.n_known))
        others = others[others != a]
        volume = self.links.sum(axis=1)
        shares = self.links[a, others] / np.minimum(volume[a], volume[others])
        sizes, other = self.sizes[a], self.sizes[others]
        by_size = self._density(sizes + other) - self._density(sizes) - self._density(other)
        found = np.log(shares / self.usual) - CLEARLY + np.minimum(by_size, MOST_BY_SIZE)
        self.gains[a], self.gains[:, a] = -np.inf, -np.inf
        self.gains[a, others] = self.gains[others, a] = found

    def _density(self, sizes: Any) -> Any:
        """Return the log-density of sizes, up to a constant: normal in the logarithm, as known classes have it."""
        return -0.5 * ((np.log(np.maximum(sizes, 1)) - self.centre) / self.spread) ** 2


def least_link(rows: Float32Array, graph: Any, groups: IntArray, n_known: int, seed: int = 0) -> float | None:
    """Return the strength of links from which on two groups look like one class rather than like two.

    It lies, as a geometric mean, between the usual strength between the halves of a known class and that between a
    known class and the one that it is linked to most.

    Parameters
    ----------
    rows, graph, n_known, seed
        As `merge_parts` takes them.
    groups : array of int
        The group of each row; known class i is group i.

    Returns
    -------
    float or None
        A share of all links of the group that has fewer; `None` with fewer than three known classes to halve, and
        where the halves of a class are linked no more than two classes are.

    Examples
    --------
    >>> from offmap.graph import knn_graph
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(4), 50)
    >>> rows = (3 * np.eye(4)[truth] + rng.normal(size=(200, 4))).astype(np.float32)
    >>> 0 < least_link(rows, knn_graph(rows, 10), truth, 4) < 0.5
    True
    """
    found = _halves_linked(rows, graph, groups, n_known, np.random.default_rng(seed))
    if found is None:
        return None
    halved, within = found
    between = link_shares(graph, groups, max(int(groups.max()) + 1, n_known))[:n_known, :n_known]
    np.fill_diagonal(between, 0)
    one, two = float(np.median(within)), float(np.median(between[halved].max(axis=1)))
    return float(np.sqrt(one * max(two, WEAKEST))) if one > two else None


def _usual_link(
    rows: Float32Array, graph: Any, groups: IntArray, n_known: int, rng: np.random.Generator
) -> float | None:
    """Return the median strength of the links between the halves of known classes; `None` with too few classes."""
    found = _halves_linked(rows, graph, groups, n_known, rng)
    usual = 0.0 if found is None else float(np.median(found[1]))
    return usual if usual > 0 else None


def _halves_linked(
    rows: Float32Array, graph: Any, groups: IntArray, n_known: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray] | None:
    """Return the known classes that can be halved, and the strength of the links between the halves of each."""
    k = max(int(groups.max()) + 1, n_known)
    halves = groups.copy()
    halved: list[int] = []
    for label in range(n_known):
        inside = np.flatnonzero(groups == label)
        if len(inside) < FEWEST_ROWS:
            continue
        leaving = part_rows(rows[inside], np.zeros(len(inside), bool), rng)
        if leaving.any():
            halves[inside[leaving]] = k + len(halved)
            halved.append(label)
    if len(halved) < FEWEST_KNOWN:
        return None
    return np.array(halved), link_shares(graph, halves, k + len(halved))[halved, k + np.arange(len(halved))]
