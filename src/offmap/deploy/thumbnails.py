"""Batches that keep a small picture of each input as they go by, so that a report can show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from offmap.network.batches import is_array
from offmap.typing import Array

SIDE = 64
MAX_BYTES = 64 * 2**20
BATCH = 128


class Thumbnails:
    """The batches of a loader or array, with small pictures of inputs in `pictures`, in bounded memory.

    When the pictures would pass the limit, every second one is dropped, so that those kept are spread over the data.

    Parameters
    ----------
    source : loader or array
        As `Network.extract` takes it.
    max_bytes : int, default 64 MiB
        Memory for pictures.

    Examples
    --------
    >>> batches = Thumbnails(np.zeros((3, 1, 8, 8), np.float32))
    >>> [len(batch) for batch in batches], sorted(batches.pictures), batches.shape
    ([3], [0, 1, 2], (1, 8, 8))
    """

    def __init__(self, source: Any, max_bytes: int = MAX_BYTES) -> None:
        self.source = source
        self.max_bytes = max_bytes
        self.pictures: dict[int, Array] = {}
        self.shape: tuple[int, ...] | None = None

    def __iter__(self) -> Iterator[Any]:
        self.pictures, start, step = {}, 0, 1
        for batch in self._batches():
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            if isinstance(inputs, Mapping) or not is_array(inputs):
                yield batch
                continue
            self.shape = tuple(inputs.shape[1:])
            for row in range(start + (-start) % step, start + len(inputs), step):
                picture = shrink_picture(_array(inputs[row - start]))
                if picture is None:
                    break
                self.pictures[row] = picture
            start += len(inputs)
            while len(self.pictures) > 1 and sum(kept.nbytes for kept in self.pictures.values()) > self.max_bytes:
                step *= 2
                self.pictures = {row: kept for row, kept in self.pictures.items() if row % step == 0}
            yield batch

    def _batches(self) -> Iterator[Any]:
        if is_array(self.source):
            for first in range(0, len(self.source), BATCH):
                yield self.source[first : first + BATCH]
        else:
            yield from self.source


def shrink_picture(values: Array) -> Array | None:
    """Make a small ``uint8`` picture of one input, its own smallest value black and largest white.

    `None` when the input is no picture: not two-dimensional, nor with one or three channels first or last.

    Parameters
    ----------
    values : ndarray
        One input.

    Returns
    -------
    ndarray of uint8 or None
        The picture.

    Examples
    --------
    >>> shrink_picture(np.arange(4.0).reshape(1, 2, 2))[..., 0].tolist()
    [[0, 85], [170, 255]]
    >>> shrink_picture(np.zeros(384)) is None
    True
    """
    if values.ndim == 3 and values.shape[0] in (1, 3):
        values = np.moveaxis(values, 0, -1)
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (1, 3)):
        return None
    step = max(1, -(-max(values.shape[:2]) // SIDE))
    small = values[::step, ::step].astype(np.float32)
    low, high = small.min(), small.max()
    return np.round((small - low) / max(high - low, 1e-12) * 255).astype(np.uint8)


def _array(value: Any) -> Array:
    found: Array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return found
