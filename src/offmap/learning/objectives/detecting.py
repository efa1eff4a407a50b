"""Objectives whose head over known classes is kept, for detectors to read: GODIN, LogitNorm, MOS and CSI."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from offmap.learning import losses
from offmap.learning.grouping import group_rows
from offmap.learning.objectives.base import Objective, Parts, Task, TrainingProgress, register
from offmap.models.heads import MLP
from offmap.models.known_heads import DeConf, GroupSoftmax, Linear, RotatedLinear, turn_pictures
from offmap.neighbors.vectors import unit


class _KeptHead(Objective):
    """A head over known classes, trained on labelled rows; novel classes are looked for among the features."""

    published_training = {"projection": 0}  # the papers' heads read the penultimate features
    needs_labels = True
    reads_projection = True

    def __init__(self, task: Task, settings: dict[str, object]) -> None:
        super().__init__(task, settings)
        self.head = self._make_head(max(task.n_known, 1))

    def _make_head(self, n_known: int) -> nn.Module:
        raise NotImplementedError

    def known_head(self) -> nn.Module | None:
        """Return the head."""
        return self.head

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of labelled rows."""
        raise NotImplementedError

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the loss of the labelled rows of both views; nothing when there are none."""
        known = labels >= 0
        if not bool(known.any()):
            return {"labelled": losses.nothing(first, second, *self.parameters())}
        rows = torch.cat([first[known], second[known]]).float()
        return {"labelled": self.loss(rows, torch.cat([labels[known]] * 2))}


@register
class Godin(_KeptHead):
    """Cross-entropy on DeConf-C's logits (GODIN, Hsu et al. 2020): cosines over a gate with batch normalisation.

    ``model.known_network`` has the head, for the detectors ``godin_h`` and ``godin_g``.
    """

    name = "godin"

    def _make_head(self, n_known: int) -> nn.Module:
        return DeConf(self.task.width, n_known)

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place class vectors at the centres of the known classes."""
        vectors = cast(DeConf, self.head).h.weight
        with torch.no_grad():
            vectors.copy_(unit(centres[: len(vectors)]))

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of h / g."""
        return losses.cross_entropy(self.head(features), labels)


@register
class LogitNorm(_KeptHead):
    """Cross-entropy on logits scaled to length 1 and divided by a temperature (Wei et al. 2022); no outliers needed.

    Any score of logits reads ``model.known_network``, as the paper does with ``msp``.
    """

    name = "logitnorm"
    settings = {"temperature": 0.04}
    grid = {"temperature": (0.01, 0.04, 0.1)}

    def _make_head(self, n_known: int) -> nn.Module:
        return Linear(self.task.width, n_known)

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place class vectors at the centres of the known classes."""
        weight = cast(Linear, self.head).weight
        with torch.no_grad():
            weight.copy_(unit(centres[: len(weight)]))

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the scaled logits."""
        return losses.logitnorm(self.head(features), labels, self.chosen["temperature"])


@register
class MOS(_KeptHead):
    """Group softmax (Huang & Li 2021): classes in groups by k-means of their means, each with a category "others".

    ``model.known_network`` has the head, for the detector ``mos``.
    """

    name = "mos"
    settings = {"groups": 8}

    def _make_head(self, n_known: int) -> nn.Module:
        n_groups = max(min(self.chosen["groups"], n_known), 1)
        return GroupSoftmax(self.task.width, [label % n_groups for label in range(n_known)])

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Group the known classes by their centres."""
        head = cast(GroupSoftmax, self.head)
        vectors = unit(centres[: len(head.groups)])
        found, _ = group_rows(vectors.numpy(), head.n_groups, np.full(len(vectors), -1), 0, seed=0)
        with torch.no_grad():
            head.groups.copy_(torch.from_numpy(found))
            head.linear.weight.copy_(vectors)

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of every group's softmax, "others" being right in all groups but the row's own."""
        head = cast(GroupSoftmax, self.head)
        classes, others, norms = head.parts(features)
        return losses.group_softmax(classes, others, norms, head.groups, labels)


@register
class CSI(_KeptHead):
    """Contrast with rotated copies as further classes (CSI with labels, Tack et al. 2020); square pictures only.

    SupCon over pairs of a class and a quarter turn, on a projection of its own, and a linear head over the same pairs
    that sends no gradient to the network; the paper trains the head afterwards. ``model.known_network`` averages the
    head over the four turns of a picture, and ``msp`` of it is the paper's score. Labelled pictures only are used.
    """

    name = "csi"
    settings = {"temperature": 0.07, "contrasted": 128}
    grid = {"temperature": (0.07, 0.2, 0.5)}
    kinds = ("images",)
    copies = RotatedLinear.turns

    def __init__(self, task: Task, settings: dict[str, object]) -> None:
        super().__init__(task, settings)
        self.contrasted = MLP([task.width, task.width, self.chosen["contrasted"]])

    def _make_head(self, n_known: int) -> nn.Module:
        return RotatedLinear(self.task.width, n_known)

    @staticmethod
    def copy_inputs(views: Tensor, number: int) -> Tensor:
        """Turn the pictures by so many quarters."""
        return turn_pictures(views, number)

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the contrast and the loss of the head."""
        turns = torch.arange(self.copies, device=labels.device).repeat_interleave(len(labels))
        classes = labels.repeat(self.copies)
        known = classes >= 0
        if not bool(known.any()):
            zero = losses.nothing(first, second, *self.parameters())
            return {"contrast": zero, "head": zero}
        head = cast(RotatedLinear, self.head)
        pairs = (turns * head.n_classes + classes)[known]
        one, two = first[known].float(), second[known].float()
        contrast = losses.supcon(self.contrasted(one), self.contrasted(two), pairs, self.chosen["temperature"])
        logits = head.joint(torch.cat([one, two]).detach())
        return {"contrast": contrast, "head": losses.cross_entropy(logits, torch.cat([pairs, pairs]))}
