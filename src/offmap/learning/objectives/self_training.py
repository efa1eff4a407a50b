"""Self-training: a classifier over known and novel classes learns the groups that discovery found, in rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.learning.losses.numbers import nothing
from offmap.learning.objectives.base import Objective, Parts, Task, TrainingProgress, register
from offmap.neighbors.vectors import unit

SHARPNESS = 10.0  # cosines are multiplied by it before the softmax, as in the model


@register
class SelfTraining(Objective):
    """Cross-entropy on the groups of the present round, rows and groups mixed in pairs (mixup, Zhang et al. 2018).

    Labels are the groups of all rows, those of labelled rows their known classes; `label_weight` is how often an epoch
    shows these, 0 for as often as keeps them a third of all, five times at most. The learning rate is for embeddings of
    up to `rate_columns` columns; wider ones are learned slower in proportion, since each step moves every weight by as
    much, and many columns would learn the errors of the groups by heart; 0 for the same rate always.
    `offmap.learning.self_training` says what happens between rounds.
    """

    name = "self-training"
    settings = {"rounds": 4, "mixup": 1.0, "label_weight": 0, "rate_columns": 384}
    embeddings = {
        "epochs": 6,
        "learning_rate": 3e-3,
        "weight_decay": 1e-2,
        "neighbours": 0,
        "dropout": 0.1,
        "shrinkage": None,
        "smoothing": 0,
    }
    grid = {"rounds": (2, 6), "mixup": (0.3,), "hidden": (256,), "epochs": (3, 12)}
    in_rounds = True

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, settings)
        self.weight = nn.Parameter(torch.zeros(task.n_classes, task.width))
        self.bias = nn.Parameter(torch.zeros(task.n_classes))

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place the class vectors at the centres of the groups."""
        with torch.no_grad():
            self.weight.copy_(unit(centres))

    def logits(self, features: Tensor) -> Tensor:
        """Return rows × classes for features of length 1, or mixtures of such."""
        return SHARPNESS * features @ self.weight.T + self.bias

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the cross-entropy of both views, each row mixed with another one of the batch."""
        rows, targets = unit(torch.cat([first, second])), torch.cat([labels, labels])
        placed = (targets >= 0).nonzero().flatten()
        if not len(placed):
            return {"groups": nothing(rows, self.weight, self.bias)}
        rows, targets = rows[placed], targets[placed]
        alpha = self.chosen["mixup"]
        if not alpha:
            return {"groups": functional.cross_entropy(self.logits(rows), targets)}
        share = torch.distributions.Beta(alpha, alpha).sample().to(rows.device)
        partner = torch.randperm(len(rows)).to(rows.device)
        logits = self.logits(share * rows + (1 - share) * rows[partner])
        one, other = (functional.cross_entropy(logits, t) for t in (targets, targets[partner]))
        return {"groups": share * one + (1 - share) * other}

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return the class vectors and biases."""
        return self.weight.detach(), self.bias.detach()
