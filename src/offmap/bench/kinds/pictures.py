"""Sets of pictures as ImageNet's networks take them, whole or corrupted, and Keras' ResNet-50 that reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap.bench.networks import KINDS, Made
from offmap.bench.sets import READERS, LoadedSet, locate
from offmap.data import Samples, image_folder
from offmap.data.corruptions import corrupt
from offmap.errors import InputError


@READERS.register("pictures")
def _pictures(
    path: str,
    data: Path | None,
    side: int = 224,
    short: int = 256,
    numbered: bool = False,
    take: int | None = None,
    skip: int = 0,
    seed: int = 0,
    corruption: str | None = None,
    strength: int = 3,
) -> Samples:
    """Pictures below a folder: the shorter side scaled to `short`, the middle `side` cut out.

    Of the files in a seeded random order, `take` after the first `skip` are decoded, so that parts declared with one
    seed do not overlap. With `numbered`, folders are named after the network's class indices. `corruption` and
    `strength` are those of `offmap.data.corruptions`.
    """
    if not 1 <= side <= short or skip < 0 or (take is not None and take < 1):
        raise InputError(f"{path}: side={side}, short={short}, take={take}, skip={skip}: side is 1 to short, take >= 1")
    found = image_folder(locate(path, data), size=short)
    order = np.random.default_rng(seed).permutation(len(found))
    rows = order[skip:] if take is None else order[skip : skip + take]
    if len(rows) == 0:
        raise InputError(f"{path}: it has {len(found)} pictures, none of them after the first {skip}")
    rows = np.sort(rows)
    labels = None if found.labels is None else found.labels[rows]
    if numbered:
        labels = _class_numbers(found.classes, labels, path)
    chosen = replace(found, files=tuple(found.files[row] for row in rows), labels=labels)
    edge = (short - side) // 2
    inputs = np.empty((len(rows), side, side, 3), np.uint8)
    for place in range(len(rows)):  # one at a time: the larger pictures are never held together
        inputs[place] = chosen[place][edge : edge + side, edge : edge + side]
    arrays = {"inputs": inputs if corruption is None else corrupt(inputs, corruption, strength, seed)}
    names = () if numbered else found.classes
    return Samples(arrays if labels is None else arrays | {"labels": labels}, names, tuple(map(str, chosen.files)))


def _class_numbers(classes: tuple[str, ...], labels: Any, path: str) -> Any:
    if labels is None or not all(name.isdigit() for name in classes):
        raise InputError(f"{path}: numbered = true needs folders named 0, 1, 2 … after the network's classes")
    return np.array([int(name) for name in classes])[labels]


@KINDS.register("resnet50_keras")
def _resnet50_keras(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load Keras' ResNet-50 from its ONNX file (`weights`) as a PyTorch module that takes RGB pictures."""
    import torch

    from offmap.models.resnet_keras import load_keras_resnet50
    from offmap.network import Network

    file = locate(options["weights"], data)
    model = load_keras_resnet50(file, channels="rgb").to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs
    return Network(model), file
