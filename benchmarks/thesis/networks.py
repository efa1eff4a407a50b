"""Variants of the small CNN: other normalisations and SupCon (thesis, sections 3.5.2 and 5.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from offmap.bench.networks import BenchNetwork, LabelledPictures, make_network, require_labels, train_once
from offmap.bench.sets import LoadedSet
from offmap.bench.suites import NetworkSpec
from offmap.errors import InputError
from offmap.learning.losses.contrastive import supcon
from offmap.models.classify import train_classifier
from offmap.models.cnn import CNN
from offmap.network import Network

Norm = Literal["batch", "group", "weight"]
SHIFT = 2  # pixels that a view is moved by, at most


def make_variant(spec: NetworkSpec, train: LoadedSet | None, data: Path | None, kept: Path) -> BenchNetwork:
    """Make the network of a suite; one of kind ``cnn`` may name a normalisation and an objective.

    Parameters
    ----------
    spec : NetworkSpec
        Its declaration, with the options ``norm`` and ``objective`` (``"ce"`` or ``"supcon"``).
    train : LoadedSet or None
        The pictures it learns from.
    data : Path or None
        The folder that relative paths start from.
    kept : Path
        Folder of weights trained before.
    """
    options = dict(spec.options)
    if spec.kind != "cnn" or not {"norm", "objective"} & options.keys():
        return make_network(spec, train, data, kept)
    mean, std = options.pop("mean", 0.0), options.pop("std", 1.0)
    made_of = {name: value for name, value in options.items() if name != "layer"} | {"scale": (mean, std)}
    layer, objective = options.pop("layer", None), options.pop("objective", "ce")
    epochs, seed = int(options.pop("epochs", 3)), int(options.pop("seed", 0))
    if objective not in ("ce", "supcon"):
        raise InputError(f"objective = {objective!r}: 'ce' (cross-entropy) or 'supcon'")
    pictures = LabelledPictures(*require_labels(train, "cnn"), (mean, std))
    factory = ContrastiveCNN if objective == "supcon" else build_normed_cnn
    model = factory(pictures.n_classes, channels=pictures.channels, seed=seed, **options)

    def learn() -> None:
        if isinstance(model, ContrastiveCNN):
            train_supcon(model, pictures.scale_inputs(), pictures.labels, epochs=epochs, seed=seed)
        else:
            train_classifier(model, pictures.scale_inputs(), pictures.labels, epochs=epochs, batch_size=128, seed=seed)

    train_once(model, learn, {"kind": "cnn", **made_of}, train, kept)
    return BenchNetwork(spec.name, Network(model.eval(), layer), None, mean, std)


def build_normed_cnn(n_classes: int, channels: int = 1, width: int = 24, norm: Norm = "batch", seed: int = 0) -> CNN:
    """Build `offmap.models.cnn.CNN` with batch, group or weight normalisation.

    Examples
    --------
    >>> model = build_normed_cnn(10, norm="group")
    >>> [type(layer).__name__ for layer in model.features][:3]
    ['Conv2d', 'GroupNorm', 'ReLU']
    """
    if norm not in ("batch", "group", "weight"):
        raise InputError(f"norm={norm!r}: 'batch', 'group' or 'weight'")
    model = CNN(n_classes, channels=channels, width=width, seed=seed)
    if norm != "batch":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = [_replaced(layer, norm) for layer in model.features]
        model.features = nn.Sequential(*(layer for layer in made if layer is not None))
    return model


def _replaced(layer: nn.Module, norm: Norm) -> nn.Module | None:
    """The layer in a network of another normalisation; `None` where it has no place there."""
    if isinstance(layer, nn.BatchNorm2d):
        groups = 8 if layer.num_features % 8 == 0 else 1
        return nn.GroupNorm(groups, layer.num_features) if norm == "group" else None
    if isinstance(layer, nn.Conv2d) and norm == "weight":
        twin = nn.Conv2d(layer.in_channels, layer.out_channels, 3, stride=layer.stride[0], padding=1)
        nn.init.kaiming_normal_(twin.weight, nonlinearity="relu")
        return nn.utils.parametrizations.weight_norm(twin)
    return layer


class ContrastiveCNN(nn.Module):
    """The same CNN with a projection head beside its linear one; the projection is what the contrastive loss sees."""

    def __init__(self, n_classes: int, channels: int = 1, width: int = 24, seed: int = 0) -> None:
        super().__init__()
        trunk = CNN(n_classes, channels=channels, width=width, seed=seed)
        size = trunk.head.in_features
        self.features = trunk.features
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self.projection = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 32))
        self.head = trunk.head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; the projection is computed too, so that it can be tapped."""
        found = self.features(x)
        self.projection(found)
        logits: Tensor = self.head(found)
        return logits


def train_supcon(
    model: ContrastiveCNN, inputs: Any, labels: Any, *, epochs: int, batch_size: int = 256, seed: int = 0
) -> None:
    """Train trunk and projection by the supervised contrastive loss, then the linear head by logistic regression."""
    x = torch.as_tensor(np.asarray(inputs), dtype=torch.float32)
    y = torch.as_tensor(np.asarray(labels), dtype=torch.long)
    steps = -(-len(x) // batch_size)
    learned = [*model.features.parameters(), *model.projection.parameters()]
    optimizer = torch.optim.AdamW(learned, 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    rng = np.random.default_rng(seed)
    model.train()
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(x)), steps):
            views = [nn.functional.normalize(model.projection(model.features(_view(x[rows], rng)))) for _ in range(2)]
            loss: Any = supcon(views[0], views[1], y[rows], temperature=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        features = torch.cat([model.features(part) for part in torch.split(x, 512)]).numpy()
        found = LogisticRegression(C=1.0, max_iter=200).fit(features, y.numpy())
        model.head.weight.copy_(torch.from_numpy(found.coef_))
        model.head.bias.copy_(torch.from_numpy(found.intercept_))


def _view(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Another view of pictures: moved by up to `SHIFT` pixels, mirrored or not, brighter or darker."""
    down, right = (int(step) for step in rng.integers(-SHIFT, SHIFT + 1, 2))
    moved = torch.roll(x, (down, right), dims=(2, 3))
    moved = moved.flip(3) if rng.random() < 0.5 else moved
    return moved * float(rng.uniform(0.8, 1.2))
