"""Scores by how a feature vector lies to the head and to the means of known inputs: SHE, fDBD, NCI, pNML, GradNorm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.few_inputs import class_rows, fill_means
from offmap.detection.scores.logits import log_probabilities
from offmap.detection.statistics import ClassMoments, Mean, Statistic
from offmap.errors import InputError
from offmap.neighbors.vectors import unit

TINY = 1e-12
ALL_PAIRS = 1024  # classes up to which the distances of all pairs are worked out at once


def boundary_distances(logits: Tensor, weight: Tensor) -> Tensor:
    """Compute the mean distance to the boundary between the predicted class and each other one (Liu & Qin 2024, eq. 4).

    The distance to the boundary with class c is (f_ŷ - f_c) / ‖w_ŷ - w_c‖. The norms come from a product of the
    weights with themselves; with many classes only those of the predicted classes are worked out, in blocks.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.
    weight : Tensor of shape (c, d)
        Weights of the head.

    Returns
    -------
    Tensor of shape (n,)
        The mean distances.
    """
    top, predicted = logits.max(dim=1)
    between = _distances_of_weights(weight, predicted).to(logits.dtype)
    distances = (top[:, None] - logits) / between.clamp(min=TINY)
    others = max(logits.shape[1] - 1, 1)
    return torch.where(between > 0, distances, torch.zeros_like(distances)).sum(dim=1) / others


def _distances_of_weights(weight: Tensor, predicted: Tensor) -> Tensor:
    """‖w_ŷ - w_c‖ for each input and class c."""
    if len(weight) <= ALL_PAIRS:
        gram = weight.double() @ weight.double().T
        squares = torch.diagonal(gram)
        return (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).sqrt()[predicted]
    squares = weight.double().square().sum(dim=1)
    own, near = weight[predicted].double(), squares[predicted][:, None]
    parts = []
    for first in range(0, len(weight), ALL_PAIRS):
        chosen = slice(first, first + ALL_PAIRS)
        square = near + squares[chosen] - 2 * (own @ weight[chosen].double().T)
        rounding = 1e-13 * (near + squares[chosen])  # what may be left between equal rows
        parts.append(torch.where(square > rounding, square, torch.zeros_like(square)).sqrt().float())
    return torch.cat(parts, dim=1)


def gradient_norm(features: Tensor, logits: Tensor) -> Tensor:
    """Compute ‖h‖₁ · ‖C·softmax(f) - 1‖₁, the L1 norm of the head's gradient of Σ_c -log p_c (Huang et al. 2021).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        h.
    logits : Tensor of shape (n, c)
        f.

    Returns
    -------
    Tensor of shape (n,)
        The norms.
    """
    # in place: the matrix of all classes is read and written often enough to cost more than the head's product
    spread = torch.softmax(logits, dim=1, dtype=torch.float64).mul_(logits.shape[1]).sub_(1).abs_()
    return features.abs().sum(dim=1) * spread.sum(dim=1)


def regret(logits: Tensor, weakness: Tensor) -> Tensor:
    """Compute the pNML regret log Σ_c p_c / (p_c + p_c^κ (1 - p_c)) (Bibas et al. 2021).

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.
    weakness : Tensor of shape (n,)
        κ, how weakly known features support the input.

    Returns
    -------
    Tensor of shape (n,)
        The regrets.
    """
    log_p = log_probabilities(logits)
    log_rest = torch.log(-torch.expm1(log_p.clamp(max=-TINY)))
    denominator = torch.logaddexp(log_p, weakness[:, None] * log_p + log_rest)
    return torch.logsumexp(log_p - denominator, dim=1)


@register
class SHE(Score):
    """The inner product with the predicted class's mean feature, over known inputs that were classified rightly.

    For a class of which none was, the mean over the other classes stands in, with a warning.
    """

    name = "she"
    paper = "Zhang et al., Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization, ICLR 2023"
    reads = ("features", "logits")
    fits = ("features", "logits", "labels")
    invariant_to_shift = True

    def statistics(self) -> Mapping[str, Statistic]:
        """Return class means."""
        return {"patterns": ClassMoments(scatter=False)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features of rightly classified inputs."""
        right = block.logits.argmax(dim=1) == block.labels
        assert block.labels is not None
        statistics["patterns"].update(block.features[right], block.labels[right])

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return one pattern per class, and the mean of them for classes that have none."""
        moments = statistics["patterns"]
        if len(moments.counts) == 0:
            raise InputError(f"{self}: no known input was classified rightly; check that the labels are the network's")
        patterns, pooled = fill_means(moments, repr(self), "rightly classified input")
        return {"patterns": patterns.float().cpu(), "pooled": pooled.float().cpu()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the inner product with the pattern of the predicted class."""
        rows = class_rows(ready["patterns"], ready.get("pooled"), block.logits.argmax(dim=1))
        return (block.features * rows).sum(dim=1)


