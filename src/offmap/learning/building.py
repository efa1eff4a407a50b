"""The parts a model is made from: encoder, views, features, the number of classes, class vectors."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offmap.data.token_views import TokenViews
from offmap.data.vector_views import VectorViews
from offmap.data.views import ImageViews, Views
from offmap.discovery.counting import count_classes
from offmap.discovery.inputs import KnownClasses
from offmap.errors import InputError
from offmap.learning.encoders import Encoder, Pictures, Whitening, make_named_encoder, wrap_bert, wrap_module
from offmap.learning.grouping import group_rows
from offmap.learning.inputs import Inputs, split_rows
from offmap.learning.model import SHARPNESS, OpenWorldModel, OpenWorldNet
from offmap.learning.objectives import Objective
from offmap.learning.settings import Training
from offmap.models.bert import BertEncoder
from offmap.models.freezing import freeze
from offmap.neighbors.vectors import unit
from offmap.typing import IntArray

BLOCK = 2048  # rows worked on at once


def assemble_model(
    net: OpenWorldNet,
    weight: Tensor,
    bias: Tensor,
    used: IntArray,
    known: KnownClasses,
    history: list[dict[str, float]],
    run: dict[str, Any],
) -> OpenWorldModel:
    """Build the finished model: class vectors in use, numbers and names of classes, the network frozen."""
    with torch.no_grad():
        net.classifier.weight.copy_(SHARPNESS * weight[used])
        net.classifier.bias.copy_(bias[used])
    net.requires_grad_(False).eval()
    novel = len(used) - len(known)
    ids = np.concatenate([known.ids, known.next_id + np.arange(novel)])
    names = (*known.names, *(f"novel {number + 1}" for number in range(novel)))
    config = json.loads(json.dumps({**run, "unused": run["n_classes"] - len(used)}))  # as it comes back from a file
    return OpenWorldModel(net, ids, names, len(known), history, config)


def find_class_vectors(
    loss: Objective, features: Tensor, known: KnownClasses, seed: int, balanced: bool = False, smoothing: int = 0
) -> tuple[Tensor, Tensor, IntArray]:
    """Return class vectors and biases over features of length 1, and which classes are in use; known ones always are.

    They are the objective's, or centres of semi-supervised k-means where it has none or is told to leave them to it.
    """
    k, n_known = loss.task.n_classes, len(known)
    own = None if loss.chosen.get("assign") == "kmeans" else loss.classifier()
    if own is not None:
        weight, bias = own
        found = (SHARPNESS * features @ weight.T + bias).argmax(dim=1).numpy()
        return weight, bias, find_used_classes(found, k, n_known)
    found, centres = group_rows(features.numpy(), k, known.codes, n_known, seed, balanced, smoothing)
    return torch.from_numpy(centres), torch.zeros(k), find_used_classes(found, k, n_known)


def find_used_classes(found: IntArray, k: int, n_known: int) -> IntArray:
    """Return the classes that some row is in, and all known ones."""
    counts = np.bincount(found, minlength=k)
    return np.flatnonzero((counts > 0) | (np.arange(k) < n_known))


def count_or_check(asked: int | str | None, features: Tensor, known: KnownClasses, seed: int) -> int:
    """Return the number of classes: as asked if that is possible, or estimated."""
    if asked is not None and asked != "auto":
        return check_count(asked, known)
    if not (known.codes < 0).any():
        return len(known)
    return count_classes(features.numpy(), known.codes, seed).n_classes


def check_count(asked: int | str, known: KnownClasses) -> int:
    """Refuse a number of classes below the known ones, or above what the unlabelled inputs could hold."""
    if isinstance(asked, bool) or not isinstance(asked, int | np.integer):
        raise InputError(f"n_classes={asked!r}: a whole number, None or 'auto'")
    free = int((known.codes < 0).sum())
    if not max(len(known), 1) <= asked <= len(known) + free:
        raise InputError(
            f"n_classes={asked}: with {len(known)} known classes and {free} unlabelled inputs, "
            f"{max(len(known), 1)} to {len(known) + free} are possible"
        )
    return int(asked)


def fit_encoder(encoder: str | nn.Module, data: Inputs, codes: IntArray, training: Training, seed: int) -> Encoder:
    """Build an encoder for these inputs, its fixed part fitted to them."""
    shape = tuple(data.tensor.shape[1:])
    if isinstance(encoder, BertEncoder):
        made = wrap_bert(copy.deepcopy(encoder))
    elif isinstance(encoder, nn.Module):
        made = wrap_module(encoder, data.tensor)
    elif data.kind == "embeddings":
        usual = "mlp" if training.hidden else "linear"
        settings = {"hidden": training.hidden} if training.hidden and encoder in ("auto", "mlp") else {}
        made = make_named_encoder(usual if encoder == "auto" else encoder, shape, seed, **settings)
    else:
        made = make_named_encoder("cnn" if encoder == "auto" else encoder, shape, seed)
    for module in made.modules():
        if isinstance(module, Whitening):
            module.fit(data.tensor.numpy(), codes, training.shrinkage)
        elif isinstance(module, Pictures):
            module.fit(data.tensor, training.mean, training.std)
    return made


def make_views(data: Inputs, prepared: Tensor, training: Training) -> Views:
    """Build what makes two views of these inputs."""
    if data.kind == "images":
        return ImageViews.simclr()
    if data.kind == "texts":
        return TokenViews(prepared.shape[1], dropout=training.dropout, span=training.span)
    near = min(training.neighbours, len(prepared) - 1)
    if not near:
        return VectorViews(prepared.shape[1], dropout=training.dropout, noise=training.noise)
    share = (0.0, training.neighbour_share)
    return VectorViews.among(prepared, near, share, dropout=training.dropout, noise=training.noise)


def compute_features(network: nn.Module, prepared: Tensor, device: str = "cpu") -> Tensor:
    """Return features of length 1 of all rows, the network in evaluation mode."""
    training = {name: module.training for name, module in network.named_modules()}
    network.eval()
    out = unit(apply_in_blocks(network, prepared, device))
    for name, module in network.named_modules():
        module.training = training[name]
    return out


def apply_in_blocks(module: nn.Module, inputs: Tensor, device: str = "cpu") -> Tensor:
    """Apply a module to all inputs, block by block; the results are on the CPU."""
    with torch.no_grad():
        return torch.cat([module(block.to(device)).cpu() for block in split_rows(inputs, BLOCK)])


def freeze_except(encoder: Encoder, keep: tuple[str, ...]) -> None:
    """Freeze the encoder's network but for these parts of it; none named trains all that was free before."""
    if keep:
        body = encoder.body
        stacked = isinstance(body, nn.Sequential) and isinstance(body[0], Pictures)
        freeze(body[1] if stacked and isinstance(body, nn.Sequential) else body, keep)


def compute_shares(codes: IntArray, n_known: int) -> tuple[float, ...]:
    """Return the share of each known class among labelled rows."""
    known = codes[codes >= 0]
    return tuple((np.bincount(known, minlength=n_known) / len(known)).tolist()) if len(known) else ()
