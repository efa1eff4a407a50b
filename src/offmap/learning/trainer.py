"""The training loop: every step is a function of the seed and its number, so a killed run resumes to the same bits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offmap import store
from offmap.data.views import Views, step_generator
from offmap.errors import InputError, StoreError
from offmap.learning.objectives.base import Moment, Objective
from offmap.learning.settings import Training

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
    ) -> None:
        self.network, self.objective, self.views, self.inputs = network, objective, views, inputs
        self.labels, self.training, self.seed = labels, training, seed
        self.checkpoint, self.identity = checkpoint, identity
        self.history: History = []
        self.epoch = 0
        self.steps_per_epoch = max(len(labels) // training.batch_size, 1)
        self.steps = training.epochs * self.steps_per_epoch
        self._run_network = torch.compile(network) if training.compile else network
        parameters = [p for module in (network, objective) for p in module.parameters() if p.requires_grad]
        self.optimizer = _optimizer(parameters, training) if parameters else None
        if checkpoint is not None and checkpoint.is_file():
            self._resume(checkpoint)

    def run(self, progress: bool | None = None) -> History:
        """Train to the end; the mean of every part of the loss, epoch by epoch."""
        if self.optimizer is None:
            return self.history
        with torch.random.fork_rng(devices=[]), _bar(progress, self.training.epochs, self.epoch) as tell:
            self.network.train()
            self.objective.train()
            while self.epoch < self.training.epochs:
                row = self._one_epoch(self.optimizer)
                self.history.append(row)
                self.epoch += 1
                if self.checkpoint is not None:
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
        index = torch.from_numpy(rows)
        first, second = self.views(self.inputs[index], step_generator(self.seed, step), index)
        labels = torch.from_numpy(self.labels[rows])
        kind = self.training.autocast
        half = torch.autocast("cpu", dtype=getattr(torch, kind)) if kind else nullcontext()
        with half:
            both = self._run_network(torch.cat([first, second]))
        one, two = both[: len(rows)], both[len(rows) :]
        parts = self.objective(one, two, labels, Moment(step, self.steps))
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
        optimizer.step()
        self.objective.after_step(one.detach().float(), two.detach().float(), labels)
        return {"loss": float(loss.detach()), **{name: float(part.detach()) for name, part in parts.items()}}

    def _save(self, file: Path) -> None:
        assert self.optimizer is not None
        tensors: dict[str, npt.NDArray[Any]] = {}
        for prefix, module in (("network.", self.network), ("objective.", self.objective)):
            for name, value in module.state_dict().items():
                tensors[prefix + name] = value.detach().cpu().numpy()
        for number, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                if value is not None:
                    tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(value).numpy()
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


def _tensors(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> dict[str, Tensor]:
    start = len(prefix)
    return {name[start:]: torch.from_numpy(a.copy()) for name, a in arrays.items() if name.startswith(prefix)}


@contextmanager
def _bar(progress: bool | None, total: int, done: int) -> Iterator[Callable[[dict[str, float]], None]]:
    """A function to call after every epoch; it draws on a terminal, unless that is not wanted."""
    if progress is False or not sys.stderr.isatty():
        yield lambda row: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("learning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def tell(row: dict[str, float]) -> None:
            parts = " ".join(f"{name} {value:.3f}" for name, value in row.items() if name != "epoch")
            bar.update(task, advance=1, description=parts)

        yield tell
