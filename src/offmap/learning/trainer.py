"""The training loop: every step is a function of the seed and its number, so a killed run resumes to the same bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offmap import store
from offmap.data.views import Views, step_generator
from offmap.errors import InputError, StoreError
from offmap.learning.distributed import Ranks
from offmap.learning.mixed_precision import check_mixed_precision
from offmap.learning.objectives.base import Objective, TrainingProgress
from offmap.learning.reporting import Checkpoint, Output
from offmap.learning.settings import Training
from offmap.models.freezing import train_mode

KIND = "learning-checkpoint"
LAYOUT = 1
History = list[dict[str, float]]


class Trainer:
    """Trains a network and an objective on one set.

    Parameters
    ----------
    network : nn.Module
        From prepared inputs to what the objective reads.
    objective : Objective
        The loss.
    views : Views
        What makes two views of a batch.
    training : Training
        Epochs, optimizer, precision and device.
    seed : int
        Seed of the order of rows, the views and dropout.
    checkpoint : Checkpoint, optional
        A file, rewritten after every epoch; an existing one is resumed.
    ranks : Ranks, optional
        The processes that train together; every batch is `batch_size` rows of each.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        views: Views,
        training: Training,
        seed: int,
        checkpoint: Checkpoint | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.network, self.objective = network.to(training.device), objective.to(training.device)
        self.views, self.training, self.seed, self.checkpoint = views, training, seed, checkpoint
        self.history: History = []
        self.epoch = 0
        self._run_network = torch.compile(network) if training.compile else network
        parameters = [*_trainable(network), *_trainable(objective)]
        self.optimizer = _optimizer(parameters, training) if parameters else None
        if checkpoint is not None and checkpoint.file.is_file():
            self._resume(checkpoint)
        self.ranks.wait()  # nobody writes a checkpoint while another still looks for one

    def fit(
        self,
        inputs: Tensor,
        labels: npt.NDArray[np.int64],
        output: Output | None = None,
        shown: npt.NDArray[np.int64] | None = None,
    ) -> History:
        """Train to the end.

        Parameters
        ----------
        inputs : Tensor
            All inputs, prepared.
        labels : ndarray of int
            Per input its class as the objective is to see it, or -1.
        output : Output, optional
            The bar and the loggers of metrics; neither by default.
        shown : ndarray of int, optional
            The rows that an epoch shows, some more than once; each once by default.

        Returns
        -------
        list of dict
            The mean of every part of the loss, epoch by epoch.
        """
        if self.optimizer is None:
            return self.history
        if self.training.amp:
            check_mixed_precision(torch.device(self.training.device).type)
        shown = np.arange(len(labels)) if shown is None else shown
        steps = max(len(shown) // (self.training.batch_size * self.ranks.world), 1)
        output = output if output is not None and self.ranks.first else Output(progress=False)
        with torch.random.fork_rng(devices=[]), output.open(self.training.epochs, self.epoch) as report:
            while self.epoch < self.training.epochs:
                train_mode(self.network)
                self.objective.train()
                self.history.append(self._run_epoch(self.optimizer, inputs, labels, shown, steps))
                self.epoch += 1
                if self.checkpoint is not None and self.ranks.first:
                    self._save(self.checkpoint)
                report(self.history[-1])
        self.network.eval()
        self.objective.eval()
        return self.history

    def _run_epoch(
        self,
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        labels: npt.NDArray[np.int64],
        shown: npt.NDArray[np.int64],
        steps: int,
    ) -> dict[str, float]:
        totals: dict[str, float] = {}
        for number, places in enumerate(batches(labels[shown], steps, self.seed, self.epoch)):
            rows = shown[places]
            now = TrainingProgress(self.epoch * steps + number, self.training.epochs * steps)
            for name, value in self._step(optimizer, inputs, labels, rows, now).items():
                totals[name] = totals.get(name, 0.0) + value
        return {"epoch": float(self.epoch + 1), **{name: value / steps for name, value in totals.items()}}

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        labels: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        now: TrainingProgress,
    ) -> dict[str, float]:
        torch.manual_seed(step_generator(self.seed, now.step, stream=1).initial_seed())  # of dropout in the network
        one, two = self._embed(inputs, rows, now.step)
        batch_labels = torch.from_numpy(labels[rows]).to(one.device)
        parts = self.objective(one, two, batch_labels, now)
        loss = torch.stack(list(parts.values())).sum()
        if not bool(torch.isfinite(loss)):
            values = ", ".join(f"{name} {float(part.detach()):.3g}" for name, part in parts.items())
            raise InputError(
                f"the loss is no longer finite at step {now.step} ({values}); lower learning_rate="
                f"{self.training.learning_rate:g}, or raise the temperatures"
            )
        for group in optimizer.param_groups:
            group["lr"] = self.training.learning_rate * decay(self.training, now.share)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.ranks.share_gradients(_trainable(self.network), _trainable(self.objective))
        optimizer.step()
        self.objective.after_step(one.detach().float(), two.detach().float(), batch_labels)
        return {"loss": float(loss.detach()), **{name: float(part.detach()) for name, part in parts.items()}}

    def _embed(self, inputs: Tensor, rows: npt.NDArray[np.int64], step: int) -> tuple[Tensor, Tensor]:
        """Embed both views of a batch: this process runs its part, the parts of the others are gathered."""
        part = self.ranks.slice_of(rows)
        index = torch.from_numpy(rows[part])
        numbers = self.views.draw(len(rows), step_generator(self.seed, step))[part]
        pair = self.views.apply(inputs[index].to(self.training.device), numbers, index)
        kind = self.training.amp
        device = torch.device(self.training.device).type
        half = torch.autocast(device, dtype=getattr(torch, kind)) if kind else nullcontext()
        with half:
            copies = [self.objective.copy_inputs(v, copy) for copy in range(self.objective.copies) for v in pair]
            parts = self._run_network(torch.cat(copies)).float().split(len(index))
        gathered = [self.ranks.gather(part, len(rows)) for part in parts]
        return torch.cat(gathered[::2]), torch.cat(gathered[1::2])

    def _save(self, checkpoint: Checkpoint) -> None:
        assert self.optimizer is not None
        tensors: dict[str, npt.NDArray[Any]] = {}
        for prefix, module in (("network.", self.network), ("objective.", self.objective)):
            for name, value in module.state_dict().items():
                tensors[prefix + name] = value.detach().cpu().numpy()
        for number, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if value is not None:
                    tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(value).cpu().numpy()
        config = {"layout": LAYOUT, "identity": checkpoint.identity, "epoch": self.epoch, "history": self.history}
        store.save(checkpoint.file, KIND, config, tensors)

    @store.restoring("checkpoint")
    def _resume(self, checkpoint: Checkpoint) -> None:
        file = checkpoint.file
        stored = store.load(file, KIND)
        if stored.config.get("layout") != LAYOUT:
            raise StoreError(
                f"{file}: a checkpoint of another version of offmap; finish it there, or choose another out="
            )
        if stored.config["identity"] != checkpoint.identity:
            raise StoreError(
                f"{file}: a checkpoint of a run on other data or with other settings; give the same, or another out="
            )
        self.epoch, self.history = int(stored.config["epoch"]), list(stored.config["history"])
        for prefix, module in (("network.", self.network), ("objective.", self.objective)):
            module.load_state_dict(_tensors(stored.tensors, prefix))
        if self.optimizer is not None:
            states: dict[int, dict[str, Tensor]] = {}
            for name, value in _tensors(stored.tensors, "optimizer.").items():
                number, key = name.split(".", 1)
                states.setdefault(int(number), {})[key] = value
            whole = self.optimizer.state_dict()
            self.optimizer.load_state_dict({"state": states, "param_groups": whole["param_groups"]})


