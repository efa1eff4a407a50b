"""Objectives that learn features by contrast alone; classes are found afterwards by semi-supervised k-means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.learning import losses
from offmap.learning.objectives.base import Objective, Parts, Task, TrainingProgress, register
from offmap.neighbors.vectors import unit

SHARPNESS = 20.0  # cosines to class vectors are multiplied by it before the softmax


@register
class SimCLR(Objective):
    """InfoNCE over all rows, labels unused (Chen et al. 2020): the same method without labels."""

    name = "simclr"
    settings = {"temperature": 0.5}
    embeddings = {"temperature": 0.1}
    grid = {"temperature": (0.1, 0.2, 0.5)}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """InfoNCE."""
        return {"simclr": losses.simclr(first, second, self.chosen["temperature"])}


@register
class SupCon(Objective):
    """The supervised contrastive loss on labelled rows (Khosla et al. 2020); with k-NN the thesis' KNN+.

    With `classify` above 0, cross-entropy over the cosines to one vector per known class is added with that weight;
    the vectors start at the means of their classes and are left out of the model.
    """

    name = "supcon"
    settings = {"temperature": 0.1, "classify": 0.0}
    grid = {"temperature": (0.05, 0.1, 0.2)}
    # thesis, section 5.3.1 (KNN+): 500 epochs, batches of 1,024, cosine from .5, the same for both sets
    recipes = {name: {"epochs": 500, "batch_size": 1024, "learning_rate": 0.5} for name in ("cifar10", "cifar100")}
    needs_labels = True

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, settings)
        if self.chosen["classify"]:
            self.vectors = nn.Parameter(torch.zeros(task.n_known, task.width))

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place the class vectors at the means of the known classes."""
        if self.chosen["classify"]:
            known = labels >= 0
            with torch.no_grad():
                self.vectors.zero_().index_add_(0, labels[known], features[known])
                self.vectors.copy_(unit(self.vectors))

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """SupCon, and the cross-entropy where it is asked for."""
        parts = {"supcon": losses.supcon(first, second, labels, self.chosen["temperature"])}
        known = torch.cat([labels, labels]) >= 0
        if self.chosen["classify"] and bool(known.any()):
            cosines = unit(torch.cat([first, second])[known]) @ unit(self.vectors).T
            wanted = torch.cat([labels, labels])[known]
            parts["classes"] = self.chosen["classify"] * functional.cross_entropy(SHARPNESS * cosines, wanted)
        return parts


@register
class GCD(Objective):
    """InfoNCE on all rows and SupCon on labelled ones (Vaze et al. 2022)."""

    name = "gcd"
    settings = {"balance": 0.35, "temperature": 1.0, "temperature_labelled": 0.07}
    embeddings = {"temperature": 0.1, "temperature_labelled": 0.1}
    grid = {"temperature": (0.1, 0.2, 0.5), "balance": (0.2, 0.35, 0.5)}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return both parts, weighted."""
        share = self.chosen["balance"]
        return {
            "unlabelled": (1 - share) * losses.simclr(first, second, self.chosen["temperature"]),
            "labelled": share * losses.supcon(first, second, labels, self.chosen["temperature_labelled"]),
        }


class _Spectral(Objective):
    """Base of SCL, NSCL and SORL: features clipped to a norm, not normalised."""

    grid = {"radius": (2.0, 3.0, 5.0)}

    @staticmethod
    def projection_head(width: int, columns: int, seed: int = 0) -> nn.Module:
        """Make the wide head with batch normalisation of NSCL and SORL (thesis, appendix B.1.4)."""
        from offmap.models.heads import spectral_head

        return spectral_head(width, 2048, columns, seed) if columns else nn.Identity()

    def _clipped(self, *views: Tensor) -> list[Tensor]:
        size = self.chosen["radius"]
        clipped = self.chosen["clip"]
        return [size * (losses.clip_norm(v) if clipped else torch.nn.functional.normalize(v, dim=1)) for v in views]


@register
class SCL(_Spectral):
    """The spectral contrastive loss, labels unused (HaoChen et al. 2021)."""

    name = "scl"
    settings = {"radius": 1.0, "clip": True}
    embeddings = {"radius": 3.0, "clip": False}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """SCL."""
        return {"scl": losses.scl(*self._clipped(first, second))}


@register
class NSCL(_Spectral):
    """The NCD spectral contrastive loss (thesis, section 6.3.2, eq. 6.4)."""

    name = "nscl"
    settings = {"alpha": 0.0225, "beta": 2.0, "radius": 1.0, "clip": True, "estimator": "unbiased", "mixed": 1.0}
    authors = {"estimator": "authors", "mixed": 2.0}
    embeddings = {"alpha": 0.05, "beta": 1.0, "radius": 3.0, "clip": False}
    # thesis, appendix B.1.4
    published_training = {"learning_rate": 0.03, "momentum": 0.95, "weight_decay": 5e-4, "projection": 1000}
    recipes = {"cifar10": {"epochs": 1200}, "cifar100": {"epochs": 1200}}

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """NSCL."""
        one, two = self._clipped(first, second)
        loss = losses.nscl(
            one,
            two,
            labels,
            alpha=self.chosen["alpha"],
            beta=self.chosen["beta"],
            shares=self.shares.to(one.device) if self.chosen["estimator"] == "unbiased" else None,
            estimator=self.chosen["estimator"],
            factors=(1.0, self.chosen["mixed"], 1.0),
        )
        return {"nscl": loss}


@register
class SORL(_Spectral):
    """Spectral open-world representation learning (thesis, section 7.3.2, theorem 7.1)."""

    name = "sorl"
    settings = {
        "eta_l": 0.15,
        "eta_u": 3.0,
        "radius": 1.0,
        "clip": True,
        "estimator": "unbiased",
        "factors": (1.0, 1.0, 1.0),
    }
    authors = {"eta_l": 0.0225, "eta_u": 1.0, "estimator": "authors", "factors": (3.0, 2.0, 2.0)}
    embeddings = {"eta_l": 0.05, "eta_u": 1.0, "radius": 3.0, "clip": False}
    published_training = {"learning_rate": 0.05, "weight_decay": 5e-4, "projection": 1000}  # appendix B.2.5
    recipes = {
        "cifar10": {
            "eta_l": 0.5,
            "eta_u": 1.0,
            "epochs": 400,
            "pretrain": "scl",
            "pretrain_epochs": 1200,
            "keep": ("layer4",),
        },
        "cifar100": {"epochs": 400, "pretrain": "scl", "pretrain_epochs": 1200, "keep": ("layer4",)},
    }

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """SORL."""
        one, two = self._clipped(first, second)
        loss = losses.sorl(
            one,
            two,
            labels,
            eta_l=self.chosen["eta_l"],
            eta_u=self.chosen["eta_u"],
            shares=self.shares.to(one.device) if self.chosen["estimator"] == "unbiased" else None,
            estimator=self.chosen["estimator"],
            factors=tuple(self.chosen["factors"]),
        )
        return {"sorl": loss}
