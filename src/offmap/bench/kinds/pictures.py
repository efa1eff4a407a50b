"""Sets of pictures as ImageNet's networks take them, whole or corrupted, and residual networks that read them."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap.bench.networks import KINDS, Made
from offmap.bench.sets import READERS, LoadedSet, locate
from offmap.data import Samples, image_folder
from offmap.data.corruptions import corrupt
from offmap.data.images import ImageFolder
from offmap.errors import InputError

if TYPE_CHECKING:
    from offmap.network import Network

IN_MEMORY = 2**30  # bytes of a set's pictures; more of them go to a file


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
    _check_sides(path, side, short)
    found = image_folder(locate(path, data), size=short)
    rows = _draw(path, len(found), take, skip, seed)
    labels = None if found.labels is None else found.labels[rows]
    if numbered:
        labels = _class_numbers(found.classes, labels, path)
    chosen = replace(found, files=tuple(found.files[row] for row in rows), labels=labels)
    inputs = _cut(chosen, side, short)
    arrays = {"inputs": inputs if corruption is None else corrupt(inputs, corruption, strength, seed)}
    names = () if numbered else found.classes
    return Samples(arrays if labels is None else arrays | {"labels": labels}, names, tuple(map(str, chosen.files)))


@READERS.register("image_list")
def _image_list(
    path: str,
    data: Path | None,
    root: str = ".",
    side: int = 224,
    short: int = 256,
    take: int | None = None,
    skip: int = 0,
    seed: int = 0,
) -> Samples:
    """Pictures named in a text file, a path below `root` and a class index on each line, as OpenOOD lists its sets.

    `side`, `short`, `take`, `skip` and `seed` are as for ``pictures``. Indices below 0 mean that a set has no classes.
    """
    _check_sides(path, side, short)
    entries = [line.rsplit(maxsplit=1) for line in _lines(locate(path, data))]
    try:
        named = [(Path(name), int(label)) for name, label in entries]
    except ValueError as error:
        raise InputError(f"{path}: a line is not a picture and a class index, such as 'cat/1.png 3'") from error
    folder = locate(root, data)
    if outside := [name for name, _ in named if name.is_absolute() or ".." in name.parts]:
        raise InputError(f"{path}: {outside[0]} is not below {root}; lists may only name pictures in that folder")
    rows = _draw(path, len(named), take, skip, seed)
    chosen = image_folder([folder / named[row][0] for row in rows], size=short)
    labels = np.array([named[row][1] for row in rows])
    arrays = {"inputs": _cut(chosen, side, short)} | ({"labels": labels} if (labels >= 0).all() else {})
    return Samples(arrays, names=tuple(map(str, chosen.files)))


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not readable as a list of pictures ({error})") from error


def _draw(path: str, count: int, take: int | None, skip: int, seed: int) -> Any:
    """Rows of a set: so many after the first ones of a seeded random order."""
    if skip < 0 or (take is not None and take < 1):
        raise InputError(f"{path}: take={take}, skip={skip}: take is at least 1, skip at least 0")
    order = np.random.default_rng(seed).permutation(count)
    rows = np.sort(order[skip:] if take is None else order[skip : skip + take])
    if len(rows) == 0:
        raise InputError(f"{path}: it has {count} pictures, none of them after the first {skip}")
    return rows


def _check_sides(path: str, side: int, short: int) -> None:
    if not 1 <= side <= short:
        raise InputError(f"{path}: side={side}, short={short}: side is 1 to short")


def _cut(chosen: ImageFolder, side: int, short: int) -> Any:
    """The middle of each picture; many are kept in a file without a name, which goes when they do."""
    shape = (len(chosen), side, side, 3)
    if int(np.prod(shape)) <= IN_MEMORY:
        inputs = np.empty(shape, np.uint8)
    else:
        with TemporaryFile() as held:
            inputs = np.memmap(held, np.uint8, "w+", shape=shape)
    edge = (short - side) // 2

    def put(place: int) -> None:
        inputs[place] = chosen[place][edge : edge + side, edge : edge + side]

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # one each at a time: larger pictures are never held together
        deque(threads.map(put, range(len(chosen))), maxlen=0)
    return inputs


def _class_numbers(classes: tuple[str, ...], labels: Any, path: str) -> Any:
    if labels is None or not all(name.isdigit() for name in classes):
        raise InputError(f"{path}: numbered = true needs folders named 0, 1, 2 … after the network's classes")
    return np.array([int(name) for name in classes])[labels]


@KINDS.register("resnet")
def _resnet(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load a `ResNet` of some `n_classes`, `depth`, `stem` and `width` from a file of `weights`."""
    from offmap.models.resnet import ResNet
    from offmap.models.weights import load_weights

    rest = dict(options)
    file = locate(rest.pop("weights"), data)
    model = ResNet(**rest)
    load_weights(model, file)
    return _in_channels_last(model), file


def _in_channels_last(model: Any) -> Network:
    """Twice as fast on a CPU, the same numbers but for rounding."""
    import torch

    from offmap.network import Network

    return Network(model.eval().to(memory_format=torch.channels_last))


@KINDS.register("resnet50_keras")
def _resnet50_keras(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load Keras' ResNet-50 from its ONNX file (`weights`) as a PyTorch module that takes RGB pictures."""
    from offmap.models.resnet_keras import load_keras_resnet50

    file = locate(options["weights"], data)
    return _in_channels_last(load_keras_resnet50(file, channels="rgb")), file
