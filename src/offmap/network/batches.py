"""Reading what holds the inputs: a loader, an iterable of batches, or one array that is cut into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.activations import as_array
from offmap.errors import InputError, MissingError
from offmap.typing import Array

LABEL_NAMES = ("labels", "label")


@dataclass(frozen=True)
class Batch:
    """Some inputs in a row: `inputs` is an array, a tensor, or a mapping of arguments for the model."""

    inputs: Any
    labels: Array | None
    start: int
    size: int

    def digest(self) -> str:
        """Return a checksum of everything in it, by which a resumed extraction knows the batch again."""
        digest = hashlib.blake2b(digest_size=16)
        parts = self.inputs if isinstance(self.inputs, Mapping) else {"": self.inputs}
        for name, value in [*parts.items(), ("labels", self.labels)]:
            if is_array(value):
                update_digest(digest, name, value)
            elif value is not None:
                digest.update(f"{name}={value!r}".encode())
        return digest.hexdigest()


def is_array(value: Any) -> bool:
    """Return `True` for a NumPy array or a torch tensor.

    Parameters
    ----------
    value : Any
        Anything.

    Returns
    -------
    bool
        Whether it is one.
    """
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "shape"))


def update_digest(digest: hashlib.blake2b, name: str, value: Any) -> None:
    """Add the name, type, shape and bytes of an array or tensor.

    Parameters
    ----------
    digest : hashlib.blake2b
        Changed in place.
    name : str
        Name of the array.
    value : array or tensor
        Its numbers.
    """
    if hasattr(value, "detach"):
        text, shape = str(value.dtype), tuple(value.shape)
        value = value.detach().cpu().contiguous().reshape(-1)
        if value.numel() and value.dtype.itemsize > 1:
            import torch

            value = value.view(torch.uint8)  # bfloat16 and complex have no counterpart in NumPy
        value = value.numpy()
    else:
        text, shape = value.dtype.str, value.shape
    array = np.ascontiguousarray(value).reshape(-1)
    digest.update(f"{name}:{text}:{shape}".encode())
    digest.update(array.view(np.uint8).data)


def read_batches(loader: Any, labels: Any = None, batch_size: int = 128) -> Iterator[Batch]:
    """Yield every batch in order, with its labels when there are any.

    Parameters
    ----------
    loader : array-like or iterable of batches
        One array or tensor of all inputs; or an iterable whose items are x, (x, y, ...) or a mapping of model
        arguments that may hold ``"labels"``.
    labels : array-like or None, default=None
        One class index per input, used instead of the loader's own.
    batch_size : int, default=128
        How many inputs make a batch when one array is given.

    Yields
    ------
    Batch
        Inputs, and labels when there are any.

    Examples
    --------
    >>> [(batch.start, batch.size) for batch in read_batches(np.zeros((5, 2)), batch_size=2)]
    [(0, 2), (2, 2), (4, 1)]
    """
    given = None if labels is None else as_array(labels, "labels")
    start = 0
    with_labels: bool | None = None
    for item in _items(loader, batch_size):
        inputs, own = _split(item)
        size = _size(inputs)
        if size == 0:
            continue
        found = None
        if given is not None:
            found = given[start : start + size]
        elif own is not None:
            found = as_array(own, "labels")
        _check_labels(found, start, size, given is not None)
        if with_labels is not None and with_labels != (found is not None):
            raise InputError(f"input {start}: some batches come with labels and some without; give all or none")
        with_labels = found is not None
        yield Batch(inputs, found, start, size)
        start += size
    if start == 0:
        raise InputError("the loader gave no inputs; an iterator that was used up must be made anew")
    if given is not None and len(given) != start:
        raise InputError(f"labels: {len(given)} labels for {start} inputs; give one per input")


def check_batch_size(batch_size: int) -> int:
    """Check that a batch has at least one input.

    Parameters
    ----------
    batch_size : int
        Inputs per batch.

    Returns
    -------
    int
        The same.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: a batch holds at least one input")
    return batch_size


def batch_count(loader: Any, batch_size: int) -> int | None:
    """Count the batches, when that is known beforehand.

    Parameters
    ----------
    loader : array-like or iterable of batches
        As `read_batches` takes it.
    batch_size : int
        Inputs per batch of one array.

    Returns
    -------
    int or None
        Their number.
    """
    if is_array(loader):
        return -(-len(loader) // check_batch_size(batch_size))
    try:
        return len(loader)
    except TypeError:
        return None


def require_labels(batch: Batch) -> None:
    """Raise an error for a batch without labels where a method reads them.

    Parameters
    ----------
    batch : Batch
        One batch.
    """
    if batch.labels is None:
        raise MissingError(
            "the detector needs labels, but the loader gives none; "
            "yield (x, y) batches or call net.extract(loader, labels=y, ...)"
        )


def _items(loader: Any, batch_size: int) -> Iterable[Any]:
    if is_array(loader):
        step = check_batch_size(batch_size)
        return (loader[start : start + step] for start in range(0, len(loader), step))
    if isinstance(loader, str | bytes | Mapping) or not isinstance(loader, Iterable):
        raise InputError(
            f"extract({type(loader).__name__}): give a DataLoader, an iterable of batches, or one array "
            "of inputs; for a single batch call net(x)"
        )
    return loader


def _split(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        inputs = {name: value for name, value in item.items() if name not in LABEL_NAMES}
        return inputs, next((item[name] for name in LABEL_NAMES if item.get(name) is not None), None)
    if isinstance(item, tuple | list):
        if not item:
            raise InputError("the loader gave an empty tuple; batches are x, (x, y) or a mapping")
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def _size(inputs: Any) -> int:
    values = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    sizes = {len(value) for value in values if is_array(value) and value.ndim > 0}
    if len(sizes) != 1:
        what = "holds no array" if not sizes else f"holds arrays of {sorted(sizes)} rows"
        raise InputError(f"a batch of {type(inputs).__name__} {what}; batches are x, (x, y) or a mapping of arrays")
    return int(sizes.pop())


def _check_labels(labels: Array | None, start: int, size: int, given: bool) -> None:
    if labels is None:
        return
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(
            f"labels of shape {labels.shape} and type {labels.dtype}: one whole number per input is needed"
        )
    if len(labels) != size:
        where = f"labels={len(labels) + start}" if given else f"a batch of {len(labels)} labels"
        raise InputError(f"{where}: the inputs go on to {start + size}; give one label per input")
