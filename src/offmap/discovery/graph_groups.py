"""Form groups over the neighbour graph: how many there are, which rows they hold, how sure each row is.

Two ways to form groups are compared: joining rows over the graph, which finds small classes beside large ones, and
k-means on the graph's eigenvectors, which is sharper where classes touch and is taken unless the joined groups keep
clearly more of the graph's weight inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from offmap.discovery.assign import Doubles, Floats, Labels, Rows
from offmap.discovery.choosing import FEWEST_CLASSES
from offmap.discovery.inputs import hide_classes
from offmap.discovery.kmeans import class_means, lloyd
from offmap.discovery.merging import MergeTree, build_tree, calibrate_shift, one_class_odds
from offmap.discovery.space import group
from offmap.graph import labelled_eigenvectors, nearest_neighbors, shared_neighbor_graph
from offmap.graph.adjacency import Matrix
from offmap.graph.build import directed_graph
from offmap.graph.features import PER_CLASS
from offmap.metrics.clustering import open_world_accuracy
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit_and_length

NEIGHBORS = 10  # of the graph that rows are joined over
MOST_NEIGHBORS = 20  # of the graph whose eigenvectors are used
GRAPH_ROWS = 30_000  # a graph is built over so many rows at most, the others follow their neighbours
SMALLEST = 4  # rows of a group that counts as a class
CLEARLY = 0.02  # tighter, in `association`
AS_GOOD = 0.02  # the accuracy on hidden classes that joins may fall behind and still be trusted
MERGED = 0.5  # the log-odds that two finished groups need to become one
ENOUGH_KNOWN = 5  # classes to learn from how strongly two classes are linked
LINKED = 0.9  # the share of known classes whose strongest link to another one is weaker than a merge asks for
DOUBT = 2  # classes that are taken to be whole, beside those looked at
INTERVAL = 1.0  # by how much the merge test is shifted to both sides for the interval


@dataclass(frozen=True)
class GraphGroups:
    """Groups of rows, known class i being group i.

    Parameters
    ----------
    labels
        The group of each row.
    n_groups
        How many groups there are, known classes without any unlabelled row among them.
    confidence
        Per row, the share of the weight of its links that stays inside its group.
    interval
        The numbers of groups that a laxer and a stricter merge test give.
    steps
        The number of groups after each step, by name; empty when it was given.
    """

    labels: Labels
    n_groups: int
    confidence: Floats
    interval: tuple[int, int]
    steps: dict[str, float]


def group_by_graph(rows: Rows, codes: Labels, n_known: int, k: int | None = None, seed: int = 0) -> GraphGroups:
    """Group rows over their neighbour graph.

    Parameters
    ----------
    rows
        Rows in a space where near means alike.
    codes
        Known class per row from 0, -1 where unknown.
    n_known
        The number of known classes.
    k
        Known and novel classes together; `None` to find out.
    seed
        Draws the sample of more than 30,000 rows and the start of the eigenvectors.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(3), [60, 20, 10])
    >>> points = (9 * rng.normal(size=(3, 5))[truth] + rng.normal(size=(90, 5))).astype(np.float32)
    >>> group_by_graph(Rows(points), np.full(90, -1), 0).n_groups
    3
    """
    if len(rows) > GRAPH_ROWS:
        return _through_sample(rows, codes, n_known, k, seed)
    if len(rows) <= SMALLEST or (k is not None and k >= len(rows) - 1):
        found = group(rows, k or max(n_known, 1), seed, codes if n_known else None, n_known)[0]
        return GraphGroups(found, k or max(n_known, 1), np.ones(len(rows), np.float32), (1, len(rows)), {})
    _, near = nearest_neighbors(rows.block(0, len(rows)), min(MOST_NEIGHBORS, len(rows) - 1))
    problem = _Problem(near, codes, n_known, seed)
    labels, interval, steps = problem.find() if k is None else (problem.divide(k), (k, k), {})
    n_groups = max(int(labels.max()) + 1, n_known)
    return GraphGroups(labels, n_groups, vote_share(problem.graph, labels), interval, steps)


class _Problem:
    """One set of rows: its graph, its tree of joins and, when they are needed, its eigenvectors."""

    def __init__(
        self, near: Labels, codes: Labels, n_known: int, seed: int, joined: tuple[Matrix, MergeTree] | None = None
    ) -> None:
        self.near, self.codes, self.n_known, self.seed = near, codes, n_known, seed
        self.forced = codes if n_known else None
        if joined is None:
            graph = shared_neighbor_graph(near[:, :NEIGHBORS])
            joined = graph, build_tree(graph)
        self.graph, self.tree = joined
        self.vectors = np.zeros((len(near), 0))
        self.shift = calibrate_shift(self.tree, codes, n_known) if n_known else 0.0

    def find(self) -> tuple[Labels, tuple[int, int], dict[str, float]]:
        """Groups when their number is not known, the interval of that number, and the numbers on the way."""
        first = self.joined(self.shift)
        k = int(first.max()) + 1
        splits, trusted = self.rehearse(k)
        best = self.best(k, first, trusted)
        merged = merge_groups(self.graph, best, self.n_known)
        if splits is not None:
            wanted = self.n_known + round((k - self.n_known) / splits)
            merged = merge_groups(self.graph, merged, self.n_known, max(wanted, 1))
        k = int(merged.max()) + 1
        if k <= best.max():
            best = self.best(k, merged, trusted)
        ends = [int(self.joined(self.shift + by).max()) + 1 for by in (INTERVAL, -INTERVAL)]
        return best, (min(ends[0], k), max(ends[1], k)), {"joined": float(first.max() + 1), "merged": float(k)}

    def divide(self, k: int) -> Labels:
        """Exactly `k` groups."""
        start = self.joined_to(k)
        return self.best(k, start, start is not None and self.rehearse(k)[1])

    def rehearse(self, k: int) -> tuple[float | None, bool]:
        """Hide half of the known classes and look for them.

        Returns into how many groups a class falls on average, `None` for one or not known; and whether joined groups
        find the hidden classes as well as k-means does.
        """
        labelled = np.flatnonzero(self.codes >= 0)
        if self.n_known < FEWEST_CLASSES or k <= self.n_known:
            return None, True
        given, shown = hide_classes(self.codes[labelled], self.seed)
        codes = np.full(len(self.codes), -1)
        codes[labelled] = np.where(given >= 0, np.searchsorted(shown, given), -1)
        trial = _Problem(self.near, codes, len(shown), self.seed, (self.graph, self.tree))
        hidden = labelled[given < 0]
        truth = self.codes[hidden]

        def right(found: Labels) -> float:
            both = [open_world_accuracy(truth, found[hidden], (), how).all for how in ("v2", "v2-balanced")]
            return float(np.mean(both))

        found, start = trial.best(k, None), trial.joined_to(k)
        trusted = start is not None and right(start) > right(found) - AS_GOOD
        novel = hidden[~np.isin(truth, shown)]
        held = np.bincount(found[novel], minlength=k)[len(shown) :].astype(np.float64)
        share = held / np.maximum(np.bincount(found, minlength=k)[len(shown) :], 1)
        order = np.argsort(share, kind="stable")
        usual = share[order][np.searchsorted(np.cumsum(held[order]), held.sum() / 2)] if held.any() else 0.0
        groups = int((share > usual / 3).sum())
        splits = (groups + DOUBT) / (self.n_known - len(shown) + DOUBT)
        return (splits if splits > 1 else None), trusted

    def joined(self, shift: float) -> Labels:
        """Groups from the tree of joins, known classes first; rows of tiny groups follow their neighbours."""
        found = name_groups(self.tree.cut(shift, self.forced), self.codes, self.n_known)
        found = follow_neighbors(self.graph, found, np.flatnonzero(found < 0))
        polished = follow_neighbors(self.graph, found, np.flatnonzero(self.codes < 0))
        kept = np.bincount(polished, minlength=int(found.max()) + 1)[self.n_known :] >= SMALLEST
        return polished if kept.all() else found

    def joined_to(self, k: int) -> Labels | None:
        """As `joined`, with `k` groups: the test is made stricter until there are enough, and the likest are merged."""
        for by in (0.0, 1.0, 2.0, 3.0):
            found = self.joined(self.shift - by)
            if found.max() + 1 >= k:
                return merge_groups(self.graph, found, self.n_known, k)
        return None

    def best(self, k: int, start: Labels | None, trusted: bool = True) -> Labels:
        """K-means on eigenvectors, unless the start, as it is or improved by k-means, is clearly tighter."""
        features = Rows(self.features(k))
        found = group(features, k, self.seed, self.forced, self.n_known)[0]
        if start is None or not trusted or start.max() + 1 != k:
            return found
        improved = lloyd(features, class_means(features, start, k), forced=self.forced).labels
        other = max((start, improved), key=lambda one: association(self.graph, one, k))
        clearly = association(self.graph, other, k) > association(self.graph, found, k) + CLEARLY
        return other if clearly else found

    def features(self, k: int) -> Floats:
        """Eigenvectors for so many groups, rows of length 1."""
        wanted = min(math.ceil(PER_CLASS * k), len(self.near) - 1)
        if self.vectors.shape[1] < wanted:
            # a class should fill the neighbourhoods of its rows
            width = int(np.clip(len(self.near) / (4 * k), NEIGHBORS, self.near.shape[1]))
            edges = directed_graph(self.near[:, :width])
            self.vectors = labelled_eigenvectors((edges + edges.T) * 0.5, self.codes, wanted, seed=self.seed)
        return unit_and_length(self.vectors[:, :wanted])[0]


def name_groups(found: Labels, codes: Labels, n_known: int) -> Labels:
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
    named: Labels = np.where(labelled, codes, number[found])
    if named.max(initial=-1) < 0:
        named[:] = 0
    return named


def follow_neighbors(graph: Matrix, labels: Labels, free: Labels, rounds: int = 5) -> Labels:
    """Give these rows the group that most of the weight of their links leads to, again and again.

    Rows marked -1 do not vote; one that nothing with a group is linked to ends in the largest group.
    """
    labels = labels.copy()
    width = int(labels.max()) + 1
    for _ in range(rounds):
        votes = graph[free] @ _members(labels, labels >= 0, width)
        best = np.asarray(votes.argmax(axis=1)).ravel()
        some = np.asarray(votes.sum(axis=1)).ravel() > 0
        new = np.where(some, best, labels[free])
        if (new == labels[free]).all():
            break
        labels[free] = new
    labels[labels < 0] = int(np.bincount(labels[labels >= 0]).argmax())
    return labels


def merge_groups(graph: Matrix, labels: Labels, n_known: int, k: int | None = None) -> Labels:
    """Merge the two groups that look most like one class, again and again; two known classes never meet.

    Parameters
    ----------
    graph
        Weighted links between rows.
    labels
        Groups from 0 without gaps, the first `n_known` being known classes.
    n_known
        The number of known classes.
    k
        Stop at so many groups; `None` to stop when no two look like one class. Five or more known classes tell how
        strongly two classes can be linked and still be two.
    """
    sizes = np.bincount(labels, minlength=n_known).astype(np.float64)
    inside = _members(labels, np.ones(len(labels), bool), len(sizes))
    links = (inside.T @ graph @ inside).toarray() / max(float(graph.sum()) / len(labels), 1e-300)
    odds = one_class_odds(links, np.minimum(sizes[:, None], sizes), np.maximum(sizes[:, None], sizes))
    np.fill_diagonal(odds, -np.inf)
    limit = MERGED
    if n_known >= ENOUGH_KNOWN:
        limit = max(limit, float(np.quantile(odds[:n_known, :n_known].max(axis=1), LINKED)))
    odds[:n_known, :n_known] = -np.inf
    target = np.arange(len(sizes))
    left = len(sizes)
    while left > max(n_known, 1) if k is None else left > k:
        a, b = sorted(int(i) for i in np.unravel_index(int(odds.argmax()), odds.shape))
        if odds[a, b] == -np.inf or (k is None and odds[a, b] <= limit):
            break
        target[target == b] = a
        links[a] += links[b]
        links[:, a] += links[:, b]
        sizes[a] += sizes[b]
        new = one_class_odds(links[a], np.minimum(sizes[a], sizes), np.maximum(sizes[a], sizes))
        new[~np.isfinite(odds[a]) | ~np.isfinite(odds[b])] = -np.inf  # two known classes, or gone already
        odds[a], odds[:, a] = new, new
        odds[b], odds[:, b] = -np.inf, -np.inf
        left -= 1
    kept = np.unique(np.concatenate([np.arange(n_known), target]))
    return np.searchsorted(kept, target)[labels]


def association(graph: Matrix, labels: Labels, k: int) -> float:
    """Return the mean over groups of the share of their weight that stays inside (normalised cut, Shi & Malik)."""
    inside = _members(labels, np.ones(len(labels), bool), k)
    links = (inside.T @ graph @ inside).tocsr()
    total: Doubles = np.asarray(links.sum(axis=1)).ravel()
    return float((links.diagonal() / np.maximum(total, 1e-300)).mean())


def vote_share(graph: Matrix, labels: Labels) -> Floats:
    """Return per row the share of the weight of its links that leads to its own group; 1 for a row without links."""
    edges = graph.tocoo()
    same = labels[edges.row] == labels[edges.col]
    own = np.bincount(edges.row[same], edges.data[same], minlength=len(labels))
    total = np.bincount(edges.row, edges.data, minlength=len(labels))
    return np.where(total > 0, own / np.where(total > 0, total, 1), 1).astype(np.float32)


def _members(labels: Labels, kept: Any, k: int | None = None) -> Matrix:
    """Rows × groups, 1 where a kept row is in a group."""
    at = np.flatnonzero(kept)
    width = int(labels.max()) + 1 if k is None else k
    return sparse.csr_array((np.ones(len(at)), (at, labels[at])), shape=(len(labels), width))


def _through_sample(rows: Rows, codes: Labels, n_known: int, k: int | None, seed: int) -> GraphGroups:
    """Group a sample; every other row joins the group of most of its nearest ten in the sample."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    first = [order[np.flatnonzero(codes[order] == one)[:SMALLEST]] for one in range(n_known)]  # no class may be lost
    sample = np.unique(np.concatenate([*first, order[: GRAPH_ROWS - sum(map(len, first))]]))
    part = group_by_graph(Rows(rows.take(sample)), codes[sample], n_known, k, seed)
    labels = np.empty(len(rows), np.int64)
    confidence = np.empty(len(rows), np.float32)
    bank = Bank.of(rows.take(sample), normalize=False)
    for start in range(0, len(rows), 4096):
        stop = min(start + 4096, len(rows))
        near = part.labels[bank.search(rows.block(start, stop), NEIGHBORS)[1]]
        votes = (near[:, :, None] == near[:, None, :]).sum(axis=2)
        best = votes.argmax(axis=1)  # the nearest of the most frequent
        labels[start:stop] = near[np.arange(len(near)), best]
        confidence[start:stop] = votes.max(axis=1) / near.shape[1]
    labels[sample], confidence[sample] = part.labels, part.confidence
    labels = np.where(codes >= 0, codes, labels)
    return GraphGroups(labels, part.n_groups, confidence, part.interval, part.steps)
