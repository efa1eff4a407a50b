"""Merge rows into groups over their neighbour graph, and decide where to stop without assuming even classes.

Rows join into a tree by how strongly the graph links them. At every join a test asks whether the two sides look like
one class, from the weight of the links between them and their two sizes; the most likely cut of the tree follows from
all tests together, and from how likely the groups are by their sizes and labels.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
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
    """

    joins: IntArray
    evidence: FloatArray
    testable: np.ndarray
    n_rows: int
    weights: FloatArray

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
        held = None if codes is None or score is None else _Held(codes, score)
        if held is not None:
            best[:n] = [held.score(row) for row in range(n)]
        for j, (a, b) in enumerate(self.joins.tolist()):
            node = n + j
            top[a] = top[b] = False
            whole[node] = whole[a] + whole[b] + together[j]
            as_one = whole[node] + (0.0 if held is None else held.join(a, b, node))
            as_two = best[a] + best[b] + apart[j]
            split[node] = as_two > as_one
            best[node] = max(as_one, as_two)
        return split, sum(value for value, is_top in zip(best, top, strict=True) if is_top)


class _Held:
    """The content of every node: its size and its labelled rows of each class, and what it is worth as a group.

    Smaller tables are added to larger ones, so that all joins together take little more than linear time.
    """

    def __init__(self, codes: IntArray, score: GroupScore) -> None:
        n = len(codes)
        self.counts: dict[int, dict[int, int]] = {i: {int(c): 1} for i, c in enumerate(codes.tolist()) if c >= 0}
        self.size = [1] * (2 * n)
        self.labelled = [*(codes >= 0).astype(int).tolist(), *[0] * n]
        self.most = list(self.labelled)  # rows of the largest class
        self.known, self.novel = score.known.tolist(), score.novel.tolist()
        self.gains = score.labelled, score.unlabelled

    def score(self, node: int) -> float:
        """Return the score of a node as a group: as a known class or a novel one, whichever is more likely."""
        size, labelled = self.size[node], self.labelled[node]
        novel: float = self.novel[size - 1]
        if not labelled:
            return novel
        right = self.most[node]
        label, no_label = self.gains
        known = self.known[size - 1] + right * label + (size - labelled) * no_label - WRONG * (labelled - right)
        return max(novel - WRONG * labelled, float(known))

    def join(self, a: int, b: int, node: int) -> float:
        """Join two nodes and return the score of the group they make."""
        self.size[node] = self.size[a] + self.size[b]
        self.labelled[node] = self.labelled[a] + self.labelled[b]
        if self.labelled[node]:
            large, small = self.counts.pop(a, {}), self.counts.pop(b, {})
            if len(large) < len(small):
                large, small = small, large
            most = max(self.most[a], self.most[b])
            for label, count in small.items():
                large[label] = large.get(label, 0) + count
                most = max(most, large[label])
            self.counts[node], self.most[node] = large, most
        return self.score(node)


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
    ends = graph.indptr.tolist()
    links = [dict(zip(graph.indices[s:e].tolist(), graph.data[s:e].tolist(), strict=True)) for s, e in pairwise(ends)]
    size, node, version = [1] * n, list(range(n)), [0] * n
    heap = [
        (-weight / (volume[a] * volume[b]) ** 0.5, a, b, 0, 0)
        for a in range(n)
        for b, weight in links[a].items()
        if a < b and weight > 0
    ]
    heapq.heapify(heap)
    joins: list[tuple[int, int]] = []
    tests: list[tuple[float, int, int, float]] = []
    while heap:
        _, a, b, at_a, at_b = heapq.heappop(heap)
        if version[a] != at_a or version[b] != at_b:
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
        for other, weight in links[a].items():
            x, y = (a, other) if a < other else (other, a)
            score = -weight / (volume[x] * volume[y]) ** 0.5
            heapq.heappush(heap, (score, x, y, version[x], version[y]))
    weight, smaller, larger, held = np.array(tests, np.float64).reshape(-1, 4).T
    odds = one_class_odds(weight / degree, smaller, larger, held / smaller / degree)
    return MergeTree(np.array(joins, np.int64).reshape(-1, 2), odds, smaller >= TRUSTED, n, weight / degree)


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
