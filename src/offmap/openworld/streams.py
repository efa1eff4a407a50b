"""Read what a run is given: which rows have a label and which, and the rows of each round."""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.discovery.inputs import refuse_wrapped
from offmap.errors import InputError
from offmap.typing import Array


def read_known(labels: Any, n_rows: int) -> tuple[Array, Array, Array, list[str]]:
    """Return which rows have a label, the class numbers, the place of each labelled row's among them, and names."""
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) != n_rows or array.dtype.kind not in "iuUO":
        raise InputError(
            f"known_labels of shape {array.shape} and type {array.dtype}: one whole number or name for each of the "
            f"{n_rows} rows of known_features, -1 or None where unknown"
        )
    if array.dtype.kind in "iu":
        refuse_wrapped(array)
        inside = array >= 0
        ids, codes = np.unique(array[inside], return_inverse=True)
        return inside, ids, codes, [str(one) for one in ids]
    inside = np.array([one is not None for one in array], bool)
    called, codes = np.unique(array[inside].astype(str), return_inverse=True)
    return inside, np.arange(len(called)), codes, called.tolist()


def cut_stream(stream: Any, rounds: int, width: tuple[int, ...]) -> list[Array]:
    """Return the rows of each round: as given when there are several arrays, else one array in so many parts."""
    if isinstance(stream, list | tuple) and stream and np.ndim(stream[0]) == 2:
        parts = [np.asarray(part) for part in stream]
    else:
        whole = np.asarray(stream)
        whole = whole if whole.size else np.zeros((0, *width), np.float32)
        parts = np.array_split(whole, rounds) if rounds else []
    for part in parts:
        if part.shape[1:] != width:
            raise InputError(
                f"stream_features: rows of shape {part.shape[1:]}, but those of known_features have {width}; both must "
                "come from the same network or encoder"
            )
    return parts
