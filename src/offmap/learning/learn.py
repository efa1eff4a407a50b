"""`learn`: from inputs and some labels to a model of known and novel classes, in one call."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from offmap import store
from offmap.data.vector_views import VectorViews
from offmap.data.views import ImageViews, Views
from offmap.discovery.counting import count_classes
from offmap.discovery.inputs import KnownClasses, read_labels
from offmap.errors import InputError
from offmap.learning import closed
from offmap.learning.encoders import Encoder, Lookup, Pictures, Whitening, custom, lookup, named
from offmap.learning.grouping import Codes, balance_helps, grouped
from offmap.learning.inputs import Inputs, as_inputs
from offmap.learning.losses.numbers import unit
from offmap.learning.model import SHARPNESS, OpenWorldModel, OpenWorldNet
from offmap.learning.objectives import Objective, Task, objective
from offmap.learning.settings import Preset, Training, resolve
from offmap.learning.trainer import Trainer

SPECTRAL = "sorl-spectral"
BLOCK = 2048


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
        `offmap.nets.encoders`, such as ``"resnet18"``; or your own module from inputs to features.
    seed
        The same seed gives the same model.
    out
        A folder for checkpoints, ``history.csv`` and ``model.offmap``. The same call resumes a run that was killed,
        and ends in the same weights, bit for bit, on the same machine with the same number of threads.
    preset
        See `offmap.learning.settings.resolve`.
    progress
        `False` for no progress bar; there is one on a terminal only.
    **settings
        Of the objective and of training, by name.

    Returns
    -------
    OpenWorldModel
        With ``predict``, ``transform``, ``novelty``, ``network``, ``history``, ``save``.

    Examples
    --------
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
    if name == SPECTRAL:
        model = _spectral(data, known, n_classes, seed, settings)
    else:
        kind = objective(name)
        if kind.needs_labels and not len(known):
            raise InputError(f"{name}: it learns from labels, and no input has one; try simclr or scl")
        own, training = resolve(kind, data.kind, preset, settings)
        model = _trained(kind, data, known, n_classes, encoder, seed, folder, own, training, progress)
    if folder is not None:
        store.write_atomically(folder / "history.csv", _as_csv(model.history))
        model.save(folder / "model.offmap")
    return model


def _trained(
    kind: type[Objective],
    data: Inputs,
    known: KnownClasses,
    n_classes: int | str | None,
    encoder: str | nn.Module,
    seed: int,
    folder: Path | None,
    own: dict[str, Any],
    training: Training,
    progress: bool | None,
) -> OpenWorldModel:
    codes = known.codes
    body = _encoder(encoder, data, codes, training, seed)
    prepared = _in_blocks(body.front, data.tensor)
    head = kind.projection_head(body.width, training.projection, seed)
    projected = kind.reads_projection and training.projection > 0
    width = training.projection if projected else body.width
    network = nn.Sequential(body.body, head)
    read = network if projected else body.body
    first = _features(read, prepared)
    k = _class_count(n_classes, first, known, seed)
    task = Task(training.projection or body.width, k, len(known), _shares(codes), float((codes >= 0).mean()))
    loss = kind(task, own)
    start = _features(network, prepared)
    balanced = balance_helps(unit(data.tensor.reshape(len(data), -1)).numpy(), codes, seed)
    _, centres = grouped(start.numpy(), k, codes, len(known), seed, balanced)
    loss.start(start, torch.from_numpy(codes), torch.from_numpy(centres))
    views = _views(data, prepared, training)
    run = {
        "objective": kind.name,
        "settings": own,
        "training": asdict(training),
        "seed": seed,
        "n_classes": k,
        "balanced": balanced,
    }
    identity = _digest(data.tensor, codes, run, body)
    checkpoint = None if folder is None else folder / "checkpoint.offmap"
    trainer = Trainer(network, loss, views, prepared, codes, training, seed, checkpoint, identity)
    trainer.run(progress)
    features = _features(read, prepared)
    weight, bias, used = _classes(loss, features, k, codes, len(known), seed, balanced)
    net = OpenWorldNet(body, head if projected else nn.Identity(), width, len(used))
    return _model(net, weight, bias, used, known, trainer.history, run)


def _spectral(
    data: Inputs, known: KnownClasses, n_classes: int | str | None, seed: int, settings: dict[str, Any]
) -> OpenWorldModel:
    if data.kind != "embeddings":
        raise InputError(f"{SPECTRAL}: it reads embeddings; train an encoder on pictures first, and give its features")
    unknown = settings.keys() - closed.SETTINGS.keys()
    if unknown:
        raise InputError(f"{SPECTRAL}: there is no setting {sorted(unknown)[0]!r}; it has {', '.join(closed.SETTINGS)}")
    chosen = {**closed.SETTINGS, **settings}
    codes, rows = known.codes, data.tensor.numpy()
    front = Whitening(rows.shape[1])
    front.fit(rows, codes, chosen["shrinkage"])
    prepared = front(data.tensor)
    k = _class_count(n_classes, prepared, known, seed)
    columns = min(chosen["columns"] or k, len(rows) - 1)
    features = closed.spectral_features(
        prepared.numpy(), codes, columns, neighbours=chosen["neighbours"], eta_l=chosen["eta_l"], seed=seed
    )
    balanced = balance_helps(unit(data.tensor).numpy(), codes, seed)
    labels, centres = grouped(features, k, codes, len(known), seed, balanced)
    used = _used(labels, k, len(known))
    body = Lookup(len(rows), rows.shape[1], features.shape[1], chosen["nearest"])
    body.bank.copy_(prepared)
    body.values.copy_(torch.from_numpy(features))
    net = OpenWorldNet(lookup(front, body), nn.Identity(), features.shape[1], len(used))
    run = {"objective": SPECTRAL, "settings": chosen, "seed": seed, "n_classes": k, "balanced": balanced}
    return _model(net, torch.from_numpy(centres), torch.zeros(k), used, known, [], run)


def _model(
    net: OpenWorldNet,
    weight: Tensor,
    bias: Tensor,
    used: Codes,
    known: KnownClasses,
    history: list[dict[str, float]],
    run: dict[str, Any],
) -> OpenWorldModel:
    with torch.no_grad():
        net.classifier.weight.copy_(SHARPNESS * weight[used])
        net.classifier.bias.copy_(bias[used])
    net.requires_grad_(False).eval()
    novel = len(used) - len(known)
    ids = np.concatenate([known.ids, known.next_id + np.arange(novel)])
    names = (*known.names, *(f"novel {number + 1}" for number in range(novel)))
    config = json.loads(json.dumps({**run, "unused": run["n_classes"] - len(used)}))  # as it comes back from a file
    return OpenWorldModel(net, ids, names, len(known), history, config)


def _classes(
    loss: Objective, features: Tensor, k: int, codes: Codes, n_known: int, seed: int, balanced: bool
) -> tuple[Tensor, Tensor, Codes]:
    """Class vectors and biases over features of length 1, and which classes are in use; known ones always are."""
    given = loss.classifier()
    if given is not None and loss.chosen.get("assign") != "kmeans":
        weight, bias = given
        found = (features @ weight.T + bias).argmax(dim=1).numpy()
        return weight, bias, _used(found, k, n_known)
    found, centres = grouped(features.numpy(), k, codes, n_known, seed, balanced)
    return torch.from_numpy(centres), torch.zeros(k), _used(found, k, n_known)


def _used(found: Codes, k: int, n_known: int) -> Codes:
    counts = np.bincount(found, minlength=k)
    return np.flatnonzero((counts > 0) | (np.arange(k) < n_known))


def _class_count(asked: int | str | None, features: Tensor, known: KnownClasses, seed: int) -> int:
    free = int((known.codes < 0).sum())
    if asked is None or asked == "auto":
        if not free:
            return len(known)
        return count_classes(features.numpy(), known.codes, seed).n_classes
    if isinstance(asked, bool) or not isinstance(asked, int | np.integer):
        raise InputError(f"n_classes={asked!r}: a whole number, None or 'auto'")
    if not max(len(known), 1) <= asked <= len(known) + free:
        raise InputError(
            f"n_classes={asked}: with {len(known)} known classes and {free} unlabelled inputs, "
            f"{max(len(known), 1)} to {len(known) + free} are possible"
        )
    return int(asked)


def _encoder(encoder: str | nn.Module, data: Inputs, codes: Codes, training: Training, seed: int) -> Encoder:
    shape = tuple(data.tensor.shape[1:])
    if isinstance(encoder, nn.Module):
        made = custom(encoder, data.tensor)
    elif data.kind == "embeddings":
        usual = "mlp" if training.hidden else "linear"
        settings = {"hidden": training.hidden} if training.hidden and encoder in ("auto", "mlp") else {}
        made = named(usual if encoder == "auto" else encoder, shape, seed, **settings)
    else:
        made = named("cnn" if encoder == "auto" else encoder, shape, seed)
    for module in made.modules():
        if isinstance(module, Whitening):
            module.fit(data.tensor.numpy(), codes, training.shrinkage)
        elif isinstance(module, Pictures):
            module.fit(data.tensor)
    return made


def _views(data: Inputs, prepared: Tensor, training: Training) -> Views:
    if data.kind == "images":
        return ImageViews.simclr()
    near = min(training.neighbours, len(prepared) - 1)
    if not near:
        return VectorViews(prepared.shape[1], dropout=training.dropout, noise=training.noise)
    share = (0.0, training.neighbour_share)
    return VectorViews.among(prepared, near, share, dropout=training.dropout, noise=training.noise)


def _features(network: nn.Module, prepared: Tensor) -> Tensor:
    """Features of length 1 of all rows, the network as in use."""
    was_training = network.training
    network.eval()
    out = unit(_in_blocks(network, prepared))
    network.train(was_training)
    return out


def _in_blocks(module: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([module(inputs[start : start + BLOCK]) for start in range(0, len(inputs), BLOCK)])


def _shares(codes: Codes) -> tuple[float, ...]:
    known = codes[codes >= 0]
    return tuple((np.bincount(known) / len(known)).tolist()) if len(known) else ()


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
