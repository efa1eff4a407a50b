"""The IDX format of MNIST and Fashion-MNIST: pictures in one file, their classes in another beside it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from offmap.data.samples import Samples
from offmap.errors import InputError
from offmap.typing import Array

IDX = {0x08: np.dtype(np.uint8)}


def read_idx_set(images: Path) -> Samples:
    """Read pictures and their classes in the IDX format, packed or not.

    Parameters
    ----------
    images : Path
        The file of pictures, such as ``train-images-idx3-ubyte`` or the same with ``.gz``; that of their classes is
        found beside it.

    Returns
    -------
    Samples
        ``inputs`` uint8, n × height × width × 1, and ``labels``.

    Raises
    ------
    InputError
        If one of the files is missing, cannot be read or is not in that format.
    """
    pictures = read_idx(_either(images))
    labels = read_idx(_either(images.with_name(images.name.replace("images-idx3", "labels-idx1"))))
    if pictures.ndim != 3 or labels.shape != pictures.shape[:1]:
        raise InputError(f"{images}: pictures of shape {pictures.shape} and classes of shape {labels.shape}")
    return Samples({"inputs": pictures[..., None], "labels": labels.astype(np.int64)})


def _either(file: Path) -> Path:
    plain = file.with_name(file.name.removesuffix(".gz"))
    packed = plain.with_name(plain.name + ".gz")
    return packed if packed.is_file() else plain


def read_idx(file: Path) -> Array:
    """Read an array in the IDX format (LeCun), unpacked when its name ends in ``.gz``.

    Parameters
    ----------
    file : Path
        The file.

    Returns
    -------
    ndarray

    Raises
    ------
    InputError
        If the file cannot be read or is not in that format.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "three"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    >>> read_idx(file)
    array([7, 8, 9], dtype=uint8)
    """
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise InputError(f"{file}: cannot be read ({error})") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX or len(raw) < 4 + 4 * raw[3]:
        raise InputError(f"{file}: not in the IDX format of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4).astype(int)
    body = np.frombuffer(raw, IDX[raw[2]], offset=4 + 4 * raw[3])
    if body.size != shape.prod():
        raise InputError(f"{file}: {body.size} values for a shape of {tuple(shape.tolist())}; it may be truncated")
    return body.reshape(shape)
