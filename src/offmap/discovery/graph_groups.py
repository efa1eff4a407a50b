"""Form groups over the neighbour graph: how many there are, which rows they hold, how sure each row is.

Several groupings are made and the most likely one is taken: rows joined over the graph, which finds small classes
beside large ones, and k-means on the graph's eigenvectors, which is sharper where classes touch. The likelihood weighs
how many links stay inside groups, and what that tells beyond chance, against how well the sizes of groups agree with
those of known classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from offmap.discovery.assign import Rows
from offmap.discovery.calibrating import (
    FEWEST_CLASSES,
    LARGE,
    calibrate,
    hide_and_group,
    share_counted,
    typical_size,
)
from offmap.discovery.chance import drop_chance
from offmap.discovery.checking import check_count
from offmap.discovery.class_sizes import (
    SMALLEST,
    TREE_ERROR,
    ClassSizes,
    compare_novel,
    estimate_sizes,
    sizes_like_known,
)
from offmap.discovery.exchanging import exchange_groups
from offmap.discovery.kmeans import class_means, lloyd
from offmap.discovery.label_tests import LabelTest
from offmap.discovery.merging import MergeTree, build_tree
from offmap.discovery.outliers import COMPANY, find_noise
from offmap.discovery.parts import are_alike_in_size, merge_parts
from offmap.discovery.regrouping import (
    follow_neighbors,
    link_information,
    merge_groups,
    name_groups,
    vote,
    vote_share,
)
from offmap.discovery.space import group
from offmap.graph import labelled_eigenvectors, nearest_neighbors, shared_neighbor_graph
from offmap.graph.adjacency import Matrix
from offmap.graph.build import directed_graph
from offmap.graph.features import PER_CLASS
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit_and_length
from offmap.typing import Float32Array, FloatArray, IntArray

NEIGHBORS = 10  # of the graph that rows are joined over
MOST_NEIGHBORS = 30  # of the graph whose eigenvectors are used
FEWER_NEIGHBORS = 20  # the same with few groups, where wide neighbourhoods more often join two classes
FEW_GROUPS = 20
GRAPH_ROWS = 30_000  # a graph is built over so many rows at most, the others follow their neighbours
FOLLOWING = 4096  # rows at a time
SHIFTS = (4.0, -4.0)  # of the merge test, when a number of groups is asked for: from few groups to many
HALVINGS = 4
COMPARISONS = 3  # of the sizes of known and novel groups
CERTAIN = 0.15  # the relative error of a number of groups that a shift of the merge test does not change
AGREED_SHIFTS = (-2.0, -1.0, 0.0, 1.0)  # tried where there are too few known classes to hide some
AGREED_STEPS = 20
ALMOST = 0.005  # of the adjusted mutual information: less is noise
LEAST_SHARE = 0.05  # of a row's links inside its group: one row without any must not decide
INFORMATION = 0.05  # the weight of what links tell beyond chance
Z = 1.64  # standard errors on both sides of the number of classes: 90 %


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
        Where the number of groups is expected with a probability of 90 %.
    steps
        The number of groups in the tree of joins and by class sizes; empty when the number was given.
    """

    labels: IntArray
    n_groups: int
    confidence: Float32Array
    interval: tuple[int, int]
    steps: dict[str, float]


def group_by_graph(rows: Rows, codes: IntArray, n_known: int, k: int | None = None, seed: int = 0) -> GraphGroups:
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
    points = rows.block(0, len(rows))
    distances, near = nearest_neighbors(points, min(MOST_NEIGHBORS, len(rows) - 1))
    problem = _Problem(points, distances, near, codes, n_known, seed)
    labels, interval, steps = problem.find() if k is None else (problem.form(k), (k, k), {})
    n_groups = max(int(labels.max()) + 1, n_known)
    return GraphGroups(labels, n_groups, vote_share(problem.graph, labels), interval, steps)


