"""OpenCon (thesis, chapter 8): contrast within predicted classes for rows that prototypes take for novel."""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.learning import losses
from offmap.learning.objectives.base import Objective, Parts, Task, TrainingProgress, register
from offmap.learning.prototypes import Prototypes


@register
class OpenCon(Objective):
    """``λ_n L_n + λ_l L_l + λ_u L_u`` and a divergence from the class prior; prototypes move after every step."""

    name = "opencon"
    settings = {
        "weight_novel": 0.1,
        "weight_labelled": 0.2,
        "weight_unlabelled": 1.0,
        "temperature_novel": 0.7,
        "temperature_labelled": 0.1,
        "temperature_unlabelled": 0.4,
        "divergence": 0.05,
        "prototype_momentum": 0.9,
        "percentile": 70.0,
        "ramp": 0.0,  # of the training, over which weight_novel grows from 0
        "gate": "thesis",
        "known_too": False,
        "start": "clusters",
        "assign": "prototypes",
    }
    authors = {"gate": "authors", "ramp": 0.5, "start": "random", "weight_decay": 5e-4}
    embeddings = {
        "weight_novel": 0.2,
        "weight_labelled": 0.35,
        "weight_unlabelled": 0.65,
        "temperature_novel": 0.1,
        "temperature_unlabelled": 0.1,
        "assign": "kmeans",
    }
    published_training = {"learning_rate": 0.02, "weight_decay": 1e-4, "schedule": "steps"}  # appendix B.3.4
    # The thesis starts from ORCA's SimCLR weights and trains the last block (section 8.4); how long those were trained
    # it does not say. Table B.3 of appendix B.3.4 has no CIFAR-10: CIFAR-100's values stand in.
    recipes = {
        "cifar10": {"epochs": 200, "pretrain": "simclr", "pretrain_epochs": 500, "keep": ("layer4",)},
        "cifar100": {"epochs": 200, "pretrain": "simclr", "pretrain_epochs": 500, "keep": ("layer4",)},
        "imagenet100": {
            "epochs": 120,
            "temperature_unlabelled": 0.6,
            "pretrain": "simclr",
            "pretrain_epochs": 500,
            "keep": ("layer4",),
        },
    }
    grid = {"weight_novel": (0.1, 0.5, 1.0), "temperature_novel": (0.1, 0.3), "temperature_unlabelled": (0.2, 0.4)}
    reads_projection = True

    def __init__(self, task: Task, settings: dict[str, object]) -> None:
        super().__init__(task, settings)
        chosen = self.chosen
        self._novel: Tensor | None = None  # of this step, from the loss to the update
        self.prototypes = Prototypes(
            task.n_classes, task.n_known, task.width, chosen["prototype_momentum"], chosen["percentile"], chosen["gate"]
        )

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Known prototypes from labelled means, novel ones from the first grouping, or all at random (thesis)."""
        if self.chosen["start"] == "random":
            centres = torch.randn(centres.shape, generator=torch.Generator().manual_seed(0))
        self.prototypes.place(centres)

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the weighted parts; the gate and the pseudo-labels come from the first view."""
        chosen = self.chosen
        self._novel = novel = self.prototypes.is_novel(first.detach(), labels)
        predicted = self.prototypes.predict(first.detach())
        nobody = torch.full_like(predicted, -1)
        pseudo = torch.where(novel, predicted, nobody)
        if chosen["known_too"]:
            as_known = (labels < 0) & ~novel & (predicted < self.task.n_known)
            pseudo = torch.where(as_known, -2 - predicted, pseudo)
        taus = (chosen["temperature_novel"], chosen["temperature_labelled"], chosen["temperature_unlabelled"])
        parts = losses.opencon(first, second, labels, pseudo, temperatures=taus, known_too=chosen["known_too"])
        ramp = min(1.0, moment.share / chosen["ramp"]) if chosen["ramp"] else 1.0
        out = {
            "novel": chosen["weight_novel"] * ramp * parts.novel,
            "labelled": chosen["weight_labelled"] * parts.labelled,
            "unlabelled": chosen["weight_unlabelled"] * parts.unlabelled,
        }
        if chosen["divergence"]:
            probabilities = losses.prototype_probabilities(first, self.prototypes.vectors)
            out["divergence"] = chosen["divergence"] * losses.prior_divergence(
                probabilities, self.prior().to(first.device)
            )
        return out

    def after_step(self, first: Tensor, second: Tensor, labels: Tensor) -> None:
        """Move the prototypes by both views."""
        both, named = torch.cat([first, second]), torch.cat([labels, labels])
        novel = labels < 0 if self._novel is None else self._novel
        self.prototypes.update(both, named, torch.cat([novel, novel]))

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return the prototypes."""
        vectors = self.prototypes.vectors
        return vectors, torch.zeros(len(vectors))
