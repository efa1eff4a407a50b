"""A tiny real network and its activations, with whatever extra passes a detector asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import offmap
from offmap.extra_passes import Requirements

CLASSES = 4
WIDTH = 16


class Tiny(nn.Module):
    """Convolutions with BatchNorm and dropout; the layers that the registry's examples name are there."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Dropout(0.2), nn.Conv2d(8, WIDTH, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.fc = nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            self.fc.weight.mul_(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.features(x).mean((2, 3)))


class World:
    """Known and test inputs, and what the network says about them."""

    def __init__(self, n_known: int = 200, n_test: int = 40) -> None:
        with torch.random.fork_rng():
            self.net = offmap.Network(Tiny(0), ensemble=[Tiny(1), Tiny(2)])
        rng = np.random.default_rng(0)
        patterns = 2 * rng.normal(size=(CLASSES, 3, 6, 6))
        self.x, self.labels = {}, {}
        for name, n in (("known", n_known), ("test", n_test)):
            classes = rng.integers(0, CLASSES, n)
            self.x[name] = (patterns[classes] + rng.normal(size=(n, 3, 6, 6))).astype(np.float32)
        self._cache: dict[tuple[str, str], offmap.Activations] = {}
        self._fitted: dict[str, offmap.Detector] = {}
        for name, x in self.x.items():
            guess = self.net(x).predictions
            wrong = rng.random(len(x)) < 0.1
            self.labels[name] = np.where(wrong, rng.integers(0, CLASSES, len(x)), guess)

    def acts(self, which: str, requirements: Requirements | None = None) -> offmap.Activations:
        """Features, head and labels of a set, with these extras; logits are left to the head."""
        wanted = Requirements(extras=() if requirements is None else requirements.extras)
        key = which, wanted.describe()
        if key not in self._cache:
            got = self.net(self.x[which], requirements=wanted)
            self._cache[key] = rebuilt(got, logits=None, labels=self.labels[which])
        return self._cache[key]

    def fitted(self, spec: str, fresh: bool = False) -> tuple[offmap.Detector, offmap.Activations]:
        """A fitted detector and test activations with all that it reads; made once unless it must be fresh."""
        if fresh or spec not in self._fitted:
            made = offmap.detector(spec)
            made.fit(self.acts("known", made.requirements))
            if fresh:
                return made, self.acts("test", made.requirements)
            self._fitted[spec] = made
        return self._fitted[spec], self.acts("test", self._fitted[spec].requirements)


def rebuilt(acts: offmap.Activations, **changes: Any) -> offmap.Activations:
    """The same activations with other parts."""
    parts = {
        "features": acts.features if acts.has_features else None,
        "head": acts.head,
        "logits": acts.given_logits,
        "labels": acts.labels,
        "extras": acts.extras,
    }
    return offmap.Activations(**(parts | changes))


def mapped(acts: offmap.Activations, change: Callable[[np.ndarray], Any], **more: Any) -> offmap.Activations:
    """The same activations with features, extras and given logits each put through a function."""
    changes: dict[str, Any] = {"extras": {name: change(array) for name, array in acts.extras.items()}}
    if acts.has_features:
        changes["features"] = change(acts.features)
    if acts.given_logits is not None:
        changes["logits"] = change(acts.given_logits)
    return rebuilt(acts, **(changes | more))


def blobs(n: int = 120, width: int = 6, classes: int = 3, seed: int = 0, spread: float = 3.0) -> offmap.Activations:
    """Rectified features of Gaussian classes with a head that tells them apart, without any network."""
    rng = np.random.default_rng(seed)
    centres = spread * np.abs(np.random.default_rng(99).normal(size=(classes, width)))
    labels = rng.integers(0, classes, n)
    features = np.maximum(centres[labels] + rng.normal(size=(n, width)), 0).astype(np.float32)
    head = offmap.Head(centres - centres.mean(axis=0), np.linspace(-1, 1, classes))
    return offmap.Activations(features, head, labels=labels)
