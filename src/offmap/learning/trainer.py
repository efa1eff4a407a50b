"""The training loop: every step is a function of the seed and its number, so a killed run resumes to the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offmap import store
from offmap.data.views import Views, step_generator
from offmap.errors import InputError, StoreError
from offmap.learning.distributed import Ranks
from offmap.learning.objectives.base import Objective, TrainingProgress
from offmap.learning.progress import telling
from offmap.learning.settings import Training
from offmap.models.freezing import train_mode

KIND = "learning-checkpoint"
LAYOUT = 1
History = list[dict[str, float]]


class Trainer:
    """Trains a network and an objective on one set.

    Parameters
    ----------
    network
        From prepared inputs to what the objective reads.
    objective, views, inputs, labels, training
        The loss, what makes two views, all inputs, per row its known class or -1, and how to train.
    seed
        Of the order of rows, the views and dropout.
    checkpoint
        A file, rewritten after every epoch; an existing one is resumed.
    identity
        What must be the same for a checkpoint to be continued: a digest of data and settings.
    ranks
        The processes that train together; every batch is `batch_size` rows of each.
    watch
        Called after every epoch for more numbers to note, the network as in use.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        views: Views,
        inputs: Tensor,
        labels: npt.NDArray[np.int64],
        training: Training,
        seed: int,
        checkpoint: Path | None = None,
        identity: str = "",
        ranks: Ranks | None = None,
        watch: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.network, self.objective = network.to(training.device), objective.to(training.device)
        self.views, self.inputs, self.labels = views, inputs, labels
        self.training, self.seed, self.watch = training, seed, watch
        self.checkpoint, self.identity = checkpoint, identity
        self.history: History = []
        self.epoch = 0
        self.steps_per_epoch = max(len(labels) // (training.batch_size * self.ranks.world), 1)
        self.steps = training.epochs * self.steps_per_epoch
        self._run_network = torch.compile(network) if training.compile else network
        parameters = [*_learning(network), *_learning(objective)]
        self.optimizer = _optimizer(parameters, training) if parameters else None
        if checkpoint is not None and checkpoint.is_file():
            self._resume(checkpoint)
        self.ranks.wait()  # nobody writes a checkpoint while another still looks for one

    def run(self, progress: bool | None = None, events: Path | None = None) -> History:
        """Train to the end; the mean of every part of the loss, epoch by epoch.

        Parameters
        ----------
        progress
            `False` for no bar.
        events
            A folder for TensorBoard.
        """
        if self.optimizer is None:
            return self.history
        first = self.ranks.first
        reports = telling(progress if first else False, self.training.epochs, self.epoch, events if first else None)
        with torch.random.fork_rng(devices=[]), reports as tell:
            while self.epoch < self.training.epochs:
                train_mode(self.network)
                self.objective.train()
                row = self._one_epoch(self.optimizer)
                if self.watch is not None:
                    row |= self.watch()
                self.history.append(row)
                self.epoch += 1
                if self.checkpoint is not None and first:
                    self._save(self.checkpoint)
                tell(row)
        self.network.eval()
        self.objective.eval()
        return self.history

    def _one_epoch(self, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        totals: dict[str, float] = {}
        for number, rows in enumerate(batches(self.labels, self.steps_per_epoch, self.seed, self.epoch)):
            step = self.epoch * self.steps_per_epoch + number
            for name, value in self._step(optimizer, rows, step).items():
                totals[name] = totals.get(name, 0.0) + value
        return {"epoch": float(self.epoch + 1), **{n: value / self.steps_per_epoch for n, value in totals.items()}}

    def _step(self, optimizer: torch.optim.Optimizer, rows: npt.NDArray[np.int64], step: int) -> dict[str, float]:
        torch.manual_seed(step_generator(self.seed, step, stream=1).initial_seed())  # of dropout in the network
        one, two = self._embedded(rows, step)
        labels = torch.from_numpy(self.labels[rows]).to(one.device)
        parts = self.objective(one, two, labels, TrainingProgress(step, self.steps))
        loss = torch.stack(list(parts.values())).sum()
        if not bool(torch.isfinite(loss)):
            shown = ", ".join(f"{name} {float(part.detach()):.3g}" for name, part in parts.items())
            raise InputError(
                f"the loss is no longer finite at step {step} ({shown}); lower learning_rate="
                f"{self.training.learning_rate:g}, or raise the temperatures"
            )
        for group in optimizer.param_groups:
            group["lr"] = self.training.learning_rate * decay(self.training.schedule, step / max(self.steps, 1))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.ranks.share_gradients(_learning(self.network), _learning(self.objective))
        optimizer.step()
        self.objective.after_step(one.detach().float(), two.detach().float(), labels)
        return {"loss": float(loss.detach()), **{name: float(part.detach()) for name, part in parts.items()}}

    def _embedded(self, rows: npt.NDArray[np.int64], step: int) -> tuple[Tensor, Tensor]:
        """Both views of a batch as embeddings: one's own part is run, the other processes' parts are gathered."""
        part = self.ranks.slice_of(rows)
        index = torch.from_numpy(rows[part])
        numbers = self.views.draw(len(rows), step_generator(self.seed, step))[part]
        pair = self.views.apply(self.inputs[index].to(self.training.device), numbers, index)
        kind = self.training.amp
        device = torch.device(self.training.device).type
        half = torch.autocast(device, dtype=getattr(torch, kind)) if kind else nullcontext()
        with half:
            both = self._run_network(torch.cat(pair)).float()
        one, two = (self.ranks.gathered(view, len(rows)) for view in (both[: len(index)], both[len(index) :]))
        return one, two

    def _save(self, file: Path) -> None:
        assert self.optimizer is not None
        tensors: dict[str, npt.NDArray[Any]] = {}
        for prefix, module in (("network.", self.network), ("objective.", self.objective)):
            for name, value in module.state_dict().items():
                tensors[prefix + name] = value.detach().cpu().numpy()
        for number, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if value is not None:
                    tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(value).cpu().numpy()
        config = {"layout": LAYOUT, "identity": self.identity, "epoch": self.epoch, "history": self.history}
        store.save(file, KIND, config, tensors)

    def _resume(self, file: Path) -> None:
        stored = store.load(file, KIND)
        if stored.config.get("layout") != LAYOUT:
            raise StoreError(
                f"{file}: a checkpoint of another version of offmap; finish it there, or choose another out="
            )
        if stored.config["identity"] != self.identity:
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
    """The rows of each step of one epoch: labelled and unlabelled rows shuffled apart and dealt out evenly.

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


def decay(schedule: str, share: float) -> float:
    """What the learning rate is multiplied by when a `share` of the training is over.

    Examples
    --------
    >>> [decay("steps", share) for share in (0.2, 0.5, 0.9)]
    [1.0, 0.1, 0.01]
    >>> round(decay("cosine", 0.5), 3)
    0.5
    """
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * share))
    if schedule == "steps":
        return 1.0 if share < 0.5 else 0.1 if share < 0.75 else 0.01
    return 1.0


def _optimizer(parameters: list[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimizer == "adamw":
        return torch.optim.AdamW(parameters, training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters, training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )


def _learning(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _tensors(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, Tensor]:
    start = len(prefix)
    return {name[start:]: torch.from_numpy(a.copy()) for name, a in arrays.items() if name.startswith(prefix)}
