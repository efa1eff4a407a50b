"""KL matching: predictions that are unlike the mean prediction of every class are of unknown inputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.logits import MaxLogit, log_probabilities
from offmap.detection.statistics import ClassMoments, Statistic
from offmap.errors import OffmapWarning

FEW = 10  # known inputs below which a class has no mean prediction of its own
EPS = 1e-300  # a template that never gave a class any probability still has a logarithm


def kl_to_templates(logits: Tensor, log_templates: Tensor) -> Tensor:
    """Compute the KL divergence of each row's probabilities from each template's.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.
    log_templates : Tensor of shape (t, c)
        Logarithms of the templates' probabilities.

    Returns
    -------
    Tensor of shape (n, t)
        The divergences.
    """
    log_p = log_probabilities(logits)
    p = log_p.exp()
    return (p * log_p).sum(dim=1, keepdim=True) - p @ log_templates.T


def make_templates(means: Tensor, counts: Tensor) -> Tensor:
    """Make one template per class: its mean prediction, or over fewer than ten inputs one that is certain of the class.

    A template of few inputs that happen to be unsure would make every sure input look far. By the divergence from a
    certain one, inputs are ordered as by their largest probability.

    Parameters
    ----------
    means : Tensor of shape (t, c)
        Mean predictions of inputs that were predicted for the first t classes.
    counts : Tensor of shape (t,)
        Over how many inputs.

    Returns
    -------
    Tensor of shape (c, c)
        Rows that sum to 1.

    Examples
    --------
    >>> import torch
    >>> make_templates(torch.tensor([[0.8, 0.2, 0.0], [0.1, 0.9, 0.0]]), torch.tensor([1.0, 50.0]))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.1000, 0.9000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    made = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
    enough = counts >= FEW
    made[: len(means)][enough] = means[enough]
    return made


@register
class KLMatching(Score):
    """Minus the smallest KL divergence of the prediction from the mean prediction of any predicted class.

    In place of the mean over fewer than 10 known inputs stands a prediction that is certain of the class, with a
    warning: there the order is that of the largest probability.
    """

    name = "kl_matching"
    paper = MaxLogit.paper
    reads = ("logits",)
    fits = ("logits",)
    invariant_to_shift = True

    def statistics(self) -> Mapping[str, Statistic]:
        """Return mean probabilities per predicted class."""
        return {"templates": ClassMoments(scatter=False)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add predictions."""
        statistics["templates"].update(log_probabilities(block.logits).exp(), block.logits.argmax(dim=1))

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return logarithms of the templates."""
        means, counts = statistics["templates"].means, statistics["templates"].counts
        templates = make_templates(means, counts)
        if few := len(templates) - int((counts >= FEW).sum()):
            warnings.warn(
                f"{self}: {few} of {len(templates)} classes were predicted for fewer than {FEW} known inputs; there "
                "inputs are ordered by their largest probability",
                OffmapWarning,
                stacklevel=2,
            )
        return {"log_templates": templates.clamp(min=EPS).log()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the divergence from the nearest template."""
        return -kl_to_templates(block.logits, ready["log_templates"]).amin(dim=1)
