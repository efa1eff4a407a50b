"""Parse the body of a scoring request: JSON, ``.npy`` or images. No pickle, no path, no code."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offmap.errors import InputError
from offmap.openworld.deployment import RowKind
from offmap.service.images import FORMATS, decode_images
from offmap.service.request_errors import RequestError, to_sentence
from offmap.service.requests import NPY, TEXT, ScoringRequest
from offmap.service.settings import Settings
from offmap.text import check_texts
from offmap.typing import Array

JSON = "application/json"
_JSON_TYPES = ("", JSON, "application/x-www-form-urlencoded")  # the last is what curl sends by default
_NPY_TYPES = (NPY, "application/octet-stream")
MAX_REFERENCE = 1024
_MAX_LISTS = 500_000  # lists and objects in one body of JSON: each costs twenty times its bytes in memory
_MAX_HEADER = 1024
MAX_DIMENSIONS = 8
_KEYS = ("features", "inputs", "images", "texts")


def parse_request(
    body: bytes,
    content_type: str,
    kind: RowKind,
    settings: Settings,
    reserve: Callable[[int], None] = lambda size: None,
) -> ScoringRequest:
    """Parse a body by its media type.

    Parameters
    ----------
    body : bytes
        The whole body.
    content_type : str
        The header, in lower case.
    kind : {"features", "inputs"}
        What the rows of a ``.npy`` body are.
    settings : Settings
        Limits, and how images are prepared.
    reserve : callable, optional
        Called with the number of bytes of decoded images before they are decoded; may raise `RequestError`.

    Returns
    -------
    ScoringRequest
        Its rows are not checked against a deployment yet.

    Raises
    ------
    RequestError, InputError
        If the body cannot be parsed, with one sentence that says why.

    Examples
    --------
    >>> parse_request(b'{"features": [[1, 2.5]]}', "application/json", "features", Settings()).rows
    array([[1. , 2.5]])
    """
    media = content_type.partition(";")[0].strip()
    if media in _JSON_TYPES:
        return _parse_json(body, settings, reserve)
    if media in _NPY_TYPES:
        return ScoringRequest(kind, read_npy(body))
    if media in FORMATS:
        rows, found = decode_images([body], settings, reserve)
        return ScoringRequest("inputs", rows, [body], found)
    raise RequestError(415, f"content-type {media[:80]!r}: send {JSON}, {NPY} or {', '.join(FORMATS)}")


def read_npy(content: bytes) -> Array:
    """Read an array from the bytes of an ``.npy`` file; the header is checked before anything is allocated.

    Parameters
    ----------
    content : bytes
        The whole file.

    Returns
    -------
    ndarray
        Numbers of at most 8 bytes, in the machine's byte order.

    Raises
    ------
    RequestError, InputError
        If the file is damaged or holds anything but numbers.

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
        raise RequestError(400, f"not a readable .npy file ({to_sentence(error)[:200]})") from error
    shape, fortran, dtype = header
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise InputError(f".npy of type {dtype}: whole or floating-point numbers of at most 8 bytes are needed")
    if len(shape) > MAX_DIMENSIONS or not all(type(length) is int and 0 <= length < 2**31 for length in shape):
        raise RequestError(400, f"not a readable .npy file (shape {str(shape)[:100]})")
    claimed = math.prod(shape) * dtype.itemsize
    there = len(content) - stream.tell()
    if claimed != there:
        raise RequestError(400, f"the .npy header claims {claimed} bytes of numbers, {there} are there")
    flat = np.frombuffer(content, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), copy=False)


def load_json(body: bytes) -> Any:
    """Load JSON of finite numbers that does not become much larger in memory.

    Parameters
    ----------
    body : bytes
        From a client.

    Returns
    -------
    Any
        What it holds.

    Raises
    ------
    RequestError, InputError
        If it is no JSON, has too many lists, or holds NaN or infinity.

    Examples
    --------
    >>> load_json(b'{"features": [[1, 2.5]]}')
    {'features': [[1, 2.5]]}
    """
    if body.count(b"[") + body.count(b"{") > _MAX_LISTS:
        raise RequestError(413, f"more than {_MAX_LISTS:,} lists in one request; send fewer rows, or binary ones")
    try:
        return json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise RequestError(400, f"the body is not JSON ({to_sentence(error)[:200]})") from error