class _Problem:
    """One set of rows: its graph, its tree of joins, the sizes of its classes and, when needed, its eigenvectors."""

    def __init__(
        self, rows: Float32Array, distances: FloatArray, near: IntArray, codes: IntArray, n_known: int, seed: int
    ) -> None:
        self.rows = rows
        self.near, self.codes, self.n_known, self.seed = near, codes, n_known, seed
        self.distances = distances
        self.reach = distances[:, :COMPANY].mean(axis=1)
        self.forced = codes if n_known else None
        self.graph = shared_neighbor_graph(near[:, :NEIGHBORS], distances[:, :NEIGHBORS])
        plain = build_tree(self.graph)
        self.tree: MergeTree = calibrate(plain, near, codes, n_known, seed)
        self.sizes: ClassSizes = estimate_sizes(self.tree, near, codes, n_known, plain)
        self.score = self.sizes.group_score(int((codes >= 0).sum()))
        self.label_test = LabelTest(self.tree, self.graph, codes, n_known) if n_known else None
        self.vectors = np.zeros((len(near), 0))
        self.vectors_width = 0  # neighbours in the graph that they are of
        self.shift = 0.0  # of the merge test
        self.joined: dict[float, IntArray] = {}  # groups by the shift of the merge test
        self.groups_per_class = 1.0  # that known classes fall into when their labels are hidden
        if n_known and self.sizes.difference <= 0:
            self.compare_sizes()

    def compare_sizes(self) -> None:
        """Estimate how much smaller novel classes are than known ones by groups that labels confirm, again and again.

        The first groups are those that are found if novel classes are as large as known ones: a few scraps of known
        classes are no reason to expect more of their size. What was estimated before counts when these are smaller.
        Large or loose classes come apart where no labels hold them together, so novel groups are compared with the
        groups of known classes whose labels are hidden, where there are enough of these.
        """
        before = self.sizes.difference
        alike = self.sizes = sizes_like_known(self.near, self.codes, self.n_known)
        usual = hide_and_group(self.tree, self.near, self.codes, self.n_known, self.seed).astype(np.float64)
        self.groups_per_class = max(len(usual) / self.n_known, 1.0)
        usual = usual if len(usual) else alike.known
        for _ in range(COMPARISONS):
            self.score, self.joined = self.sizes.group_score(int((self.codes >= 0).sum())), {}
            counts = np.bincount(self.join())[self.n_known :]
            smaller = min(compare_novel(usual, counts), 0.0)
            self.sizes = alike.shifted(min(smaller, before) if smaller else 0.0)
        self.score, self.joined = self.sizes.group_score(int((self.codes >= 0).sum())), {}

    def find(self) -> tuple[IntArray, tuple[int, int], dict[str, float]]:
        """Return groups when their number is not known, the interval of that number, and the numbers on the way."""
        k, count, estimate, error = self.count()
        labels = self.settle(self.divide(k))
        steps = {"joined": float(count), "sizes": estimate, "parts merged": float(self.number(labels))}
        settled = labels
        labels = drop_chance(settled, self.graph, self.codes, self.n_known, self.regroup, self.seed)
        if labels is not settled:
            k = self.number(labels)
            steps["without chance"] = float(k)
        share = share_counted(self.rows, labels, self.codes, self.n_known, self.count_others, self.seed)
        if share < 1:
            k = self.n_known + round((self.number(labels) - self.n_known) / share)
            labels = self.settle(self.divide(k), k)
            steps["unseen added"] = float(k)
        other = check_count(self.rows, labels, self.number(labels), self.n_known, self.seed)
        if other is not None:
            k, interval = other
            return self.form(k), interval, {"joined": float(count), "by halves": float(k)}
        novel = k - self.n_known
        low, high = (self.n_known + novel * math.exp(by * Z * error) for by in (-1, 1))
        final = self.number(labels)
        interval = max(min(math.floor(low), count, final), 1), max(math.ceil(high), count, final)
        return labels, interval, steps

    def count(self) -> tuple[int, int, float, float]:
        """Return the number of groups, that of the tree alone, and the estimate with its relative error."""
        self.shift = self.agree() if self.n_known < FEWEST_CLASSES else 0.0
        count, fewer, more = (self.plausible(self.join(shift)) for shift in (0.0, 1.0, -1.0))
        change = math.log(max(more - self.n_known, 1) / max(fewer - self.n_known, 1))
        strange = int(np.isin(self.join(), self.noise(self.join())).sum())
        estimate, error = self.sizes.count(count, min(CERTAIN + abs(change), TREE_ERROR), strange)
        apart = self.groups_per_class > 1 and self.sizes.difference < 0
        if apart and typical_size(np.bincount(self.join())[self.n_known :]) > LARGE:
            # classes that seem smaller than known ones may as well come apart: large ones do, as hidden ones show
            estimate = min(estimate, self.n_known + (count - self.n_known) / self.groups_per_class)
        return max(round(estimate), self.n_known, 1), count, estimate, error

    def count_others(self, rows: Float32Array, codes: IntArray, n_known: int) -> int:
        """Return the number of groups of other rows."""
        distances, near = nearest_neighbors(rows, min(MOST_NEIGHBORS, len(rows) - 1))
        return _Problem(rows, distances, near, codes, n_known, self.seed).count()[0]

    def regroup(self, codes: IntArray) -> IntArray:
        """Return the groups of the same rows with other labels."""
        other = _Problem(self.rows, self.distances, self.near, codes, self.n_known, self.seed)
        return other.settle(other.divide(other.count()[0]))

    def form(self, k: int) -> IntArray:
        """Return so many groups."""
        return self.settle(self.divide(k, given=True), k)

    def settle(self, labels: IntArray, k: int | None = None) -> IntArray:
        """Return groups with parts of one class merged, unless so many are asked for, and wrong ones exchanged.

        Both go by the sizes of known classes, so they are for novel ones that are about as large.
        """
        if self.number(labels) <= self.n_known or not are_alike_in_size(labels, self.n_known):
            return labels
        if k is None:
            labels = merge_parts(labels, self.rows, self.links(NEIGHBORS), self.n_known, self.seed)
        graph = self.links(self.width(self.number(labels)))
        return exchange_groups(labels, self.rows, graph, self.codes, self.n_known, self.seed, moves=True)

    def divide(self, k: int, given: bool = False) -> IntArray:
        """Return exactly `k` groups: the most likely of several ways to form them.

        A number that is `given` says how large a class is on average, better than a tree or a few known classes do.
        """
        features = Rows(self.features(k, self.width(k)))
        ways = [group(features, k, self.seed, self.forced, self.n_known)[0]]
        start = self.join_to(k)
        if start is not None:
            improved = lloyd(features, class_means(features, start, k), forced=self.forced).labels
            free = np.flatnonzero(self.codes < 0)
            ways += [start, improved, follow_neighbors(self.graph, start, free)]
        whole = [one for one in ways if self.number(one) == k]  # copies of few rows may leave groups empty
        sizes = self.sizes
        if given and self.n_known < FEWEST_CLASSES and k > self.n_known:
            sizes = sizes.with_novel(k - self.n_known)
        likely = [self.log_likelihood(labels, sizes, given) for labels in whole or ways]
        return (whole or ways)[int(np.argmax(likely))]

    def log_likelihood(self, labels: IntArray, sizes: ClassSizes, given: bool) -> float:
        """Return how likely these groups are, by the links that stay inside them and by their sizes.

        A row and its neighbours are one observation together, not one each. Rows may be one heap beside a few scraps:
        nearly all links stay inside and say nothing. Too many groups are best spent on scraps; if their number is
        given, what links tell beyond chance counts too.
        """
        near = self.near[:, : most_neighbors(self.number(labels))]
        same = (labels[near] == labels[:, None]).mean(axis=1)
        links = float(np.log(np.maximum(same, LEAST_SHARE)).sum()) / near.shape[1]
        told = INFORMATION * len(labels) * link_information(same, labels) if given and self.n_known else 0.0
        return links + told + sizes.log_likelihood(np.bincount(labels, minlength=self.n_known))

    def number(self, labels: IntArray) -> int:
        """Return how many groups there are, every known class counting as one."""
        return max(len(np.unique(labels[labels >= self.n_known])) + self.n_known, 1)

    def plausible(self, labels: IntArray) -> int:
        """Return how many groups there are without noise and those whose size no class is likely to have."""
        sizes = np.bincount(labels, minlength=self.n_known)
        sizes[self.noise(labels)] = 0
        novel = sizes[self.n_known :]
        return self.n_known + self.sizes.count_plausible(novel[novel > 0])

    def noise(self, labels: IntArray) -> IntArray:
        """Return the novel groups that are rows of no class (`find_noise`)."""
        return find_noise(labels, self.codes, self.n_known, self.reach, vote_share(self.graph, labels))

    def join(self, shift: float = 0.0) -> IntArray:
        """Return groups from the tree of joins, known classes first; rows of tiny groups follow their neighbours."""
        shift += self.shift
        if shift not in self.joined:
            found = name_groups(self.tree.cut(shift, self.codes, self.score), self.codes, self.n_known)
            whole = follow_neighbors(self.graph, found, np.flatnonzero(found < 0))
            self.joined[shift] = whole if self.label_test is None else self.label_test.apply(whole, self.sizes, shift)
        return self.joined[shift]

    def agree(self) -> float:
        """Return the shift under which the tree's groups agree best with k-means on as many groups of eigenvectors.

        Two ways to form groups differ less where classes are than where they are cut or mixed, so this stands in for
        known classes where there are too few to hide some. Of shifts that agree almost as well the smallest is taken.
        """
        from sklearn.metrics import adjusted_mutual_info_score

        joined = [self.join(shift) for shift in AGREED_SHIFTS]
        numbers = [self.number(labels) for labels in joined]
        most = min(max(numbers), len(self.near) - 2)
        width = self.width(most)
        self.features(most, width)  # the most eigenvectors once
        agreement: dict[int, float] = {}
        for labels, k in zip(joined, numbers, strict=True):
            if k not in agreement and 1 < k < len(self.near) - 1:
                features = Rows(self.features(k, width))
                other = group(features, k, self.seed, self.forced, self.n_known, max_iter=AGREED_STEPS)[0]
                agreement[k] = float(adjusted_mutual_info_score(labels, other))
        if not agreement:
            return 0.0
        near_best = max(agreement.values()) - ALMOST
        chosen = [s for s, k in zip(AGREED_SHIFTS, numbers, strict=True) if agreement.get(k, -1.0) >= near_best]
        return min(chosen, key=abs)

    def join_to(self, k: int) -> IntArray | None:
        """Return `k` groups from the tree, `None` if it has fewer.

        The shift of the merge test is halved in until the test gives `k` groups or hardly more; the likest are merged.
        """
        few, many = SHIFTS
        if self.number(self.join()) >= k:
            many = 0.0
        elif self.number(self.join(many)) < k:
            return None
        else:
            few = 0.0
        for _ in range(HALVINGS):
            if self.number(self.join(many)) == k:
                break
            middle = (few + many) / 2
            few, many = (few, middle) if self.number(self.join(middle)) >= k else (middle, many)
        return merge_groups(self.graph, self.join(many), self.n_known, k)

    def features(self, k: int, width: int) -> Float32Array:
        """Return eigenvectors for so many groups of the graph of so many neighbours, rows of length 1."""
        wanted = min(math.ceil(PER_CLASS * k), len(self.near) - 1)
        if self.vectors.shape[1] < wanted or self.vectors_width != width:
            self.vectors = labelled_eigenvectors(self.links(width), self.codes, wanted, seed=self.seed)
            self.vectors_width = width
        return unit_and_length(self.vectors[:, :wanted])[0]

    def width(self, k: int) -> int:
        """Return of how many neighbours a graph is made for so many groups: a class should fill those of its rows."""
        return int(np.clip(len(self.near) / (4 * k), NEIGHBORS, min(self.near.shape[1], most_neighbors(k))))

    def links(self, width: int) -> Matrix:
        """Return the graph of so many nearest neighbours."""
        edges = directed_graph(self.near[:, :width])
        return (edges + edges.T) * 0.5


