"""One training from beginning to end: the encoder, pre-training when asked for, the objective, the classes found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offmap.data.views import Views
from offmap.discovery.inputs import KnownClasses
from offmap.learning import building
from offmap.learning.distributed import Ranks
from offmap.learning.encoders import Encoder
from offmap.learning.grouping import balance_helps, group_rows
from offmap.learning.inputs import Inputs
from offmap.learning.model import OpenWorldModel, OpenWorldNet
from offmap.learning.objectives import Objective, Task, objective
from offmap.learning.reporting import Output
from offmap.learning.settings import Training, resolve
from offmap.learning.trainer import Trainer
from offmap.neighbors.vectors import unit
from offmap.typing import IntArray

Config = dict[str, Any]


@dataclass(frozen=True)
class TrainingRun:
    """An objective with its settings, and how and where it is trained.

    Parameters
    ----------
    kind : type of Objective
        The objective.
    chosen : dict
        Its settings.
    training : Training
        Epochs, optimizer, views of embeddings, device.
    seed : int
        Seed of everything.
    output : Output
        The folder, the bar and the loggers of metrics.
    ranks : Ranks
        The processes that train together.
    views : Views, optional
        What makes two views; by the kind of inputs when None.
    """

    kind: type[Objective]
    chosen: Config
    training: Training
    seed: int
    output: Output
    ranks: Ranks
    views: Views | None = None

    def fit(
        self, data: Inputs, known: KnownClasses, n_classes: int | str | None, encoder: str | nn.Module
    ) -> OpenWorldModel:
        """Train, and find the classes."""
        training, seed, codes, n_known = self.training, self.seed, known.codes, len(known)
        body, prepared = self.prepare(data, codes, n_known, encoder)
        head = self.kind.projection_head(body.width, training.projection, seed)
        projected = self.kind.reads_projection and training.projection > 0
        network = nn.Sequential(body.body, head)
        classified = network if projected else body.body
        k = building.count_or_check(n_classes, building.compute_features(classified, prepared), known, seed)
        loss = self.kind(self.task(body, codes, k, n_known), self.chosen)
        start = building.compute_features(network, prepared)
        smoothing = training.smoothing
        space = start if data.kind == "texts" else unit(data.tensor.reshape(len(data), -1))
        balanced = not smoothing and balance_helps(space.numpy(), codes, seed)
        _, centres = group_rows(start.numpy(), k, codes, n_known, seed, balanced, smoothing)
        loss.start(start, torch.from_numpy(codes), torch.from_numpy(centres))
        config = self.describe(k) | {"balanced": balanced}
        trainer = self.trainer("checkpoint", network, loss, data, prepared, codes, body, config)
        trainer.fit(prepared, codes, self.output)
        network.cpu()
        loss.cpu()
        features = building.compute_features(classified, prepared)
        weight, bias, used = building.find_class_vectors(loss, features, known, seed, balanced, smoothing)
        width = training.projection if projected else body.width
        net = OpenWorldNet(body, head if projected else nn.Identity(), width, len(used), loss.known_head())
        return building.assemble_model(net, weight, bias, used, known, trainer.history, config)

    def prepare(self, data: Inputs, codes: IntArray, n_known: int, encoder: str | nn.Module) -> tuple[Encoder, Tensor]:
        """Fit the encoder's fixed part, run it over all inputs, pre-train the rest and freeze what stays as it is."""
        body = building.fit_encoder(encoder, data, codes, self.training, self.seed)
        prepared = building.apply_in_blocks(body.front, data.tensor)
        self._pretrain(data, prepared, codes, n_known, body)
        building.freeze_except(body, self.training.keep)
        return body, prepared

    def task(self, body: Encoder, codes: IntArray, k: int, n_known: int) -> Task:
        """Describe what the objective is to learn."""
        width = self.training.projection or body.width
        return Task(width, k, n_known, building.compute_shares(codes, n_known), float((codes >= 0).mean()))

    def describe(self, k: int) -> Config:
        """Return what the model's file and the checkpoints say of this run."""
        return {
            "objective": self.kind.name,
            "settings": self.chosen,
            "training": asdict(self.training),
            "seed": self.seed,
            "n_classes": k,
        } | ({"processes": self.ranks.world} if self.ranks.world > 1 else {})

    def trainer(
        self,
        file: str,
        network: nn.Module,
        loss: Objective,
        data: Inputs,
        prepared: Tensor,
        labels: IntArray,
        body: Encoder,
        config: Config,
    ) -> Trainer:
        """Build the trainer of one part of the run, its checkpoint named after `file`."""
        views = self.views or building.make_views(data, prepared, self.training)
        if self.views is not None:
            config = config | {"views": repr(self.views)}
        checkpoint = self.output.checkpoint(file, _digest(data.tensor, labels, config, body))
        return Trainer(network, loss, views, self.training, self.seed, checkpoint, self.ranks)

    def _pretrain(self, data: Inputs, prepared: Tensor, codes: IntArray, n_known: int, body: Encoder) -> None:
        """Learn from views only or from labelled rows only, with a projection head that is thrown away."""
        name = self.training.pretrain
        if name is None or not self.training.pretrain_epochs:
            return
        kind = objective(name)
        chosen, _ = resolve(kind, data.kind, "auto", {})
        training = replace(self.training, epochs=self.training.pretrain_epochs)
        if kind.needs_labels:
            labelled = np.flatnonzero(codes >= 0)
            data = replace(data, tensor=data.tensor[labelled])
            prepared, codes = prepared[labelled], codes[labelled]
        head = kind.projection_head(body.width, training.projection, self.seed)
        before = replace(self, kind=kind, chosen=chosen, training=training)
        loss = kind(before.task(body, codes, max(n_known, 1), n_known), chosen)
        network = nn.Sequential(body.body, head)
        trainer = before.trainer("pretrained", network, loss, data, prepared, codes, body, before.describe(0))
        trainer.fit(prepared, codes, Output(progress=self.output.progress))
        body.body.cpu()


def _digest(inputs: Tensor, labels: IntArray, config: Config, encoder: Encoder) -> str:
    digest = hashlib.sha256(json.dumps([config, encoder.config], sort_keys=True).encode())
    digest.update(inputs.numpy().data)
    digest.update(labels.data)
    return digest.hexdigest()
