"""Objectives with a classifier over all classes, known and novel: cross-entropy, ORCA, UNO, AutoNovel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.learning import losses
from offmap.learning.objectives.base import Objective, Parts, Task, TrainingProgress, register
from offmap.neighbors.vectors import unit

SCALE = 10.0  # cosines are multiplied by it before the softmax, as in ORCA and UNO


class CosineHead(Objective):
    """One vector per class, started from the first grouping; the cosine with it is the score."""

    reads_projection = True

    def __init__(self, task: Task, settings: dict[str, object]) -> None:
        super().__init__(task, settings)
        self.weight = nn.Parameter(torch.zeros(task.n_classes, task.width))

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place class vectors at the centres of the first grouping."""
        with torch.no_grad():
            self.weight.copy_(unit(centres))

    def cosines(self, features: Tensor) -> Tensor:
        """Compute cosines, rows × classes."""
        return unit(features) @ unit(self.weight).T

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return the class vectors."""
        vectors = unit(self.weight.detach())
        return vectors, torch.zeros(len(vectors))


class KnownHead(Objective):
    """One vector per known class; novel classes are looked for among the features afterwards."""

    needs_labels = True

    def __init__(self, task: Task, settings: dict[str, object]) -> None:
        super().__init__(task, settings)
        self.weight = nn.Parameter(torch.zeros(max(task.n_known, 1), task.width))

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place class vectors at the centres of the known classes."""
        with torch.no_grad():
            self.weight.copy_(unit(centres[: len(self.weight)]))

    def logits(self, features: Tensor) -> Tensor:
        """Compute logits, rows × known classes."""
        raise NotImplementedError

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Cross-entropy, the mean over both views."""
        one, two = (losses.cross_entropy(self.logits(view), labels) for view in (first, second))
        return {"labelled": (one + two) / 2}


@register
class CrossEntropy(KnownHead):
    """Cross-entropy on labelled rows."""

    name = "ce"
    settings = {"scale": 10.0}
    # thesis, section 5.3.1: 100 epochs from .1, a tenth at epochs 50, 75 and 90; batches of 64 as in section 4.3.1
    recipes = {
        name: {
            "epochs": 100,
            "batch_size": 64,
            "learning_rate": 0.1,
            "schedule": "steps",
            "milestones": (0.5, 0.75, 0.9),
            "projection": 0,
        }
        for name in ("cifar10", "cifar100")
    }

    def logits(self, features: Tensor) -> Tensor:
        """Compute scaled cosines."""
        return self.chosen["scale"] * unit(features) @ unit(self.weight).T


@register
class ORCA(CosineHead):
    """Cross-entropy with an adaptive margin, agreement of nearest rows, spread predictions (Cao et al. 2022)."""

    name = "orca"
    settings = {"scale": SCALE, "entropy": 1.0, "largest_margin": 0.5}
    grid = {"entropy": (0.5, 1.0, 2.0)}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the three parts of ORCA's loss."""
        scale = self.chosen["scale"]
        cosines, others = self.cosines(first), self.cosines(second)
        one, two = (torch.softmax(scale * part, dim=1) for part in (cosines, others))
        free = one[labels < 0]
        unsure = 1 - float(free.detach().amax(dim=1).mean()) if len(free) else 0.0
        margin = min(unsure, self.chosen["largest_margin"])
        partners = losses.nearest_partners(first, labels)
        return {
            "labelled": losses.orca_margin(cosines, labels, margin, scale),
            "pairs": losses.orca_pairs(one, two, partners),
            "entropy": -self.chosen["entropy"] * losses.mean_entropy(torch.cat([one, two])),
        }


@register
class UNO(CosineHead):
    """Swapped prediction of balanced assignments (Fini et al. 2021), over all classes."""

    name = "uno"
    settings = {"temperature": 0.1, "epsilon": 0.05, "iterations": 3}
    grid = {"epsilon": (0.02, 0.05, 0.1)}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the swapped cross-entropy."""
        loss = losses.uno(
            self.cosines(first),
            self.cosines(second),
            labels,
            temperature=self.chosen["temperature"],
            epsilon=self.chosen["epsilon"],
            iterations=self.chosen["iterations"],
        )
        return {"uno": loss}


@register
class AutoNovel(CosineHead):
    """Pairs by rank statistics (Han et al. 2020): rows with the same largest features belong together."""

    name = "autonovel"
    settings = {"top": 5, "scale": SCALE, "consistency": 5.0, "ramp": 0.5}
    embeddings = {"top": 3}
    grid = {"top": (3, 5)}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Cross-entropy, pairs, and agreement of views that grows along training."""
        scale = self.chosen["scale"]
        one, two = scale * self.cosines(first), scale * self.cosines(second)
        p, q = torch.softmax(one, dim=1), torch.softmax(two, dim=1)
        free = labels < 0
        top = min(self.chosen["top"], first.shape[1])
        same = losses.rank_statistics(first[free].abs(), top)
        ramp = min(1.0, moment.share / self.chosen["ramp"]) if self.chosen["ramp"] else 1.0
        return {
            "labelled": (losses.cross_entropy(one, labels) + losses.cross_entropy(two, labels)) / 2,
            "pairs": losses.autonovel_pairs(p[free], q[free], same),
            "consistency": self.chosen["consistency"] * ramp * functional.mse_loss(p, q),
        }
