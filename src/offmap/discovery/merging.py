"""Merge rows into groups over their neighbour graph, and decide where to stop without assuming even classes.

Rows join into a tree by how strongly the graph links them. At every join a test asks whether the two sides look like
one class, from the weight of the links between them and their two sizes; the most likely cut of the tree follows from
all tests together. Labels of known classes shift the test until it treats those right.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from offmap.discovery.assign import Doubles, Labels
from offmap.graph.adjacency import Matrix

# The log-odds that two sides of a join are one class: LINK · log(weight between them, in mean degrees)
# + SMALLER · log(rows of the smaller side) + LARGER · log(rows of the larger) + CONSTANT. Fitted once by logistic
# regression on joins of the problems in benchmarks/uneven.py with seed 0, true classes known.
LINK, SMALLER, LARGER, CONSTANT = 2.17, -0.97, -0.61, 5.23
TRUSTED = 3  # a side with fewer rows has too few links for a test
UNTESTED = 4.0  # the log-odds of a join that cannot be tested
SHIFTS = np.linspace(-3, 3, 25)
HOLD = 0.3  # how strongly the shift is held at 0 when few classes are known


@dataclass(frozen=True)
class MergeTree:
    """The order in which rows join, and how likely each join is right.

    Parameters
    ----------
    joins
        Pairs of nodes; rows are nodes 0 to n - 1 and join `j` makes node n + j.
    evidence
        Per join, the log-odds that both sides are one class.
    testable
        Per join, whether both sides have enough rows for the test.
    n_rows
        The number of rows.
    """

    joins: Labels
    evidence: Doubles
    testable: np.ndarray
    n_rows: int

    def cut(self, shift: float = 0.0, codes: Labels | None = None) -> Labels:
        """Return the group of each row in the most likely cut of the tree.

        Parameters
        ----------
        shift
            Added to the log-odds of every join: above 0 merges more.
        codes
            Known class per row, -1 where unknown: each labelled row in a group of another class costs one unit.
        """
        odds = np.where(self.testable, np.clip(self.evidence + shift, -8, 8), UNTESTED)
        together, apart = (-np.logaddexp(0, -odds)).tolist(), (-np.logaddexp(0, odds)).tolist()
        n = self.n_rows
        whole, best = [0.0] * (n + len(odds)), [0.0] * (n + len(odds))
        split = [False] * (n + len(odds))
        held = None if codes is None else _Held(codes)
        pairs = self.joins.tolist()
        for j, (a, b) in enumerate(pairs):
            node = n + j
            whole[node] = whole[a] + whole[b] + together[j]
            as_one = whole[node] - (0.0 if held is None else held.join(a, b, node))
            as_two = best[a] + best[b] + apart[j]
            split[node] = as_two > as_one
            best[node] = max(as_one, as_two)
        return self._collect(pairs, split)

    def _collect(self, pairs: list[list[int]], split: list[bool]) -> Labels:
        """Number the groups from the top of the tree downwards."""
        n = self.n_rows
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


class _Held:
    """How many labelled rows of each class every node holds; smaller tables are poured into larger ones."""

    def __init__(self, codes: Labels) -> None:
        self.counts: dict[int, dict[int, int]] = {i: {int(c): 1} for i, c in enumerate(codes) if c >= 0}

    def join(self, a: int, b: int, node: int) -> int:
        """Join two nodes and return how many labelled rows are not of the largest class."""
        large, small = self.counts.pop(a, {}), self.counts.pop(b, {})
        if len(large) < len(small):
            large, small = small, large
        for label, count in small.items():
            large[label] = large.get(label, 0) + count
        if large:
            self.counts[node] = large
        return sum(large.values()) - max(large.values(), default=0) if len(large) > 1 else 0


def build_tree(graph: Matrix) -> MergeTree:
    """Join the pair with the strongest link, ``w(A, B) / sqrt(vol A · vol B)``, until nothing is linked.

    Parameters
    ----------
    graph
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
    tests: list[tuple[float, int, int]] = []
    while heap:
        _, a, b, at_a, at_b = heapq.heappop(heap)
        if version[a] != at_a or version[b] != at_b:
            continue
        if len(links[a]) < len(links[b]):
            a, b = b, a
        tests.append((links[a][b], *sorted((size[a], size[b]))))
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
    weight, smaller, larger = np.array(tests, np.float64).reshape(-1, 3).T
    odds = one_class_odds(weight / degree, smaller, larger)
    return MergeTree(np.array(joins, np.int64).reshape(-1, 2), odds, smaller >= TRUSTED, n)


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


def one_class_odds(weight: Doubles, smaller: Doubles, larger: Doubles) -> Doubles:
    """Return the log-odds that two groups with this weight between them, in mean degrees, are one class."""
    link = np.log(np.maximum(weight, 1e-12))
    return LINK * link + SMALLER * np.log(np.maximum(smaller, 1)) + LARGER * np.log(np.maximum(larger, 1)) + CONSTANT


def calibrate_shift(tree: MergeTree, codes: Labels, n_known: int) -> float:
    """Return the shift at which cutting the tree, blind to labels, gives the known classes back best.

    Half of the score weighs rows alike, half classes. The fewer classes are known, the more the shift is held near 0.
    """
    from scipy.optimize import linear_sum_assignment

    labelled = codes >= 0
    truth = codes[labelled]
    sizes = np.bincount(truth, minlength=n_known)
    scores = []
    for shift in SHIFTS:
        found = np.unique(tree.cut(float(shift))[labelled], return_inverse=True)[1]
        table = np.zeros((int(found.max(initial=0)) + 1, n_known))
        np.add.at(table, (found, truth), 1)
        at, of = linear_sum_assignment(table, maximize=True)
        hits = np.zeros(n_known)
        hits[of] = table[at, of]
        right = (hits.sum() / sizes.sum() + (hits / sizes).mean()) / 2
        scores.append(right - HOLD * shift**2 / (n_known + 2))
    return float(SHIFTS[int(np.argmax(scores))])
