"""Data sets as a network takes them: batches that can be read again, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offmap.data.images import ImageFolder, holds_pictures, image_folder, scale_images
from offmap.data.read_ahead import read_ahead
from offmap.data.readers import read
from offmap.data.samples import Samples
from offmap.errors import InputError
from offmap.typing import Array


@dataclass(frozen=True)
class Batches:
    """Batches of ``(inputs, labels)``, or of inputs where there are no labels; made by `batches`.

    It has a length and can be read any number of times, so an extraction that was cut short can be resumed. While a
    batch is used, the next one is read and scaled in a thread.
    """

    inputs: Array | ImageFolder
    labels: Array | None = None
    size: int = 128
    mean: Any = None
    std: Any = None

    def __repr__(self) -> str:
        given = self.inputs if isinstance(self.inputs, ImageFolder) else "×".join(map(str, self.inputs.shape))
        return f"Batches({given}, {self.size} at a time{'' if self.labels is None else ', with labels'})"

    def __len__(self) -> int:
        return -(-len(self.inputs) // self.size)

    def __iter__(self) -> Iterator[Any]:
        return read_ahead(self._made())

    def _made(self) -> Iterator[Any]:
        whole = self.inputs
        parts = (
            whole.stacks(self.size)
            if isinstance(whole, ImageFolder)
            else (whole[i : i + self.size] for i in range(0, len(whole), self.size))
        )
        for i, part in enumerate(parts):
            x = self._ready(part)
            yield x if self.labels is None else (x, self.labels[i * self.size : i * self.size + len(x)])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, as the network takes it."""
        return self._ready(np.asarray(self.inputs[0])[None]).shape[1:]

    def _ready(self, part: Array) -> Array:
        if part.dtype == np.uint8 and part.ndim >= 3:
            return scale_images(part, 0.0 if self.mean is None else self.mean, 1.0 if self.std is None else self.std)
        if self.mean is not None or self.std is not None:
            raise InputError(f"mean and std are for uint8 pictures, not for {part.dtype} of shape {part.shape[1:]}")
        return np.ascontiguousarray(part, dtype=np.float32)


def batches(
    source: str | os.PathLike[str] | Sequence[Path] | Samples | ImageFolder,
    *,
    size: int = 128,
    mean: Any = None,
    std: Any = None,
    labels: Any = None,
    **images: Any,
) -> Batches:
    """Make batches of the inputs of a data set, ready for `Network.extract`; pictures are decoded when needed.

    Parameters
    ----------
    source : str, path, sequence of path, Samples or ImageFolder
        A path as `read` takes it, several pictures, or what a reader gave. Without inputs, features are taken.
    size : int, default=128
        Inputs per batch.
    mean, std : float, sequence of float or None, default=None
        For ``uint8`` pictures scaled to [0, 1]: what to subtract and divide by, one number or one a channel.
    labels : array-like or None, default=None
        One class index per sample, in place of the source's own.
    **images : Any
        For folders: `size`, `mode` and `unreadable` of `image_folder`; the size of pictures as `image_size`.

    Returns
    -------
    Batches
        An iterable that can be started again.

    Examples
    --------
    >>> from offmap.data import Samples
    >>> pictures = Samples({"inputs": np.zeros((5, 8, 8, 3), np.uint8), "labels": np.arange(5)})
    >>> [(x.shape, y.tolist()) for x, y in batches(pictures, size=4)]
    [((4, 3, 8, 8), [0, 1, 2, 3]), ((1, 3, 8, 8), [4])]
    """
    if size < 1:
        raise InputError(f"size={size}: a batch holds at least one input")
    if not isinstance(source, Samples | ImageFolder):
        options = {"size" if name == "image_size" else name: value for name, value in images.items()}
        pictures = not isinstance(source, str | os.PathLike) or holds_pictures(source)
        source = image_folder(source, **options) if pictures else read(source)  # type: ignore[arg-type]
    if isinstance(source, ImageFolder):
        inputs: Array | ImageFolder = source
    else:
        inputs = source.inputs if "inputs" in source.arrays else source.features
    own = source.labels if labels is None else np.asarray(labels)
    if own is not None and len(own) != len(inputs):
        raise InputError(f"{len(own)} labels for {len(inputs)} inputs; give one each or none")
    return Batches(inputs, own, size, mean, std)
