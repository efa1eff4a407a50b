"""Inputs to try a graph on: the user's own, and noise in their shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.network import Network
from offmap.network.batches import is_array, read_batches
from offmap.network.onnx_backend import OnnxBackend
from offmap.typing import Array

REAL = 512  # inputs of the user's that are tried at most
NOISE = 32
BATCH = 32
FLOATS = (1, 10, 11)  # float32, float16 and float64 in ONNX

Inputs = Any  # an array, or a mapping of arrays and settings by the names of a model's arguments


def as_inputs(example: Any) -> Inputs:
    """Read at most `REAL` inputs as NumPy arrays from an array, a mapping, or a loader of batches.

    Parameters
    ----------
    example : Any
        An array, a mapping of arrays, or an iterable of batches.

    Returns
    -------
    ndarray or dict of str to ndarray
        The inputs.

    Examples
    --------
    >>> as_inputs([(np.zeros((2, 3)), "labels of these"), (np.zeros((2, 3)), "and of these")]).shape
    (4, 3)
    """
    given = [example] if is_array(example) or isinstance(example, Mapping) else example
    parts: list[Inputs] = []
    for item in read_batches(_without_labels(given)):
        parts.append(_arrays(item.inputs))
        if sum(map(count_inputs, parts)) >= REAL:
            break
    if not isinstance(parts[0], Mapping):
        return np.concatenate(parts)[:REAL]
    whole = {
        name: np.concatenate([part[name] for part in parts]) if is_array(value) else value
        for name, value in parts[0].items()
    }
    return take_rows(whole, slice(0, REAL))


def _without_labels(batches: Any) -> Iterator[Any]:
    """Batches as (x,) or mappings: whatever stands beside x is of no use here."""
    if isinstance(batches, str | bytes) or not isinstance(batches, Iterable):
        raise InputError(f"example={batches!r}: give an array of inputs, a mapping of them, or a loader of batches")
    for item in batches:
        yield (item[0],) if isinstance(item, tuple | list) and item else item


def _arrays(inputs: Any) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: as_array(value, name) if is_array(value) else value for name, value in inputs.items()}
    return as_array(inputs, "example")


def make_declared_inputs(net: Network, seed: int) -> Inputs:
    """Make noise in the shape that an ONNX file declares for its inputs.

    Parameters
    ----------
    net : Network
        Read from an ONNX file.
    seed : int
        Seed of the noise.

    Returns
    -------
    ndarray or dict of str to ndarray
        The inputs.
    """
    backend = net.backend
    if isinstance(backend, OnnxBackend):
        graph = backend.model.graph
        weights = {tensor.name for tensor in graph.initializer}
        kinds = {value.name: value.type.tensor_type for value in graph.input if value.name not in weights}
        shapes = {name: [dim.dim_value for dim in kind.shape.dim][1:] for name, kind in kinds.items()}
        floats = all(kind.elem_type in FLOATS for kind in kinds.values())
        if floats and all(shape and min(shape) > 0 for shape in shapes.values()):
            empty = {name: np.empty((1, *shape), np.float32) for name, shape in shapes.items()}
            return make_noise(empty if len(empty) > 1 else next(iter(empty.values())), BATCH, seed)
    raise InputError(
        "export: the shape of the model's inputs is not known; give some of them as example=..., on the command line "
        "as --check DATA, or the shape of one as --shape 3,32,32"
    )


def make_noise(inputs: Inputs, rows: int, seed: int) -> Inputs:
    """Make Gaussian noise in the shape of some inputs; `None` when any of them does not hold real numbers.

    Parameters
    ----------
    inputs : ndarray or dict of str to ndarray
        They give the shape.
    rows : int
        How many inputs to make.
    seed : int
        Seed of the noise.

    Returns
    -------
    ndarray, dict of str to ndarray or None
        The noise.

    Examples
    --------
    >>> make_noise(np.zeros((1, 3)), rows=2, seed=0).shape
    (2, 3)
    >>> make_noise({"tokens": np.zeros((1, 3), np.int64)}, rows=2, seed=0)
    """
    rng = np.random.default_rng(seed)
    parts = inputs if isinstance(inputs, Mapping) else {"": inputs}
    arrays = {name: value for name, value in parts.items() if is_array(value)}
    if any(array.dtype.kind != "f" for array in arrays.values()):
        return None
    made = {name: rng.standard_normal((rows, *array.shape[1:]), dtype=np.float32) for name, array in arrays.items()}
    return {**parts, **made} if isinstance(inputs, Mapping) else made[""]


def make_probes(inputs: Inputs, seed: int) -> Iterator[Inputs]:
    """Yield batches to try: one input alone, the inputs given in batches, and noise.

    Parameters
    ----------
    inputs : ndarray or dict of str to ndarray
        Real inputs.
    seed : int
        Seed of the noise.

    Yields
    ------
    ndarray or dict of str to ndarray
        One batch.
    """
    yield take_rows(inputs, slice(0, 1))
    size = min(count_inputs(inputs), REAL)
    for start in range(0, size, BATCH):
        yield take_rows(inputs, slice(start, min(start + BATCH, size)))
    noise = make_noise(inputs, NOISE, seed)
    if noise is not None:
        yield noise


def take_rows(inputs: Inputs, rows: slice) -> Inputs:
    """Take some rows of inputs.

    Parameters
    ----------
    inputs : ndarray or dict of str to ndarray
        The inputs.
    rows : slice
        Which.

    Returns
    -------
    ndarray or dict of str to ndarray
        The part.
    """
    if isinstance(inputs, Mapping):
        return {name: value[rows] if is_array(value) else value for name, value in inputs.items()}
    return inputs[rows]


def count_inputs(inputs: Inputs) -> int:
    """Count the inputs.

    Parameters
    ----------
    inputs : ndarray or dict of str to ndarray
        The inputs.

    Returns
    -------
    int
        How many.
    """
    array: Array = next(v for v in inputs.values() if is_array(v)) if isinstance(inputs, Mapping) else inputs
    return len(array)
