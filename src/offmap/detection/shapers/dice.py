"""Sparsified heads: DICE, and the sparsifiers that the thesis compares it with (section 4.4, tables 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from offmap.detection.base import Context, Shaper, State, Statistics
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.registry import register
from offmap.detection.statistics import Mean, Statistic
from offmap.errors import MissingError


def contribution(mean_activation: Tensor, weight: Tensor) -> Tensor:
    """Compute V, each weight times the mean activation of its unit (thesis, chapter 4, section 4.2, eq. 4.1).

    Parameters
    ----------
    mean_activation : Tensor of shape (d,)
        Over known inputs.
    weight : Tensor of shape (c, d)
        Weights of the head.

    Returns
    -------
    Tensor of shape (c, d)
        V, signed.

    Examples
    --------
    >>> contribution(torch.tensor([2.0, 1.0]), torch.tensor([[1.0, -1.0]]))
    tensor([[ 2., -1.]])
    """
    return weight * mean_activation


def n_kept(p: float, size: int) -> int:
    """Compute how many of some entries remain at a sparsity: k = round((1 - p)·size).

    Parameters
    ----------
    p : float
        The sparsity, from 0 to 1.
    size : int
        Number of entries.

    Returns
    -------
    int
        k.
    """
    return round((1 - p) * size)


def largest(values: Tensor, k: int) -> Tensor:
    """Mark the k largest entries of a whole matrix; of equal ones those with the lower index.

    Parameters
    ----------
    values : Tensor
        A tensor of any shape.
    k : int
        How many to mark.

    Returns
    -------
    Tensor of bool
        The result, of the same shape.

    Examples
    --------
    >>> largest(torch.tensor([[1.0, 5.0], [5.0, 5.0]]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    mask = torch.zeros(values.numel(), dtype=torch.bool)
    mask[torch.argsort(values.reshape(-1), descending=True, stable=True)[:k]] = True
    return mask.reshape(values.shape)


@dataclass(frozen=True, repr=False)
class _Sparsifier(Shaper):
    """A head of which only some weights are kept; subclasses say which."""

    reads: ClassVar[tuple[str, ...]] = ("features", "head")
    fits: ClassVar[tuple[str, ...]] = ("head",)
    shown = ("p",)
    shapes = "head"
    fits_unshaped = True

    p: float | Literal["auto"] = 0.7

    def check(self) -> None:
        """Check the bounds of the sparsity."""
        self.number("p", 0, 1, "the share of weights dropped must be between 0 and 1")

    @property
    def share(self) -> float:
        """The sparsity as a number."""
        assert self.p != "auto"
        return float(self.p)

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Which weights are kept, classes × units."""
        raise NotImplementedError

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the mask."""
        if context.head is None:
            raise MissingError(f"{self} needs head: pass head=offmap.Head(weight, bias) to Activations")
        return {"mask": self.mask(context.head, statistics)}

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """See the features through the masked head; the bias stays."""
        head = block.require_head()
        return block.with_head(head.weight * ready["mask"], head.bias)


@dataclass(frozen=True, repr=False)
class _Directed(_Sparsifier):
    """Sparsifiers that look at contributions, from activations as the network gives them (unclipped, see errata)."""

    fits = ("features", "head")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return the mean activation of each unit."""
        return {"activation": Mean()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add activations."""
        statistics["activation"].update(block.features)

    def contributions(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return the contribution matrix, in float64."""
        return contribution(statistics["activation"].value.cpu(), head.weight.double())


@register
class DICE(_Directed):
    """Keeps the weights with the largest contribution to the logits of known inputs.

    Parameters
    ----------
    p : float or {"auto"}, default=0.7
        The share of weights dropped, over the whole matrix; ``auto`` chooses by validation.
    """

    name = "dice"
    paper = "Sun & Li, DICE: Leveraging Sparsification for Out-of-Distribution Detection, ECCV 2022; thesis, chapter 4"
    grid = {"p": (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)}  # thesis, appendix A.2.3, table A.3

    p: float | Literal["auto"] = 0.7

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return the k largest contributions."""
        values = self.contributions(head, statistics)
        return largest(values, n_kept(self.share, values.numel()))


@register
class BottomK(_Directed):
    """Keeps the weights with the smallest contribution: the opposite of DICE."""

    name = "bottom_k"
    paper = "the ablation of DICE; thesis, section 4.4, table 4.4"

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return the k smallest contributions."""
        values = self.contributions(head, statistics)
        return largest(-values, n_kept(self.share, values.numel()))


@register
class TopBottomK(_Directed):
    """Keeps weights with the largest and with the smallest contribution, half of them each."""

    name = "top_bottom_k"
    paper = "the ablation of DICE; thesis, section 4.4, table 4.4"

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return the k/2 largest and the k/2 smallest contributions."""
        values = self.contributions(head, statistics)
        k = n_kept(self.share, values.numel())
        return largest(values, k - k // 2) | largest(-values, k // 2)


@register
class RandomK(_Directed):
    """Keeps k random weights of each class."""

    name = "random_k"
    paper = "the ablation of DICE; thesis, section 4.4, table 4.4"

    seed: int = 0

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return k random units per class."""
        classes, units = head.weight.shape
        draws = torch.rand(classes, units, generator=torch.Generator().manual_seed(self.seed))
        return torch.stack([largest(row, n_kept(self.share, units)) for row in draws])


@register
class WeightDropout(_Sparsifier):
    """Drops random weights of the head (Wan et al. 2013), once."""

    name = "weight_dropout"
    paper = "Wan et al., Regularization of Neural Networks using DropConnect, ICML 2013; thesis, section 4.4, table 4.3"

    seed: int = 0

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return k random weights of the whole matrix."""
        draws = torch.rand(head.weight.shape, generator=torch.Generator().manual_seed(self.seed))
        return largest(draws, n_kept(self.share, draws.numel()))


@register
class UnitDropout(_Sparsifier):
    """Drops random units (Srivastava et al. 2014), once."""

    name = "unit_dropout"
    paper = "Srivastava et al., Dropout, JMLR 2014; thesis, section 4.4, table 4.3"

    seed: int = 0

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return all weights of random units."""
        units = head.weight.shape[1]
        draws = torch.rand(units, generator=torch.Generator().manual_seed(self.seed))
        return largest(draws, n_kept(self.share, units)).expand_as(head.weight).clone()


@register
class WeightPruning(_Sparsifier):
    """Drops the weights of smallest magnitude (Han et al. 2015)."""

    name = "weight_pruning"
    paper = (
        "Han et al., Learning both Weights and Connections for Efficient Neural Networks, NeurIPS 2015; "
        "thesis, section 4.4, table 4.3"
    )

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return the k largest magnitudes."""
        return largest(head.weight.abs(), n_kept(self.share, head.weight.numel()))


@register
class UnitPruning(_Sparsifier):
    """Drops the units whose weights have the smallest length (Li et al. 2017)."""

    name = "unit_pruning"
    paper = "Li et al., Pruning Filters for Efficient ConvNets, ICLR 2017; thesis, section 4.4, table 4.3"

    def mask(self, head: TensorHead, statistics: Statistics) -> Tensor:
        """Return all weights of the units with the longest columns."""
        lengths = head.weight.norm(dim=0)
        return largest(lengths, n_kept(self.share, len(lengths))).expand_as(head.weight).clone()
