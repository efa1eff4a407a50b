"""Read the inputs of a learning round: labelled ones from files, unknown ones from the store."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offmap import data
from offmap.activation_files import META
from offmap.activations import Activations
from offmap.errors import InputError
from offmap.network import Network
from offmap.openworld import KnownSplits, LabeledInputs
from offmap.openworld.extended_network import ExtendedNetwork
from offmap.openworld.inputs import SMALL_INPUT
from offmap.service.images import FORMATS, decode_images
from offmap.service.request_errors import RequestError
from offmap.service.requests import NPY
from offmap.service.settings import Settings
from offmap.service.unknown_inputs import UnknownInput
from offmap.service.unknowns import UnknownStore
from offmap.text import TextEncoder
from offmap.typing import Array

LIMIT = 5000  # inputs in one proposal: the newest
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownData:
    """Labelled data of the known classes, as named on the command line.

    Parameters
    ----------
    path : Path
        A file or folder as `offmap.data.read` takes it, or a folder that ``offmap extract`` wrote.
    held_out : Path or None, default=None
        The same for inputs that the network was not trained on, to calibrate and to measure; a part of `path` when
        `None`.
    text_column, label_column : str or None, default=None
        Of files of texts, as `offmap.data.read_texts` takes them.
    """

    path: Path
    held_out: Path | None = None
    text_column: str | None = None
    label_column: str | None = None

    def __post_init__(self) -> None:
        for path in (self.path, self.held_out):
            if path is not None and not path.exists():
                raise InputError(f"{path}: there is no such file or folder of known inputs")

    def check_columns(self) -> None:
        """Refuse columns that the files lack, before a service is started with them."""
        if self.text_column is None and self.label_column is None:
            return
        for path in (self.path, self.held_out):
            if path is not None:
                self._read_columns(path)

    def _read_columns(self, path: Path) -> data.Texts:
        return data.read_texts(path, self.text_column, self.label_column)

    def read(
        self,
        network: Network | None,
        class_names: Sequence[str] | None,
        settings: Settings,
        encoder: TextEncoder | None = None,
    ) -> KnownSplits:
        """Read the data and split it for training, calibration and measuring.

        Parameters
        ----------
        network : Network or None
            Extracts features of inputs; without it the files must hold features.
        class_names : sequence of str or None
            Names of the classes; those of the file when `None`.
        settings : Settings
            How images are prepared.
        encoder : TextEncoder or None, default=None
            Encodes files of texts.

        Returns
        -------
        KnownSplits
            With features of the network.
        """
        if encoder is not None:
            return self._read_texts(encoder, class_names)
        whole, own = _read_labelled(self.path, network, settings)
        names = class_names or own or [str(label) for label in range(int(whole.labels.max()) + 1)]
        if self.held_out is not None:
            return KnownSplits.of(whole, _read_labelled(self.held_out, network, settings)[0], names)
        return KnownSplits.split(whole.features, whole.labels, names, whole.inputs)

    def _read_texts(self, encoder: TextEncoder, class_names: Sequence[str] | None) -> KnownSplits:
        whole = self._read_columns(self.path).labelled()
        if not len(whole):
            raise InputError(f"{self.path}: it has no labels; learning needs labelled texts of the known classes")
        names = class_names or whole.classes
        known = LabeledInputs.of(encoder.encode(whole.texts, progress=False), whole.encode_labels(names))
        if self.held_out is None:
            return KnownSplits.split(known.features, known.labels, names)
        aside = self._read_columns(self.held_out).labelled()
        features = encoder.encode(aside.texts, progress=False)
        return KnownSplits.of(known, LabeledInputs.of(features, aside.encode_labels(names)), names)


def _read_labelled(path: Path, network: Network | None, settings: Settings) -> tuple[LabeledInputs, Sequence[str]]:
    """Read labelled inputs with features of the network, and the names of their classes where the source has them."""
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
    """Copy a network for another thread, with its own weights and hooks.

    Parameters
    ----------
    network : Network or None
        Of a network extended by learned classes, the one below is copied; what maps given features stays as it is.

    Returns
    -------
    Network or None
        The copy; an ONNX network, which has no state, is returned as it is.
    """
    if network is None:
        return None
    if isinstance(network, ExtendedNetwork) and network.reads_features:
        return network
    base = network.base if isinstance(network, ExtendedNetwork) else network
    if base is None or base.model is None:
        return base
    return Network(copy.deepcopy(base.model), base.layer)


def read_unknown_inputs(
    unknowns: UnknownStore,
    network: Network | None,
    width: int | None,
    settings: Settings,
    ids: Sequence[str] | None = None,
    keep_inputs: bool = True,
) -> tuple[list[str], LabeledInputs]:
    """Read unknown inputs that can be compared with one another.

    With a network, stored inputs are run through it block by block, so that features of one network are compared.
    Without one, the stored features are used.

    Parameters
    ----------
    unknowns : UnknownStore
        Where they are stored.
    network : Network or None
        Extracts their features.
    width : int or None
        The number of features to be read without a network; the most frequent one when `None`.
    settings : Settings
        How images are prepared.
    ids : sequence of str or None, default=None
        These inputs; the newest open ones when `None`.
    keep_inputs : bool, default=True
        Whether the inputs are returned beside their features also when they are larger than those that groups are made
        by; thousands of images may not fit in memory.

    Returns
    -------
    ids : list of str
        The inputs that can be compared: those of the most frequent shape.
    inputs : LabeledInputs
        Their features, without labels.
    """
    chosen = unknowns.find_newest(LIMIT) if ids is None else ids
    if network is not None:
        read, parts = _extract_largest(_iter_inputs(unknowns, chosen, settings), network, keep_inputs)
        if parts is not None:
            return read, parts
    blocks = unknowns.iter_features(ids=chosen)
    rows = ((id, row) for ids, block in blocks for id, row in zip(ids, block, strict=True))
    fitting = _group_by_shape((id, row) for id, row in rows if width is None or row.size == width)
    found, same_width = max(fitting, key=lambda group: len(group[0]), default=([], []))
    features = np.stack(same_width) if found else np.zeros((0, width or 1), np.float32)
    return found, LabeledInputs.of(features)


def _iter_inputs(
    unknowns: UnknownStore, ids: Sequence[str], settings: Settings
) -> Iterator[tuple[list[str], list[Array]]]:
    """Yield stored inputs as the network reads them, in blocks of one shape."""
    for block in unknowns.iter_blocks(ids=ids):
        decoded = ((item.id, _decode_input(item, settings)) for item in block)
        yield from _group_by_shape((id, array) for id, array in decoded if array is not None)


def _extract_largest(
    blocks: Iterable[tuple[list[str], list[Array]]], network: Network, keep_inputs: bool
) -> tuple[list[str], LabeledInputs | None]:
    """Return ids, features and perhaps inputs of the most frequent shape; none when the network takes no input."""
    groups: dict[tuple[int, ...], tuple[list[str], list[Array], list[Array]]] = {}
    for ids, arrays in blocks:
        try:
            features = network.extract(np.stack(arrays), progress=False).features
        except MemoryError:
            raise
        except Exception as error:  # a model raises any kind of error about inputs that it was not made for
            _log.warning("%d stored inputs of shape %s cannot be read any more: %s", len(ids), arrays[0].shape, error)
            continue
        found, rows, inputs = groups.setdefault(arrays[0].shape, ([], [], []))
        found += ids
        rows.append(features)
        inputs += arrays if keep_inputs or arrays[0].size <= SMALL_INPUT else []
    if not groups:
        return [], None
    found, rows, inputs = max(groups.values(), key=lambda group: len(group[0]))
    return found, LabeledInputs.of(np.concatenate(rows), None, np.stack(inputs) if inputs else None)


def _group_by_shape(items: Iterable[tuple[str, Array]]) -> list[tuple[list[str], list[Array]]]:
    """Return ids and arrays for each shape, as only equal shapes can be compared."""
    groups: dict[tuple[int, ...], tuple[list[str], list[Array]]] = {}
    for id, array in items:
        ids, arrays = groups.setdefault(array.shape, ([], []))
        ids.append(id)
        arrays.append(array)
    return list(groups.values())


def _decode_input(item: UnknownInput, settings: Settings) -> Array | None:
    """Decode a stored input as the network reads it; `None` when it was not stored or cannot be read any more."""
    if item.content is None:
        return None
    if item.content_type == NPY:
        return np.asarray(np.load(io.BytesIO(item.content), allow_pickle=False))
    if item.content_type in FORMATS or item.content_type == "application/octet-stream":
        try:
            return decode_images([item.content], settings)[0][0]
        except (InputError, RequestError):  # also of an image that the limits no longer allow
            return None
    return None


def make_thumbnail(item: UnknownInput) -> tuple[bytes, str] | None:
    """Make an image of an input for a browser.

    Parameters
    ----------
    item : UnknownInput
        With its content.

    Returns
    -------
    tuple of (bytes, str) or None
        The file and its media type; `None` when the input is not an image.
    """
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
    pixels = (array.astype(np.float32) - low) / max(high - low, 1e-12)
    if pixels.shape[-1] == 1:
        pixels = 1 - pixels[..., 0]  # dark strokes on white
    out = io.BytesIO()
    Image.fromarray((255 * pixels).astype(np.uint8)).save(out, "PNG")
    return out.getvalue(), "image/png"
