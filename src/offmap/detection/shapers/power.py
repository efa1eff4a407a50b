"""Activations raised to a power, so that those of rectified units are less skewed. Nothing to fit."""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.detection.base import Shaper
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register


def raise_to(features: Tensor, exponent: float) -> Tensor:
    """Raise every activation's size to a power and keep its sign.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    exponent : float
        Above 0; the smaller, the less a large activation stands out.

    Returns
    -------
    Tensor of shape (n, d)
        The changed activations.

    Examples
    --------
    >>> raise_to(torch.tensor([[0.0, 4.0, -9.0]]), 0.5)
    tensor([[ 0.,  2., -3.]])
    """
    return torch.sign(features) * features.abs().pow(exponent)


@register
class Power(Shaper):
    """Raises every activation to a power, sign kept, so that distances are not ruled by the few that are large.

    Parameters
    ----------
    exponent : float, default=0.5
        0.5 is the square root, 1 changes nothing.
    """

    name = "power"
    paper = "Yang et al., Free Lunch for Few-shot Learning: Distribution Calibration, ICLR 2021, after Tukey 1977"
    reads = ("features", "head")
    shown = ("exponent",)
    grid = {"exponent": (0.25, 0.5, 0.75)}

    exponent: float = 0.5

    def check(self) -> None:
        """Check the bounds of the exponent."""
        self.number("exponent", 0, 1, "the exponent must be above 0 and at most 1", open_low=True)

    def shape(self, block: ActivationBatch, ready: object) -> ActivationBatch:
        """Raise to the power."""
        return block.with_features(raise_to(block.features, self.exponent))
