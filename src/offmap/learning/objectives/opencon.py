"""OpenCon (thesis, chapter 8): contrast within predicted classes for rows that prototypes take for novel."""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.errors import InputError
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
        "gate_views": "both",  # whose embeddings the gate and the pseudo-labels are taken from: "both" or the "first"
        "assign": "prototypes",
    }
    thesis = {"start": "random"}  # section 8.2.2 and the algorithm of appendix B.3.2
    authors = {"gate": "authors", "gate_views": "first", "ramp": 0.5, "weight_decay": 5e-4}
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
        _check_choice("start", chosen["start"], ("clusters", "random"))
        _check_choice("gate_views", chosen["gate_views"], ("both", "first"))
        self._novel: Tensor | None = None  # of this step and both views, from the loss to the update
        self.prototypes = Prototypes(
            task.n_classes, task.n_known, task.width, chosen["prototype_momentum"], chosen["percentile"], chosen["gate"]
        )

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Known prototypes from labelled means, novel ones from the first grouping, or all at random (thesis)."""
        if self.chosen["start"] == "random":
            centres = torch.randn(centres.shape, generator=torch.Generator().manual_seed(0))
        self.prototypes.place(centres)

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the weighted parts; `gate_views` says whose embeddings pass the gate and are given a class."""
        chosen = self.chosen
        pseudo = self._predict(first.detach(), second.detach(), labels)
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

    def _predict(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        """Return the pseudo-labels of both views, 2 × rows, as `losses.opencon` reads them, and note what is novel."""
        views = torch.cat([first, second]) if self.chosen["gate_views"] == "both" else first
        repeated = labels.repeat(len(views) // len(labels)) if len(labels) else labels
        novel, predicted = self.prototypes.is_novel(views, repeated), self.prototypes.predict(views)
        pseudo = torch.where(novel, predicted, torch.full_like(predicted, -1))
        if self.chosen["known_too"]:
            as_known = (repeated < 0) & ~novel & (predicted < self.task.n_known)
            pseudo = torch.where(as_known, -2 - predicted, pseudo)
        shape = (2, len(labels))
        self._novel = novel.reshape(-1, len(labels)).expand(shape).flatten()
        return pseudo.reshape(-1, len(labels)).expand(shape)

    def after_step(self, first: Tensor, second: Tensor, labels: Tensor) -> None:
        """Move the prototypes by both views, by the authors' rule by the first."""
        if self.chosen["gate"] == "authors":
            self.prototypes.update(first, labels, labels < 0)
            return
        both, named = torch.cat([first, second]), torch.cat([labels, labels])
        novel = named < 0 if self._novel is None else self._novel
        self.prototypes.update(both, named, novel)

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return the prototypes."""
        vectors = self.prototypes.vectors
        return vectors, torch.zeros(len(vectors))


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value!r}: choose one of {', '.join(choices)}")
