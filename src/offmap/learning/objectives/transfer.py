"""Objectives of novel class discovery with a classifier over all classes: DTC, KCL, MCL, Joint and ComEx.

They were made for unlabelled rows that are all novel; here such a row may be of any class, so they group over all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.learning import losses
from offmap.learning.objectives.base import Parts, Task, TrainingProgress, register
from offmap.learning.objectives.heads import SCALE, CosineHead
from offmap.neighbors.vectors import unit


def ramp(moment: TrainingProgress, until: float) -> float:
    """Grow from 0 to 1 over a share of the training.

    Examples
    --------
    >>> ramp(TrainingProgress(1, 4), 0.5)
    0.5
    """
    return min(1.0, moment.share / until) if until else 1.0


@register
class DTC(CosineHead):
    """Deep transfer clustering (Han et al. 2019): assignments by a t-kernel are pulled to sharper, even ones."""

    name = "dtc"
    settings = {"spread": 4.0, "consistency": 5.0, "ramp": 0.5}
    grid = {"spread": (2.0, 4.0)}

    def assignments(self, features: Tensor) -> Tensor:
        """Compute soft assignments of rows to classes; distances of directions are multiplied by ``spread``."""
        spread = self.chosen["spread"]
        return losses.student_t(spread * unit(features), spread * unit(self.weight))

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the labelled part, the divergence from sharper assignments, and agreement of views."""
        one, two = self.assignments(first), self.assignments(second)
        free = labels < 0
        logs = [part.clamp(min=1e-12).log() for part in (one, two)]
        pulled = losses.nothing(one)
        if bool(free.any()):
            target = losses.sharpen_assignments(one[free])
            pulled = functional.kl_div(logs[0][free], target, reduction="batchmean")
        return {
            "labelled": (losses.cross_entropy(logs[0], labels) + losses.cross_entropy(logs[1], labels)) / 2,
            "sharpened": pulled,
            "consistency": self.chosen["consistency"]
            * ramp(moment, self.chosen["ramp"])
            * functional.mse_loss(one, two),
        }


class _LearnedPairs(CosineHead):
    """Base of KCL and MCL: whether two unlabelled rows are alike is predicted by what labelled pairs taught."""

    settings = {"scale": SCALE}

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, dict(settings))
        self.importance = nn.Parameter(torch.full((task.width,), SCALE))
        self.threshold = nn.Parameter(torch.full((), SCALE / 2))

    def similarity(self, features: Tensor) -> Tensor:
        """Compute the logit of being of one class for every two rows, from their weighed cosine."""
        directions = unit(features)
        return (directions * self.importance) @ directions.T - self.threshold

    def pairs(self, p: Tensor, q: Tensor, same: Tensor) -> Tensor:
        """Compute the loss of unlabelled pairs."""
        raise NotImplementedError

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return cross-entropy, the predictor's own loss on labelled pairs, and the loss of unlabelled pairs."""
        one, two = (self.chosen["scale"] * self.cosines(view) for view in (first, second))
        free, known = labels < 0, labels >= 0
        taught = self.similarity(first[known].detach())
        true = (labels[known][:, None] == labels[known]).to(taught.dtype)
        with torch.no_grad():
            same = self.similarity(first[free]) > 0
        return {
            "labelled": (losses.cross_entropy(one, labels) + losses.cross_entropy(two, labels)) / 2,
            "similarity": _balanced_pairs(taught, true),
            "pairs": self.pairs(torch.softmax(one[free], dim=1), torch.softmax(two[free], dim=1), same),
        }


def _balanced_pairs(logits: Tensor, same: Tensor) -> Tensor:
    """Binary cross-entropy, pairs of one class and of two counting half each; a row beside itself teaches nothing."""
    each = functional.binary_cross_entropy_with_logits(logits, same, reduction="none")
    apart = ~torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    parts = [each[kind & apart] for kind in (same > 0, same == 0)]
    return torch.stack([part.mean() if part.numel() else losses.nothing(logits) for part in parts]).mean()


