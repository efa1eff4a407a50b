"""`learn`: from inputs and some labels to a model of known and novel classes, in one call."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offmap import store
from offmap.data.views import Views
from offmap.discovery.inputs import KnownClasses, read_labels
from offmap.errors import InputError
from offmap.graph import spectral_features
from offmap.learning import building
from offmap.learning.distributed import Ranks, joined
from offmap.learning.encoders import Encoder, Lookup, Whitening, lookup
from offmap.learning.estimate import estimates, watched
from offmap.learning.grouping import Codes, balance_helps, grouped
from offmap.learning.inputs import Inputs, as_inputs
from offmap.learning.model import OpenWorldModel, OpenWorldNet
from offmap.learning.objectives import Objective, Task, objective
from offmap.learning.settings import SPECTRAL_SETTINGS, Preset, Training, published_encoder, resolve
from offmap.learning.trainer import Trainer
from offmap.neighbors.vectors import unit

SPECTRAL = "sorl-spectral"


def learn(
    name: str,
    inputs: Any,
    labels: Any,
    n_classes: int | Literal["auto"] | None = None,
    encoder: str | nn.Module = "auto",
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    *,
    preset: Preset = "auto",
    progress: bool | None = None,
    tensorboard: bool = False,
    views: Views | None = None,
    **settings: Any,
) -> OpenWorldModel:
    """Learn known and novel classes from some labels and a pile of unlabelled inputs.

    Parameters
    ----------
    name
        The objective: ``"opencon"``, ``"gcd"``, ``"sorl"``, ``"nscl"``, ``"scl"``, ``"simclr"``, ``"supcon"``,
        ``"orca"``, ``"uno"``, ``"autonovel"``, ``"ce"``, ``"godin"``, or ``"sorl-spectral"``, which needs no training.
    inputs
        Embeddings, rows × columns; or pictures, N × height × width (× channels), or with channels first.
    labels
        Class numbers with -1 where unlabelled, or names with `None`.
    n_classes
        Known and novel classes together; estimated when `None` or ``"auto"``.
    encoder
        ``"auto"``: a linear adapter for embeddings, a small convolutional network for pictures; a name of
        `offmap.models.encoders`, such as ``"resnet18"``; or your own module from inputs to features.
    seed
        The same seed gives the same model.
    out
        A folder for checkpoints, ``history.csv`` and ``model.offmap``. The same call resumes a run that was killed,
        and ends in the same weights, bit for bit, on the same machine with the same number of threads. Under
        ``torchrun`` all processes train one model; the first one writes.
    preset
        See `offmap.learning.settings.resolve`.
    progress
        `False` for no progress bar; there is one on a terminal only, with the parts of the loss and with estimates of
        All, Known and Novel that need no novel label (`offmap.learning.estimate`).
    tensorboard
        Write what the bar shows to ``out/tensorboard`` too.
    views
        What makes two views of a batch, such as ``ImageViews(flip=0)`` for digits; SimCLR's for pictures and neighbours
        for embeddings otherwise.
    **settings
        Of the objective and of training, by name; see `offmap.learning.Training`.

    Returns
    -------
    OpenWorldModel
        With ``predict``, ``transform``, ``novelty``, ``network``, ``history``, ``save``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(4), 40)
    >>> rows = rng.normal(size=(4, 8))[truth] + 0.1 * rng.normal(size=(160, 8))
    >>> model = learn("opencon", rows, np.where((truth < 2) & (rng.random(160) < 0.5), truth, -1), 4, epochs=2)
    >>> model
    OpenWorldModel(opencon, 2 known classes, 2 novel)
    >>> bool((model.predict(rows)[truth == 1] == 1).all())
    True
    """
    data = as_inputs(inputs)
    if len(data) < 4:
        raise InputError(f"{len(data)} inputs: at least 4 are needed to learn anything")
    known = read_labels(labels, len(data))
    folder = _folder(out)
    if tensorboard and folder is None:
        raise InputError("tensorboard=True: name a folder with out=; the event files go there")
    if name == SPECTRAL:
        model, first = _spectral(data, known, n_classes, seed, settings), True
    else:
        kind = objective(name)
        if kind.needs_labels and not len(known):
            raise InputError(f"{name}: it learns from labels, and no input has one; try simclr or scl")
        own, training = resolve(kind, data.kind, preset, settings)
        encoder = published_encoder(preset) if encoder == "auto" else encoder
        ranks = joined(training.device)
        run = _Run(kind, own, training, seed, folder, ranks, progress, tensorboard, views)
        model, first = run.model(data, known, n_classes, encoder), ranks.first
    if folder is not None and first:
        store.write_atomically(folder / "history.csv", _as_csv(model.history))
        model.save(folder / "model.offmap")
    return model


@dataclass(frozen=True)
class _Run:
    """One training from beginning to end: pre-training when asked for, the objective, the classes found."""

    kind: type[Objective]
    own: dict[str, Any]
    training: Training
    seed: int
    folder: Path | None
    ranks: Ranks
    progress: bool | None
    tensorboard: bool
    views: Views | None

    def model(
        self, data: Inputs, known: KnownClasses, n_classes: int | str | None, encoder: str | nn.Module
    ) -> OpenWorldModel:
        """Train, and find the classes."""
        training, seed, n_known = self.training, self.seed, len(known)
        held = building.held_back(known.codes, training.held_out, seed)
        codes = known.codes.copy()
        codes[held] = -1
        body = building.fitted_encoder(encoder, data, codes, training, seed)
        prepared = building.in_blocks(body.front, data.tensor)
        self._pretrain(data, prepared, codes, n_known, body)
        building.train_parts(body, training.keep)
        head = self.kind.projection_head(body.width, training.projection, seed)
        projected = self.kind.reads_projection and training.projection > 0
        network = nn.Sequential(body.body, head)
        read = network if projected else body.body
        k = building.class_count(n_classes, building.features_of(read, prepared), known, seed)
        loss = self.kind(self._task(body, codes, k, n_known), self.own)
        start = building.features_of(network, prepared)
        calm = training.smoothing
        balanced = not calm and balance_helps(unit(data.tensor.reshape(len(data), -1)).numpy(), codes, seed)
        groups, centres = grouped(start.numpy(), k, codes, n_known, seed, balanced, calm)
        loss.start(start, torch.from_numpy(codes), torch.from_numpy(centres))
        seen = watched(known.codes, held, groups, n_known, seed)

        def watch() -> dict[str, float]:
            features = building.features_of(read, prepared[torch.from_numpy(seen.rows)], training.device)
            return estimates(features, seen, building.own_classifier(loss))

        run = self._note(k, balanced)
        trainer = self._trainer("checkpoint", network, loss, data, prepared, codes, body, run, watch)
        trainer.run(self.progress, self.folder / "tensorboard" if self.tensorboard and self.folder else None)
        network.cpu()
        loss.cpu()
        features = building.features_of(read, prepared)
        weight, bias, used = building.class_vectors(loss, features, k, known.codes, n_known, seed, balanced, calm)
        width = training.projection if projected else body.width
        net = OpenWorldNet(body, head if projected else nn.Identity(), width, len(used))
        return building.assembled(net, weight, bias, used, known, trainer.history, run)

    def _pretrain(self, data: Inputs, prepared: Tensor, codes: Codes, n_known: int, body: Encoder) -> None:
        """Learn from views alone, with a projection head that is thrown away."""
        name = self.training.pretrain
        if name is None or not self.training.pretrain_epochs:
            return
        kind = objective(name)
        own, _ = resolve(kind, data.kind, "auto", {})
        training = replace(self.training, epochs=self.training.pretrain_epochs)
        head = kind.projection_head(body.width, training.projection, self.seed)
        before = replace(self, kind=kind, own=own, training=training, tensorboard=False)
        loss = kind(before._task(body, codes, max(n_known, 1), n_known), own)
        network = nn.Sequential(body.body, head)
        run = before._note(0, False)
        before._trainer("pretrained", network, loss, data, prepared, codes, body, run, None).run(self.progress)
        body.body.cpu()

    def _task(self, body: Encoder, codes: Codes, k: int, n_known: int) -> Task:
        width = self.training.projection or body.width
        return Task(width, k, n_known, building.shares_of(codes, n_known), float((codes >= 0).mean()))

    def _note(self, k: int, balanced: bool) -> dict[str, Any]:
        return {
            "objective": self.kind.name,
            "settings": self.own,
            "training": asdict(self.training),
            "seed": self.seed,
            "n_classes": k,
            "balanced": balanced,
        } | ({"processes": self.ranks.world} if self.ranks.world > 1 else {})

    def _trainer(
        self,
        file: str,
        network: nn.Module,
        loss: Objective,
        data: Inputs,
        prepared: Tensor,
        codes: Codes,
        body: Encoder,
        run: dict[str, Any],
        watch: Any,
    ) -> Trainer:
        views = self.views or building.views_of(data, prepared, self.training)
        note = run if self.views is None else run | {"views": repr(self.views)}
        identity = _digest(data.tensor, codes, note, body)
        checkpoint = None if self.folder is None else self.folder / f"{file}.offmap"
        return Trainer(
            network, loss, views, prepared, codes, self.training, self.seed, checkpoint, identity, self.ranks, watch
        )


def _spectral(
    data: Inputs, known: KnownClasses, n_classes: int | str | None, seed: int, settings: dict[str, Any]
) -> OpenWorldModel:
    if data.kind != "embeddings":
        raise InputError(f"{SPECTRAL}: it reads embeddings; train an encoder on pictures first, and give its features")
    unknown = settings.keys() - SPECTRAL_SETTINGS.keys()
    if unknown:
        settable = ", ".join(SPECTRAL_SETTINGS)
        raise InputError(f"{SPECTRAL}: there is no setting {sorted(unknown)[0]!r}; it has {settable}")
    chosen = {**SPECTRAL_SETTINGS, **settings}
    codes, rows = known.codes, data.tensor.numpy()
    front = Whitening(rows.shape[1])
    front.fit(rows, codes, chosen["shrinkage"])
    prepared = front(data.tensor)
    k = building.class_count(n_classes, prepared, known, seed)
    given = {name: chosen[name] for name in ("neighbours", "eta_l", "diffusion", "columns")}
    features = spectral_features(prepared.numpy(), codes, k, **given, seed=seed)
    labels, centres = grouped(features, k, codes, len(known), seed)
    used = building.in_use(labels, k, len(known))
    body = Lookup(len(rows), rows.shape[1], features.shape[1], chosen["nearest"])
    body.bank.copy_(prepared)
    body.values.copy_(torch.from_numpy(features))
    net = OpenWorldNet(lookup(front, body), nn.Identity(), features.shape[1], len(used))
    run = {"objective": SPECTRAL, "settings": chosen, "seed": seed, "n_classes": k}
    return building.assembled(net, torch.from_numpy(centres), torch.zeros(k), used, known, [], run)


def _digest(inputs: Tensor, codes: Codes, run: dict[str, Any], encoder: Encoder) -> str:
    digest = hashlib.sha256(json.dumps([run, encoder.config], sort_keys=True).encode())
    digest.update(inputs.numpy().data)
    digest.update(codes.data)
    return digest.hexdigest()


def _folder(out: str | os.PathLike[str] | None) -> Path | None:
    if out is None:
        return None
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out={folder}: a file is there; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _as_csv(history: list[dict[str, float]]) -> bytes:
    text = io.StringIO()
    if history:
        writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
    return text.getvalue().encode()
