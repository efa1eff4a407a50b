"""The folder on disk that activations are saved in: ``.npy`` files, their checksums, and a description in JSON."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.parse
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from offmap import store
from offmap.errors import InputError, StoreError
from offmap.store import Tensors
from offmap.typing import Array

FORMAT = 1
META = "activations.json"
HEAD = "head.offmap"
BLOCK_BYTES = 16 * 2**20  # of a file, with one checksum
CHECKED_WHOLE = 256 * 2**20  # bytes of a folder up to which everything is read to verify it
CHECKED_BLOCKS = 5  # of each array of a larger folder


def check_mapped(array: Array) -> Array:
    """Return an array as it is; refuse one whose file has become shorter than what was mapped of it.

    Reading beyond the end of a mapped file ends the process by a signal.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and mapped.size() < len(mapped):
        name = getattr(array, "filename", "a mapped file")
        raise StoreError(f"{name}: was cut short after it was opened, to {mapped.size()} bytes; restore the file")
    return array


def array_file(name: str) -> str:
    """Return the file name of an array in a saved folder; extras may be named with any characters."""
    return urllib.parse.quote(name, safe="") + ".npy"


def write_folder(folder: Path, arrays: Mapping[str, Array], dtype: str | None, head: Tensors | None) -> None:
    """Write arrays and the head; when that fails, what was written is removed."""
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: the folder could not be made ({error.strerror})") from error
    if (folder / META).exists():
        raise StoreError(f"{folder}: already holds activations; choose another folder or remove it")
    files = (HEAD, *map(array_file, arrays))
    for file in files:  # also on failure only files of this call may be removed
        if (folder / file).exists():
            raise StoreError(f"{folder / file} would be written over; choose another folder or remove it")
    checksums: dict[str, list[int]] = {}
    try:
        for name, array in arrays.items():
            kept = array.dtype if dtype is None or name == "labels" else check_dtype(dtype)
            checksums[name] = _write_array(folder / array_file(name), array, kept, name)
        write_meta(folder, {name: len(array) for name, array in arrays.items()}, head, checksums)
    except BaseException as error:
        for file in files:
            (folder / file).unlink(missing_ok=True)
        if not was_there:
            with contextlib.suppress(OSError):  # someone else has put something there
                folder.rmdir()
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise StoreError(f"{folder}: could not be written ({error.strerror}); nothing was left behind") from error
        raise


def map_arrays(folder: Path, meta: Mapping[str, Any], verify: bool | None) -> dict[str, Array]:
    """Map the arrays of a folder into memory, after checking their sizes and, as asked, their checksums."""
    arrays: dict[str, Array] = {}
    for name, rows in meta["arrays"].items():
        file = folder / array_file(name)
        try:
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise StoreError(f"{file}: cannot be read, it may be truncated ({error})") from error
        if arrays[name].ndim == 0 or len(arrays[name]) != rows:
            raise StoreError(f"{file}: holds an array of shape {arrays[name].shape}, {META} says {rows} rows")
    if verify is not False:
        whole = verify or sum(array.nbytes for array in arrays.values()) <= CHECKED_WHOLE
        for name, checksums in meta.get("checksums", {}).items():  # absent in the first folders
            _verify(folder / array_file(name), checksums, whole)
    return arrays


def write_meta(
    folder: Path, rows: Mapping[str, int], head: Tensors | None, checksums: Mapping[str, list[int]] | None = None
) -> None:
    """Mark a folder of arrays as complete: the head, then the list of arrays, written last and atomically."""
    if head is not None:
        store.save(folder / HEAD, "head", {}, head)
    meta: dict[str, Any] = {"format": FORMAT, "arrays": dict(rows), "head": head is not None}
    if checksums is not None:
        meta["checksums"] = dict(checksums)
    store.write_atomically(folder / META, json.dumps(meta, indent=1).encode())


