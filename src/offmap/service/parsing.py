"""From the body of a request to checked rows: JSON, ``.npy`` or pictures. No pickle, no path, no code."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.errors import InputError
from offmap.service.deployed import Kind
from offmap.service.pictures import FORMATS, decode_pictures
from offmap.service.request_errors import RequestError, one_sentence
from offmap.service.settings import Settings
from offmap.typing import Array

JSON = "application/json"
_JSON_TYPES = ("", JSON, "application/x-www-form-urlencoded")  # the last is what curl says when told nothing
NPY_TYPES = ("application/x-npy", "application/octet-stream")
MAX_REFERENCE = 1024
_MAX_LISTS = 500_000  # lists and objects in one body of JSON: each costs twenty times its bytes in memory
_MAX_HEADER = 1024
_KEYS = ("features", "inputs", "images")


@dataclass(frozen=True)
class Body:
    """What a request asks to be scored; see `Service.submit`."""

    kind: Kind
    rows: Array
    contents: Sequence[bytes] | None = None
    content_type: str | None = None
    references: Sequence[str] | None = None


def parse_body(body: bytes, content_type: str, kind: Kind, settings: Settings) -> Body:
    """Read a body by its type.

    Parameters
    ----------
    body
        All of it.
    content_type
        The header, lower case.
    kind
        What the rows of a ``.npy`` body are.
    settings
        Limits, and how pictures are prepared.

    Examples
    --------
    >>> parse_body(b'{"features": [[1, 2.5]]}', "application/json", "features", Settings()).rows
    array([[1. , 2.5]])
    """
    media = content_type.partition(";")[0].strip()
    if media in _JSON_TYPES:
        return _from_json(body, settings)
    if media in NPY_TYPES:
        return Body(kind, read_npy(body))
    if media in FORMATS:
        rows, found = decode_pictures([body], settings)
        return Body("inputs", rows, [body], found)
    raise RequestError(415, f"content-type {media[:80]!r}: send {JSON}, {NPY_TYPES[0]} or {', '.join(FORMATS)}")


def read_npy(content: bytes) -> Array:
    """An array from the bytes of an ``.npy`` file; what the header claims is checked before anything is made of it.

    Examples
    --------
    >>> out = io.BytesIO()
    >>> np.save(out, np.eye(2))
    >>> read_npy(out.getvalue())
    array([[1., 0.],
           [0., 1.]])
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
        elif version == (2, 0):
            header = np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
        else:
            raise ValueError(f"version {version[0]}.{version[1]}")
    except Exception as error:  # the header is a text that may be broken in any way
        raise RequestError(400, f"not a readable .npy file ({one_sentence(error)[:200]})") from error
    shape, fortran, dtype = header
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise InputError(f".npy of type {dtype}: whole or floating-point numbers of at most 8 bytes are needed")
    if any(length < 0 for length in shape):
        raise RequestError(400, f"not a readable .npy file (shape {shape})")
    claimed = math.prod(shape) * dtype.itemsize
    there = len(content) - stream.tell()
    if claimed != there:
        raise RequestError(400, f"the .npy header claims {claimed} bytes of numbers, {there} are there")
    flat = np.frombuffer(content, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), copy=False)


def _from_json(body: bytes, settings: Settings) -> Body:
    if body.count(b"[") + body.count(b"{") > _MAX_LISTS:
        raise RequestError(413, f"more than {_MAX_LISTS:,} lists in one request; send fewer rows, or .npy")
    try:
        given = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise RequestError(400, f"the body is not JSON ({one_sentence(error)[:200]})") from error
    if not isinstance(given, dict):
        raise RequestError(400, 'the body must be an object such as {"features": [[…]]}')
    unknown = given.keys() - {*_KEYS, "references"}
    if unknown:
        raise RequestError(400, f"{sorted(unknown)[0][:80]!r} is not known; give one of {', '.join(_KEYS)}")
    keys = [key for key in _KEYS if key in given]
    if len(keys) != 1:
        raise RequestError(400, f"give one of {', '.join(_KEYS)}, not {len(keys)} of them")
    references = _references(given.get("references"))
    (key,) = keys
    if not isinstance(given[key], list):
        raise InputError(f"{key}: a list with one entry per input is needed")
    if not given[key]:
        raise RequestError(400, f"{key}: the batch is empty; send at least one row")
    if len(given[key]) > settings.max_rows:
        raise RequestError(413, f"{len(given[key])} rows, the limit is {settings.max_rows}; send them in parts")
    if key == "images":
        contents = [_unpacked(text, row) for row, text in enumerate(given[key])]
        rows, found = decode_pictures(contents, settings)
        return Body("inputs", rows, contents, found, references)
    return Body("features" if key == "features" else "inputs", _numbers(given[key], key), references=references)


def _numbers(given: list[Any], name: str) -> Array:
    _check_leaves(given, name)
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name}: all rows need equally many numbers ({one_sentence(error)[:200]})") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name}: whole numbers beyond 64 bits are not taken")
    return array


def _check_leaves(given: list[Any], name: str) -> None:
    """Nothing but numbers in nested lists: of texts NumPy would make an array as wide as the longest."""
    lists = [given]
    while lists:
        kinds = set(map(type, some := lists.pop()))
        if kinds == {list}:
            lists += some
        elif not kinds <= {int, float}:
            raise InputError(f"{name}: only numbers are taken, in rows of equal length; no text, null, true or false")


def _references(given: Any) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(text, str) and len(text) <= MAX_REFERENCE for text in given):
        raise InputError(f"references: a list of texts of at most {MAX_REFERENCE} characters is needed")
    if any("\0" in text or not text.isprintable() for text in given):
        raise InputError("references: printable characters only")
    return given


def _unpacked(text: Any, row: int) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"images: entry {row} is not a text; send pictures in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"images: entry {row} is not base64 ({one_sentence(error)})") from error


def _refuse_constant(name: str) -> None:
    raise InputError(f"{name} is not a number that can be scored; only finite numbers are")
