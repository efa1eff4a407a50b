"""Novel classes beside known ones, told by the labels that they lack.

The tree of joins has not seen the labels. So if half of the rows of known classes are labelled, a part of the tree with
ten rows and no label is hardly a part of a known class: labels were drawn without regard to it. This finds small
novel classes that the graph alone leaves inside a known class, and gives groups back that are scraps of one.
"""

from __future__ import annotations

import numpy as np

from offmap.discovery.class_sizes import SMALLEST, ClassSizes
from offmap.discovery.merging import MergeTree, one_class_odds
from offmap.discovery.regrouping import close_gaps, members_of, merge_groups
from offmap.graph.adjacency import Matrix
from offmap.typing import FloatArray, IntArray

CHOSEN = 2.0  # the log of how many parts a part was chosen from
MOST_ODDS = 8.0  # that links say for or against one class


class LabelTest:
    """Test whether parts without labels belong to known classes.

    Parameters
    ----------
    tree : MergeTree
        The order in which rows join; it has not seen the labels.
    graph : Matrix
        The graph that it was made from.
    codes : ndarray of int64
        Known class per row, -1 where unknown.
    n_known : int
        The number of known classes.
    """

    def __init__(self, tree: MergeTree, graph: Matrix, codes: IntArray, n_known: int) -> None:
        self.graph, self.codes, self.n_known = graph, codes, n_known
        n = tree.n_rows
        self.order, starts, sizes = leaf_order(tree)
        inside = np.zeros(n + len(tree.joins))
        for node, ((a, b), weight) in enumerate(zip(tree.joins.tolist(), tree.weights.tolist(), strict=True), n):
            inside[node] = inside[a] + inside[b] + 2 * weight
        labelled = _sums(codes[self.order] >= 0)
        stops = starts + sizes
        parts = np.flatnonzero((sizes >= SMALLEST) & (labelled[stops] == labelled[starts]))
        self.starts, self.stops, self.inside = starts[parts], stops[parts], inside[parts]
        self.degree = max(float(graph.sum()) / n, 1e-300)
        self.volume = np.asarray(graph.sum(axis=1)).ravel() / self.degree

    def apply(self, labels: IntArray, sizes: ClassSizes, shift: float = 0.0) -> IntArray:
        """Return groups with novel classes taken out of known ones, and scraps of known classes given back.

        Parameters
        ----------
        labels : ndarray of int64
            The group of each row, known class i being group i.
        sizes : ClassSizes
            How large classes are.
        shift : float, default=0.0
            Of the log-odds that two groups are one class.
        """
        taken = self._take_out(labels, sizes, shift)
        # a novel class that is mixed with a known one comes out in pieces
        new = np.arange(int(labels.max()) + 1, int(taken.max()) + 1)
        if len(new):
            taken = merge_groups(self.graph, taken, self.n_known, 1, among=new, least=-shift)
        taken = self._give_back(taken, sizes, shift)
        return close_gaps(taken, self.n_known)

    def _take_out(self, labels: IntArray, sizes: ClassSizes, shift: float) -> IntArray:
        """Make groups of the parts of known classes that are likelier novel classes, the likeliest first."""
        group = labels[self.order]
        changes = _sums(np.concatenate([[False], group[1:] != group[:-1]]))
        whole = changes[self.stops] == changes[np.minimum(self.starts + 1, len(labels))]
        at = np.flatnonzero(whole & (group[self.starts] < self.n_known))
        if not len(at):
            return labels
        starts, stops, known = self.starts[at], self.stops[at], group[self.starts[at]]
        edges = self.graph.tocoo()
        same = labels[edges.row] == labels[edges.col]
        own = np.bincount(edges.row[same], edges.data[same], minlength=len(labels)) / self.degree
        links, volume = _sums(own[self.order]), _sums(self.volume[self.order])
        part, all_rows = stops - starts, np.bincount(labels)[known]
        weight = np.maximum(links[stops] - links[starts] - self.inside[at], 0)
        gains = self._gain(part, all_rows - part, weight, (volume[stops] - volume[starts]) / part, sizes, shift)
        found, free = labels.copy(), np.ones(len(labels), bool)
        for i in np.argsort(-gains, kind="stable"):
            rows = slice(starts[i], stops[i])
            if gains[i] <= 0:
                break
            if free[rows].all():
                free[rows] = False
                found[self.order[rows]] = found.max() + 1
        return found

    def _give_back(self, labels: IntArray, sizes: ClassSizes, shift: float) -> IntArray:
        """Return novel groups to the known class that they are linked to most, where that is likelier."""
        counts = np.bincount(labels, minlength=self.n_known)
        members = members_of(labels, np.ones(len(labels), bool), len(counts))
        links = (members[:, self.n_known :].T @ self.graph @ members[:, : self.n_known]).toarray() / self.degree
        known = links.argmax(axis=1)
        weight = links.max(axis=1)
        means = np.bincount(labels, self.volume, minlength=self.n_known) / np.maximum(counts, 1)
        part, rest = counts[self.n_known :], counts[known]
        degree = np.where(part <= rest, means[self.n_known :], means[known])
        back = (weight > 0) & (self._gain(part, rest, weight, degree, sizes, shift) < 0)
        target = np.arange(len(counts))
        target[self.n_known :][back] = known[back]
        return target[labels]

    def _gain(
        self, part: IntArray, rest: IntArray, weight: FloatArray, degree: FloatArray, sizes: ClassSizes, shift: float
    ) -> FloatArray:
        """Return by how much a part without labels is likelier a novel class than a part of a known one, as a log."""
        share = float(np.clip((self.codes >= 0).sum() / max(float(sizes.known.sum()), 1e-9), 0.02, 0.95))
        small, large = np.minimum(part, rest).astype(float), np.maximum(part, rest).astype(float)
        odds = np.clip(one_class_odds(weight, small, large, degree) + shift, -MOST_ODDS, MOST_ODDS)
        known, novel = sizes.log_prior(novel=False), sizes.log_prior(novel=True)
        last = len(known) - 1
        by_size = novel[np.maximum(part, 1) - 1] + known[np.maximum(rest, 1) - 1]
        by_size -= known[np.clip(part + rest - 1, 0, last)]
        return np.asarray(-part * np.log1p(-share) - odds + by_size - CHOSEN)


