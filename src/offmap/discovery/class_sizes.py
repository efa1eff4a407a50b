"""How large classes are: estimated from labels and the neighbour graph, and used as evidence for how many there are.

Known classes say how large a class of this data set is. The estimate is a prior with heavy tails: it decides where the
graph is in doubt, and gives way where the graph is clear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from offmap.discovery.merging import GroupScore, MergeTree
from offmap.typing import FloatArray, IntArray

SMALLEST = 4  # rows of a group that counts as a class
COUNTED_NEIGHBORS = 10
POOLED = 4.0  # labelled rows that the share of labels in all classes is worth for one class
LEAST_SPREAD = 0.3  # of log sizes: no prior is narrower, since the sizes are estimates
FIRST_SPREAD, FIRST_CLASSES = 1.0, 2.0  # what is assumed before any class is known, and the classes that is worth
DOUBTED_SPREAD = 0.7  # the same, when rows left by known classes are divided by their size
UNLABELED_SPREAD = 0.5  # of log sizes when no class is known
CENTRE_STEP = 0.5  # between the typical sizes that are tried when no class is known
LABEL_WEIGHT = 0.5  # labels may not be drawn evenly within a class, so they count half
CERTAIN = 6.0  # squared standard errors that novel classes must differ by from known ones in size to count as different
FEWEST_NOVEL = 3  # groups, to compare their sizes with those of known classes
IMPLAUSIBLE = -3.0  # the log-density of a size, relative to the typical one, that is no class: a twentieth
ACCURATE = 0.1  # the relative error that a count from sizes has at best
TREE_ERROR = 0.25  # the relative error of a count from the tree alone


@dataclass(frozen=True)
class ClassSizes:
    """Knowledge about the sizes of classes.

    Parameters
    ----------
    known : ndarray of float64
        The estimated number of rows of each known class, labelled or not.
    centre : float
        The log of the size of a typical novel class.
    spread : float
        The standard deviation of log sizes.
    difference : float
        How much larger novel classes are than known ones, as a difference of logs.
    n_rows : int
        The number of rows of the set.
    """

    known: FloatArray
    centre: float
    spread: float
    difference: float
    n_rows: int

    def shifted(self, by: float) -> ClassSizes:
        """Return the same knowledge with novel classes larger than known ones by this difference of logs."""
        return replace(self, centre=self.centre + by, difference=self.difference + by)

    def with_novel(self, n_novel: int) -> ClassSizes:
        """Return the same knowledge with novel classes as large as so many of them can be on average."""
        room = max(self.n_rows - float(self.known.sum()), float(n_novel))
        return self.shifted(float(np.log(room / n_novel)) - self.centre)

    def log_prior(self, novel: bool) -> FloatArray:
        """Return the log-density of sizes 1, 2, … relative to the typical size: a Cauchy distribution of log sizes."""
        centre = self.centre if novel else self.centre - self.difference
        return -np.log1p(((np.log(np.arange(1, self.n_rows + 1)) - centre) / self.spread) ** 2)

    def group_score(self, n_labeled: int) -> GroupScore:
        """Return how likely a group is, by its size and its share of labelled rows."""
        share = float(np.clip(n_labeled / max(float(self.known.sum()), 1e-9), 0.02, 0.95)) if len(self.known) else 0.5
        label, no_label = LABEL_WEIGHT * float(np.log(share)), LABEL_WEIGHT * float(np.log1p(-share))
        return GroupScore(self.log_prior(novel=False), self.log_prior(novel=True), label, no_label)

    def log_likelihood(self, counts: IntArray) -> float:
        """Return the log-likelihood of group sizes, known classes first."""
        n_known = len(self.known)
        novel = self.log_prior(novel=True)[np.maximum(counts[n_known:], 1) - 1].sum()
        gaps = np.log(np.maximum(counts[:n_known], 1) / self.known) / LEAST_SPREAD
        return float(novel - np.log1p(gaps**2).sum())

    def count_plausible(self, counts: IntArray) -> int:
        """Return how many of these sizes a novel class is likely to have; without known classes, any size is."""
        if not len(self.known):
            return len(counts)
        return int((self.log_prior(novel=True)[counts - 1] > IMPLAUSIBLE).sum())

    def count(self, joined: int, tree_error: float = TREE_ERROR, n_noise: int = 0) -> tuple[float, float]:
        """Combine the number of groups that the tree gives with the number that the rows have room for.

        Rows that no known class accounts for, divided by the mean size of a class, are a second estimate of the number
        of novel classes. Both are weighed by their precision. Far more classes than the tree has joined are doubted:
        the tree finds classes larger than the known ones only where the graph is clear.

        Parameters
        ----------
        joined : int
            Groups in the tree, known classes included.
        tree_error : float, default=TREE_ERROR
            The relative error of that number.
        n_noise : int, default=0
            Rows that belong to no class.

        Returns
        -------
        tuple of float
            Known and novel classes, and the relative error to expect of the number of novel ones.
        """
        n_known = len(self.known)
        novel = max(joined - n_known, 0)
        if not n_known or not novel:
            return float(joined), tree_error
        logs = np.log(self.known)
        variance = (LEAST_SPREAD**2 + ((logs - logs.mean()) ** 2).sum()) / (n_known + 1)
        mean_size = np.exp(self.centre + min(variance, 1.0) / 2)
        room = max((self.n_rows - n_noise - self.known.sum()) / mean_size, 1.0)
        more = max(np.log(room / novel), 0.0)
        # few known classes say little about the sizes of others
        doubted = variance + FIRST_CLASSES * DOUBTED_SPREAD**2 / (FIRST_CLASSES + n_known)
        error = ACCURATE**2 + doubted * (1 / n_known + 1 / room) + (self.difference / 2) ** 2 + (more / 2) ** 2
        weights = np.array([1 / tree_error**2, 1 / error])
        both = np.exp(np.average(np.log([novel, room]), weights=weights))
        return n_known + float(both), float(1 / np.sqrt(weights.sum()))


def estimate_sizes(
    tree: MergeTree, neighbors: IntArray, codes: IntArray, n_known: int, plain: MergeTree | None = None
) -> ClassSizes:
    """Estimate how large classes are.

    Parameters
    ----------
    tree : MergeTree
        The order in which rows join.
    neighbors : ndarray of int64
        For each row the numbers of its nearest others.
    codes : ndarray of int64
        Known class per row from 0, -1 where unknown.
    n_known : int
        The number of known classes; without any, the typical size is the one that makes the tree most likely.
    plain : MergeTree or None, default=None
        The tree before its merge test was fitted to known classes. Known and novel groups are compared in its cut: in
        a cut that merges more, without labels to keep them apart, classes run together.
    """
    n = len(codes)
    if not n_known:
        centres = np.arange(np.log(min(SMALLEST, n)), np.log(n) + 1e-9, CENTRE_STEP)
        nothing = np.zeros(0)
        return _most_likely(
            tree, codes, [ClassSizes(nothing, float(centre), UNLABELED_SPREAD, 0.0, n) for centre in centres]
        )
    alike = sizes_like_known(neighbors, codes, n_known)
    smaller = min(_compare_sizes(tree if plain is None else plain, codes), 0.0)
    if smaller:
        return alike.shifted(smaller)
    steps = np.arange(0.0, max(np.log(n) - alike.centre, CENTRE_STEP), CENTRE_STEP)
    return _most_likely(tree, codes, [alike.shifted(float(by)) for by in steps])


def sizes_like_known(neighbors: IntArray, codes: IntArray, n_known: int) -> ClassSizes:
    """Estimate how large classes are if novel ones are as large as known ones; parameters as in `estimate_sizes`."""
    known = estimate_known_sizes(neighbors, codes, n_known)
    logs = np.log(known)
    squares = FIRST_CLASSES * FIRST_SPREAD**2 + ((logs - logs.mean()) ** 2).sum()
    variance = squares / (FIRST_CLASSES + n_known) * (1 + 1 / n_known) + LEAST_SPREAD**2
    return ClassSizes(known, float(logs.mean()), float(np.sqrt(variance)), 0.0, len(codes))


def estimate_known_sizes(neighbors: IntArray, codes: IntArray, n_known: int) -> FloatArray:
    """Estimate how many rows, labelled or not, each known class has.

    The share of a class that is labelled is the share of labelled rows among the neighbours of its labelled rows.
    Neighbours of other classes count too: those with a label stand for those of novel classes, which have none.

    Parameters
    ----------
    neighbors : ndarray of int64
        For each row the numbers of its nearest others.
    codes : ndarray of int64
        Known class per row from 0, -1 where unknown; every known class has a labelled row.
    n_known : int
        The number of known classes.

    Examples
    --------
    >>> near = np.array([[1, 2], [0, 3], [0, 1], [0, 1]])  # of two labelled rows, one labelled neighbour of two each
    >>> estimate_known_sizes(near, np.array([0, 0, -1, -1]), 1).round(2)  # (2 - 1) of (3 - 1) others
    array([3.])
    """
    labelled = np.flatnonzero(codes >= 0)
    own = codes[labelled]
    found = codes[neighbors[labelled, :COUNTED_NEIGHBORS]]
    width = found.shape[1]
    counts = np.bincount(own, minlength=n_known).astype(np.float64)
    same = np.bincount(own, (found == own[:, None]).sum(axis=1), minlength=n_known)
    other = np.bincount(own, ((found >= 0) & (found != own[:, None])).sum(axis=1), minlength=n_known)
    share_known, sizes = 1.0, counts * len(codes) / max(counts.sum(), 1.0)
    for _ in range(12):
        near = np.minimum((same + other / share_known) / (width * np.maximum(counts, 1)), 1.0)
        share = near + (1 - near) / np.maximum(sizes, 1)  # neighbours are other rows: one labelled row is left out
        overall = float(np.average(share, weights=counts))
        share = np.minimum((counts * share + POOLED * overall) / (counts + POOLED), 1.0)
        sizes = counts / np.maximum(share, 1e-3)
        share_known = float(np.clip(sizes.sum() / len(codes), 0.05, 1.0))
    return np.minimum(sizes, len(codes))


def _compare_sizes(tree: MergeTree, codes: IntArray) -> float:
    """Return how much larger novel groups are than known ones in a cut that sees no labels, 0 unless that is clear."""
    groups = tree.cut()
    sizes = np.bincount(groups).astype(np.float64)
    share = np.bincount(groups[codes >= 0], minlength=len(sizes)) / sizes
    usual = _weighted_median(share, share * sizes)
    known = share > usual / 2
    means, errors = [], []
    for kind in (known & (sizes >= SMALLEST), ~known & (sizes >= SMALLEST)):
        if not kind.any():
            return 0.0
        mean, error = _mean_log_size(sizes[kind])
        means.append(mean)
        errors.append(error)
    difference = float(means[1] - means[0])
    return difference * max(0.0, 1 - CERTAIN * sum(errors) / max(difference**2, 1e-12))


def compare_novel(known: FloatArray, counts: IntArray) -> float:
    """Return how much larger novel groups are than known classes, as a difference of logs; 0 unless that is clear.

    Parameters
    ----------
    known : ndarray of float64
        The sizes of known classes.
    counts : ndarray of int64
        The sizes of novel groups; fewer than three say nothing.

    Examples
    --------
    >>> compare_novel(np.full(20, 100.0), np.full(20, 10)) < -2, compare_novel(np.full(20, 100.0), np.array([10]))
    (True, 0.0)
    """
    counts = counts[counts >= SMALLEST]
    if len(counts) < FEWEST_NOVEL:
        return 0.0
    (novel, error), (old, old_error) = (_mean_log_size(np.asarray(sizes, np.float64)) for sizes in (counts, known))
    difference = novel - old
    return difference * max(0.0, 1 - CERTAIN * (error + old_error) / max(difference**2, 1e-12))


def effective_number(labels: IntArray) -> float:
    """Return how many groups of one size have the entropy of these: small ones, which halves do not show, count less.

    Examples
    --------
    >>> effective_number(np.repeat([0, 1, 2], 30)), effective_number(np.repeat([0, 1, 2], [90, 1, 1])) < 1.2
    (3.0, True)
    """
    shares = np.bincount(labels) / len(labels)
    shares = shares[shares > 0]
    return round(float(np.exp(-(shares * np.log(shares)).sum())), 6)


def _mean_log_size(sizes: FloatArray) -> tuple[float, float]:
    """Return the mean log size, rows weighing alike so that scraps say little, and its squared standard error."""
    logs = np.log(sizes)
    mean = float(np.average(logs, weights=sizes))
    spread = float(np.average((logs - mean) ** 2, weights=sizes)) + UNLABELED_SPREAD**2
    return mean, spread * float((sizes**2).sum() / sizes.sum() ** 2)


def _most_likely(tree: MergeTree, codes: IntArray, candidates: list[ClassSizes]) -> ClassSizes:
    """Return the sizes that make the tree most likely (empirical Bayes).

    With known classes the first candidate, where novel classes are as large as known ones, is kept unless another one
    is clearly more likely: twice the difference of log-likelihoods is a squared standard error.
    """
    n_labeled = int((codes >= 0).sum())
    totals = np.array([tree.best_score(0.0, codes, one.group_score(n_labeled)) for one in candidates])
    best = int(np.argmax(totals))
    clear = not n_labeled or 2 * (totals[best] - totals[0]) > CERTAIN
    return candidates[best if clear else 0]


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