@register
class KCL(_LearnedPairs):
    """Constrained clustering by divergence (Hsu et al. 2018): pairs alike by a predictor learned on labelled pairs."""

    name = "kcl"
    settings = {"scale": SCALE, "margin": 2.0}

    def pairs(self, p: Tensor, q: Tensor, same: Tensor) -> Tensor:
        """Divergence and hinge."""
        return losses.kcl_pairs(p, q, same, self.chosen["margin"])


@register
class MCL(_LearnedPairs):
    """Meta classification likelihood (Hsu et al. 2019): the same predictor, binary cross-entropy on p·q."""

    name = "mcl"

    def pairs(self, p: Tensor, q: Tensor, same: Tensor) -> Tensor:
        """Binary cross-entropy."""
        return losses.autonovel_pairs(p, q, same)


@register
class Joint(CosineHead):
    """Contrast of instances and classes, pairs by winner-takes-all hashing (Joint of one modality, Jia et al. 2021)."""

    name = "joint"
    settings = {
        "scale": SCALE, "hashes": 64, "window": 4, "share": 0.6, "temperature": 0.5, "consistency": 5.0, "ramp": 0.5,
    }  # fmt: skip
    embeddings = {"temperature": 0.1}
    orders: Tensor

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, dict(settings))
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randperm(task.width, generator=generator) for _ in range(self.chosen["hashes"])]
        self.register_buffer("orders", torch.stack(drawn))

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return cross-entropy, pairs, agreement of views and both contrasts."""
        one, two = (self.chosen["scale"] * self.cosines(view) for view in (first, second))
        p, q = torch.softmax(one, dim=1), torch.softmax(two, dim=1)
        free, warm = labels < 0, self.chosen["temperature"]
        window = min(self.chosen["window"], first.shape[1])
        same = losses.winners_agree(first[free].detach(), self.orders, window, self.chosen["share"])
        return {
            "labelled": (losses.cross_entropy(one, labels) + losses.cross_entropy(two, labels)) / 2,
            "pairs": losses.autonovel_pairs(p[free], q[free], same),
            "consistency": self.chosen["consistency"] * ramp(moment, self.chosen["ramp"]) * functional.mse_loss(p, q),
            "instances": losses.simclr(first, second, warm),
            "classes": losses.supcon(first, second, labels, warm),
        }


@register
class ComEx(CosineHead):
    """Compositional experts (Yang et al. 2022): class-wise and batch-wise heads share balanced targets."""

    name = "comex"
    settings = {"temperature": 0.1, "aggregation": 0.5, "epsilon": 0.05}
    grid = {"epsilon": (0.02, 0.05, 0.1)}

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, dict(settings))
        self.of_labelled = nn.Parameter(torch.zeros(task.n_classes, task.width))
        self.of_unlabelled = nn.Parameter(torch.zeros(task.n_classes, task.width))

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place the vectors of all experts at the centres of the first grouping."""
        super().start(features, labels, centres)
        with torch.no_grad():
            for vectors in (self.of_labelled, self.of_unlabelled):
                vectors.copy_(unit(centres))

    def _experts(self, features: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        rows = unit(features)
        of_batch = torch.where(free[:, None], rows @ unit(self.of_unlabelled).T, rows @ unit(self.of_labelled).T)
        return self.cosines(features), of_batch

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the loss of both experts."""
        free = labels < 0
        loss = losses.comex(
            (first, second),
            (self._experts(first, free), self._experts(second, free)),
            labels,
            temperature=self.chosen["temperature"],
            aggregation=self.chosen["aggregation"],
            epsilon=self.chosen["epsilon"],
        )
        return {"comex": loss}

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean of the class-wise vectors and those of unlabelled rows."""
        vectors = (unit(self.weight.detach()) + unit(self.of_unlabelled.detach())) / 2
        return vectors, torch.zeros(len(vectors))
