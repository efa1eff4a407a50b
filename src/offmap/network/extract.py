"""The one pass over a set of inputs: batches in, activations out, in memory or in a resumable folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from offmap.activation_files import check_dtype
from offmap.activations import Activations, name_probabilities
from offmap.errors import InputError, MissingError, OffmapWarning
from offmap.extra_passes import Requirements
from offmap.network.backend import Backend
from offmap.network.batches import Batch, batch_count, read_batches, require_labels
from offmap.network.writer import ActivationWriter, ExtractionPlan
from offmap.progress import Advance, show_progress
from offmap.typing import Array


def run_batch(backend: Backend, batch: Batch, requirements: Requirements, dtype: np.dtype[Any]) -> dict[str, Array]:
    """Run one batch, after checking that the requirements can be met.

    Parameters
    ----------
    backend : Backend
        The network.
    batch : Batch
        Inputs and labels.
    requirements : Requirements
        What a detector reads.
    dtype : numpy.dtype
        Type of the arrays.

    Returns
    -------
    dict of str to ndarray
        The arrays by name.
    """
    if requirements.labels:
        require_labels(batch)
    arrays = {
        name: _cast(name, array, dtype)
        for name, array in backend.run(batch.inputs, requirements.extras, batch.start).items()
    }
    if requirements.head and not backend.has_head:
        raise MissingError(
            f"the detector needs a linear head, but layer={backend.layer!r} is not one; pass the name of the "
            "linear layer that gives the logits, or choose a detector without head"
        )
    if batch.start == 0:
        _check_logits(arrays["logits"], backend)
    for name, array in arrays.items():
        if len(array) != batch.size:
            raise InputError(f"{name}: {len(array)} rows for a batch of {batch.size} inputs; one per input is needed")
    if batch.labels is not None:
        arrays["labels"] = batch.labels.astype(np.int64)
    return arrays


def _check_logits(logits: Array, backend: Backend) -> None:
    """Warn of probabilities, which most scores do not understand."""
    kind = None if backend.has_head else name_probabilities(logits)
    if kind is None:
        return
    warnings.warn(
        f"{backend}: its outputs are {kind}, not logits, and energy, max-logit and others lose by it; pass the name of "
        "the linear layer before the softmax as layer=",
        OffmapWarning,
        stacklevel=2,
    )


def collect_activations(backend: Backend, parts: Sequence[dict[str, Array]]) -> Activations:
    """Join the arrays of all batches in memory.

    Parameters
    ----------
    backend : Backend
        It gives the head.
    parts : sequence of dict of str to ndarray
        One per batch.

    Returns
    -------
    Activations
        Activations of all inputs.
    """
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    extras = {name.removeprefix("extra."): arrays[name] for name in arrays if name.startswith("extra.")}
    return Activations(arrays["features"], backend.head(), arrays["logits"], arrays.get("labels"), extras)


def extract(
    backend: Backend,
    loader: Any,
    requirements: Requirements,
    to: str | os.PathLike[str] | None,
    dtype: str,
    labels: Any,
    batch_size: int,
    progress: bool | None,
    device: str | None,
) -> Activations:
    """Run every batch once; see `Network.extract`.

    Parameters
    ----------
    backend : Backend
        The network.
    loader : array-like or iterable of batches
        As `read_batches` takes it.
    requirements : Requirements
        What a detector reads.
    to : str, path or None
        The folder to write to; in memory when `None`.
    dtype : str
        Type of the arrays on disk.
    labels : array-like or None
        Instead of the loader's own.
    batch_size : int
        Inputs per batch of one array.
    progress : bool or None
        `False` for no progress: a bar on a terminal, elsewhere a line every half minute.
    device : str or None
        Where to compute.

    Returns
    -------
    Activations
        Activations of all inputs.
    """
    kept = check_dtype(dtype)
    with show_progress("extracting", batch_count(loader, batch_size), progress) as advance, backend.session(device):
        batches = _counted(read_batches(loader, labels, batch_size), advance)
        if to is None:
            return collect_activations(backend, [run_batch(backend, batch, requirements, kept) for batch in batches])
        plan = ExtractionPlan(backend.fingerprint(), backend.layer, dtype, tuple(r.key for r in requirements.extras))
        with ActivationWriter(to, plan) as folder:
            return _into(folder, backend, batches, requirements, kept)


def _into(
    folder: ActivationWriter,
    backend: Backend,
    batches: Iterator[Batch],
    requirements: Requirements,
    dtype: np.dtype[Any],
) -> Activations:
    count = 0
    batch = None
    for count, batch in enumerate(batches, 1):
        digest = batch.digest()
        if not folder.check(count - 1, batch.size, digest):
            folder.append(run_batch(backend, batch, requirements, dtype), digest)
        elif requirements.labels:
            require_labels(batch)
    if batch is not None and backend.tap is None and not folder.finished:
        run_batch(
            backend, batch, Requirements(), dtype
        )  # killed after the last batch: only the head is still to be found
    return folder.finish(count, backend.head())


def _cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    largest = float(np.abs(array).max(initial=0))
    if dtype == np.float16 and largest > 65504:
        raise InputError(f"dtype='float16': {name} reach {largest:.3g}, beyond 65504; use 'float32'")
    return array.astype(dtype, copy=False)


def _counted(batches: Iterator[Batch], advance: Advance) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        advance()
