"""Scores by the part of a feature vector that known inputs do not use: Residual and ViM."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.registry import register
from offmap.detection.scores.logits import energy
from offmap.detection.statistics import ClassMoments, RowSample, Statistic
from offmap.errors import InputError, MissingError

SAMPLE = 10_000


def origin(head: TensorHead) -> Tensor:
    """Find the point from which the head's bias vanishes: o = -W⁺ b (Wang et al. 2022, sec. 4.1).

    Parameters
    ----------
    head : TensorHead
        W and b.

    Returns
    -------
    Tensor of shape (d,)
        o.

    Examples
    --------
    >>> origin(TensorHead(torch.eye(2), torch.tensor([1.0, 2.0])))
    tensor([-1., -2.], dtype=torch.float64)
    """
    return -torch.linalg.pinv(head.weight.double()) @ head.bias.double()


def default_dimension(width: int) -> int:
    """Choose how many principal directions to set aside, by the width of the features, as the authors do.

    Parameters
    ----------
    width : int
        Number of features.

    Returns
    -------
    int
        Number of directions.

    Examples
    --------
    >>> default_dimension(2048), default_dimension(768), default_dimension(342)
    (1000, 512, 171)
    """
    return 1000 if width >= 2048 else 512 if width >= 768 else max(1, width // 2)


def residual_length(features: Tensor, point: Tensor, basis: Tensor) -> Tensor:
    """Compute the length of x - o in the directions of a basis.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        x.
    point : Tensor of shape (d,)
        o.
    basis : Tensor of shape (d, k)
        Orthonormal columns.

    Returns
    -------
    Tensor of shape (n,)
        The lengths.
    """
    return ((features - point) @ basis).norm(dim=1)


class _Subspace(Score):
    """Base of Residual and ViM: the directions of least variance about the origin."""

    fits = ("features", "head")
    dimension: int | None = None

    def check(self) -> None:
        """Require at least one direction."""
        few = self.dimension is not None and self.dimension < 1
        self.require(not few, "dimension", "at least one principal direction is set aside")

    def basis(self, moments: ClassMoments, point: Tensor) -> Tensor:
        """Return the directions that are left after the principal ones, in columns."""
        width = moments.means.shape[1]
        dimension = default_dimension(width) if self.dimension is None else self.dimension
        if dimension >= width:
            raise InputError(f"{self}: {dimension} principal directions leave nothing of {width} features")
        offset = moments.mean.cpu() - point
        about_origin = moments.covariance().cpu() + torch.outer(offset, offset)
        return torch.linalg.eigh(about_origin).eigenvectors[:, : width - dimension]

    def require_head(self, context: Context) -> TensorHead:
        """Return the head, or a sentence."""
        if context.head is None:
            raise MissingError(f"{self} needs head: pass head=offmap.Head(weight, bias) to Activations")
        return context.head


@register
class Residual(_Subspace):
    """Minus the length of a feature vector outside the principal subspace of known inputs.

    Parameters
    ----------
    dimension : int or None, default=None
        How many principal directions are set aside; by the width of the features when absent.
    """

    name = "residual"
    paper = "Wang et al., ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022"
    reads = ("features",)

    dimension: int | None = None

    def statistics(self) -> Mapping[str, Statistic]:
        """Return mean and scatter of features."""
        return {"moments": ClassMoments()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["moments"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the origin and the basis."""
        point = origin(self.require_head(context))
        return {"origin": point.float(), "basis": self.basis(statistics["moments"], point).float()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the length."""
        return -residual_length(block.features, ready["origin"], ready["basis"])


@register
class ViM(_Subspace):
    """Energy less a virtual logit: the length outside the principal subspace, scaled to the size of the logits.

    Parameters
    ----------
    dimension : int or None, default=None
        How many principal directions are set aside; by the width of the features when absent.

    Notes
    -----
    The scale α is a ratio of two means, taken over at most 10,000 known inputs chosen by a seeded hash, so that one
    reading of the data is enough.
    """

    name = "vim"
    paper = Residual.paper
    reads = ("features", "logits")
    invariant_to_shift = False

    dimension: int | None = None

    def statistics(self) -> Mapping[str, Statistic]:
        """Return mean and scatter of features, and a sample of them with their largest logits."""
        return {"moments": ClassMoments(), "sample": RowSample(size=SAMPLE)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["moments"].update(block.features)
        statistics["sample"].update(block.features, maxlogit=block.logits.amax(dim=1))

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the origin, the basis and the scale."""
        point = origin(self.require_head(context))
        basis = self.basis(statistics["moments"], point)
        sample = statistics["sample"]
        lengths = residual_length(sample.rows.double(), point, basis)
        alpha = sample.companion("maxlogit").double().mean() / lengths.mean().clamp(min=1e-12)
        return {"origin": point.float(), "basis": basis.float(), "alpha": alpha.double()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return energy less the virtual logit."""
        length = residual_length(block.features, ready["origin"], ready["basis"])
        return energy(block.logits) - ready["alpha"] * length
