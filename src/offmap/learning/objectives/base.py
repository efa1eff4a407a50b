"""The base of objectives: a module with its own head and state, a loss of two views, and settings with presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from offmap.registry import Registry

Parts = dict[str, Tensor]
Kind = Literal["embeddings", "images", "texts"]


@dataclass(frozen=True)
class Task:
    """A learning task.

    Parameters
    ----------
    width : int
        Columns of the encoder's features.
    n_classes, n_known : int
        Classes in all, and those that have labels; known classes come first.
    known_shares : tuple of float
        The share of each known class among labelled rows.
    labelled_share : float
        The share of labelled rows among all.
    """

    width: int
    n_classes: int
    n_known: int
    known_shares: tuple[float, ...]
    labelled_share: float


@dataclass(frozen=True)
class TrainingProgress:
    """Where training is: the step, and the steps in all."""

    step: int
    steps: int

    @property
    def share(self) -> float:
        """From 0 at the start to 1 at the end."""
        return self.step / max(self.steps, 1)


class Objective(nn.Module):
    """A loss of two views with whatever it learns or remembers beside the encoder.

    Subclasses name themselves and list their `settings`. Where these are not the thesis' values, `thesis` has those;
    `authors` has what differs in the authors' code, `embeddings` what suits embeddings. `register` makes them known.
    """

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    thesis: ClassVar[Mapping[str, Any]] = {}  # of every published preset, where the default is known to be better
    authors: ClassVar[Mapping[str, Any]] = {}
    embeddings: ClassVar[Mapping[str, Any]] = {}
    texts: ClassVar[Mapping[str, Any]] = {}  # where a sentence encoder is fine-tuned, on top of what suits embeddings
    published_training: ClassVar[Mapping[str, Any]] = {}  # what the thesis trains this objective with
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # and what is particular to a data set, by preset
    grid: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # what `tune` tries
    needs_labels: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False  # whether it learns groups that are found anew in rounds, see `self_training`
    reads_projection: ClassVar[bool] = False  # whether classes are told apart after the projection head
    kinds: ClassVar[tuple[Kind, ...]] = ("embeddings", "images", "texts")  # the inputs that it can learn from
    copies: ClassVar[int] = 1  # how many changed copies of each view it wants to see, the view itself being the first

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.task = task
        self.chosen = dict(settings)

    @staticmethod
    def projection_head(width: int, columns: int, seed: int = 0) -> nn.Module:
        """Make the module between encoder and loss: two layers with a ReLU between; nothing when `columns` is 0.

        Parameters
        ----------
        width : int
            Width of the features.
        columns : int
            Width of the embeddings.
        seed : int, default=0
            Seed of the initial weights.

        Returns
        -------
        nn.Module
            The head.
        """
        from offmap.models.heads import MLP

        return MLP([width, width, columns], seed=seed) if columns else nn.Identity()

    @staticmethod
    def copy_inputs(views: Tensor, number: int) -> Tensor:
        """Make one of the `copies` of a batch of views, such as a rotated one; number 0 is the batch itself.

        Parameters
        ----------
        views : Tensor
            A batch.
        number : int
            Which copy, from 0.

        Returns
        -------
        Tensor
            Of the same shape.
        """
        return views

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Read the first features of all rows, before training.

        Parameters
        ----------
        features : Tensor of shape (n, d)
            Features of all rows.
        labels : Tensor of shape (n,)
            Known classes, -1 where unlabelled.
        centres : Tensor of shape (k, d)
            Centres of a first grouping.
        """

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the weighted parts of the loss; their sum is minimised.

        Parameters
        ----------
        first, second : Tensor of shape (n × copies, d)
            Embeddings of two views; of several copies those of the second follow on those of the first.
        labels : Tensor of shape (n,)
            Known classes, -1 where unlabelled.
        moment : TrainingProgress
            How far training is.

        Returns
        -------
        dict of str to Tensor
            The weighted parts of the loss.
        """
        raise NotImplementedError

    def after_step(self, first: Tensor, second: Tensor, labels: Tensor) -> None:
        """Change what changes without a gradient, given the features of a step.

        Parameters
        ----------
        first, second : Tensor
            Embeddings of two views.
        labels : Tensor of shape (n,)
            Known classes, -1 where unlabelled.
        """

    def classifier(self) -> tuple[Tensor, Tensor] | None:
        """Return weights and biases over all classes for features of length 1; without any, k-means finds them."""
        return None

    def known_head(self) -> nn.Module | None:
        """Return a head over known classes that detectors read, one of `offmap.models.known_heads`; mostly none."""
        return None

    @property
    def shares(self) -> Tensor:
        """The share of each known class among labelled rows."""
        return torch.tensor(self.task.known_shares)

    def prior(self) -> Tensor:
        """Estimate the shares of all classes: labelled counts for known ones, the rest even over novel ones.

        A novel class weighs as much as a known one on average; no true label of an unlabelled row is looked at,
        where the authors' code takes the true shares.
        """
        known, novel = self.task.n_known, self.task.n_classes - self.task.n_known
        mass = known / max(self.task.n_classes, 1)
        out = np.full(self.task.n_classes, (1 - mass) / max(novel, 1))
        out[:known] = mass * np.asarray(self.task.known_shares)
        return torch.tensor(out / out.sum(), dtype=torch.float32)


OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective", package="offmap.learning.objectives", group="offmap.objectives"
)


def register(kind: type[Objective]) -> type[Objective]:
    """Make an objective known by its name; a decorator, also for your own.

    Parameters
    ----------
    kind : type
        A subclass of `Objective` with a `name`.

    Returns
    -------
    type
        The class itself.
    """
    return OBJECTIVES.register(kind.name)(kind)


def registered() -> dict[str, type[Objective]]:
    """Every objective by name."""
    return dict(OBJECTIVES.items())