def leaf_order(tree: MergeTree) -> tuple[IntArray, IntArray, IntArray]:
    """Return an order of rows in which every node of the tree is a range, with the start and the size of each node.

    Examples
    --------
    >>> tree = MergeTree(np.array([[0, 2], [1, 3]]), np.zeros(2), np.ones(2, bool), 3, np.ones(2))
    >>> [values.tolist() for values in leaf_order(tree)]
    [[1, 0, 2], [1, 0, 2, 1, 0], [1, 1, 1, 2, 3]]
    """
    n = tree.n_rows
    pairs = tree.joins.tolist()
    sizes, starts, top = [1] * (n + len(pairs)), [0] * (n + len(pairs)), [True] * (n + len(pairs))
    for node, (a, b) in enumerate(pairs, n):
        sizes[node] = sizes[a] + sizes[b]
        top[a] = top[b] = False
    place = 0
    for node, is_top in enumerate(top):
        if is_top:
            starts[node], place = place, place + sizes[node]
    for node in range(n + len(pairs) - 1, n - 1, -1):
        a, b = pairs[node - n]
        starts[a], starts[b] = starts[node], starts[node] + sizes[a]
    order = np.empty(n, np.int64)
    order[starts[:n]] = np.arange(n)
    return order, np.asarray(starts, np.int64), np.asarray(sizes, np.int64)


def _sums(values: np.ndarray) -> np.ndarray:
    """Return the sums of the first 0, 1, 2, … values."""
    return np.concatenate([[0], np.cumsum(values)])
