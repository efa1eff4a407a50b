"""Data sets as their sites publish them: CIFAR's pickles in a tar archive, SVHN's MATLAB files, packed pictures.

CIFAR's archives hold pickles of Python 2. They are read by an unpickler that knows a handful of names and calls none of
them: what a pickle says of an array is written down as plain values, and the array is built from its bytes.
"""

from __future__ import annotations

import io
import pickle
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offmap.data.idx import read_idx_set
from offmap.data.images import SUFFIXES
from offmap.data.picture_archives import is_archive, read_picture_archive
from offmap.data.readers import READERS
from offmap.data.samples import Samples
from offmap.errors import InputError
from offmap.typing import Array

Part = Literal["train", "test", "all"]
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE * CHANNELS
MEMBER = re.compile(r"cifar-10(?:-batches-py/(data_batch_[1-5]|test_batch)|0-python/(train|test))")
LARGEST_MEMBER = 1 << 28  # the largest batch of the published archives has 154 MB


class _Dtype:
    """The name of a type of numbers, as a pickle gives it."""

    def __init__(self, name: Any = b"", *rest: Any) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like: bytes are of one byte each."""


class _Ndarray:
    """Shape, type and bytes of an array, as a pickle gives them."""

    def __init__(self, *rest: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> Array:
        """Build the array; only bytes are taken."""
        _, shape, dtype, column_major, raw = self.state
        if not isinstance(dtype, _Dtype) or dtype.name not in ("u1", "|u1", "uint8") or not isinstance(raw, bytes):
            raise ValueError("its array is not of bytes")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if column_major else "C")


def _reconstruct(*rest: Any) -> _Ndarray:
    return _Ndarray()


def _encode(text: str, encoding: str) -> bytes:
    """Turn text back into bytes, which is how Python 3 writes them for Python 2."""
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Ndarray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class PlainUnpickler(pickle.Unpickler):
    """Reads lists, texts, numbers and descriptions of arrays of bytes; every other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for one of the admitted names.

        Parameters
        ----------
        module, name : str
            As the pickle spells them.

        Returns
        -------
        Any
            A description, never numpy's own.

        Raises
        ------
        pickle.UnpicklingError
            For any other name.
        """
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")
        return ADMITTED[module, name]


def read_cifar(path: Path, part: Part = "all") -> Samples:
    """Read CIFAR-10 or CIFAR-100 from the archive that its site publishes.

    Parameters
    ----------
    path : Path
        ``cifar-10-python.tar.gz`` or ``cifar-100-python.tar.gz``.
    part : {"train", "test", "all"}, default="all"
        Which pictures; training pictures come first.

    Returns
    -------
    Samples
        ``inputs`` uint8, n × 32 × 32 × 3, and ``labels``; of CIFAR-100 the fine ones.

    Raises
    ------
    InputError
        If the archive holds no such batches, or asks for anything but arrays of bytes.
    """
    pictures, labels = [], []
    try:
        for content in sorted(_batches(path, part), key=lambda item: (item[0].startswith("test"), item[0])):
            pixels, classes = _unpack(content[1])
            pictures.append(pixels)
            labels.append(classes)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a readable tar archive ({error})") from error
    except (pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: not CIFAR as it is published ({error}); nothing of it was run") from error
    if not pictures:
        raise InputError(f"{path}: no batches of CIFAR-10 or CIFAR-100 in it")
    return Samples({"inputs": np.concatenate(pictures), "labels": np.concatenate(labels)})


def _batches(path: Path, part: Part) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            found = MEMBER.fullmatch(member.name)
            if found is None or not member.isfile():
                continue
            name = found[1] or found[2]
            if part != "all" and name.startswith("test") != (part == "test"):
                continue
            if member.size > LARGEST_MEMBER:
                raise ValueError(f"{member.name} has {member.size} bytes, more than any batch of CIFAR")
            stream = archive.extractfile(member)
            assert stream is not None
            yield name, stream.read()


def _unpack(raw: bytes) -> tuple[Array, Array]:
    held = PlainUnpickler(io.BytesIO(raw), encoding="bytes").load()
    pixels = held[b"data"].array()
    labels = np.array(held.get(b"labels", held.get(b"fine_labels")), np.int64)
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or labels.shape != (len(pixels),):
        raise ValueError(f"{pixels.shape} pixels and {labels.shape} labels in a batch")
    return pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1), labels


@READERS.register("gz")
@READERS.register("tar")
@READERS.register("tgz")
def _packed(path: Path, max_bytes: int) -> Samples:
    """Both parts of CIFAR, the pictures of an archive, or MNIST's pictures with the classes beside them."""
    if not is_archive(path):
        return read_idx_set(path)
    return read_cifar(path) if _holds_cifar(path) else read_picture_archive(path, max_bytes=max_bytes)


def _holds_cifar(path: Path) -> bool:
    """Tell by the first file of interest: a batch, or a picture."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if MEMBER.fullmatch(member.name):
                    return True
                if Path(member.name).suffix.lower() in SUFFIXES:
                    return False
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a readable tar archive ({error})") from error
    return False


@READERS.register("mat")
def read_mat(path: Path, max_bytes: int) -> Samples:
    """Read pictures in a MATLAB file as SVHN's: ``X``, height × width × channels × n, and ``y``, 10 for the digit 0.

    Parameters
    ----------
    path : Path
        Such as ``test_32x32.mat``.
    max_bytes : int
        What may be brought into memory.

    Returns
    -------
    Samples
        ``inputs`` uint8, n × height × width × channels, and ``labels``.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if path.stat().st_size > max_bytes:
        raise InputError(f"{path}: {path.stat().st_size} bytes, more than the {max_bytes} that may be read")
    try:
        held = loadmat(path, variable_names=("X", "y"))
        pixels, labels = held["X"], held["y"].reshape(-1).astype(np.int64)
    except (MatReadError, ValueError, KeyError, TypeError, OSError, NotImplementedError) as error:
        raise InputError(f"{path}: no pictures X and classes y in it as in SVHN's files ({error})") from error
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[3] != len(labels):
        raise InputError(f"{path}: X of shape {pixels.shape} and {len(labels)} classes; SVHN's are 32 × 32 × 3 × n")
    return Samples({"inputs": np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), "labels": labels % 10})
