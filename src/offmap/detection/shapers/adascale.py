"""AdaSCALE: how strongly activations are scaled depends on how little they change when unimportant pixels do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from offmap.detection.base import Context, Shaper, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import RowSample, Statistic
from offmap.extra_passes import Perturbed, Request

SAMPLE = 20_000


def stability(features: Tensor, perturbed: Tensor, correction: int, shifted: int, weight: float) -> Tensor:
    """Return Q' = Σ relu(h') over the top `correction` units + λ Σ |h' - h| over the top `shifted` units.

    h and h' are the features of an input before and after the perturbation; the top units are those of h
    (Regmi 2025, eq. 5 and 6).

    Parameters
    ----------
    features, perturbed : Tensor of shape (n, d)
        h and h'.
    correction, shifted : int
        Numbers of top units.
    weight : float
        λ.

    Returns
    -------
    Tensor of shape (n,)
        Q'.

    Examples
    --------
    >>> stability(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0, 1.0]]), 1, 1, 10.0)
    tensor([12.])
    """
    top = features.topk(max(correction, shifted), dim=1).indices
    kept = perturbed.relu().gather(1, top[:, :correction]).sum(dim=1)
    moved = (features - perturbed).abs().gather(1, top[:, :shifted]).sum(dim=1)
    return kept + weight * moved


def adaptive_ratio(features: Tensor, percentiles: Tensor) -> Tensor:
    """Return the sum of all rectified activations over that of each row's largest, above a percentile of its own.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    percentiles : Tensor of shape (n,)
        From 0 to 100.

    Returns
    -------
    Tensor of shape (n, 1)
        The ratios; 1 for a row without positive activations.

    Examples
    --------
    >>> adaptive_ratio(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), torch.tensor([50.0]))
    tensor([[1.4286]])
    """
    units = features.shape[1]
    positive = features.clamp(min=0)
    kept = (units - torch.round(units * percentiles / 100)).long().clamp(1, units)
    top = positive.sort(dim=1, descending=True).values.cumsum(dim=1).gather(1, kept[:, None] - 1)
    ratio = positive.sum(dim=1, keepdim=True) / top
    return torch.where(top > 0, ratio, torch.ones_like(ratio))


@dataclass(frozen=True, repr=False)
class _AdaScale(Shaper):
    """Base of both forms: a percentile for each input, from its stability among known inputs."""

    paper = "Regmi, AdaSCALE: Adaptive Scaling for OOD Detection, 2025"
    low: float = 80.0
    high: float = 85.0
    correction: float = 1.0
    shifted: float = 5.0
    weight: float = 10.0
    share: float = 0.05
    epsilon: float = 0.5

    def check(self) -> None:
        """Refuse parameters out of bounds."""
        for field in ("low", "high", "correction", "shifted"):
            self.number(field, 0, 100, "a percentage lies between 0 and 100")
        self.require(self.low <= self.high, "low", f"the lower percentile is at most the upper one, {self.high}")
        self.number("share", 0, 1, "the share of pixels moved is above 0 and at most 1", open_low=True)
        self.number("epsilon", 0, math.inf, "the length of the step must not be negative")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return an empty sample of stabilities."""
        return {"stability": RowSample(size=SAMPLE)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add the stability of known inputs."""
        statistics["stability"].update(self._stability(block)[:, None])

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the stabilities of known inputs, sorted."""
        return {"stability": statistics["stability"].rows[:, 0].sort().values}

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Ask for a pass on inputs whose least important pixels were moved."""
        return (self._pass,)

    @property
    def _pass(self) -> Perturbed:
        return Perturbed(self.epsilon, _top_logit, "adascale", sign_zero=0, share=self.share)

    def _stability(self, block: ActivationBatch) -> Tensor:
        width = block.features.shape[1]
        correction, shifted = (max(1, int(width * percent / 100)) for percent in (self.correction, self.shifted))
        return stability(block.features, block.extra(self._pass.outputs[0]), correction, shifted, self.weight)

    def ratio(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return each input's ratio of activation sums at the percentile that its stability gives it."""
        known = ready["stability"]
        below = torch.searchsorted(known, self._stability(block).contiguous(), right=True) / max(len(known), 1)
        return adaptive_ratio(block.features, self.low + (1 - below) * (self.high - self.low))


def _top_logit(features: Tensor, logits: Tensor) -> Tensor:
    return logits.amax(dim=1)


@register
class AdaScaleA(_AdaScale):
    """Multiplies an input's activations by the exponential of its mass ratio, at a percentile of its own.

    Parameters
    ----------
    low, high : float, default 80 and 85
        Bounds of the percentile; inputs that a perturbation changes much get the lower one.
    correction, shifted : float, default 1 and 5
        Percentage of the largest units whose perturbed activations, and whose changes, are summed.
    weight : float, default 10
        λ, how much the changes count.
    share : float, default 0.05
        The share of an input's values that is moved: those with the smallest gradients.
    epsilon : float, default 0.5
        The length of the step, in units of the network's input.

    Notes
    -----
    It runs the network again on perturbed inputs, with a gradient: extract with
    ``requirements=detector.requirements``.
    """

    name = "adascale_a"
    reads = ("features", "head")
    fits = ("features",)

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """Scale the features."""
        return block.with_features(block.features * self.ratio(block, ready).exp())


@register
class AdaScaleL(_AdaScale):
    """Multiplies an input's logits by the square of its mass ratio, at a percentile of its own.

    Parameters
    ----------
    low, high, correction, shifted, weight, share, epsilon : float, optional
        As in `AdaScaleA`.
    """

    name = "adascale_l"
    reads = ("features", "logits")
    fits = ("features",)
    shapes = "logits"

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """Scale the logits."""
        return block.with_logits(block.logits * self.ratio(block, ready).square())
