"""Exchange groups: split one that is too large, merge two that are parts of one class, where the sizes ask for it.

Clustering with a given number of groups makes one kind of error in pairs: two classes share a group while another class
is in two. Known classes say how large groups should be. A known class has so many labelled rows, so about so many
unlabelled ones belong to it, and a group with three times as many holds a novel class too; and novel classes vary in
size about as much as known ones do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from offmap.typing import Float32Array, FloatArray, IntArray

FEWEST_KNOWN = 5  # classes from which sizes are estimated
FEWEST_NOVEL = 3
FEWEST_ROWS = 8  # unlabelled ones in a group that is split
SMALLEST_SHARE = 0.15  # of a group that a part of it must have
WEIGHT = 0.5  # of the sizes beside the links
LEAST_GAIN = 1.0
MOST_EXCHANGES = 40
LEAST_LINK = 0.02  # of two groups that may be merged
FARTHEST = 5.0  # standard deviations; beyond them all sizes are equally odd
NARROWEST_RATIO, NARROWEST_SIZE = 0.1, 0.15
STARTS, ITERATIONS = 5, 15
CONSIDERED = 20


@dataclass(frozen=True)
class SizePrior:
    """How many unlabelled rows a group has, as a normal distribution of logarithms.

    Parameters
    ----------
    labelled : array
        Labelled rows of each known class.
    ratio, ratio_spread : float
        Median and spread of log(unlabelled / labelled) over known classes.
    size, size_spread : float
        Median and spread of log(rows) of novel groups; the spread is that of known classes.
    """

    labelled: FloatArray
    ratio: float
    ratio_spread: float
    size: float
    size_spread: float

    @classmethod
    def estimate(cls, labels: IntArray, codes: IntArray, n_known: int) -> SizePrior:
        """Estimate the distribution from groups as they are, robustly: some of them are wrong."""
        labelled = np.bincount(codes[codes >= 0], minlength=n_known).astype(np.float64)
        sizes = np.bincount(labels[codes < 0], minlength=n_known + 1).astype(np.float64)
        ratios = np.log(np.maximum(sizes[:n_known], 0.5) / labelled)
        ratio, spread = _median_and_spread(ratios)
        spread = max(spread, NARROWEST_RATIO)
        known = np.log(labelled)
        own = max(_median_and_spread(known)[1], 0.8 * float(known.std()), NARROWEST_SIZE)
        novel = float(np.median(np.log(np.maximum(sizes[n_known:], 1))))
        return cls(labelled, ratio, spread, novel, float(np.hypot(own, 0.7 * spread)))

    def log_density(self, groups: IntArray, sizes: FloatArray) -> FloatArray:
        """Return the log-density, up to a constant, of so many unlabelled rows in each of these groups.

        Examples
        --------
        >>> prior = SizePrior(np.array([10.0, 20]), 0.0, 0.5, 3.0, 0.5)
        >>> prior.log_density(np.array([0, 1]), np.array([10.0, 20])).tolist()
        [-0.0, -0.0]
        """
        n_known = len(self.labelled)
        inside = np.minimum(groups, n_known - 1)
        logs = np.log(np.maximum(sizes, 0.5))
        of_known = (logs - np.log(self.labelled[inside]) - self.ratio) / self.ratio_spread
        distance = np.where(groups < n_known, of_known, (logs - self.size) / self.size_spread)
        return np.asarray(-0.5 * np.minimum(distance**2, FARTHEST**2))


@dataclass(frozen=True)
class _Split:
    """A group in two parts: what cutting it gains, what of that by links, and which rows leave it and which stay."""

    gain: float
    by_links: float
    group: int
    leaving: IntArray
    staying: IntArray


@dataclass(frozen=True)
class _Merge:
    """Two novel groups, and what making them one gains."""

    gain: float
    into: int
    other: int


@dataclass(frozen=True)
class _Move:
    """A part of one group that another novel group takes in, and what that gains."""

    gain: float
    rows: IntArray
    into: int


def exchange_groups(
    labels: IntArray,
    features: Float32Array,
    graph: Any,
    codes: IntArray,
    n_known: int,
    seed: int = 0,
    *,
    moves: bool = False,
) -> IntArray:
    """Split groups that are too large and merge others, one for one, as long as links and sizes gain.

    A split gains when few links of the smaller part are cut, a merge when many links of the smaller group go to the
    other; both gain by sizes that are likelier than before. Known classes can be split, so that a novel class comes out
    of them, and never grow. Labelled rows stay where they are.

    Parameters
    ----------
    labels : array of int
        The group of each row; known class i is group i.
    features : array
        Where groups are parted by k-means.
    graph : sparse matrix
        Links between rows, symmetric.
    codes : array of int
        Per row its known class or -1.
    n_known : int
        The number of known classes; with fewer than five nothing is changed.
    seed : int, default 0
        Seed of the starts of k-means.
    moves : bool, default False
        Whether another novel group may take in a part that is cut off, beside becoming a group of its own.

    Returns
    -------
    array of int
        As many groups as before.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(9), 30)
    >>> rows = (20 * np.eye(9)[truth] + rng.normal(size=(270, 9))).astype(np.float32)
    >>> codes = np.where((truth < 5) & (np.arange(270) % 2 == 0), truth, -1)
    >>> graph = sparse.csr_array((truth[:, None] == truth).astype(float))
    >>> wrong = np.where(truth == 8, 0, truth)  # class 8 in known class 0, class 7 in two groups
    >>> wrong[truth == 7] = np.where(np.arange(30) < 15, 7, 8)
    >>> found = exchange_groups(wrong, rows, graph, codes, 5)
    >>> sorted(len(set(zip(truth[truth == c], found[truth == c]))) for c in range(9))
    [1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    k = int(labels.max()) + 1
    if n_known < FEWEST_KNOWN or k - n_known < FEWEST_NOVEL:
        return labels
    found, free = labels.copy(), codes < 0
    prior = SizePrior.estimate(labels, codes, n_known)
    parts = _Parts(features, graph, codes, seed)
    for _ in range(MOST_EXCHANGES):
        sizes = np.bincount(found[free], minlength=k).astype(np.float64)
        density = prior.log_density(np.arange(k), sizes)
        merges = _find_merges(link_shares(graph, found, k), sizes, density, prior)
        splits = parts.find_splits(found, sizes, density, prior)
        move = parts.find_move(splits if moves else [], found, sizes, density, prior)
        pairs = [(split, merge) for split in splits for merge in merges if split.group not in (merge.into, merge.other)]
        split, merge = max(pairs, key=lambda pair: pair[0].gain + pair[1].gain, default=(None, None))
        exchanged = -np.inf if split is None or merge is None else split.gain + merge.gain
        if max(exchanged, move.gain) <= LEAST_GAIN:
            break
        if move.gain >= exchanged:
            found[move.rows] = move.into
        elif split is not None and merge is not None:
            found[found == merge.other] = merge.into
            found[split.leaving] = merge.other
    return found


def sum_links(graph: Any, labels: IntArray, k: int) -> FloatArray:
    """Return the weight of the links between groups; on the diagonal, of those inside, counted from both ends.

    Parameters
    ----------
    graph : sparse matrix
        Links between rows, symmetric.
    labels : array of int
        The group of each row, from 0.
    k : int
        The number of groups.

    Examples
    --------
    >>> sum_links(sparse.csr_array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]]), np.array([0, 0, 1]), 2)
    array([[2., 1.],
           [1., 0.]])
    """
    n = len(labels)
    member = sparse.csr_array((np.ones(n), (np.arange(n), labels)), shape=(n, k))
    return np.asarray((member.T @ (graph @ member)).toarray())


def link_shares(graph: Any, labels: IntArray, k: int) -> FloatArray:
    """Return the weight of the links between groups, as a share of all links of the group that has fewer.

    Parameters as in `sum_links`.

    Examples
    --------
    >>> link_shares(sparse.csr_array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]]), np.array([0, 0, 1]), 2)[0, 1]
    np.float64(1.0)
    """
    between = sum_links(graph, labels, k)
    volume = between.sum(axis=1)
    return np.asarray(between / np.maximum(np.minimum(volume[:, None], volume), 1e-12))


def _find_merges(links: FloatArray, sizes: FloatArray, density: FloatArray, prior: SizePrior) -> list[_Merge]:
    """Return the best pairs of novel groups to merge."""
    k, n_known = len(sizes), len(prior.labelled)
    one, other = (side + n_known for side in np.triu_indices(k - n_known, 1))
    linked = links[one, other] > LEAST_LINK
    one, other = one[linked], other[linked]
    likelier = prior.log_density(one, sizes[one] + sizes[other]) - density[one] - density[other]
    gains = np.log(links[one, other]) + WEIGHT * likelier
    best = np.argsort(-gains, kind="stable")[:CONSIDERED]
    return [_Merge(float(gains[i]), int(one[i]), int(other[i])) for i in best]


class _Parts:
    """The two parts of each group, found once for as long as the group stays as it is."""

    def __init__(self, features: Float32Array, graph: Any, codes: IntArray, seed: int) -> None:
        self.features, self.graph, self.codes = features, graph, codes
        self.degrees = np.asarray(graph.sum(axis=1)).ravel()
        self.rng = np.random.default_rng(seed)
        self.kept: dict[int, tuple[IntArray, IntArray, float]] = {}

    def find_splits(self, labels: IntArray, sizes: FloatArray, density: FloatArray, prior: SizePrior) -> list[_Split]:
        """Return the best groups to split."""
        found = []
        n_known = len(prior.labelled)
        for group in np.flatnonzero(sizes >= FEWEST_ROWS):
            rows = np.flatnonzero(labels == group)
            held = self.kept.get(int(group))
            if held is None or not np.array_equal(held[0], rows):
                held = (rows, *self._part(rows))
                self.kept[int(group)] = held
            _, leaving, cut = held
            if not len(leaving):
                continue
            going = float((self.codes[leaving] < 0).sum())
            both = prior.log_density(np.array([group, n_known]), np.array([sizes[group] - going, going]))
            by_links = -float(np.log(max(cut, 1e-3)))
            gain = by_links + WEIGHT * float(both.sum() - density[group])
            staying = np.setdiff1d(rows, leaving, assume_unique=True)
            found.append(_Split(gain, by_links, int(group), leaving, staying))
        return sorted(found, key=lambda split: -split.gain)[:CONSIDERED]

    def find_move(
        self, splits: list[_Split], labels: IntArray, sizes: FloatArray, density: FloatArray, prior: SizePrior
    ) -> _Move:
        """Return the best part of a group for another novel group to take in; of a known class only what may leave."""
        k, n_known = len(sizes), len(prior.labelled)
        novel = np.arange(n_known, k)
        volumes = np.bincount(labels, self.degrees, minlength=k)
        best = _Move(-np.inf, labels[:0], 0)
        for split in splits:
            for rows in (split.leaving,) if split.group < n_known else (split.leaving, split.staying):
                reached = np.asarray(self.graph[rows].sum(axis=0)).ravel()
                volume = np.minimum(float(self.degrees[rows].sum()), volumes[novel])
                links = np.bincount(labels, reached, minlength=k)[novel] / np.maximum(volume, 1e-12)
                going = float((self.codes[rows] < 0).sum())
                left = prior.log_density(np.array([split.group]), np.array([sizes[split.group] - going]))[0]
                likelier = prior.log_density(novel, sizes[novel] + going) + left - density[novel] - density[split.group]
                gains = split.by_links + np.log(np.maximum(links, 1e-12)) + WEIGHT * likelier
                gains[(links <= LEAST_LINK) | (novel == split.group)] = -np.inf
                if gains.max() > best.gain:
                    best = _Move(float(gains.max()), rows, int(novel[gains.argmax()]))
        return best

    def _part(self, rows: IntArray) -> tuple[IntArray, float]:
        """Return the rows that would leave a group, and the share of the smaller part's links that this cuts."""
        leaving = part_rows(self.features[rows], self.codes[rows] >= 0, self.rng)
        if min(leaving.sum(), (~leaving).sum()) < SMALLEST_SHARE * len(rows):
            return rows[:0], 1.0
        inside = self.graph[rows][:, rows]
        side = leaving.astype(np.float64)
        cut = float(side @ (inside @ (1 - side)))
        volume = min(float(self.degrees[rows[leaving]].sum()), float(self.degrees[rows[~leaving]].sum()))
        return rows[leaving], cut / max(volume, 1e-12)


def part_rows(rows: Float32Array, labelled: npt.NDArray[np.bool_], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Part rows in two by k-means and say which leave; labelled rows stay together and stay.

    Examples
    --------
    >>> rows = np.array([[0.0], [0.1], [5.0], [5.1]], np.float32)
    >>> part_rows(rows, np.array([True, False, False, False]), np.random.default_rng(0)).tolist()
    [False, False, True, True]
    """
    best, least = np.zeros(len(rows), bool), np.inf
    for centres in _starts(rows, labelled, rng):
        leaving = np.zeros(len(rows), bool)
        for _ in range(ITERATIONS):
            one, other = centres
            nearer = (rows @ (other - one) > (other @ other - one @ one) / 2) & ~labelled
            if nearer.all() or not nearer.any() or np.array_equal(nearer, leaving):
                break
            leaving = nearer
            centres = np.stack([rows[~leaving].mean(axis=0), rows[leaving].mean(axis=0)])
        if leaving.any():
            squares = float(((rows - centres[leaving.astype(np.int64)]) ** 2).sum())
            if squares < least:
                best, least = leaving, squares
    return best


def _starts(rows: Float32Array, labelled: npt.NDArray[np.bool_], rng: np.random.Generator) -> list[Float32Array]:
    """Return pairs of centres: the labelled rows' mean and what is farthest from it, or any two rows."""
    if not labelled.any():
        return [rows[rng.choice(len(rows), 2, replace=False)] for _ in range(STARTS)]
    centre = rows[labelled].mean(axis=0)
    order = np.argsort(((rows - centre) ** 2).sum(axis=1), kind="stable")
    return [np.stack([centre, rows[order[-max(len(rows) // part, 1) :]].mean(axis=0)]) for part in (10, 4)]


def _median_and_spread(values: FloatArray) -> tuple[float, float]:
    """Return the median and a standard deviation that a few wrong values do not change."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))
