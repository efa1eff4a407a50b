"""Scores that look at the nearest known inputs: deep k-nearest neighbours and NNGuide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.block import Block
from offmap.detection.registry import register
from offmap.detection.statistics import Rows, Statistic
from offmap.errors import InputError
from offmap.neighbors import Bank

K_GRID = (1, 10, 20, 50, 100, 200, 500, 1000, 3000, 5000)  # thesis l.1753


def scaled_k(k: int, alpha: float) -> int:
    """The k that means the same in a sample of the bank: k·α, at least 1 (thesis l.1812).

    Examples
    --------
    >>> scaled_k(1000, 0.01)
    10
    """
    return max(1, round(k * alpha))


@register
class KNN(Score):
    """Minus the distance to the k-th nearest known input, among normalised penultimate features.

    Parameters
    ----------
    k
        Which neighbour; ``auto`` chooses by validation.
    alpha
        The share of known inputs kept in the bank, by a seeded hash; k is scaled with it.
    average
        Use the mean distance to the k nearest instead of the k-th.
    normalize
        Compare directions only, as the thesis does.
    seed
        Of the choice of inputs kept.
    """

    name = "knn"
    paper = "Sun, Ming, Zhu & Li, Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022; thesis l.1588"
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

    def check(self) -> None:
        """Bounds of k and α."""
        self.require(isinstance(self.k, int) and self.k >= 1, "k", "k must be a whole number from 1")
        self.number("alpha", 0, 1, "the share kept must be above 0 and at most 1", open_low=True)

    def choices(self, field: str, n_known: int) -> tuple[Any, ...]:
        """Only values of k that the bank can answer."""
        rows = max(1, round(self.alpha * n_known))
        return tuple(k for k in self.grid[field] if scaled_k(k, self.alpha) <= rows)

    def statistics(self) -> Mapping[str, Statistic]:
        """The rows of the bank."""
        return {"bank": Rows(alpha=self.alpha, seed=self.seed)}

    def observe(self, statistics: Statistics, block: Block) -> None:
        """Add features."""
        statistics["bank"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """The bank: kept features as the shapers make them, normalised."""
        rows = context.shape(Block(statistics["bank"].rows, head=context.head)).features
        if self._k > len(rows):
            raise InputError(f"{self}: the bank holds {len(rows)} inputs; choose k at most {len(rows)}, or fit on more")
        bank = Bank(normalize=self.normalize)
        bank.add(rows.numpy())
        return {"vectors": torch.from_numpy(bank.vectors)}

    @property
    def _k(self) -> int:
        assert self.k != "auto"
        return scaled_k(self.k, self.alpha)

    def prepare(self, state: State) -> Bank:
        """The bank, around the saved vectors."""
        return Bank.of(state["vectors"].cpu().numpy(), normalize=self.normalize)

    def score(self, block: Block, ready: Bank) -> Tensor:
        """Minus the distance."""
        distance = ready.kth_distance(block.features.cpu().numpy(), self._k, average=self.average)
        return -torch.from_numpy(distance)
