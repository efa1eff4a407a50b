"""Count classes without labels: by the groups that two halves of the rows agree on, and that links tell most about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offmap.discovery.assign import Rows
from offmap.discovery.regrouping import link_information, vote
from offmap.discovery.space import group
from offmap.graph import labelled_eigenvectors, nearest_neighbors
from offmap.graph.build import directed_graph
from offmap.graph.features import PER_CLASS
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit, unit_and_length
from offmap.typing import Float32Array, IntArray

MOST_ROWS = 10_000
FEWEST_ROWS = 100
FEWEST_COLUMNS = 10  # in a plane any cut into cells comes back in the other half, classes or not
ROWS_PER_GROUP = 20  # on average, at least
GROWTH = 1.25  # from one number that is tried to the next
NEIGHBORS = 15
TELLING = 5  # of these, the nearest, whose groups tell about a row's
VOTERS = 5
STEPS = 20  # of k-means
ALMOST = 0.01  # of the agreement, or of what is told: less is noise
FALL = 0.02  # of the agreement, below which a peak has been passed
LEAST_AGREEMENT = 0.55  # rows drawn from one Gaussian of a real set's covariance reach at most a half
PRICE = 0.4  # of a group: what links must tell, as a share of all that could be told
MORE_TOLD = 0.1  # by links: clearly more, such as than by those of rows drawn from one Gaussian


@dataclass(frozen=True)
class TriedNumber:
    """A number of groups: how far two halves agree on it, and what links tell about it.

    Parameters
    ----------
    k : int
        The number of groups.
    agreement : float
        The adjusted mutual information between the groups that the two halves make of all rows.
    told : float
        What the links of a row tell about its group, less the price of the groups.
    """

    k: int
    agreement: float
    told: float


def count_by_halves(rows: Float32Array, seed: int = 0, also: int = 2) -> tuple[int, tuple[int, int]] | None:
    """Return the number of groups that two ways to count without labels suggest, and the range of what they allow.

    The rows are halved, each half is grouped by eigenvectors of its own neighbour graph, and every row follows its
    neighbours into the groups of the other half. One way takes the number on which the halves agree best: where classes
    are, both find them (Lange et al. 2004, with the adjusted mutual information as the measure). It misses classes that
    are close, as half of the rows show fewer, and counts scraps of nearly equal rows. The other takes the number about
    which links tell most: it joins close classes, and finds loose ones on which halves hardly agree. Their errors
    differ, so the geometric mean is nearer than either. On a plateau it is chance which number is highest: of
    agreement, the fewest are taken unless links tell clearly less of them, of what links tell the middle.

    Parameters
    ----------
    rows
        In a space where near means alike; of more than 10,000 a sample is looked at.
    seed
        Draws the halves.
    also
        A number of groups to try beside those in steps of a quarter, if there are rows enough for it.

    Returns
    -------
    tuple or None
        `None` where the halves hardly agree and links tell little more than those of rows that are drawn from one
        Gaussian, and with fewer than 100 rows or 10 columns.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = (3 * rng.normal(size=(6, 12))[np.arange(300) % 6] + rng.normal(size=(300, 12))).astype(np.float32)
    >>> count_by_halves(rows)[0]
    6
    >>> count_by_halves(rng.normal(size=(300, 12)).astype(np.float32)) is None
    True
    """
    if len(rows) < FEWEST_ROWS or rows.shape[1] < FEWEST_COLUMNS:
        return None
    order = np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS]
    middle = len(order) // 2
    numbers = _numbers(len(order) // ROWS_PER_GROUP, also)
    first, second = rows[order[:middle]], rows[order[middle:]]
    halves = _Half(first, second, numbers[-1], seed), _Half(second, first, numbers[-1], seed)
    trials = [_try(halves, k) for k in numbers]
    told = told_numbers(trials)
    most_told = told[(len(told) - 1) // 2]
    agreed = agreed_numbers(trials)
    if not agreed:
        drawn = draw_gaussian(first, seed)
        null = _Half(drawn, drawn[:VOTERS], most_told, seed)
        if max(one.told for one in trials) < _told(null.near, null.group(most_told)[0]) + MORE_TOLD:
            return None
    count = math.sqrt((fewest_told(trials, agreed) if agreed else most_told) * most_told)
    return round(count), (min(told + agreed), max(told + agreed))


def told_numbers(trials: Sequence[TriedNumber]) -> list[int]:
    """Return the numbers of groups about which links tell most or hardly less, few to many.

    Examples
    --------
    >>> told_numbers([TriedNumber(2, 0.9, 0.1), TriedNumber(5, 0.6, 0.495), TriedNumber(9, 0.8, 0.5)])
    [5, 9]
    """
    most = max(one.told for one in trials)
    return [one.k for one in trials if one.told >= most - ALMOST]


def fewest_told(trials: Sequence[TriedNumber], among: Sequence[int]) -> int:
    """Return the fewest groups of these numbers about which links tell clearly no less than about the others.

    Examples
    --------
    >>> fewest_told([TriedNumber(2, 1.0, 0.3), TriedNumber(3, 1.0, 0.6), TriedNumber(4, 1.0, 0.62)], [2, 3, 4])
    3
    """
    told = {one.k: one.told for one in trials if one.k in among}
    return min(k for k in told if told[k] > max(told.values()) - MORE_TOLD)


def agreed_numbers(trials: Sequence[TriedNumber]) -> list[int]:
    """Return the numbers of groups on which halves agree best, few to many; none where they hardly agree.

    A split into two or three heaps comes back as well, so the search starts from many groups and ends behind the first
    peak.

    Examples
    --------
    >>> agreed_numbers([TriedNumber(2, 0.9, 0.1), TriedNumber(5, 0.6, 0.2), TriedNumber(9, 0.8, 0.5)])
    [9]
    """
    passed: list[TriedNumber] = []
    for one in reversed(trials):
        passed.append(one)
        if one.agreement < max(other.agreement for other in passed) - FALL:
            break
    best = max(one.agreement for one in passed)
    if best < LEAST_AGREEMENT:
        return []
    return [one.k for one in reversed(passed) if one.agreement >= best - ALMOST]


def draw_gaussian(rows: Float32Array, seed: int) -> Float32Array:
    """Draw as many rows from one Gaussian with the mean and the covariance of these; of length 1 if these are.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32) * [1, 2, 3]
    >>> draw_gaussian(rows, 0).std(axis=0).round().tolist()
    [1.0, 2.0, 3.0]
    """
    mean = rows.mean(axis=0)
    _, spread, directions = np.linalg.svd(rows - mean, full_matrices=False)
    noise = np.random.default_rng(seed).normal(size=(len(rows), len(spread))) / math.sqrt(len(rows))
    drawn = (mean + (noise * spread) @ directions).astype(np.float32)
    return unit(drawn) if np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3) else drawn


class _Half:
    """Eigenvectors of one half of the rows, and which of its rows the other half's follow."""

    def __init__(self, rows: Float32Array, others: Float32Array, most: int, seed: int) -> None:
        _, self.near = nearest_neighbors(rows, min(NEIGHBORS, len(rows) - 1))
        links = directed_graph(self.near)
        columns = min(math.ceil(PER_CLASS * most), len(rows) - 2)
        self.vectors = labelled_eigenvectors((links + links.T) * 0.5, np.full(len(rows), -1), columns, seed=seed)
        self.voters = Bank.of(rows, normalize=False).search(others, VOTERS)[1]
        self.seed = seed

    def group(self, k: int) -> tuple[IntArray, IntArray]:
        """Return groups of the rows of this half and of the other one's."""
        features = unit_and_length(self.vectors[:, : math.ceil(PER_CLASS * k)])[0]
        own = group(Rows(features), k, self.seed, max_iter=STEPS)[0]
        return own, vote(own[self.voters])[0]


def _try(halves: tuple[_Half, _Half], k: int) -> TriedNumber:
    from sklearn.metrics import adjusted_mutual_info_score

    (first, second_by_first), (second, first_by_second) = (half.group(k) for half in halves)
    agreement = adjusted_mutual_info_score(
        np.concatenate([first, second_by_first]), np.concatenate([first_by_second, second])
    )
    told = np.mean([_told(half.near, groups) for half, groups in zip(halves, (first, second), strict=True)])
    return TriedNumber(k, float(agreement), float(told))


def _told(near: IntArray, groups: IntArray) -> float:
    """Return what links tell about these groups, less their price: a share of the entropy, the most they could tell."""
    shares = np.bincount(groups) / len(groups)
    entropy = -float((shares * np.log(np.maximum(shares, 1e-12))).sum())
    return link_information((groups[near[:, :TELLING]] == groups[:, None]).mean(axis=1), groups) - PRICE * entropy


def _numbers(most: int, also: int) -> list[int]:
    """Return the numbers of groups that are tried: in steps of a quarter, and one more."""
    found, k = {2}, 2.0
    while (k := max(GROWTH * k, k + 1)) <= most:
        found.add(round(k))
    return sorted(found | {also} if 2 <= also <= most else found)