def read_meta(folder: Path) -> dict[str, Any]:
    """Return what a saved folder says of itself."""
    file = folder / META
    if not file.is_file():
        raise StoreError(
            f"{folder}: no finished activations here; an extraction cut short is resumed by running it again"
        )
    try:
        meta = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file}: not readable as JSON ({error})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise StoreError(f"{file}: not of format {FORMAT}, which this version of offmap reads")
    arrays = meta.get("arrays")
    if not isinstance(arrays, dict) or not {"features", "logits"} & arrays.keys() or "head" not in meta:
        raise StoreError(f"{file}: does not list the arrays of activations; it was altered")
    checksums = meta.get("checksums", {})
    if not isinstance(checksums, dict) or not all(isinstance(blocks, list) for blocks in checksums.values()):
        raise StoreError(f"{file}: its checksums are not lists of numbers; it was altered")
    if checksums and checksums.keys() != arrays.keys():
        raise StoreError(f"{file}: does not have the checksums of all arrays; it was altered")
    return meta


def compute_checksums(file: Path) -> list[int]:
    """Compute the CRC-32 of every 16 MB of a file."""
    with file.open("rb") as stream:
        blocks = range(0, os.fstat(stream.fileno()).st_size, BLOCK_BYTES)
        return [_read_checksum(stream) for _ in blocks]


def _read_checksum(stream: IO[bytes]) -> int:
    """Compute the checksum of the next block, in small pieces."""
    checksum, left = 0, BLOCK_BYTES
    while left and (piece := stream.read(min(left, 2**18))):
        checksum = zlib.crc32(piece, checksum)
        left -= len(piece)
    return checksum


def _verify(file: Path, checksums: list[int], whole: bool) -> None:
    """Compare the blocks of a file with their checksums: all, or a few that are spread over it."""
    count = len(checksums)
    chosen = range(count) if whole else np.unique(np.linspace(0, count - 1, CHECKED_BLOCKS).astype(int)).tolist()
    with file.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size > count * BLOCK_BYTES:
            raise StoreError(f"{file}: is longer than when it was written; it was altered")
        for number in chosen:
            stream.seek(number * BLOCK_BYTES)
            if _read_checksum(stream) != checksums[number]:
                raise StoreError(f"{file}: the checksum does not match, the file was altered or damaged")


def _write_array(file: Path, array: Array, dtype: np.dtype[Any], name: str) -> list[int]:
    """Write a ``.npy`` file with ordinary writes, which a full disk refuses with an error; return its checksums."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": array.shape}
    with file.open("wb") as target:
        stream = _ChecksumStream(target)
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, len(array), 4096):
            stream.write(np.ascontiguousarray(_cast(array[start : start + 4096], dtype, name)).tobytes())
        target.flush()
        os.fsync(target.fileno())
    return stream.checksums


class _ChecksumStream:
    """Writes to a file and computes the checksums of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0
        self.checksums: list[int] = []

    def write(self, content: bytes) -> int:
        self._file.write(content)
        left = memoryview(content)
        while len(left):
            within = self._size % BLOCK_BYTES
            if within == 0:
                self.checksums.append(0)
            part, left = left[: BLOCK_BYTES - within], left[BLOCK_BYTES - within :]
            self.checksums[-1] = zlib.crc32(part, self.checksums[-1])
            self._size += len(part)
        return len(content)


def check_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype of arrays on disk: float32 or float16."""
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype={dtype!r}: activations are kept as 'float32' or 'float16'")
    return np.dtype(dtype)


def _cast(block: Array, dtype: np.dtype[Any], name: str) -> Array:
    """The block in another dtype; a number too large for it is refused, it would come back as infinity."""
    with np.errstate(over="ignore"):
        cast = block.astype(dtype, copy=False)
    if dtype.kind == "f" and not np.isfinite(cast).all() and np.isfinite(block).all():
        raise InputError(f"{name} up to {np.abs(block).max():.4g} do not fit {dtype}; save them as float32")
    return cast