def most_neighbors(k: int) -> int:
    """Return how many neighbours of a row are looked at when there are so many groups."""
    return MOST_NEIGHBORS if k > FEW_GROUPS else FEWER_NEIGHBORS


def _through_sample(rows: Rows, codes: IntArray, n_known: int, k: int | None, seed: int) -> GraphGroups:
    """Group a sample; every other row joins the group of most of its nearest ten in the sample."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    first = [order[np.flatnonzero(codes[order] == one)[:SMALLEST]] for one in range(n_known)]  # no class may be lost
    sample = np.unique(np.concatenate([*first, order[: GRAPH_ROWS - sum(map(len, first))]]))
    part = group_by_graph(Rows(rows.take(sample)), codes[sample], n_known, k, seed)
    labels, confidence = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    labels[sample], confidence[sample] = part.labels, part.confidence
    others = np.setdiff1d(np.arange(len(rows)), sample, assume_unique=True)
    bank = Bank.of(rows.take(sample), normalize=False)
    for start in range(0, len(others), FOLLOWING):
        at = others[start : start + FOLLOWING]
        near = bank.search(rows.take(at), NEIGHBORS)[1]
        labels[at], confidence[at] = vote(part.labels[near])
    labels = np.where(codes >= 0, codes, labels)
    return GraphGroups(labels, part.n_groups, confidence, part.interval, part.steps)
