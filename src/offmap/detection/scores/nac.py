"""NAC: known inputs bring each neuron into states that were seen before; unknown ones bring it into empty ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import Arrays, Statistic
from offmap.errors import OffmapWarning
from offmap.wording import format_count

FULL = 50  # known inputs in a bin from which on it is fully covered, where there are enough


class BinCounts(Statistic):
    """Counts of how often each column's values fell into each of some bins.

    Examples
    --------
    >>> counts = BinCounts(2)
    >>> counts.update(torch.tensor([[0, 1], [0, 0]]))
    >>> counts.counts.tolist()
    [[2, 0], [1, 1]]
    """

    def __init__(self, bins: int) -> None:
        self.bins = bins
        self.counts = torch.zeros(0, bins, dtype=torch.int64)

    def update(self, places: Tensor) -> None:
        """Count bin numbers, one row per input and one column per feature."""
        width = places.shape[1]
        flat = places.long() + torch.arange(width, device=places.device) * self.bins
        found = torch.bincount(flat.reshape(-1), minlength=width * self.bins).reshape(width, self.bins).cpu()
        self.counts = found if len(self.counts) == 0 else self.counts + found

    def merge(self, other: Self) -> None:
        """Add another's counts."""
        if len(other.counts):
            self.counts = other.counts.clone() if len(self.counts) == 0 else self.counts + other.counts

    def state(self) -> Arrays:
        """Return the counts."""
        return {"counts": self.counts.numpy()}

    def restore(self, state: Arrays) -> None:
        """Set the counts."""
        self.counts = torch.from_numpy(np.array(state["counts"]))


def neuron_states(features: Tensor, logits: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """Return σ(α · h ⊙ ∂KL(u‖p)/∂h) per neuron, in closed form for features before a linear head.

    The gradient of KL(u‖softmax(W h + b)) with respect to h is Wᵀ(p - u), u the uniform distribution
    (Liu et al. 2024, eq. 3).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        h.
    logits : Tensor of shape (n, c)
        Logits of the same inputs.
    weight : Tensor of shape (c, d)
        W.
    alpha : float
        α, the steepness of the sigmoid σ.

    Returns
    -------
    Tensor of shape (n, d)
        From 0 to 1.

    Examples
    --------
    >>> neuron_states(torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2), torch.eye(2), 100.0)
    tensor([[0.5000, 0.5000]])
    """
    away = torch.softmax(logits, dim=1) - 1 / logits.shape[1]
    return torch.sigmoid(alpha * features * (away @ weight))


@register
class NAC(Score):
    """The mean coverage of the states that an input brings the penultimate neurons into.

    Parameters
    ----------
    alpha : float, default 100
        Steepness of the sigmoid that turns a neuron's activation times its gradient into a state between 0 and 1.
    bins : int, default 50
        Bins that a neuron's states are counted in.
    full : int, optional
        Known inputs in a bin from which on it counts as fully covered. By default 50, but no more than each bin would
        hold if the known inputs were spread evenly.

    Notes
    -----
    The authors add up several layers; this is the penultimate one, whose gradient has a closed form. Their bins are
    full from a number of inputs on that suits tens of thousands of known ones. With few no bin would ever be full, and
    the score would count how common a neuron's commonest state is, which unknown inputs have too.
    """

    name = "nac"
    paper = (
        "Liu et al., Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization, ICLR 2024"
    )
    reads = ("features", "logits", "head")
    fits = ("features", "logits", "head")
    invariant_to_shift = True

    alpha: float = 100.0
    bins: int = 50
    full: int | None = None

    def check(self) -> None:
        """Refuse parameters out of bounds."""
        self.number("alpha", 0, float("inf"), "the steepness must be above 0", open_low=True)
        self.number("bins", 2, 100_000, "a neuron's states need from 2 to 100,000 bins")
        if self.full is not None:
            self.number("full", 1, float("inf"), "a bin is covered by at least one known input")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return empty counts."""
        return {"counts": BinCounts(self.bins)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Count the states of each neuron."""
        statistics["counts"].update(self._places(block))

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the coverage of every bin, from 0 to 1."""
        counts = statistics["counts"].counts
        known = int(counts[0].sum())
        if known < self.bins:
            warnings.warn(
                f"{self}: {format_count(known, 'known input')} for {self.bins} bins of each neuron's states, so that "
                f"many states were never seen and unknown inputs may count as known; give {self.bins} inputs or more",
                OffmapWarning,
                stacklevel=2,
            )
        full = max(1, min(FULL, known // self.bins)) if self.full is None else self.full
        return {"coverage": (counts.float() / full).clamp(max=1)}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the mean coverage over the neurons."""
        # a lookup column by column: coverage[neuron, place], without a tensor of inputs × neurons × bins
        return ready["coverage"].T.gather(0, self._places(block)).double().mean(dim=1)

    def _places(self, block: ActivationBatch) -> Tensor:
        states = neuron_states(block.features, block.logits, block.require_head().weight, self.alpha)
        return (states * self.bins).floor().long().clamp(0, self.bins - 1)
