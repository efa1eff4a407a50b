"""One saving format for everything fitted: tensors and JSON in one safetensors file, versioned and checksummed.

Nothing here can run code from a file: safetensors holds plain numbers, JSON holds plain values.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from offmap.errors import InputError, OffmapError, StoreError

FORMAT = 1
_KEY = "offmap"
_DTYPES = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "I64", "U64", "F64"}

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Stored:
    """The content of a file: its kind, a JSON description and named tensors."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, npt.NDArray[Any]]


def save(path: str | os.PathLike[str], kind: str, config: Mapping[str, Any], tensors: Tensors) -> None:
    """Write one file, whole or not at all.

    Parameters
    ----------
    path : str or path
        The file.
    kind : str
        What it holds, such as ``"detector"``.
    config : mapping of str to Any
        A JSON description.
    tensors : mapping of str to ndarray
        The tensors by name.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from offmap import store
    >>> file = tempfile.mkdtemp() + "/a.offmap"
    >>> store.save(file, "example", {"k": 3}, {"x": np.arange(3.0)})
    >>> store.load(file).config
    {'k': 3}
    """
    arrays = {name: _plain(array) for name, array in tensors.items()}
    header = {
        "format": FORMAT,
        "kind": kind,
        "config": dict(config),
        "sha256": _digest(kind, config, arrays),
    }
    write_atomically(path, to_bytes(arrays, metadata={_KEY: json.dumps(header)}))


def _check_kind(file: Path) -> None:
    """Refuse what cannot be a file of offmap, and say what to give instead."""
    if file.is_dir():
        inside = sorted(file.glob("*.offmap"))
        raise StoreError(f"{file}: a folder; give " + (f"the file inside, {inside[0]}" if inside else "a .offmap file"))
    if not file.is_file():
        raise StoreError(f"{file}: there is no such file")
    if file.suffix.lower() == ".onnx":
        raise StoreError(f"{file}: an ONNX graph; give the file of offmap that it was made from, such as guard.offmap")


def load(path: str | os.PathLike[str], kind: str | None = None) -> Stored:
    """Read a file back, after checking that it is whole, unaltered and of the asked kind.

    Parameters
    ----------
    path : str or path
        The file.
    kind : str or None, default=None
        What it must hold; anything when `None`.

    Returns
    -------
    Stored
        The content.

    Raises
    ------
    StoreError
        If the file is damaged or of another kind.
    """
    file = Path(path)
    _check_kind(file)
    try:
        with safe_open(file, framework="numpy") as opened:
            text = (opened.metadata() or {}).get(_KEY)
            for name in opened.keys():  # noqa: SIM118 - not a dict
                if (dtype := opened.get_slice(name).get_dtype()) not in _DTYPES:
                    raise StoreError(f"{file}: {name} holds numbers of type {dtype}, which offmap does not write")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        header = json.loads(text) if text is not None else None
    except StoreError:
        raise
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise StoreError(f"{file}: not a file that offmap wrote, or it is damaged or truncated ({error})") from error
    if not isinstance(header, dict) or {"format", "kind", "config", "sha256"} - header.keys():
        raise StoreError(f"{file}: a safetensors file, but not one that offmap wrote")
    if not isinstance(header["kind"], str) or not isinstance(header["config"], dict):
        raise StoreError(f"{file}: its description is not one that offmap wrote")
    if header["format"] != FORMAT:
        raise StoreError(f"{file}: format {header['format']}, this version of offmap reads format {FORMAT}")
    if kind is not None and header["kind"] != kind:
        raise StoreError(f"{file}: holds a {header['kind']}, not a {kind}")
    try:
        digest = _digest(header["kind"], header["config"], tensors)
    except (RecursionError, ValueError) as error:  # nested just deeply enough to be read, but not written
        raise StoreError(f"{file}: its description cannot be read ({error})") from error
    if header["sha256"] != digest:
        raise StoreError(f"{file}: the checksum does not match, the file was altered or damaged")
    return Stored(header["kind"], header["config"], tensors)


@contextlib.contextmanager
def restoring(what: str) -> Iterator[None]:
    """Turn every error of reading a file's parts into one sentence: a checksum can be right on parts that are wrong.

    Examples
    --------
    >>> with restoring("detector"):
    ...     {}["spec"]
    Traceback (most recent call last):
    offmap.errors.StoreError: not a whole detector of this version of offmap (KeyError: 'spec')
    """
    try:
        yield
    except (OffmapError, MemoryError):  # too little memory says nothing about the file
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise StoreError(f"not a whole {what} of this version of offmap ({type(error).__name__}: {reason})") from error


