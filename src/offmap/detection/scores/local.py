"""The simplified local outlier factor: distances to known inputs, relative to how far apart these are themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from offmap.detection.base import State
from offmap.detection.batch import ActivationBatch
from offmap.detection.formulas import nearest_distances
from offmap.detection.registry import register
from offmap.detection.scores.neighbors import column_units, in_units, refuse_zeros, searchable
from offmap.detection.scores.outliers import FromSample
from offmap.errors import StoreError
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit

SMALLEST = 1e-3  # of the mean distance: known inputs that are nearer to each other count as this far apart
TINY = 1e-12  # where all known inputs coincide


@register
class SLOF(FromSample):
    """How near the k nearest known inputs are, relative to how near their own nearest ones are, as a log ratio.

    A class whose inputs lie far apart makes distances large that mean nothing; the ratio takes this out. It is the
    local outlier factor without reachability distances, with mean distances in the place of those to the k-th.

    Parameters
    ----------
    k : int, default=20
        How many neighbours.
    normalize : bool, default=True
        Compare directions only, as `KNN` does.
    standardize : bool, default=False
        Centre every feature and divide it by its standard deviation first.
    rows : int, default=10000
        How many known inputs are kept to compare with.
    seed : int, default=0
        Seed of the sample.

    See Also
    --------
    offmap.detection.scores.outliers.LOF : the factor as it was published first.
    offmap.detection.scores.neighbors.KNN : the distance itself.

    Examples
    --------
    >>> import numpy as np, offmap
    >>> rng = np.random.default_rng(0)
    >>> narrow, wide = rng.normal(0, 0.1, (100, 2)), rng.normal(9, 1, (100, 2))
    >>> known = offmap.Activations(np.concatenate([narrow, wide]))
    >>> near_narrow, near_wide = offmap.detector("slof(5, normalize=false)").fit(known).score(
    ...     offmap.Activations(np.array([[1.0, 1.0], [10.0, 10.0]]))
    ... )
    >>> bool(near_narrow < near_wide)  # as far from both means, but only one is unusual there
    True
    """

    name = "slof"
    paper = "Schubert, Zimek & Kriegel, Local Outlier Detection Reconsidered, Data Mining and Knowledge Discovery 2014"
    shown = ("k",)

    k: int = 20
    normalize: bool = True
    standardize: bool = False
    rows: int = 10_000
    seed: int = 0

    def check(self) -> None:
        """Require at least one neighbour."""
        super().check()
        self.number("k", 1, float("inf"), "k must be a whole number from 1")

    def solve_sample(self, rows: Tensor) -> State:
        """Return the sample as it is compared, and the mean distance of each row to its own k nearest."""
        self.require_more_than(self.k, rows, f"{self.k} neighbours")
        if self.normalize:
            refuse_zeros(rows, repr(self))
        units = column_units(rows) if self.standardize else {}
        bank = Bank(normalize=self.normalize)
        bank.add(in_units(rows, units).numpy())
        vectors = torch.from_numpy(bank.vectors)
        places = torch.from_numpy(bank.search(bank.vectors, self.k + 1)[1])
        # one of the k + 1 is the row itself, at distance 0
        own = mean_distance(vectors, vectors, places) * (self.k + 1) / self.k
        return {"vectors": vectors, "own": own, "least": SMALLEST * own.mean() + TINY, **units}

    def prepare(self, state: State) -> tuple[Bank, State]:
        """Return the bank around the saved vectors, and the rest."""
        vectors, own = state["vectors"], state["own"]
        if own.shape != vectors.shape[:1]:
            raise StoreError(f"not a whole {self.name}: distances of shape {tuple(own.shape)} for {len(vectors)} rows")
        return Bank.of(vectors.cpu().numpy(), normalize=self.normalize), state

    def score(self, block: ActivationBatch, ready: tuple[Bank, State]) -> Tensor:
        """Return the log ratio, in float64."""
        bank, state = ready
        queries = in_units(block.features, state)
        places = torch.from_numpy(bank.search(queries.cpu().numpy(), self.k)[1]).to(queries.device)
        rows = state["vectors"].to(queries.device)
        distance = mean_distance(unit(queries) if self.normalize else queries, rows, places)
        return _log_ratio(torch.where(places[:, 0] >= 0, distance, torch.inf), places, state)

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return the same by one product with the whole sample."""
        queries_of, rows, halves = searchable(state, self.normalize, self.k)

        def ratio(block: ActivationBatch) -> Tensor:
            queries, anywhere = queries_of(block.features)
            found, places = nearest_distances(queries, rows, halves, self.k)
            distance = found.mean(dim=1)
            return _log_ratio(
                distance if anywhere is None else torch.where(anywhere, distance, torch.inf), places, state
            )

        return ratio


def mean_distance(queries: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """Average the distances to given rows, one after the other: the same bits whatever the number of threads.

    Parameters
    ----------
    queries, rows : Tensor of shape (n, d) and (m, d)
        Vectors of the same width.
    places : Tensor of shape (n, k)
        The rows to compare each query with.

    Returns
    -------
    Tensor of shape (n,)
        In float64.
    """
    total = torch.zeros(len(queries), dtype=torch.float64, device=queries.device)
    for column in places.T:
        total += (queries - rows[column]).double().norm(dim=1)
    return total / places.shape[1]


def _log_ratio(distance: Tensor, places: Tensor, state: State) -> Tensor:
    usual = state["own"].to(distance.device)[places].mean(dim=1)
    least = state["least"].to(distance.device)
    return torch.log(usual.clamp(min=least)) - torch.log(distance.clamp(min=least))
