"""NECO: known inputs lie in the principal subspace that neural collapse leaves; unknown ones stand away from it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import ClassMoments, Statistic
from offmap.errors import InputError

TINY = 1e-12


def subspace_share(features: Tensor, mean: Tensor, scale: Tensor, basis: Tensor) -> Tensor:
    """Return ‖P z‖ / ‖z‖ for standardised features z = (h - mean) / scale (Ben Ammar et al. 2024, eq. 7).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        h.
    mean, scale : Tensor of shape (d,)
        Mean and scale of each feature.
    basis : Tensor of shape (d, k)
        P, orthonormal columns.

    Returns
    -------
    Tensor of shape (n,)
        From 0 to 1.

    Examples
    --------
    >>> subspace_share(torch.tensor([[3.0, 4.0]]), torch.zeros(2), torch.ones(2), torch.tensor([[1.0], [0.0]]))
    tensor([0.6000])
    """
    standardised = (features - mean) / scale
    return (standardised @ basis).norm(dim=1) / standardised.norm(dim=1).clamp(min=TINY)


@register
class NECO(Score):
    """The share of a standardised feature vector inside the principal subspace of known inputs, times the top logit.

    Parameters
    ----------
    dimension : int or None, default None
        Principal directions of the subspace; by default as many as hold 90 % of the variance.
    logit : bool, default True
        Multiply by the largest logit, as the authors do for every architecture but ResNets.
    """

    name = "neco"
    paper = "Ben Ammar et al., NECO: NEural Collapse Based Out-of-distribution Detection, ICLR 2024"
    reads = ("features", "logits")
    fits = ("features",)
    invariant_to_shift = False

    dimension: int | None = None
    logit: bool = True

    def check(self) -> None:
        """Refuse a subspace without directions."""
        few = self.dimension is not None and self.dimension < 1
        self.require(not few, "dimension", "the subspace has at least one direction")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return an empty mean and scatter of features."""
        return {"moments": ClassMoments()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["moments"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return mean, scale and the principal directions of the correlation matrix."""
        covariance = statistics["moments"].covariance().cpu()
        width = len(covariance)
        if self.dimension is not None and self.dimension > width:
            raise InputError(f"{self}: there are {width} features; choose a dimension of at most {width}")
        scale = covariance.diagonal().sqrt()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        values, vectors = torch.linalg.eigh(covariance / torch.outer(scale, scale))
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
        held = torch.cumsum(values, 0) / values.sum().clamp(min=TINY)
        dimension = self.dimension or min(width, int((held < 0.9).sum()) + 1)
        return {
            "mean": statistics["moments"].mean.float().cpu(),
            "scale": scale.float(),
            "basis": vectors[:, :dimension].float(),
        }

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the share inside the subspace, times the largest logit."""
        share = subspace_share(block.features, ready["mean"], ready["scale"], ready["basis"])
        return share * block.logits.amax(dim=1) if self.logit else share