def check_fields(what: str, values: Any, fields: Mapping[str, Any]) -> None:
    """Check that a description has these fields, of these types, and raise `StoreError` otherwise.

    Parameters
    ----------
    what : str
        What is described, for the sentence.
    values : Any
        The description.
    fields : mapping of str to type or union of types
        The type of each field.

    Examples
    --------
    >>> check_fields("detector", {"spec": 3}, {"spec": str})
    Traceback (most recent call last):
    offmap.errors.StoreError: not a whole detector of this version of offmap ('spec' is of type int)
    """
    if not isinstance(values, dict):
        raise StoreError(f"not a whole {what} of this version of offmap (its description is {type(values).__name__})")
    for name, kind in fields.items():
        if name not in values:
            raise StoreError(f"not a whole {what} of this version of offmap ({name!r} is missing)")
        if not isinstance(values[name], kind) or (isinstance(values[name], bool) and kind is not bool):
            found = type(values[name]).__name__
            raise StoreError(f"not a whole {what} of this version of offmap ({name!r} is of type {found})")


def check_arrays(what: str, tensors: Tensors, kinds: Mapping[str, tuple[str, int]], rows: tuple[str, ...] = ()) -> None:
    """Check the arrays of a file, and raise `StoreError` when one is missing, of another type or of another shape.

    Parameters
    ----------
    what : str
        What they belong to, for the sentence.
    tensors : mapping of str to array
        The arrays.
    kinds : mapping of str to (str, int)
        For each name the allowed kinds of numbers (``"f"``, ``"i"``, ``"b"``, ``"u"``) and the number of dimensions.
    rows : tuple of str
        Names of arrays that must be equally long.

    Examples
    --------
    >>> check_arrays("discovery", {"labels": np.zeros(3)}, {"labels": ("iu", 1)})
    Traceback (most recent call last):
    offmap.errors.StoreError: not a whole discovery of this version of offmap (labels is float64 in 1 dimensions)
    """
    for name, (kind, ndim) in kinds.items():
        if name not in tensors:
            raise StoreError(f"not a whole {what} of this version of offmap ({name} is missing)")
        array = tensors[name]
        if array.dtype.kind not in kind or array.ndim != ndim:
            raise StoreError(
                f"not a whole {what} of this version of offmap ({name} is {array.dtype} in {array.ndim} dimensions)"
            )
    if len({len(tensors[name]) for name in rows}) > 1:
        raise StoreError(f"not a whole {what} of this version of offmap ({', '.join(rows)} differ in length)")


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` beside `path` and rename it into place, so that a crash leaves the old file or the new one.

    Parameters
    ----------
    path : str or path
        The file.
    content : bytes
        All of it.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise StoreError(f"{file}: the folder {file.parent} does not exist")
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, file)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(
                f"{file}: could not be written ({error.strerror}); what was there before is untouched"
            ) from error
        raise
    _sync_folder(file.parent)


def write_folder(path: str | os.PathLike[str], files: Mapping[str, bytes], replaced: Iterable[str] = ()) -> None:
    """Write a folder of files beside `path` and rename it into place, so that files of two writings never mix.

    Parameters
    ----------
    path : str or path
        The folder. One that holds other files than `files` names is refused, as it would be replaced whole.
    files : mapping of str to bytes
        Contents by their names inside the folder, such as ``"part/config.json"``.
    replaced : iterable of str
        Names of further files that an earlier writing may have left there, and that go with it.

    Raises
    ------
    InputError
        If the folder holds other files.
    StoreError
        If it cannot be written; what was there before is untouched.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp()) / "made"
    >>> write_folder(folder, {"a.json": b"{}", "part/b.json": b"[]"})
    >>> (folder / "part" / "b.json").read_text()
    '[]'
    """
    check_replaceable(path, (*files, *replaced))
    target = Path(path).absolute()
    temporary, old = (target.with_name(f".{target.name}.{part}{os.getpid()}") for part in ("new", "old"))
    try:
        for name, content in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(temporary / name, content)
        if target.exists():
            os.replace(target, old)  # two renames: a kill between them leaves both folders whole, under these names
        try:
            os.replace(temporary, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    except OSError as error:
        raise StoreError(
            f"{target}: could not be written ({error.strerror}); what was there before is untouched"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    _sync_folder(target.parent)


def check_replaceable(path: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Raise an `InputError` if a folder that `write_folder` would replace holds files of other names.

    Parameters
    ----------
    path : str or path
        The folder; it need not exist.
    names : iterable of str
        Of the files that are written.
    """
    target, own = Path(path), {Path(name) for name in names}
    if target.exists() and not target.is_dir():
        raise InputError(f"{target}: there is a file of this name; name a folder")
    others = sorted(
        str(file.relative_to(target))
        for file in target.rglob("*")
        if not file.is_dir() and file.relative_to(target) not in own
    )
    if others:
        raise InputError(f"{target}: the folder holds other files, such as {others[0]}; name another one")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same numbers in rows one after the other and in this machine's byte order; a scalar stays a scalar."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _digest(kind: str, config: Mapping[str, Any], tensors: Tensors) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, kind, config], sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
