"""A bank on disk: one ``.npy`` file, which may be larger than memory, and its description in JSON."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offmap import store
from offmap.errors import StoreError
from offmap.typing import Array

FORMAT = 1
VECTORS = "vectors.npy"
META = "bank.json"
_BLOCK_BYTES = 32 * 2**20


def save(folder: str | os.PathLike[str], parts: Sequence[Array], config: Mapping[str, Any]) -> None:
    """Write a bank; the folder appears when everything is in it.

    An existing bank is never replaced: of two writers, one succeeds and the other is told.

    Parameters
    ----------
    folder : str or path
        It must not exist.
    parts : sequence of ndarray
        The rows, written one part after the other.
    config : mapping of str to Any
        The rest, as JSON.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target}: it exists already; choose another folder or remove it first")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        shape = (sum(len(part) for part in parts), parts[0].shape[1] if parts else 0)
        digest = _write(beside / VECTORS, parts, shape, str(config["dtype"]))
        meta = {"format": FORMAT, "kind": "bank", "shape": shape, "sha256": digest, "config": dict(config)}
        store.write_atomically(beside / META, json.dumps(meta, indent=1).encode())
        beside.chmod(0o755)
        try:
            beside.rename(target)
        except OSError as error:
            raise StoreError(f"{target}: another writer was first; choose another folder") from error
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{target}: could not be written ({error}); nothing was left behind") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load(folder: str | os.PathLike[str], mmap: bool) -> tuple[Array, dict[str, Any]]:
    """Read a bank; sizes are checked always, the checksum when everything is read.

    Parameters
    ----------
    folder : str or path
        What `save` wrote.
    mmap : bool
        Whether to map the rows instead of reading them.

    Returns
    -------
    tuple of ndarray, dict of str to Any
        The rows and the configuration.
    """
    target = Path(folder)
    try:
        meta = json.loads((target / META).read_text())
        rows, width = meta["shape"]
        config = dict(meta["config"])
        version, digest = meta["format"], meta["sha256"]
    except FileNotFoundError as error:
        raise StoreError(f"{target}: there is no bank in it, {META} is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{target}: {META} is not a readable description of a bank ({error})") from error
    if version != FORMAT:
        raise StoreError(f"{target}: format {version}, this version of offmap reads format {FORMAT}")
    try:
        vectors = np.load(target / VECTORS, mmap_mode="r" if mmap and rows else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(f"{target}: {VECTORS} is missing or truncated ({error})") from error
    if vectors.shape != (rows, width) or vectors.dtype.name != config.get("dtype"):
        raise StoreError(
            f"{target}: {VECTORS} holds {vectors.shape} in {vectors.dtype}, {META} says {(rows, width)} in "
            f"{config.get('dtype')}"
        )
    if not mmap and hashlib.sha256(memoryview(vectors.reshape(-1).view(np.uint8))).hexdigest() != digest:
        raise StoreError(f"{target}: the checksum does not match, {VECTORS} was altered or damaged")
    return vectors, config


def _write(file: Path, parts: Sequence[Array], shape: tuple[int, int], dtype: str) -> str:
    digest = hashlib.sha256()
    with file.open("wb") as stream:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for part in parts:
            step = max(1, _BLOCK_BYTES // max(part[:1].nbytes, 1))
            for start in range(0, len(part), step):
                block: Array = np.ascontiguousarray(part[start : start + step])
                content = block.tobytes()
                digest.update(content)
                stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()
