"""WeiPer: the head's weights perturbed many times show directions in which unknown inputs are spread differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch, TensorHead
from offmap.detection.registry import register
from offmap.detection.statistics import RowSample, Statistic
from offmap.errors import InputError, MissingError

SAMPLE = 10_000
COLUMNS = 8192  # perturbed logits of one input that are held at once
LARGEST = 2**28  # numbers in all perturbed heads: a gigabyte
EPSILON, EPSILON_PERTURBED = 0.01, 0.025  # added to densities before they are divided, as the authors do


def perturb_weights(weight: Tensor, delta: float, repeats: int, seed: int) -> Tensor:
    """Return `repeats` copies of the head's weights, each row moved by δ times its length in a random direction.

    Granz, Heurich & Landgraf 2024, eq. 2 and 3.

    Parameters
    ----------
    weight : Tensor of shape (c, d)
        Weights of the head.
    delta : float
        δ.
    repeats : int
        Number of copies.
    seed : int
        Seed of the directions.

    Returns
    -------
    Tensor of shape (repeats, c, d)
        The perturbed weights.

    Examples
    --------
    >>> perturb_weights(torch.eye(2), delta=0.0, repeats=2, seed=0).shape
    torch.Size([2, 2, 2])
    """
    source = torch.Generator().manual_seed(seed)
    moved = torch.randn(repeats, *weight.shape, generator=source)
    lengths = moved.norm(dim=2, keepdim=True).clamp_(min=1e-12)
    # in place: for a thousand classes all copies are nearly a gigabyte
    return moved.div_(lengths).mul_(delta * weight.cpu().norm(dim=1, keepdim=True)).add_(weight.cpu())


def densities(values: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Return, per row, the share of its values in each of some equal bins between two bounds; others do not count.

    Parameters
    ----------
    values : Tensor of shape (n, m)
        The values.
    low, high : Tensor
        The bounds.
    bins : int
        Number of bins.

    Returns
    -------
    Tensor of shape (n, bins)
        The shares.

    Examples
    --------
    >>> densities(torch.tensor([[0.1, 0.2, 0.9, 7.0]]), torch.tensor(0.0), torch.tensor(1.0), 2)
    tensor([[0.5000, 0.2500]])
    """
    places = ((values - low) / (high - low).clamp(min=1e-12) * bins).floor()
    inside = (places >= 0) & (places < bins)
    counts = torch.zeros(values.shape[0], bins, dtype=values.dtype, device=values.device)
    counts = counts.scatter_add(1, places.clamp(0, bins - 1).long(), inside.to(values.dtype))
    return counts / values.shape[1]


def smooth(density: Tensor, width: int) -> Tensor:
    """Return the running mean over `width` bins, the outermost bins repeated beyond the ends.

    Parameters
    ----------
    density : Tensor of shape (n, bins)
        One row per input.
    width : int
        Bins of the running mean.

    Returns
    -------
    Tensor of shape (n, bins)
        The means.

    Examples
    --------
    >>> smooth(torch.tensor([[0.0, 3.0, 0.0]]), 3)
    tensor([[1., 1., 1.]])
    """
    left = (width - 1) // 2
    padded = torch.nn.functional.pad(density[:, None], (left, width - 1 - left), mode="replicate")
    return torch.nn.functional.avg_pool1d(padded, width, stride=1)[:, 0]


def symmetric_divergence(density: Tensor, reference: Tensor, epsilon: float) -> Tensor:
    """Return KL(p‖q) + KL(q‖p) of each row against a reference, after adding ε and normalising.

    Parameters
    ----------
    density : Tensor of shape (n, bins)
        p, one row per input.
    reference : Tensor of shape (bins,)
        q.
    epsilon : float
        ε.

    Returns
    -------
    Tensor of shape (n,)
        The divergences.

    Examples
    --------
    >>> symmetric_divergence(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5, 0.5]), 0.01)
    tensor([0.])
    """
    q = density + epsilon
    p = reference + epsilon
    q, p = q / q.sum(dim=1, keepdim=True), p / p.sum()
    return ((q - p) * (q.log() - p.log())).sum(dim=1)


