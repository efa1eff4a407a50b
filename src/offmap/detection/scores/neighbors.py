"""Scores that look at the nearest known inputs: deep k-nearest neighbours and NNGuide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.formulas import directions, half_norms, kth_distance, mean_of_largest
from offmap.detection.registry import register
from offmap.detection.scores.logits import energy
from offmap.detection.statistics import RowSample, Statistic
from offmap.errors import InputError
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit

K_GRID = (1, 10, 20, 50, 100, 200, 500, 1000, 3000, 5000)  # thesis, section 5.3.1


def scale_k(k: int, alpha: float) -> int:
    """Compute the k that means the same in a sample of the bank: k·α, at least 1 (thesis, chapter 5, section 5.3.2).

    Parameters
    ----------
    k : int
        For the whole bank.
    alpha : float
        The share of rows that is kept.

    Returns
    -------
    int
        For the sample.

    Examples
    --------
    >>> scale_k(1000, 0.01)
    10
    """
    return max(1, round(k * alpha))


@register
class KNN(Score):
    """Minus the distance to the k-th nearest known input, among normalised penultimate features.

    Parameters
    ----------
    k : int or "auto", default=50
        Which neighbour; ``auto`` chooses by validation.
    alpha : float, default=1.0
        The share of known inputs kept in the bank, by a seeded hash; k is scaled with it.
    average : bool, default=False
        Use the mean distance to the k nearest instead of the k-th.
    normalize : bool, default=True
        Compare directions only, as the thesis does.
    seed : int, default=0
        Seed of the choice of inputs kept.
    standardize : bool, default=False
        Centre every feature and divide it by its standard deviation among the rows of the bank first: for tables whose
        columns have different units.
    """

    name = "knn"
    paper = (
        "Sun, Ming, Zhu & Li, Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022; thesis, chapter 5"
    )
    reads = ("features",)
    fits = ("features",)
    shown = ("k",)
    grid = {"k": K_GRID}
    keeps_rows = True

    k: int | Literal["auto"] = 50
    alpha: float = 1.0
    average: bool = False
    normalize: bool = True
    seed: int = 0
    standardize: bool = False

    def check(self) -> None:
        """Check the bounds of k and α."""
        self.require(isinstance(self.k, int) and self.k >= 1, "k", "k must be a whole number from 1")
        self.number("alpha", 0, 1, "the share kept must be above 0 and at most 1", open_low=True)

    def choices(self, field: str, n_known: int) -> tuple[Any, ...]:
        """Return only values of k that the bank can answer."""
        rows = max(1, round(self.alpha * n_known))
        return tuple(k for k in self.grid[field] if scale_k(k, self.alpha) <= rows)

    def statistics(self) -> Mapping[str, Statistic]:
        """Return the rows of the bank."""
        return {"bank": RowSample(alpha=self.alpha, seed=self.seed)}

    def statistics_key(self) -> tuple[str, float, int]:
        """Return the same rows whatever k is."""
        return ("rows of features", self.alpha, self.seed)

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["bank"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the bank: kept features as the shapers make them, normalised."""
        rows = context.shape(ActivationBatch(statistics["bank"].rows, head=context.head)).features
        if self.normalize:
            refuse_zeros(rows, repr(self))
        if self._k > len(rows):
            raise InputError(f"{self}: the bank holds {len(rows)} inputs; choose k at most {len(rows)}, or fit on more")
        units = column_units(rows) if self.standardize else {}
        bank = Bank(normalize=self.normalize)
        bank.add(in_units(rows, units).numpy())
        return {"vectors": torch.from_numpy(bank.vectors), **units}

    @property
    def _k(self) -> int:
        assert self.k != "auto"
        return scale_k(self.k, self.alpha)

    def prepare(self, state: State) -> tuple[Bank, State]:
        """Return the bank, around the saved vectors, and the state, which holds the units that it measures in."""
        return Bank.of(state["vectors"].cpu().numpy(), normalize=self.normalize), state

    def score(self, block: ActivationBatch, ready: tuple[Bank, State]) -> Tensor:
        """Return minus the distance."""
        bank, state = ready
        queries = in_units(block.features, state).cpu().numpy()
        return -torch.from_numpy(bank.kth_distance(queries, self._k, average=self.average))

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return the same by one product with the whole bank."""
        queries_of, rows, halves = searchable(state, self.normalize, self._k)

        def distance(block: ActivationBatch) -> Tensor:
            queries, anywhere = queries_of(block.features)
            found = kth_distance(queries, rows, halves, self._k, self.average)
            return -found if anywhere is None else -torch.where(anywhere, found, torch.inf)

        return distance


def refuse_zeros(rows: Tensor, method: str) -> None:
    """Raise an `InputError` where known features that are to be normalised are all zero.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        Known features.
    method : str
        Text form of the method, for the message.
    """
    if empty := int((rows == 0).all(dim=1).sum()):
        raise InputError(
            f"{method}: {empty} of {len(rows)} known inputs have all-zero features, which point nowhere; leave them "
            "out (acts[acts.features.any(axis=1)]) or use normalize=False"
        )


def column_units(rows: Tensor) -> State:
    """Compute the units that columns are standardised by.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        Known features.

    Returns
    -------
    dict of str to Tensor
        ``centre`` and ``spread``: mean and standard deviation of each column; a spread of 1 for a constant one.
    """
    wide = rows.double()
    spread = wide.std(dim=0, correction=0)
    return {"centre": wide.mean(dim=0).float(), "spread": torch.where(spread > 0, spread, 1.0).float()}


def in_units(features: Tensor, units: Mapping[str, Tensor]) -> Tensor:
    """Standardise columns.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    units : mapping of str to Tensor
        What `column_units` gave, alone or in a larger state; without it features stay as they are.

    Returns
    -------
    Tensor of shape (n, d)
        The inputs in these units.
    """
    return (features - units["centre"]) / units["spread"] if "spread" in units else features


def searchable(
    state: State, normalize: bool, k: int
) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor | None]], Tensor, Tensor | None]:
    """Prepare a bank for searching by one product with all of its rows, as an exported graph does.

    Parameters
    ----------
    state : dict of str to Tensor
        ``vectors``, and the units where columns are standardised.
    normalize : bool
        Whether directions are compared.
    k : int
        Which neighbour will be asked for.

    Returns
    -------
    queries_of : callable
        From features to queries, and to which of them point anywhere; `None` where all do.
    rows : Tensor of shape (n, d)
        The bank.
    half_norms : Tensor of shape (n,) or None
        As `offmap.detection.formulas.kth_distance` takes them.
    """
    rows = state["vectors"].float()
    if normalize:
        halves = half_norms(rows, k)
        crowded = halves if halves.dtype == torch.float64 else None  # else all are 1/2, up to rounding
        return lambda features: directions(in_units(features, state)), rows, crowded
    centre = rows.mean(dim=0)  # products of vectors that share a large offset would lose digits
    moved = rows - centre
    return lambda features: (in_units(features, state) - centre, None), moved, half_norms(moved, k)


def inner_product_bank(guides: Tensor) -> Bank:
    """Make a bank in which the nearest rows are those of the largest inner product.

    With one more coordinate √(M² - ‖b‖²), M the largest norm, and 0 there in the query, all rows have one length M, and
    the squared distance is ‖q‖² + M² - 2⟨q, b⟩.

    Parameters
    ----------
    guides : Tensor of shape (n, d)
        b, the rows.

    Returns
    -------
    Bank
        Search it with queries that have a 0 appended.

    Examples
    --------
    >>> bank = inner_product_bank(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    >>> bank.search(torch.tensor([[1.0, 0.0, 0.0]]).numpy(), k=1)[1]
    array([[1]])
    """
    squares = guides.double().square().sum(dim=1)
    beside = (squares.max() - squares).sqrt().to(guides.dtype)
    return Bank.of(torch.cat([guides, beside[:, None]], dim=1).cpu().numpy(), normalize=False)


def guidance(features: Tensor, guides: Tensor, bank: Bank, k: int) -> Tensor:
    """Average the k largest inner products of normalised features with the guides (Park et al. 2023, eq. 4).

    The guides are normalised features of known inputs, scaled by their energy; `bank` finds the largest.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    guides : Tensor of shape (m, d)
        The guides.
    bank : Bank
        What `inner_product_bank` made of the guides.
    k : int
        Over how many guides to average.

    Returns
    -------
    Tensor of shape (n,)
        The means, in float64.
    """
    directions = unit(features)
    queries = torch.nn.functional.pad(directions, (0, 1)).cpu().numpy()
    rows = torch.from_numpy(bank.search(queries, k)[1]).long().to(features.device)
    total = torch.zeros(len(features), dtype=torch.float64, device=features.device)
    for column in rows.T:  # one neighbour at a time keeps memory at one copy of the features
        total += (directions * guides[column]).sum(dim=1)
    return total / k


@register
class NNGuide(Score):
    """Energy times guidance: how well the input agrees with confident known inputs nearby.

    Parameters
    ----------
    k : int, default=10
        Over how many neighbours the guidance is averaged; all of the bank when it holds fewer.
    alpha : float, default=0.01
        The share of known inputs kept in the bank, by a seeded hash.
    seed : int, default=0
        Seed of the choice of inputs kept.
    """

    name = "nnguide"
    paper = "Park, Jung & Teoh, Nearest Neighbor Guidance for Out-of-Distribution Detection, ICCV 2023"
    reads = ("features", "logits")
    fits = ("features", "logits")
    shown = ("k",)
    keeps_rows = True
    invariant_to_shift = False

    k: int = 10
    alpha: float = 0.01
    seed: int = 0

    def check(self) -> None:
        """Check the bounds of k and α."""
        self.number("k", 1, float("inf"), "k must be a whole number from 1")
        self.number("alpha", 0, 1, "the share kept must be above 0 and at most 1", open_low=True)

    def statistics(self) -> Mapping[str, Statistic]:
        """Return the rows of the bank, with their logits."""
        return {"bank": RowSample(alpha=self.alpha, seed=self.seed)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features and logits."""
        statistics["bank"].update(block.features, logits=block.logits)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the guides: kept features as the shapers make them, normalised and scaled by energy."""
        bank = statistics["bank"]
        shaped = context.shape(ActivationBatch(bank.rows, bank.companion("logits"), head=context.head))
        return {"guides": unit(shaped.features) * energy(shaped.logits)[:, None].float()}

    def prepare(self, state: State) -> tuple[Tensor, Bank]:
        """Return the guides, and the bank that searches them."""
        return state["guides"], inner_product_bank(state["guides"])

    def score(self, block: ActivationBatch, ready: tuple[Tensor, Bank]) -> Tensor:
        """Return energy times guidance."""
        guides, bank = ready
        return energy(block.logits) * guidance(block.features, guides, bank, min(self.k, len(guides)))

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return the same by one product with all guides."""
        guides, k = state["guides"], min(self.k, len(state["guides"]))
        return lambda block: energy(block.logits) * mean_of_largest(unit(block.features) @ guides.T, k)