def make_text_request(given: list[Any], settings: Settings, references: Sequence[str] | None = None) -> ScoringRequest:
    """Make the request for scores of texts, within the limits on characters.

    Parameters
    ----------
    given : list
        From a client.
    settings : Settings
        Limits.
    references : sequence of str or None, default=None
        The client's name for each text.

    Returns
    -------
    ScoringRequest
        With the texts as they are stored.

    Raises
    ------
    RequestError, InputError
        If one of them is no text, or they are too long.

    Examples
    --------
    >>> make_text_request(["hello"], Settings()).contents
    [b'hello']
    """
    texts = check_texts(given, settings.max_characters)
    if sum(map(len, texts)) > settings.max_all_characters:  # encoding them would keep others waiting
        raise RequestError(
            413, f"more than {settings.max_all_characters:,} characters in one request; send them in parts"
        )
    return ScoringRequest("texts", texts, [text.encode() for text in texts], TEXT, references)


def _parse_json(body: bytes, settings: Settings, reserve: Callable[[int], None]) -> ScoringRequest:
    given = load_json(body)
    if not isinstance(given, dict):
        raise RequestError(400, 'the body must be an object such as {"features": [[…]]}')
    unknown = given.keys() - {*_KEYS, "references"}
    if unknown:
        raise RequestError(400, f"{sorted(unknown)[0][:80]!r} is not known; give one of {', '.join(_KEYS)}")
    keys = [key for key in _KEYS if key in given]
    if len(keys) != 1:
        raise RequestError(400, f"give one of {', '.join(_KEYS)}, not {len(keys)} of them")
    references = _check_references(given.get("references"))
    (key,) = keys
    if not isinstance(given[key], list):
        raise InputError(f"{key}: a list with one entry per input is needed")
    if not given[key]:
        raise RequestError(400, f"{key}: the batch is empty; send at least one row")
    if len(given[key]) > settings.max_rows:
        raise RequestError(413, f"{len(given[key])} rows, the limit is {settings.max_rows}; send them in parts")
    if key == "images":
        contents = [_decode_base64(text, row) for row, text in enumerate(given[key])]
        rows, found = decode_images(contents, settings, reserve)
        return ScoringRequest("inputs", rows, contents, found, references)
    if key == "texts":
        return make_text_request(given[key], settings, references)
    kind: RowKind = "features" if key == "features" else "inputs"
    return ScoringRequest(kind, _to_array(given[key], key), references=references)


def _to_array(given: list[Any], name: str) -> Array:
    _check_numbers(given, name)
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name}: all rows need equally many numbers ({to_sentence(error)[:200]})") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name}: whole numbers beyond 64 bits are not taken")
    return array


def _check_numbers(given: list[Any], name: str) -> None:
    """Allow only numbers in nested lists: of texts NumPy would make an array as wide as the longest."""
    lists = [given]
    while lists:
        kinds = set(map(type, some := lists.pop()))
        if kinds == {list}:
            lists += some
        elif not kinds <= {int, float}:
            raise InputError(f"{name}: only numbers are taken, in rows of equal length; no text, null, true or false")


def _check_references(given: Any) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(text, str) and len(text) <= MAX_REFERENCE for text in given):
        raise InputError(f"references: a list of texts of at most {MAX_REFERENCE} characters is needed")
    if any("\0" in text or not text.isprintable() for text in given):
        raise InputError("references: printable characters only")
    return given


def _decode_base64(text: Any, row: int) -> bytes:
    if not isinstance(text, str):
        raise InputError(f"images: entry {row} is not a text; send images in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"images: entry {row} is not base64 ({to_sentence(error)})") from error


def _reject_constant(name: str) -> None:
    raise InputError(f"{name} is not a number that can be scored; only finite numbers are")
