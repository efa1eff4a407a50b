"""How many classes there are: several criteria, what each says, and an interval.

One Ward tree, built without labels, is cut at every number of groups in a wide range. Labels of the known classes
then tell which cut treats them right; novel classes are assumed to be like known ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.discovery.assign import Doubles, Floats, Labels, Rows, margins
from offmap.discovery.inputs import UNKNOWN
from offmap.discovery.space import Space
from offmap.discovery.tree import TREE_GROUPS, Tree, ward_tree
from offmap.errors import InputError

ABSENT = -2  # marks a row that is not counted
GRID = 60
COUNT_ROWS = 20_000
SILHOUETTE_ROWS = 3000
RESAMPLES = 200
PLATEAU = 0.01  # cuts whose accuracy differs by this much are about equally good
SILHOUETTE_PLATEAU = 0.02
COUNT_SPACES = (Space("cosine", None, 10), Space("cosine", 0.5, 0), Space("cosine", 0.5, 10))
SPECTRAL_ROWS = 3000


@dataclass(frozen=True)
class ClassCount:
    """An estimate of the number of classes, known and novel together.

    Parameters
    ----------
    n_classes
        The estimate.
    interval
        Where 90 % of the estimates fall when known classes are drawn again, widened to hold what each combined
        criterion says in each space.
    criteria
        What each criterion says.
    combined
        The criteria that made the estimate; the others are shown for comparison.
    """

    n_classes: int
    interval: tuple[int, int]
    criteria: dict[str, float]
    combined: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value:.0f}" for name, value in self.criteria.items())
        return f"{self.n_classes} classes ({self.interval[0]} to {self.interval[1]}); {said}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ClassCount:
        """An estimate from its plain values."""
        low, high = values["interval"]
        return cls(values["n_classes"], (low, high), values["criteria"], tuple(values["combined"]))


def count_classes(
    features: Any,
    labels: Labels,
    seed: int = 0,
    *,
    largest: int | None = None,
    spaces: Sequence[Space] = COUNT_SPACES,
    extra: bool = False,
) -> ClassCount:
    """Estimate the number of classes without labels of novel ones.

    Parameters
    ----------
    features, labels
        Rows, and their known class from 0; -1 where unknown, -2 for rows to leave out. Of many rows a sample is
        looked at: 20,000, or forty per known class.
    seed
        Of samples, starts and resampling.
    largest
        The largest number considered; six times the known classes and at least 60, unless said.
    spaces
        The spaces to look in; of what a criterion says in each, the median counts.
    extra
        Also compute the criteria that are only shown: held-out classes (Han et al. 2019), the eigengap of the
        neighbour graph, pruning of an over-clustering.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(6), 40)
    >>> rows = rng.normal(size=(6, 8))[truth] + 0.05 * rng.normal(size=(240, 8))
    >>> count_classes(rows, np.where(truth < 3, truth, -1)).n_classes
    6
    """
    features, labels = _sample(features, labels, seed)
    n, n_known = len(features), int(labels.max(initial=-1)) + 1
    top = _top(n, n_known, largest)
    if n == 1:
        return ClassCount(1, (1, 1), {})
    grid = np.unique(np.round(np.geomspace(max(n_known, 1 if n_known else 2), top, GRID)).astype(np.int64))
    said: dict[str, list[float]] = {}
    resampled: list[Doubles] = []
    used = spaces if n_known else [Space("cosine"), Space("cosine", None, 10)]
    for space in used:
        rows = Rows(space.prepare(features, labels), space.metric)
        rng = np.random.default_rng(seed)
        tree = ward_tree(rows, int(grid[-1]), rng)
        leaf = margins(rows, tree.centres)[0]
        silhouettes = silhouettes_along(rows, tree, grid, rng)
        said.setdefault("silhouette", []).append(float(grid[int(np.argmax(silhouettes))]))
        if n_known:
            owned, hits = along_tree(tree, leaf, labels, n_known, grid)
            sizes = np.bincount(labels[labels >= 0], minlength=n_known).astype(np.float64)
            draws = rng.multinomial(n_known, np.full(n_known, 1 / n_known), size=RESAMPLES)
            both = [
                (ownership_count(owned, grid, w, silhouettes), accuracy_count(hits, sizes, grid, w, silhouettes))
                for w in [np.ones(n_known), *draws]
            ]
            said.setdefault("ownership", []).append(both[0][0])
            said.setdefault("accuracy", []).append(both[0][1])
            resampled.append(np.array(both[1:]).mean(axis=1))
        if extra:
            said.setdefault("pruning", []).append(pruning_count(tree, int(grid[-1])))
            if n_known >= 4:
                said.setdefault("held-out", []).append(held_out_count(rows, labels, n_known, grid, seed))
    if extra or not n_known:
        said["eigengap"] = [eigengap_count(Rows(Space("cosine").prepare(features)), int(grid[-1]), seed)]
    combined = ("ownership", "accuracy") if n_known else ("silhouette", "eigengap")
    pooled = np.array([value for name in combined for value in said[name]])
    middle = np.exp(np.average([np.log(np.median(said[name])) for name in combined], weights=_trust(n_known)))
    estimate = round(float(np.clip(middle, max(n_known, 1), top)))
    spread = np.concatenate([np.percentile(np.concatenate(resampled), [5, 95]), pooled]) if resampled else pooled
    low, high = int(np.floor(spread.min())), int(np.ceil(spread.max()))
    criteria = {name: float(np.median(values)) for name, values in said.items()}
    return ClassCount(estimate, (max(min(low, estimate), n_known, 1), max(high, estimate)), criteria, combined)


def along_tree(tree: Tree, leaf: Labels, labels: Labels, n_known: int, grid: Labels) -> tuple[Doubles, Doubles]:
    """For each known class and each cut: the groups it owns, and its samples in the group matched to it.

    A class owns a group when it is the largest class there and the group looks labelled: its share of labelled
    rows is above half of what is usual where labels are.
    """
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((len(tree.centres), n_known + 1))
    np.add.at(counts, (leaf, np.where(labels >= 0, labels, n_known)), 1)
    owned, hits = np.zeros((n_known, len(grid))), np.zeros((n_known, len(grid)))
    for g, k in enumerate(grid):
        group = tree.cut(int(k))
        table = np.zeros((int(group.max()) + 1, n_known + 1))
        np.add.at(table, group, counts)
        known = table[:, :n_known]
        labelled = known.sum(axis=1)
        share = labelled / np.maximum(table.sum(axis=1), 1)
        usual = _weighted_median(share, labelled)
        mine = (share > usual / 2) & (labelled > 0)
        owned[:, g] = np.bincount(known[mine].argmax(axis=1), minlength=n_known)
        at, of = linear_sum_assignment(known, maximize=True)
        hits[of, g] = known[at, of]
    return owned, hits


def ownership_count(owned: Doubles, grid: Labels, weights: npt.NDArray[Any], silhouettes: Doubles) -> float:
    """The number of groups at which known classes own one group each on average: neither split nor merged.

    Where many cuts do as well, as with classes far apart, the silhouette decides among them.
    """
    total = weights.sum()
    mean = np.maximum.accumulate(weights @ owned / total)
    right = np.abs(mean - 1) <= 0.5 / total
    if right.any():
        return _centre(grid[right], silhouettes[right])
    below, above = np.flatnonzero(mean < 1), np.flatnonzero(mean > 1)
    last = float(grid[below[-1]]) if len(below) else float(grid[0])
    first = float(grid[above[0]]) if len(above) else float(grid[-1])
    return float(np.sqrt(last * first))


def accuracy_count(
    hits: Doubles, sizes: Doubles, grid: Labels, weights: npt.NDArray[Any], silhouettes: Doubles
) -> float:
    """GCD's criterion, the accuracy on labelled rows, at every cut instead of by Brent's search.

    The curve is flat and rough near its top; cuts are averaged by how near they come to the best, and by their
    silhouette where it differs much.
    """
    accuracy = (weights @ hits) / (weights @ sizes)
    return _centre(grid, accuracy / PLATEAU * SILHOUETTE_PLATEAU + silhouettes)


def silhouettes_along(rows: Rows, tree: Tree, grid: Labels, rng: np.random.Generator) -> Doubles:
    """The silhouette of every cut, distances taken to centres (Hruschka et al. 2004), on at most 3,000 rows."""
    sample = np.sort(rng.choice(len(rows), min(SILHOUETTE_ROWS, len(rows)), replace=False))
    few = Rows(rows.take(sample), rows.metric)
    scores = np.zeros(len(grid))
    for g, k in enumerate(grid):
        if k > 1:
            _, near, _, after = margins(few, tree.means(int(k), rows.metric))
            scores[g] = np.mean((after - near) / np.maximum(after, 1e-12))
    return scores


def _centre(grid: Labels, scores: Doubles) -> float:
    """The geometric mean of the cuts, weighed by their scores."""
    weight = np.exp((scores - scores.max()) / SILHOUETTE_PLATEAU)
    return float(np.exp((weight * np.log(grid)).sum() / weight.sum()))


def held_out_count(rows: Rows, labels: Labels, n_known: int, grid: Labels, seed: int) -> float:
    """DTC's estimate (Han et al. 2019): hide a third of the known classes, cut a tree that knows the others.

    The mean of the cut that finds the hidden classes best and the cut with the best silhouette; groups below 1 %
    of the largest are then dropped.
    """
    rng = np.random.default_rng(seed)
    hidden = rng.permutation(n_known)[: max(n_known // 3, 1)]
    shown = np.setdiff1d(np.arange(n_known), hidden)
    position = np.full(n_known + 1, -1)
    position[shown] = np.arange(len(shown))
    given = position[labels]
    tree = ward_tree(rows, int(grid[-1]), rng, given, len(shown))
    probe = np.isin(labels, hidden)
    leaf = margins(Rows(rows.take(np.flatnonzero(probe)), rows.metric), tree.centres)[0]
    truth = np.searchsorted(np.sort(hidden), labels[probe])
    _, hits = along_tree(tree, leaf, truth, len(hidden), grid)
    by_accuracy = float(grid[int(np.argmax(hits.sum(axis=0)))])
    by_silhouette = float(grid[int(np.argmax(silhouettes_along(rows, tree, grid, rng)))])
    k = int(np.ceil((by_accuracy + by_silhouette) / 2))
    sizes = np.bincount(tree.cut(k), tree.sizes).astype(np.float64)
    return float((sizes >= 0.01 * sizes.max()).sum())


def pruning_count(tree: Tree, k: int) -> float:
    """Over-cluster into `k` groups and drop those with less than half the usual size: prototypes nobody chose."""
    sizes = np.bincount(tree.cut(k), tree.sizes).astype(np.float64)
    return float((sizes >= 0.5 * _weighted_median(sizes, sizes)).sum())


def eigengap_count(rows: Rows, largest: int, seed: int) -> float:
    """Where the spectrum of the neighbour graph breaks (von Luxburg 2007), on at most 3,000 rows."""
    from offmap.graph import eigengap, knn_graph, spectral_embedding

    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(len(rows), min(SPECTRAL_ROWS, len(rows)), replace=False))
    if len(sample) < 4:
        return float(len(sample))
    picked: Floats = rows.take(sample)
    values = spectral_embedding(
        knn_graph(picked, min(10, len(sample) - 1)), min(largest + 1, len(sample) - 1), tolerance=1e-3, seed=seed
    ).values
    ordered = np.minimum.accumulate(values)
    return float(eigengap(ordered, smallest=min(2, len(ordered) - 1))[0])


def _sample(features: Any, labels: Labels, seed: int) -> tuple[Any, Labels]:
    """Rows to count on, in their order; classes are numbered again, should the sample hold none of a rare one."""
    index = np.flatnonzero(labels > ABSENT)
    wanted = max(COUNT_ROWS, 40 * (int(labels.max(initial=-1)) + 1))
    if len(index) > wanted:
        index = np.sort(np.random.default_rng(seed).choice(index, wanted, replace=False))
    if len(index) == len(labels):
        return features, labels
    kept = labels[index]
    there = np.unique(kept[kept >= 0])
    return features[index], np.where(kept >= 0, np.searchsorted(there, kept), UNKNOWN)


def _trust(n_known: int) -> list[float]:
    """How much the two combined criteria weigh: ownership averages over known classes, so it needs many of them."""
    share = n_known / (n_known + 10) if n_known else 0.5
    return [share, 1 - share]


def _top(n: int, n_known: int, largest: int | None) -> int:
    if largest is None:
        return int(min(max(min(max(6 * n_known, 60), n // 3), n_known, 1), max(TREE_GROUPS, n_known)))
    if not max(n_known, 1) <= largest <= n:
        raise InputError(f"largest={largest}: between the {n_known} known classes and the {n} rows is needed")
    return largest


def _weighted_median(values: Doubles, weights: Doubles) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
