"""CADRef: how far a feature is from the mean of its predicted class, split by the sign of that class's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.few_inputs import class_rows, fill_means
from offmap.detection.scores.logits import energy, generalized_entropy, log_probabilities
from offmap.detection.statistics import ClassMoments, Mean, Statistic

TINY = 1e-6


def relative_errors(features: Tensor, means: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the parts of ‖h - μ‖₁ / ‖h‖₁ that raise and that lower the predicted class's logit.

    Parameters
    ----------
    features : Tensor
        One row per input.
    means, weights : Tensor
        The mean and the head's weights of each input's predicted class, row by row.

    Returns
    -------
    tuple of 2 Tensor of shape (n,)
        The raising and the lowering part.

    Examples
    --------
    >>> import torch
    >>> one = torch.tensor([[2.0, 2.0]])
    >>> relative_errors(one, torch.tensor([[1.0, 5.0]]), torch.tensor([[1.0, 1.0]]))
    (tensor([0.2500]), tensor([0.7500]))
    """
    moved = (features - means) * weights.sign()
    length = features.abs().sum(dim=1).clamp(min=TINY)
    return moved.clamp(min=0).sum(dim=1) / length, (-moved).clamp(min=0).sum(dim=1) / length


@register
class CADRef(Score):
    """Minus the class-aware relative feature error, the raising part divided by a score of the logits.

    Parameters
    ----------
    logit : {"energy", "msp", "maxlogit", "gen"}, default "energy"
        The score of the logits; it is kept positive, as the division needs.
    """

    name = "cadref"
    paper = "Ling et al., CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature Leveraging, CVPR 2025"  # noqa: E501
    reads = ("features", "logits", "head")
    fits = ("features", "logits", "labels")
    invariant_to_shift = False

    logit: Literal["energy", "msp", "maxlogit", "gen"] = "energy"

    def statistics(self) -> Mapping[str, Statistic]:
        """Return empty class means and an empty mean of the logits' score."""
        return {"means": ClassMoments(scatter=False), "confidence": Mean()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features of labelled inputs and their logits' score."""
        statistics["means"].update(block.features, block.labels)
        statistics["confidence"].update(self._confidence(block.logits)[:, None])

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the class means and the mean score of the logits."""
        means, pooled = fill_means(statistics["means"], repr(self), "input")
        return {
            "means": means.float().cpu(),
            "pooled": pooled.float().cpu(),
            "confidence": statistics["confidence"].value.reshape(()).double().cpu(),
        }

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the two relative errors, each divided by a score of the logits."""
        means, weight = ready["means"], block.require_head().weight
        predicted = block.logits.argmax(dim=1)
        rows = class_rows(means, ready.get("pooled"), predicted)
        rising, falling = relative_errors(block.features, rows, weight[predicted])
        return -(rising / self._confidence(block.logits) + falling / ready["confidence"])

    def _confidence(self, logits: Tensor) -> Tensor:
        if self.logit == "msp":
            found = log_probabilities(logits).amax(dim=1).exp()
        elif self.logit == "maxlogit":
            found = logits.amax(dim=1)
        elif self.logit == "gen":
            found = -1 / generalized_entropy(logits, 0.1, max(10, logits.shape[1] // 10)).clamp(max=-TINY)
        else:
            found = energy(logits)
        return found.double().clamp(min=TINY)