def batches(labels: npt.NDArray[np.int64], steps: int, seed: int, epoch: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each step of one epoch: labelled and unlabelled rows shuffled apart and dealt out evenly.

    So every batch has the proportion of the set, and a labelled row whenever there are as many as steps.

    Examples
    --------
    >>> labels = np.array([0, 1, -1, -1, -1, -1])
    >>> [int((labels[rows] >= 0).sum()) for rows in batches(labels, 2, seed=0, epoch=0)]
    [1, 1]
    """
    rng = np.random.default_rng([seed, epoch])
    parts = [np.array_split(rng.permutation(np.flatnonzero(part)), steps) for part in (labels >= 0, labels < 0)]
    for known, free in zip(parts[0], reversed(parts[1]), strict=True):
        yield np.concatenate([known, free])


def decay(training: Training, share: float) -> float:
    """Return what the learning rate is multiplied by when a `share` of the training is over.

    Examples
    --------
    >>> [decay(Training(schedule="steps"), share) for share in (0.2, 0.5, 0.9)]
    [1.0, 0.1, 0.01]
    >>> round(decay(Training(schedule="cosine"), 0.5), 3)
    0.5
    """
    if training.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * share))
    if training.schedule == "steps":
        return 1 / 10 ** sum(share >= milestone for milestone in training.milestones)
    return 1.0


def _optimizer(parameters: list[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimizer == "adamw":
        return torch.optim.AdamW(parameters, training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters, training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _tensors(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, Tensor]:
    start = len(prefix)
    return {name[start:]: torch.from_numpy(a.copy()) for name, a in arrays.items() if name.startswith(prefix)}
