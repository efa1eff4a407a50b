"""The parts a model is made from: encoder, views, features, the number of classes, class vectors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offmap.data.vector_views import VectorViews
from offmap.data.views import ImageViews, Views
from offmap.discovery.counting import count_classes
from offmap.discovery.inputs import KnownClasses
from offmap.errors import InputError
from offmap.learning.encoders import Encoder, Pictures, Whitening, custom, named
from offmap.learning.grouping import Codes, grouped
from offmap.learning.inputs import Inputs
from offmap.learning.model import SHARPNESS, OpenWorldModel, OpenWorldNet
from offmap.learning.objectives import Objective
from offmap.learning.settings import Training
from offmap.models.freezing import freeze
from offmap.neighbors.vectors import unit

BLOCK = 2048


def assembled(
    net: OpenWorldNet,
    weight: Tensor,
    bias: Tensor,
    used: Codes,
    known: KnownClasses,
    history: list[dict[str, float]],
    run: dict[str, Any],
) -> OpenWorldModel:
    """The finished model: class vectors in use, numbers and names of classes, the network frozen."""
    with torch.no_grad():
        net.classifier.weight.copy_(SHARPNESS * weight[used])
        net.classifier.bias.copy_(bias[used])
    net.requires_grad_(False).eval()
    novel = len(used) - len(known)
    ids = np.concatenate([known.ids, known.next_id + np.arange(novel)])
    names = (*known.names, *(f"novel {number + 1}" for number in range(novel)))
    config = json.loads(json.dumps({**run, "unused": run["n_classes"] - len(used)}))  # as it comes back from a file
    return OpenWorldModel(net, ids, names, len(known), history, config)


def class_vectors(
    loss: Objective,
    features: Tensor,
    k: int,
    codes: Codes,
    n_known: int,
    seed: int,
    balanced: bool = False,
    smoothing: int = 0,
) -> tuple[Tensor, Tensor, Codes]:
    """Class vectors and biases over features of length 1, and which classes are in use; known ones always are."""
    given = own_classifier(loss)
    if given is not None:
        weight, bias = given
        found = (features @ weight.T + bias).argmax(dim=1).numpy()
        return weight, bias, in_use(found, k, n_known)
    found, centres = grouped(features.numpy(), k, codes, n_known, seed, balanced, smoothing)
    return torch.from_numpy(centres), torch.zeros(k), in_use(found, k, n_known)


def own_classifier(loss: Objective) -> tuple[Tensor, Tensor] | None:
    """The objective's classifier over all classes, when it has one and is not told to leave the classes to k-means."""
    return None if loss.chosen.get("assign") == "kmeans" else loss.classifier()


def in_use(found: Codes, k: int, n_known: int) -> Codes:
    """Classes that some row is in; known ones always count."""
    counts = np.bincount(found, minlength=k)
    return np.flatnonzero((counts > 0) | (np.arange(k) < n_known))


def class_count(asked: int | str | None, features: Tensor, known: KnownClasses, seed: int) -> int:
    """How many classes there are: as asked, or estimated."""
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


def fitted_encoder(encoder: str | nn.Module, data: Inputs, codes: Codes, training: Training, seed: int) -> Encoder:
    """An encoder for these inputs, its fixed part fitted to them."""
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


def views_of(data: Inputs, prepared: Tensor, training: Training) -> Views:
    """What makes two views of these inputs."""
    if data.kind == "images":
        return ImageViews.simclr()
    near = min(training.neighbours, len(prepared) - 1)
    if not near:
        return VectorViews(prepared.shape[1], dropout=training.dropout, noise=training.noise)
    share = (0.0, training.neighbour_share)
    return VectorViews.among(prepared, near, share, dropout=training.dropout, noise=training.noise)


def features_of(network: nn.Module, prepared: Tensor, device: str = "cpu") -> Tensor:
    """Features of length 1 of all rows, the network as in use."""
    training = {name: module.training for name, module in network.named_modules()}
    network.eval()
    out = unit(in_blocks(network, prepared, device))
    for name, module in network.named_modules():
        module.training = training[name]
    return out


def in_blocks(module: nn.Module, inputs: Tensor, device: str = "cpu") -> Tensor:
    """What a module makes of all inputs, block by block where it stands; on the CPU."""
    with torch.no_grad():
        blocks = (inputs[start : start + BLOCK] for start in range(0, len(inputs), BLOCK))
        return torch.cat([module(block.to(device)).cpu() for block in blocks])


def train_parts(encoder: Encoder, keep: tuple[str, ...]) -> None:
    """Freeze the encoder's network but for these parts of it; none named trains all that was free before."""
    if keep:
        body = encoder.body
        stacked = isinstance(body, nn.Sequential) and isinstance(body[0], Pictures)
        freeze(body[1] if stacked and isinstance(body, nn.Sequential) else body, keep)


def held_back(codes: Codes, share: float, seed: int) -> Codes:
    """Labelled rows whose labels training does not see: this share of each class, and never all of one.

    Examples
    --------
    >>> held_back(np.array([0, 0, 0, 0, 1, -1]), 0.5, seed=0)
    array([1, 2])
    """
    rng = np.random.default_rng([seed, 3])
    parts = [np.empty(0, np.int64)]
    for one in range(int(codes.max(initial=-1)) + 1):
        members = rng.permutation(np.flatnonzero(codes == one))
        parts.append(members[: min(round(share * len(members)), len(members) - 1)])
    return np.sort(np.concatenate(parts))


def shares_of(codes: Codes, n_known: int) -> tuple[float, ...]:
    """The share of each known class among labelled rows."""
    known = codes[codes >= 0]
    return tuple((np.bincount(known, minlength=n_known) / len(known)).tolist()) if len(known) else ()
