"""Count classes without labels: the number of groups that two halves of the rows agree on."""

from __future__ import annotations

import math

import numpy as np

from offmap.discovery.assign import Rows
from offmap.discovery.regrouping import vote
from offmap.discovery.space import group
from offmap.graph import labelled_eigenvectors, nearest_neighbors
from offmap.graph.build import directed_graph
from offmap.graph.features import PER_CLASS
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit_and_length
from offmap.typing import Float32Array, IntArray

MOST_ROWS = 10_000
FEWEST_ROWS = 100
FEWEST_COLUMNS = 10  # in a plane any cut into cells comes back in the other half, classes or not
ROWS_PER_GROUP = 20  # on average, at least
GROWTH = 1.25  # from one number that is tried to the next
NEIGHBORS = 15
VOTERS = 5
STEPS = 20  # of k-means
ALMOST = 0.01  # of the agreement: less is noise
FALL = 0.02  # of the agreement, below which a peak has been passed
LEAST_AGREEMENT = 0.55  # rows drawn from one Gaussian of a real set's covariance reach at most a half


def count_by_stability(rows: Float32Array, seed: int = 0) -> tuple[int, tuple[int, int]] | None:
    """Return the number of groups that comes back best in other rows, and the range of those nearly as good.

    The rows are halved, each half is grouped by eigenvectors of its own neighbour graph, and every row follows its
    neighbours into the groups of the other half. Where classes are, both halves find them; groups that cut or join
    classes differ (Lange et al. 2004, with the adjusted mutual information as the measure). A split into two or three
    heaps comes back as well, so the search starts from many groups and ends behind the first peak.

    Parameters
    ----------
    rows
        In a space where near means alike; of more than 10,000 a sample is looked at.
    seed
        Draws the halves.

    Returns
    -------
    tuple or None
        `None` where nothing comes back, and with fewer than 100 rows or 10 columns.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = (3 * rng.normal(size=(6, 12))[np.arange(300) % 6] + rng.normal(size=(300, 12))).astype(np.float32)
    >>> count_by_stability(rows)[0]
    6
    >>> count_by_stability(rng.normal(size=(300, 12)).astype(np.float32)) is None
    True
    """
    if len(rows) < FEWEST_ROWS or rows.shape[1] < FEWEST_COLUMNS:
        return None
    order = np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS]
    middle = len(order) // 2
    numbers = _numbers(len(order) // ROWS_PER_GROUP)
    first, second = rows[order[:middle]], rows[order[middle:]]
    halves = _Half(first, second, numbers[-1], seed), _Half(second, first, numbers[-1], seed)
    agreement: dict[int, float] = {}
    for k in reversed(numbers):
        agreement[k] = _agree(halves, k)
        if agreement[k] < max(agreement.values()) - FALL:
            break
    best = max(agreement.values())
    if best < LEAST_AGREEMENT:
        return None
    # on a plateau it is chance which number is highest: the middle one is taken
    plateau = [k for k, one in agreement.items() if one >= best - ALMOST]
    near = [k for k, one in agreement.items() if one >= best - FALL]
    return plateau[len(plateau) // 2], (min(near), max(near))


class _Half:
    """Eigenvectors of one half of the rows, and which of its rows the other half's follow."""

    def __init__(self, rows: Float32Array, others: Float32Array, most: int, seed: int) -> None:
        _, near = nearest_neighbors(rows, min(NEIGHBORS, len(rows) - 1))
        links = directed_graph(near)
        columns = min(math.ceil(PER_CLASS * most), len(rows) - 2)
        self.vectors = labelled_eigenvectors((links + links.T) * 0.5, np.full(len(rows), -1), columns, seed=seed)
        self.voters = Bank.of(rows, normalize=False).search(others, VOTERS)[1]
        self.seed = seed

    def group(self, k: int) -> tuple[IntArray, IntArray]:
        """Return groups of the rows of this half and of the other one's."""
        features = unit_and_length(self.vectors[:, : math.ceil(PER_CLASS * k)])[0]
        own = group(Rows(features), k, self.seed, max_iter=STEPS)[0]
        return own, vote(own[self.voters])[0]


def _agree(halves: tuple[_Half, _Half], k: int) -> float:
    """Return the adjusted mutual information between the groups that the two halves make of all rows."""
    from sklearn.metrics import adjusted_mutual_info_score

    (first, second_by_first), (second, first_by_second) = (half.group(k) for half in halves)
    return float(
        adjusted_mutual_info_score(np.concatenate([first, second_by_first]), np.concatenate([first_by_second, second]))
    )


def _numbers(most: int) -> list[int]:
    """Return the numbers of groups that are tried, in steps of a quarter."""
    found, k = [2], 2.0
    while (k := max(GROWTH * k, k + 1)) <= most:
        found.append(round(k))
    return found