@register
class WeiPer(Score):
    """Minus the divergence of an input's feature and perturbed-logit densities from those of known inputs.

    Parameters
    ----------
    delta : float, default 1.8
        Length of the perturbation, relative to the length of a class's weights.
    repeats : int, default 100
        Perturbed copies of the head.
    bins : int, default 100
        Bins of the densities.
    smoothing, smoothing_perturbed : int, default 4 and 15
        Bins that the densities of features and of perturbed logits are averaged over.
    weight, weight_msp : float, default 2.5 and 0.1
        Weights of the perturbed logits' divergence and of their mean softmax probability, λ₁ and λ₂ in the paper.
    seed : int, default 0
        Seed of the perturbations.

    Notes
    -----
    The bounds of the bins and the mean densities come from at most 10,000 known inputs chosen by a seeded hash, so that
    one reading of the data is enough.
    """

    name = "weiper"
    paper = (
        "Granz, Heurich & Landgraf, WeiPer: OOD Detection using Weight Perturbations of Class Projections, NeurIPS 2024"
    )
    reads = ("features", "head")
    fits = ("features", "head")

    delta: float = 1.8
    repeats: int = 100
    bins: int = 100
    smoothing: int = 4
    smoothing_perturbed: int = 15
    weight: float = 2.5
    weight_msp: float = 0.1
    seed: int = 0

    def check(self) -> None:
        """Refuse parameters out of bounds."""
        self.number("delta", 0, float("inf"), "the length of the perturbation must not be negative")
        for field in ("repeats", "smoothing", "smoothing_perturbed"):
            self.number(field, 1, 10_000, "a whole number from 1 is needed")
        self.number("bins", 2, 100_000, "a density needs at least 2 bins")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return an empty sample of features."""
        return {"sample": RowSample(size=SAMPLE)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["sample"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the perturbed heads, the bounds of the bins and the mean densities."""
        if context.head is None:
            raise MissingError(f"{self} needs head: pass head=offmap.Head(weight, bias) to Activations")
        head = TensorHead(context.head.weight.cpu(), context.head.bias.cpu())
        numbers = self.repeats * head.weight.numel()
        if numbers > LARGEST:
            most = max(1, LARGEST // head.weight.numel())
            raise InputError(f"{self}: {self.repeats} perturbed heads hold {numbers:,} numbers; choose repeats={most}")
        rows = statistics["sample"].rows
        state = {"weights": perturb_weights(head.weight, self.delta, self.repeats, self.seed), "bias": head.bias}
        parts = torch.split(rows, 256)
        spread = [bound for part in parts for bound in self._extremes(part, state)]
        state |= {"low": rows.min(), "high": rows.max(), "low_perturbed": min(spread), "high_perturbed": max(spread)}
        means, means_perturbed = torch.zeros(self.bins), torch.zeros(self.bins)
        for part in parts:
            means += densities(part, state["low"], state["high"], self.bins).sum(dim=0) / len(rows)
            means_perturbed += self._perturbed(part, state)[0].sum(dim=0) / len(rows)
        return state | {"density": means, "density_perturbed": means_perturbed}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the divergences, plus the mean softmax probability of the perturbed heads."""
        plain = densities(block.features, ready["low"], ready["high"], self.bins)
        perturbed, probability = self._perturbed(block.features, ready)
        away = symmetric_divergence(smooth(plain, self.smoothing), ready["density"], EPSILON)
        away_perturbed = symmetric_divergence(
            smooth(perturbed, self.smoothing_perturbed), ready["density_perturbed"], EPSILON_PERTURBED
        )
        return -(away + self.weight * away_perturbed - self.weight_msp * probability).double()

    def _extremes(self, features: Tensor, state: State) -> tuple[Tensor, Tensor]:
        found = [logits.aminmax() for logits in self._logits(features, state)]
        return min(part.min for part in found), max(part.max for part in found)

    def _perturbed(self, features: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the density of all perturbed logits and their mean largest probability."""
        density = torch.zeros(features.shape[0], self.bins, device=features.device)
        probability = torch.zeros(features.shape[0], device=features.device)
        for logits in self._logits(features, state):
            share = logits.shape[1] / self.repeats
            flat = logits.flatten(1)
            density = density + share * densities(flat, state["low_perturbed"], state["high_perturbed"], self.bins)
            probability = probability + share * torch.softmax(logits, dim=2).amax(dim=2).mean(dim=1)
        return density, probability

    def _logits(self, features: Tensor, state: State) -> Iterator[Tensor]:
        """Yield inputs × heads × classes, as many heads at once as keep the block small."""
        weights = state["weights"]
        _, classes, width = weights.shape
        for part in torch.split(weights, max(1, COLUMNS // classes)):
            product = features @ part.reshape(-1, width).T
            yield product.reshape(features.shape[0], len(part), classes) + state["bias"]
