"""Semi-supervised objectives with a head over known classes: FixMatch, DS³L and CGDL.

Novel classes are looked for among the features afterwards, where the paper of ORCA groups what the head is unsure of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.learning import losses
from offmap.learning.objectives.base import Parts, Task, TrainingProgress, register
from offmap.learning.objectives.heads import CrossEntropy, KnownHead
from offmap.models.heads import MLP
from offmap.neighbors.vectors import unit


@register
class FixMatch(CrossEntropy):
    """Cross-entropy on labels and on confident predictions of the other view (Sohn et al. 2020).

    Views here are of one strength, so each tells the other what to predict; the paper has a weak and a strong one.
    """

    name = "fixmatch"
    settings = {"scale": 10.0, "threshold": 0.95, "weight": 1.0}
    recipes = {}
    grid = {"threshold": (0.8, 0.95)}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return both parts."""
        one, two = self.logits(first), self.logits(second)
        free = labels < 0
        pseudo = [
            losses.fixmatch(*pair, self.chosen["threshold"])
            for pair in ((one[free], two[free]), (two[free], one[free]))
        ]
        return super().forward(first, second, labels, moment) | {
            "pseudo": self.chosen["weight"] * torch.stack(pseudo).mean()
        }


@register
class DS3L(CrossEntropy):
    """Safe semi-supervised learning (DS³L, Guo et al. 2020): a learned weight says which unlabelled rows may teach.

    The agreement of views of an unlabelled row counts by a weight. A small network gives it and is trained so that one
    step of the head on the weighed loss lowers the loss of labelled rows. The paper takes that step with the whole
    network; an objective holds only the head, so here the step is the head's.
    """

    name = "ds3l"
    settings = {"scale": 10.0, "consistency": 5.0, "step": 0.1}
    recipes = {}

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, dict(settings))
        self.weighing = MLP([task.width, min(task.width, 100), 1])

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the labelled part, the weighed agreement, and the outer loss that trains the weights."""
        parts = super().forward(first, second, labels, moment)
        free, known = labels < 0, labels >= 0
        if not bool(free.any()) or not bool(known.any()):
            zero = losses.nothing(first, second, *self.parameters())
            return parts | {"consistency": zero, "outer": zero}
        weights = torch.sigmoid(self.weighing(unit(first[free].detach()))).flatten()
        agree = self._disagreement(first[free], second[free], self.weight)
        share = self.chosen["consistency"]
        return parts | {
            "consistency": share * (weights.detach() * agree).mean(),
            "outer": self._outer(first.detach(), second.detach(), labels, weights),
        }

    def _disagreement(self, first: Tensor, second: Tensor, vectors: Tensor) -> Tensor:
        p, q = (torch.softmax(self._scores(view, vectors), dim=1) for view in (first, second))
        return (p - q).square().sum(dim=1)

    def _scores(self, rows: Tensor, vectors: Tensor) -> Tensor:
        return self.chosen["scale"] * unit(rows) @ unit(vectors).T

    def _outer(self, first: Tensor, second: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of labelled rows after one step of the head; its gradient reaches the weights only."""
        free = labels < 0
        with torch.enable_grad():
            start = self.weight.detach().clone().requires_grad_()
            inner = losses.cross_entropy(self._scores(first, start), labels)
            agree = self._disagreement(first[free], second[free], start)
            inner = inner + self.chosen["consistency"] * (weights * agree).mean()
            (gradient,) = torch.autograd.grad(inner, start, create_graph=True)
            moved = start.detach() - self.chosen["step"] * gradient
            return losses.cross_entropy(self._scores(second, moved), labels)


@register
class CGDL(KnownHead):
    """Conditional Gaussians (CGDL, Sun et al. 2020): a variational autoencoder whose classes are Gaussians.

    Features are encoded as Gaussians, those of a class drawn to one of variance 1, and decoded again. The paper decodes
    the picture from a ladder of layers; an objective sees the features alone, so those are decoded.
    """

    name = "cgdl"
    settings = {"scale": 10.0, "latent": 32, "divergence": 0.1, "reconstruction": 1.0}

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, dict(settings))
        latent = self.chosen["latent"]
        self.encode, self.decode = MLP([task.width, 2 * latent]), MLP([latent, task.width])
        self.means = nn.Parameter(torch.eye(max(task.n_known, 1), latent))

    def logits(self, features: Tensor) -> Tensor:
        """Compute scaled cosines."""
        return self.chosen["scale"] * unit(features) @ unit(self.weight).T

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return cross-entropy, divergence from the class's Gaussian and error of reconstruction."""
        parts = super().forward(first, second, labels, moment)
        known = labels >= 0
        if not bool(known.any()):
            zero = losses.nothing(first, second, *self.parameters())
            return parts | {"divergence": zero, "reconstruction": zero}
        rows, classes = unit(torch.cat([first[known], second[known]])), torch.cat([labels[known]] * 2)
        mean, spread = self.encode(rows).chunk(2, dim=1)
        spread = spread.clamp(-8, 8)
        drawn = mean + torch.randn_like(mean) * (spread / 2).exp()
        away = (spread.exp() + (mean - self.means[classes]).square() - 1 - spread).sum(dim=1) / 2
        return parts | {
            "divergence": self.chosen["divergence"] * away.mean(),
            "reconstruction": self.chosen["reconstruction"] * functional.mse_loss(self.decode(drawn), rows.detach()),
        }
