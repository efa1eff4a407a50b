"""From files and the pile to what a round of the loop takes: labelled inputs, and unknown ones with their features."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offmap import data
from offmap.activations import META, Activations
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld import KnownSplits, LabeledInputs
from offmap.openworld.extended_network import ExtendedNetwork
from offmap.service.pictures import FORMATS, decode_pictures
from offmap.service.scoring import NPY
from offmap.service.settings import Settings
from offmap.service.unknowns import Unknown, UnknownStore
from offmap.typing import Array

LIMIT = 5000  # inputs looked at in one proposal; the newest


@dataclass(frozen=True)
class KnownData:
    """Labelled data of the known classes, as it was named on the command line.

    Parameters
    ----------
    path
        A file or folder as `offmap.data.read` takes it, or a folder that ``offmap extract`` wrote.
    held_out
        The same for inputs that the network was not trained on: they calibrate and measure. A part of `path` does when
        absent.
    """

    path: Path
    held_out: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.path, self.held_out):
            if path is not None and not path.exists():
                raise InputError(f"{path}: there is no such file or folder of known inputs")

    def read(self, network: Network | None, class_names: Sequence[str] | None, settings: Settings) -> KnownSplits:
        """The three parts, with features of the network."""
        whole, own = _labelled(self.path, network, settings)
        names = class_names or own or [str(label) for label in range(int(whole.labels.max()) + 1)]
        if self.held_out is not None:
            return KnownSplits.of(whole, _labelled(self.held_out, network, settings)[0], names)
        return KnownSplits.split(whole.features, whole.labels, names, whole.inputs)


def _labelled(path: Path, network: Network | None, settings: Settings) -> tuple[LabeledInputs, Sequence[str]]:
    """Labelled inputs with features of the network, and the names of their classes where the source has them."""
    names: Sequence[str] = ()
    if path.is_dir() and (path / META).is_file():
        acts = Activations.open(path)
        features, labels, inputs = acts.features, acts.labels, None
    else:
        options: dict[str, Any] = {}
        if path.is_dir():
            options = {"size": settings.image_size, "mode": "L" if settings.gray else "RGB"}
        samples = data.read(path, **options)
        labels, names, inputs = samples.labels, samples.classes, None
        if "inputs" in samples.arrays and network is not None:
            pictures = samples.inputs.dtype == np.uint8 and samples.inputs.ndim >= 3
            scale: dict[str, Any] = {"mean": settings.mean, "std": settings.std} if pictures else {}
            parts = [x[0] if isinstance(x, tuple) else x for x in data.batches(samples, **scale)]
            inputs = np.concatenate(parts).astype(settings.input_dtype, copy=False)
            features = network.extract(inputs, progress=False).features
        else:
            features = samples.features
    if labels is None or not (labels >= 0).any():
        raise InputError(f"{path}: it has no labels; learning needs labelled inputs of the known classes")
    part = LabeledInputs.of(features, labels, inputs)
    return part[part.labels >= 0], names


def clone_network(network: Network | None) -> Network | None:
    """The same network for another thread: a copy of its weights, so that neither sees the other's hooks."""
    if network is None:
        return None
    base = network.base if isinstance(network, ExtendedNetwork) else network
    if base is None or base.model is None:
        return base
    return Network(copy.deepcopy(base.model), base.layer)


def read_pile(
    pile: UnknownStore, network: Network | None, width: int | None, settings: Settings, ids: Sequence[str] | None = None
) -> tuple[list[str], LabeledInputs]:
    """The newest open inputs (or those named) that can be compared: ids and rows.

    With a network, inputs that were kept are run through it, so that features of one network are compared. Without
    one, features are taken as they came.
    """
    if ids is not None:
        items = [item for start in range(0, len(ids), 256) for item in pile.get(list(ids[start : start + 256]))]
    else:
        items = [item for block in pile.blocks() for item in block][-LIMIT:]
    if network is not None:
        read = [(item.id, _input(item, settings)) for item in items]
        some = [(one, array) for one, array in read if array is not None]
        if some:
            shape = some[-1][1].shape
            same = [(one, array) for one, array in some if array.shape == shape]
            inputs = np.stack([array for _, array in same])
            return [one for one, _ in same], LabeledInputs.of(
                network.extract(inputs, progress=False).features, None, inputs
            )
    rows = [(item.id, item.features) for item in items if item.features is not None]
    wide = width if width is not None else (rows[-1][1].size if rows else 0)
    same_width = [(one, row) for one, row in rows if row.size == wide]
    features = np.stack([row for _, row in same_width]) if same_width else np.zeros((0, max(wide, 1)), np.float32)
    return [one for one, _ in same_width], LabeledInputs.of(features)


def _input(item: Unknown, settings: Settings) -> Array | None:
    """The input as the network takes it; `None` when it was not kept or cannot be read any more."""
    if item.content is None:
        return None
    if item.content_type == NPY:
        return np.asarray(np.load(io.BytesIO(item.content), allow_pickle=False))
    if item.content_type in FORMATS or item.content_type == "application/octet-stream":
        try:
            return decode_pictures([item.content], settings)[0][0]
        except InputError:
            return None
    return None


def thumbnail(item: Unknown) -> tuple[bytes, str] | None:
    """A picture of an input for a browser, with its type; `None` when it is not a picture."""
    if item.content is None:
        return None
    if item.content_type in FORMATS:
        return item.content, str(item.content_type)
    if item.content_type != NPY:
        return None
    array = np.load(io.BytesIO(item.content), allow_pickle=False)
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3) or min(array.shape[:2]) < 2:
        return None
    from PIL import Image

    low, high = float(array.min()), float(array.max())
    grey = (array.astype(np.float32) - low) / max(high - low, 1e-12)
    if grey.shape[-1] == 1:
        grey = 1 - grey[..., 0]  # dark ink on white
    out = io.BytesIO()
    Image.fromarray((255 * grey).astype(np.uint8)).save(out, "PNG")
    return out.getvalue(), "image/png"
