"""Merge rows into groups over their neighbour graph, and decide where to stop without assuming even classes.

Rows join into a tree by how strongly the graph links them. At every join a test asks whether the two sides look like
one class, from the weight of the links between them and their two sizes; the most likely cut of the tree follows from
all tests together, and from how likely the groups are by their sizes and labels.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from offmap.graph.adjacency import Matrix
from offmap.typing import FloatArray, IntArray

# The log-odds that two sides of a join are one class: LINK · log(weight between them, in mean degrees)
# + SMALLER · log(rows of the smaller side) + LARGER · log(rows of the larger) + DEGREE · log(mean degree of the rows of
# the smaller side, in mean degrees of all) + CONSTANT. Fitted once by logistic regression, true classes known, on joins
# of the problems in benchmarks/uneven.py, and of others from the same sets, with seeds 10 and 11.
LINK, SMALLER, LARGER, DEGREE, CONSTANT = 1.15, -1.33, -0.11, 1.72, 4.63
TRUSTED = 3  # a side with fewer rows has too few links for a test
UNTESTED = 4.0  # the log-odds of a join that cannot be tested
WRONG = 3.0  # what a labelled row in a group that is not of its class costs


@dataclass(frozen=True)
class GroupScore:
    """How likely a group is a class, by its size and its labelled rows.

    Parameters
    ----------
    known, novel : ndarray of float64
        The log-density of sizes 1, 2, … of known and of novel classes.
    labelled, unlabelled : float
        What a row of a known class adds if it is labelled, and if it is not.
    """

    known: FloatArray
    novel: FloatArray
    labelled: float
    unlabelled: float


@dataclass(frozen=True)
class MergeTree:
    """The order in which rows join, and how likely each join is right.

    Parameters
    ----------
    joins : ndarray of int64
        Pairs of nodes; rows are nodes 0 to n - 1 and join `j` makes node n + j.
    evidence : ndarray of float64
        Per join, the log-odds that both sides are one class.
    testable : np.ndarray
        Per join, whether both sides have enough rows for the test.
    n_rows : int
        The number of rows.
    weights : ndarray of float64
        Per join, the weight of the links between the two sides, in mean degrees.
    contents : dict
        What the nodes hold, by the labels that it was counted for: every cut with the same labels needs it.
    """

    joins: IntArray
    evidence: FloatArray
    testable: np.ndarray
    n_rows: int
    weights: FloatArray
    contents: dict[bytes, _Contents] = field(default_factory=dict, repr=False, compare=False)

    def cut(self, shift: float = 0.0, codes: IntArray | None = None, score: GroupScore | None = None) -> IntArray:
        """Return the group of each row in the most likely cut of the tree.

        Parameters
        ----------
        shift : float, default=0.0
            Added to the log-odds of every join: above 0 merges more.
        codes : ndarray of int64 or None, default=None
            Known class per row, -1 where unknown; only used with a score.
        score : GroupScore or None, default=None
            How likely each group is by itself; without one all groups are equally likely.
        """
        split, _ = self._solve(shift, codes, score)
        n, pairs = self.n_rows, self.joins.tolist()
        group = [-1] * (n + len(pairs))
        count = 0
        for node in range(n + len(pairs) - 1, -1, -1):
            if group[node] < 0 and not split[node]:
                group[node] = count
                count += 1
            if node >= n:
                for child in pairs[node - n]:
                    group[child] = group[node]
        return np.unique(np.asarray(group[:n]), return_inverse=True)[1].astype(np.int64)

    def best_score(self, shift: float, codes: IntArray, score: GroupScore) -> float:
        """Return the log-likelihood of the most likely cut; parameters as in `cut`."""
        return self._solve(shift, codes, score)[1]

    def _solve(self, shift: float, codes: IntArray | None, score: GroupScore | None) -> tuple[list[bool], float]:
        """Return for each node whether it is split in the most likely cut, and the log-likelihood of that cut."""
        odds = np.where(self.testable, np.clip(self.evidence + shift, -8, 8), UNTESTED)
        together, apart = (-np.logaddexp(0, -odds)).tolist(), (-np.logaddexp(0, odds)).tolist()
        n = self.n_rows
        total = n + len(odds)
        whole, best, split, top = [0.0] * total, [0.0] * total, [False] * total, [True] * total
        scores = best if codes is None or score is None else self._contents(codes).score(score).tolist()
        best[:n] = scores[:n]
        for node, (a, b), one, two, own in zip(
            range(n, total), self.joins.tolist(), together, apart, scores[n:], strict=True
        ):
            top[a] = top[b] = False
            whole[node] = whole[a] + whole[b] + one
            as_one, as_two = whole[node] + own, best[a] + best[b] + two
            split[node] = as_two > as_one
            best[node] = max(as_one, as_two)
        return split, sum(value for value, is_top in zip(best, top, strict=True) if is_top)

    def _contents(self, codes: IntArray) -> _Contents:
        key = codes.tobytes()
        if key not in self.contents:
            self.contents[key] = _Contents.count(self.joins, codes)
        return self.contents[key]


@dataclass(frozen=True)
class _Contents:
    """Per node of a tree its rows, its labelled rows, and those of the class that it has most of."""

    sizes: IntArray
    labelled: IntArray
    most: IntArray

    @classmethod
    def count(cls, joins: IntArray, codes: IntArray) -> _Contents:
        """Count what every node holds.

        Smaller tables are added to larger ones, so that all joins together take little more than linear time.
        """
        n, known = len(codes), codes >= 0
        tables: dict[int, dict[int, int]] = {i: {int(c): 1} for i, c in enumerate(codes.tolist()) if c >= 0}
        more = [0] * len(joins)
        sizes, labelled = [*[1] * n, *more], [*known.astype(int).tolist(), *more]
        most = list(labelled)
        for node, (a, b) in enumerate(joins.tolist(), n):
            sizes[node] = sizes[a] + sizes[b]
            labelled[node] = labelled[a] + labelled[b]
            if not labelled[a] or not labelled[b]:
                if labelled[node]:
                    held = a if labelled[a] else b
                    tables[node], most[node] = tables.pop(held), most[held]
                continue
            large, small = tables.pop(a), tables.pop(b)
            if len(large) < len(small):
                large, small = small, large
            largest = max(most[a], most[b])
            for label, count in small.items():
                large[label] = large.get(label, 0) + count
                largest = max(largest, large[label])
            tables[node], most[node] = large, largest
        return cls(np.array(sizes), np.array(labelled), np.array(most))

    def score(self, score: GroupScore) -> FloatArray:
        """Return the score of each node as a group: as a known class or a novel one, whichever is more likely."""
        known = score.known[self.sizes - 1] + self.most * score.labelled
        known = known + (self.sizes - self.labelled) * score.unlabelled - WRONG * (self.labelled - self.most)
        novel = score.novel[self.sizes - 1]
        return np.where(self.labelled > 0, np.maximum(novel - WRONG * self.labelled, known), novel)


def build_tree(graph: Matrix) -> MergeTree:
    """Join the pair with the strongest link, ``w(A, B) / sqrt(vol A · vol B)``, until nothing is linked.

    Parameters
    ----------
    graph : Matrix
        Symmetric and sparse, rows × rows, without loops.

    Examples
    --------
    >>> from scipy import sparse
    >>> two_pairs = sparse.csr_array(np.kron(np.eye(2), [[0.0, 1.0], [1.0, 0.0]]))
    >>> build_tree(two_pairs).joins.tolist()
    [[0, 1], [2, 3]]
    """
    n = graph.shape[0]
    degree = max(float(graph.sum()) / max(n, 1), 1e-300)
    volume = np.asarray(graph.sum(axis=1)).ravel().tolist()
    links = _tables(graph)
    size, node, version = [1] * n, list(range(n)), [0] * n
    heap: list[tuple[float, int, int, int, int, int]] = []
    # Every node has its strongest pair in the heap. A join changes only the pairs of the node it makes, which enters
    # anew; a pair that is out of date stands too high, if anything, and is replaced when it comes up.
    for a in range(n):
        _enter_strongest(heap, a, links[a], volume, version)
    joins: list[tuple[int, int]] = []
    tests: list[tuple[float, int, int, float]] = []
    while heap:
        _, a, b, at_a, at_b, owner = heapq.heappop(heap)
        if version[a] != at_a or version[b] != at_b:
            if version[owner] == (at_a if owner == a else at_b):
                _enter_strongest(heap, owner, links[owner], volume, version)
            continue
        if len(links[a]) < len(links[b]):
            a, b = b, a
        less, more = (a, b) if (size[a], volume[a]) <= (size[b], volume[b]) else (b, a)
        tests.append((links[a][b], size[less], size[more], volume[less]))
        joins.append((node[a], node[b]))
        _pour(links, a, b)
        volume[a] += volume[b]
        size[a] += size[b]
        node[a] = n + len(joins) - 1
        version[a] += 1
        version[b] = -1
        _enter_strongest(heap, a, links[a], volume, version)
    weight, smaller, larger, held = np.array(tests, np.float64).reshape(-1, 4).T
    odds = one_class_odds(weight / degree, smaller, larger, held / smaller / degree)
    return MergeTree(np.array(joins, np.int64).reshape(-1, 2), odds, smaller >= TRUSTED, n, weight / degree)


def _tables(graph: Matrix) -> list[dict[int, float]]:
    """Return for each row the weights of its links, by the row that they lead to."""
    ends, others, weights = graph.indptr.tolist(), graph.indices.tolist(), graph.data.tolist()
    parts = [slice(start, stop) for start, stop in pairwise(ends)]
    return [dict(zip(others[part], weights[part], strict=True)) for part in parts]


def _enter_strongest(
    heap: list[tuple[float, int, int, int, int, int]],
    a: int,
    links: dict[int, float],
    volume: list[float],
    version: list[int],
) -> None:
    """Put the strongest pair of `a` into the heap, of equals the one with the smallest number."""
    own, best, partner = volume[a], 0.0, -1
    for other, weight in links.items():
        score = -weight / (own * volume[other]) ** 0.5
        if score < best or (score == best and other < partner):
            best, partner = score, other
    if partner >= 0:
        x, y = (a, partner) if a < partner else (partner, a)
        heapq.heappush(heap, (best, x, y, version[x], version[y], a))


def _pour(links: list[dict[int, float]], a: int, b: int) -> None:
    """Give the links of `b` to `a`."""
    mine, theirs = links[a], links[b]
    mine.pop(b)
    theirs.pop(a)
    for other, weight in theirs.items():
        total = mine.get(other, 0.0) + weight
        mine[other] = total
        links[other].pop(b)
        links[other][a] = total
    links[b] = {}


def one_class_odds(weight: FloatArray, smaller: FloatArray, larger: FloatArray, degree: FloatArray) -> FloatArray:
    """Return the log-odds that two groups are one class.

    Parameters
    ----------
    weight : ndarray of float64
        Of the links between them, in mean degrees of all rows.
    smaller, larger : ndarray of float64
        Their numbers of rows.
    degree : ndarray of float64
        The mean degree of the rows of the smaller one, relative to that of all rows.
    """
    link, own = np.log(np.maximum(weight, 1e-12)), np.log(np.maximum(degree, 1e-12))
    sizes = SMALLER * np.log(np.maximum(smaller, 1)) + LARGER * np.log(np.maximum(larger, 1))
    return LINK * link + sizes + DEGREE * own + CONSTANT