class _FromMean(Score):
    """A score relative to the mean feature of known inputs."""

    reads = ("features", "logits", "head")
    fits = ("features",)
    invariant_to_shift = True

    def statistics(self) -> Mapping[str, Statistic]:
        """Return the mean feature."""
        return {"mean": Mean()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["mean"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the mean feature."""
        return {"mean": statistics["mean"].value.float().cpu()}


@register
class FDBD(_FromMean):
    """The mean distance to the decision boundaries, relative to the distance from the mean of known features."""

    name = "fdbd"
    paper = "Liu & Qin, Fast Decision Boundary based Out-of-Distribution Detector, ICML 2024"

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return distance to boundaries over distance to the mean."""
        away = (block.features - ready["mean"]).norm(dim=1).clamp(min=TINY)
        return boundary_distances(block.logits, block.require_head().weight) / away


@register
class NCI(_FromMean):
    """The alignment of the centred feature with the predicted class's weights, plus a multiple of its L1 norm.

    Parameters
    ----------
    alpha : float, default=0.001
        The weight of the norm.
    """

    name = "nci"
    paper = "Liu & Qin, Detecting Out-of-Distribution Through the Lens of Neural Collapse, CVPR 2025"

    alpha: float = 0.001

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return alignment plus norm."""
        weights = block.require_head().weight[block.logits.argmax(dim=1)]
        aligned = (unit(block.features - ready["mean"]) * weights).sum(dim=1)
        return aligned + self.alpha * block.features.abs().sum(dim=1)


@register
class PNML(Score):
    """Minus the pNML regret: how much better any label could have been fitted after seeing it, given known features."""

    name = "pnml"
    paper = (
        "Bibas, Feder & Hassner, Single Layer Predictive Normalized Maximum Likelihood for OOD Detection, NeurIPS 2021"
    )
    reads = ("features", "head")
    fits = ("features",)

    def statistics(self) -> Mapping[str, Statistic]:
        """Return second moments of normalised features."""
        return {"moments": ClassMoments()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add normalised features."""
        statistics["moments"].update(unit(block.features))

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the pseudo-inverse of XᵀX."""
        moments = statistics["moments"]
        gram = moments.second_moment().cpu() * moments.counts.sum()
        return {"inverse": torch.linalg.pinv(gram, hermitian=True)}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the regret, from the head's answer to the normalised feature."""
        directions = unit(block.features)
        x = directions.double()
        support = ((x @ ready["inverse"]) * x).sum(dim=1).clamp(min=0)
        return -regret(block.require_head()(directions), support / (1 + support))


@register
class GradNorm(Score):
    """The L1 norm of the gradient of the head under uniform targets, in closed form."""

    name = "gradnorm"
    paper = (
        "Huang, Geng & Li, On the Importance of Gradients for Detecting Distributional Shifts in the Wild, NeurIPS 2021"
    )
    reads = ("features", "logits")
    invariant_to_shift = True

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the norm."""
        return gradient_norm(block.features, block.logits)
