"""Shapers that prune or rescale each input's own activations: ASH, SCALE, LTS. Nothing to fit."""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.detection.base import Shaper
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register


def _kept(features: Tensor, percentile: float) -> int:
    """How many of a row's activations stand above its percentile, at least one."""
    units = features.shape[1]
    return max(1, units - round(units * percentile / 100))


def top_sum(features: Tensor, k: int) -> Tensor:
    """Sum each row's k largest activations.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    k : int
        How many of a row count.

    Returns
    -------
    Tensor of shape (n, 1)
        The sums.
    """
    return features.topk(k, dim=1).values.sum(dim=1, keepdim=True)


def prune(features: Tensor, percentile: float) -> Tensor:
    """Keep each row's largest activations and set the others to 0 (ASH-P).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    percentile : float
        Percentile of a row, from 0 to 100.

    Returns
    -------
    Tensor of shape (n, d)
        The pruned activations.

    Examples
    --------
    >>> prune(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 50)
    tensor([[0., 4., 0., 3.]])
    """
    values, places = features.topk(_kept(features, percentile), dim=1)
    return torch.zeros_like(features).scatter_(1, places, values)


def binarize(features: Tensor, percentile: float) -> Tensor:
    """Share the sum of each row equally among its largest activations, the others become 0 (ASH-B).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    percentile : float
        Percentile of a row, from 0 to 100.

    Returns
    -------
    Tensor of shape (n, d)
        The binarized activations.

    Examples
    --------
    >>> binarize(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 50)
    tensor([[0., 5., 0., 5.]])
    """
    k = _kept(features, percentile)
    places = features.topk(k, dim=1).indices
    share = (features.sum(dim=1, keepdim=True) / k).expand(-1, k)
    return torch.zeros_like(features).scatter_(1, places, share)


def mass_ratio(features: Tensor, percentile: float) -> Tensor:
    """Divide the sum of all rectified activations by that of the largest ones.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    percentile : float
        Percentile of a row, from 0 to 100.

    Returns
    -------
    Tensor of shape (n, 1)
        At least 1; 1 for a row without positive activations.

    Examples
    --------
    >>> mass_ratio(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 50)
    tensor([[1.4286]])
    """
    positive = features.clamp(min=0)
    return _relative_mass(positive, top_sum(positive, _kept(features, percentile)))


def _relative_mass(positive: Tensor, top: Tensor) -> Tensor:
    ratio = positive.sum(dim=1, keepdim=True) / top
    return torch.where(top > 0, ratio, torch.ones_like(ratio))


class _ByPercentile(Shaper):
    """A shaper that compares each input's activations with a percentile of their own."""

    reads = ("features", "head")
    shown = ("percentile",)
    grid = {"percentile": (60, 65, 70, 75, 80, 85, 90, 95)}

    percentile: float

    def check(self) -> None:
        """Check the bounds of the percentile."""
        self.number("percentile", 0, 100, "the percentile must be between 0 and 100")


@register
class ASHP(_ByPercentile):
    """Keeps each input's largest activations and drops the others."""

    name = "ash_p"
    paper = "Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, ICLR 2023"

    percentile: float = 60

    def shape(self, block: ActivationBatch, ready: object) -> ActivationBatch:
        """Prune."""
        return block.with_features(prune(block.features, self.percentile))


@register
class ASHB(_ByPercentile):
    """Keeps each input's largest activations, all at the same value, with the sum preserved."""

    name = "ash_b"
    paper = ASHP.paper

    percentile: float = 65

    def shape(self, block: ActivationBatch, ready: object) -> ActivationBatch:
        """Binarize."""
        return block.with_features(binarize(block.features, self.percentile))


@register
class ASHS(_ByPercentile):
    """Keeps each input's largest activations and multiplies them by the exponential of the mass ratio."""

    name = "ash_s"
    paper = ASHP.paper

    percentile: float = 90

    def shape(self, block: ActivationBatch, ready: object) -> ActivationBatch:
        """Prune and scale."""
        pruned = prune(block.features, self.percentile)
        top = pruned.clamp(min=0).sum(dim=1, keepdim=True)  # the largest ones are found already
        return block.with_features(pruned * _relative_mass(block.features.clamp(min=0), top).exp())


@register
class SCALE(_ByPercentile):
    """Multiplies all activations of an input by the exponential of its mass ratio, without pruning.

    The paper's other method, ISH, changes the gradients while a network is trained; it leaves nothing to do afterwards.
    """

    name = "scale"
    paper = "Xu et al., Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement, ICLR 2024"

    percentile: float = 85

    def shape(self, block: ActivationBatch, ready: object) -> ActivationBatch:
        """Scale."""
        ratio = mass_ratio(block.features, self.percentile)
        return block.with_features(block.features * ratio.exp())


@register
class LTS(_ByPercentile):
    """Multiplies the logits of an input by the square of its mass ratio.

    Parameters
    ----------
    percentile : float, default=95
        95 compares all activations with the top 5 %.
    """

    name = "lts"
    paper = "Djurisic et al., Logit Scaling for Out-of-Distribution Detection, 2024"
    reads = ("features", "logits")
    shapes = "logits"

    percentile: float = 95

    def shape(self, block: ActivationBatch, ready: object) -> ActivationBatch:
        """Scale the logits."""
        return block.with_logits(block.logits * mass_ratio(block.features, self.percentile).square())
