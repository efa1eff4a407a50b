"""Readers of NumPy's files. Nothing in them can run code: pickled objects are refused."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from offmap.activations import Head
from offmap.data.readers import READERS
from offmap.data.samples import MAX_BYTES, Samples, check_size, encode_labels
from offmap.errors import InputError
from offmap.typing import Array

# Names in use for the same thing; the first is ours.
SYNONYMS = {
    "inputs": ("inputs", "images", "x", "X", "data"),
    "features": ("features", "embeddings"),
    "logits": ("logits",),
    "labels": ("labels", "label", "y", "targets", "target"),
}


@READERS.register("npy")
def read_npy(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Samples:
    """Read one array, mapped into memory: rows of numbers are features, anything with more dimensions is inputs.

    Parameters
    ----------
    path : str or path
        An ``.npy`` file.
    max_bytes : int, optional
        How much may be read into memory; mapped arrays do not count.

    Returns
    -------
    Samples
        With ``features`` or ``inputs``.

    Raises
    ------
    InputError
        For a file that cannot be read or holds objects.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/a.npy"
    >>> np.save(file, np.zeros((5, 3)))
    >>> read_npy(file)
    Samples(5: features 3)
    """
    file = Path(path)
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _unreadable(file, error) from error
    return Samples({_kind(array, file): array})


@READERS.register("npz")
def read_npz(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Samples:
    """Read named arrays: ``inputs`` (or images, x), ``features``, ``logits``, ``labels``; others are kept.

    ``weight`` and ``bias`` make a head, ``classes`` names the classes. A single array under another name is
    taken as by `read_npy`.

    Parameters
    ----------
    path : str or path
        An ``.npz`` file.
    max_bytes : int, optional
        How much may be read into memory.

    Returns
    -------
    Samples
        The arrays by their names here.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/a.npz"
    >>> np.savez(file, features=np.zeros((5, 3)), labels=np.arange(5))
    >>> read_npz(file)
    Samples(5: features 3, labels one each)
    """
    file = Path(path)
    arrays = load_npz(file, max_bytes)
    head = Head(arrays.pop("weight"), arrays.pop("bias", None)) if "weight" in arrays else None
    classes = tuple(str(name) for name in arrays.pop("classes", np.empty(0, str)).reshape(-1))
    if len(arrays) == 1 and not any(name in names for name in arrays for names in SYNONYMS.values()):
        arrays = {_kind(array, file): array for array in arrays.values()}
    found = rename_arrays(arrays, str(file))
    if "labels" in found:
        found["labels"], named = encode_labels(found["labels"], f"{file}: labels")
        classes = classes or named
    main = next((found[name] for name in ("features", "inputs", "logits") if name in found), None)
    if main is None:
        raise InputError(f"{file}: none of its arrays {sorted(arrays)} is named inputs, features or logits; rename one")
    kept = {
        name: array for name, array in found.items() if name in SYNONYMS or (array.ndim and len(array) == len(main))
    }
    return Samples(kept, classes=classes, head=head)


def load_npz(file: Path, max_bytes: int = MAX_BYTES) -> dict[str, Array]:
    """Read every array of a file, after checking how large they say they are.

    Parameters
    ----------
    file : Path
        An ``.npz`` file.
    max_bytes : int, optional
        How much may be read into memory.

    Returns
    -------
    dict of str to ndarray
        By their names in the file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            check_size(sum(entry.file_size for entry in entries), str(file), max_bytes)
            for entry in entries:
                with archive.open(entry) as stream:
                    _check_header(stream, entry.file_size)
        with np.load(file, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise _unreadable(file, error) from error


def read_head(path: str | os.PathLike[str]) -> Head:
    """Read a last linear layer from an ``.npz`` or ``.safetensors`` file: a matrix ``weight``, maybe a ``bias``.

    Names may have a prefix (``fc.weight``). A file with several such matrices must be cut down to one.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Head
        The layer.

    Raises
    ------
    InputError
        If there is no such matrix, or several.

    Examples
    --------
    >>> import tempfile
    >>> file = tempfile.mkdtemp() + "/head.npz"
    >>> np.savez(file, weight=np.ones((2, 3)), bias=np.zeros(2))
    >>> read_head(file)
    Head(2 classes, 3 features)
    """
    file = Path(path)
    if file.suffix == ".npz":
        tensors = load_npz(file)
    elif file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error
    else:
        raise InputError(f"{file}: a head is read from .npz or .safetensors")
    weights = [name for name in tensors if name.rpartition(".")[2] == "weight" and tensors[name].ndim == 2]
    if len(weights) != 1:
        raise InputError(f"{file}: {len(weights)} matrices named weight {weights}; a head is exactly one")
    bias = weights[0].removesuffix("weight") + "bias"
    return Head(tensors[weights[0]], tensors.get(bias))


def rename_arrays(arrays: Mapping[str, Array], source: str) -> dict[str, Array]:
    """Rename arrays as this library calls them; two names for one thing are an error.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        By their names in the file.
    source : str
        The file, for messages.

    Returns
    -------
    dict of str to ndarray
        ``inputs``, ``features``, ``logits``, ``labels`` and others as they are.
    """
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        ours = next((ours for ours, names in SYNONYMS.items() if name in names), name)
        if ours in found:
            raise InputError(f"{source}: more than one array could be the {ours}; name exactly one {ours!r}")
        found[ours] = array
    return found


def _check_header(stream: IO[bytes], size: int) -> None:
    """Raise an `InputError` for an array that claims to be larger than its file, before it is allocated."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version in readers:
        shape, _, dtype = readers[version](stream)
        if math.prod(shape) * dtype.itemsize > size:
            raise ValueError(f"its header promises {shape} values of {dtype}, more than it holds")


def _kind(array: Array, file: Path) -> str:
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        raise InputError(f"{file}: {array.dtype} of shape {array.shape}; one row of numbers per sample is needed")
    if array.ndim == 1:
        return "labels"
    return "features" if array.ndim == 2 else "inputs"


def _unreadable(file: Path, error: Exception) -> InputError:
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return InputError(f"{file}: holds pickled objects, which are never loaded; save plain arrays of numbers")
    return InputError(f"{file}: cannot be read, it may be truncated or of another kind ({error})")
