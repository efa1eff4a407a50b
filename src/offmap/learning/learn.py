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
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offmap import store
from offmap.discovery.assign import Rows
from offmap.discovery.counting import count_classes
from offmap.discovery.inputs import KnownClasses, read_labels
from offmap.discovery.kmeans import lloyd
from offmap.discovery.space import group
from offmap.errors import InputError
from offmap.learning import closed
from offmap.learning.encoders import Encoder, Lookup, Pictures, Whitening, adapter, custom, lookup, small_cnn
from offmap.learning.inputs import Inputs, as_inputs
from offmap.learning.losses.numbers import unit
from offmap.learning.model import SHARPNESS, OpenWorldModel, OpenWorldNet, projection_head
from offmap.learning.objectives import Objective, Task, objective
from offmap.learning.settings import Preset, Training, resolve
from offmap.learning.trainer import Trainer
from offmap.learning.views import EmbeddingViews, PictureViews

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
SPECTRAL = "sorl-spectral"
BLOCK = 2048
BALANCED_ITERATIONS = 30
ENOUGH_CLASSES = 4
LIKE_SIZES = 0.4


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
        ``"auto"``: an adapter for embeddings, a small convolutional network for pictures; or your own module from
        inputs to features.
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = projection_head(body.width, training.projection)
    projected = kind.reads_projection and training.projection > 0
    width = training.projection if projected else body.width
    network = nn.Sequential(body.body, head)
    read = network if projected else body.body
    first = _features(read, prepared)
    k = _class_count(n_classes, first, known, seed)
    task = Task(training.projection or body.width, k, len(known), _shares(codes), float((codes >= 0).mean()))
    loss = kind(task, own)
    _, centres = _grouped(_features(network, prepared), k, codes, len(known), seed)
    loss.start(_features(network, prepared), torch.from_numpy(codes), torch.from_numpy(centres))
    views = (
        EmbeddingViews(prepared, training.neighbours, training.neighbour_share, training.dropout, training.noise)
        if data.kind == "embeddings"
        else PictureViews(prepared)
    )
    run = {"objective": kind.name, "settings": own, "training": asdict(training), "seed": seed, "n_classes": k}
    identity = _digest(data.tensor, codes, run, body)
    checkpoint = None if folder is None else folder / "checkpoint.offmap"
    trainer = Trainer(network, loss, views, codes, training, seed, checkpoint, identity)
    trainer.run(progress)
    features = _features(read, prepared)
    weight, bias, used = _classes(loss, features, k, codes, len(known), seed)
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
    labels, centres = _grouped(torch.from_numpy(features), k, codes, len(known), seed)
    used = _used(labels, k, len(known))
    body = Lookup(len(rows), rows.shape[1], features.shape[1], chosen["nearest"])
    body.bank.copy_(prepared)
    body.values.copy_(torch.from_numpy(features))
    net = OpenWorldNet(lookup(front, body), nn.Identity(), features.shape[1], len(used))
    run = {"objective": SPECTRAL, "settings": chosen, "seed": seed, "n_classes": k}
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
    loss: Objective, features: Tensor, k: int, codes: Codes, n_known: int, seed: int
) -> tuple[Tensor, Tensor, Codes]:
    """Class vectors and biases over features of length 1, and which classes are in use; known ones always are."""
    given = loss.classifier()
    if given is not None and loss.chosen.get("assign") != "kmeans":
        weight, bias = given
        found = (features @ weight.T + bias).argmax(dim=1).numpy()
        return weight, bias, _used(found, k, n_known)
    rows = Rows(features.numpy(), "cosine")
    if given is not None:
        fit = lloyd(rows, np.asarray(unit(given[0]).numpy(), np.float32), forced=codes if n_known else None)
        found, centres = fit.labels, fit.centres
    else:
        found, centres = _grouped(features, k, codes, n_known, seed)
    return torch.from_numpy(centres), torch.zeros(k), _used(found, k, n_known)


def _grouped(features: Tensor, k: int, codes: Codes, n_known: int, seed: int) -> tuple[Codes, Floats]:
    """Semi-supervised k-means from a constrained Ward tree, on features of length 1; always `k` centres.

    When known classes are of like sizes, novel ones are expected to be too: a few iterations with balanced groups
    then part what was merged and join what was split, before sizes are left free again.
    """
    rows = Rows(unit(features).numpy(), "cosine")
    forced = codes if n_known else None
    labels, centres = group(rows, k, seed, forced, n_known)
    if len(centres) == k and _alike(codes):
        balanced = lloyd(rows, centres, forced=forced, balance=np.full(k, 1 / k), max_iter=BALANCED_ITERATIONS)
        fit = lloyd(rows, balanced.centres, forced=forced)
        labels, centres = fit.labels, fit.centres
    if len(centres) < k:  # fewer distinct rows than classes: the rest are never chosen
        centres = np.concatenate([centres, np.zeros((k - len(centres), centres.shape[1]), np.float32)])
    return labels, centres


def _alike(codes: Codes) -> bool:
    """Whether labelled classes differ little in size: the deviation is below .4 of the mean."""
    sizes = np.bincount(codes[codes >= 0])
    return len(sizes) >= ENOUGH_CLASSES and float(sizes.std() / sizes.mean()) < LIKE_SIZES


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
    if isinstance(encoder, nn.Module):
        made = custom(encoder, data.tensor)
    elif encoder not in ("auto", "adapter", "cnn"):
        raise InputError(f"encoder={encoder!r}: 'auto', 'adapter', 'cnn', or a module from inputs to features")
    elif (encoder == "adapter") != (data.kind == "embeddings") and encoder != "auto":
        raise InputError(f"encoder={encoder!r}: it does not read {data.kind}; leave it to 'auto'")
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            wide = data.tensor.shape[1]
            made = adapter(wide, training.hidden) if data.kind == "embeddings" else small_cnn(wide, seed=seed)
    if isinstance(made.front, Whitening):
        made.front.fit(data.tensor.numpy(), codes, training.shrinkage)
    elif isinstance(made.front, Pictures):
        made.front.fit(data.tensor)
    return made


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
