"""The Open Inference Protocol, version 2, beside `/v1`: what clients of KServe and Triton speak over HTTP.

The model is called ``guard``. It takes one tensor, ``inputs``, ``features`` or ``texts``, and answers ``score``,
``p_value``, ``known`` and, where there are classes, ``class``. Unknown inputs are stored as those of `/v1/score` are.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from offmap import __version__
from offmap.errors import InputError
from offmap.openworld.deployment import RowKind
from offmap.service.access import allow_without_token
from offmap.service.endpoints import FAILURES
from offmap.service.parsing import MAX_DIMENSIONS, load_json, make_text_request
from offmap.service.request_errors import RequestError
from offmap.service.requests import ScoringRequest
from offmap.service.service import Service
from offmap.service.settings import Settings
from offmap.typing import Array

MODEL = "guard"
_LENGTH_HEADER = "inference-header-content-length"  # the bytes of JSON before binary tensors
_TYPES = {
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
}  # fmt: skip
_OUTPUTS = {"score": "FP64", "p_value": "FP64", "known": "BOOL", "class": "BYTES"}
_MAX_DIGITS = 18
_MAX_ID = 200  # characters of a request's id
_KINDS: dict[str, RowKind] = {"inputs": "inputs", "features": "features", "texts": "texts"}
router = APIRouter(responses=FAILURES)


@router.get("/v2", summary="Name and version of the server.")
async def describe_server() -> Response:
    """Answer what the server is."""
    return JSONResponse({"name": "offmap", "version": __version__, "extensions": ["binary_tensor_data"]})


@router.get("/v2/health/live", summary="Whether the process lives.")
@allow_without_token
async def check_live() -> Response:
    """Answer that the process lives."""
    return JSONResponse({"live": True})


@router.get("/v2/health/ready", summary="Whether requests can be answered.")
@allow_without_token
async def check_ready(request: Request) -> Response:
    """Answer whether requests can be answered."""
    service: Service = request.app.state.service
    ready = service.readiness_error() is None
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@router.get("/v2/models/{name}/ready", summary="Whether the model answers.")
async def check_model_ready(request: Request, name: str) -> Response:
    """Answer whether the model can be asked."""
    _check_name(name)
    service: Service = request.app.state.service
    ready = service.readiness_error() is None
    return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)


@router.get("/v2/models/{name}", summary="Inputs and outputs of the model.")
async def describe_model(request: Request, name: str) -> Response:
    """Answer the tensors that the model reads and gives."""
    _check_name(name)
    deployment = request.app.state.service.deployment
    settings: Settings = request.app.state.service.settings
    takes = []
    if deployment.encoder is not None:
        takes.append({"name": "texts", "datatype": "BYTES", "shape": [-1]})
    if deployment.network is not None:
        takes.append({"name": "inputs", "datatype": "FP32", "shape": [-1, *(settings.input_shape or (-1,))]})
    if deployment.encoder is None and not deployment.requirements.extras:
        takes.append({"name": "features", "datatype": "FP32", "shape": [-1, deployment.width or -1]})
    gives = [{"name": output, "datatype": kind, "shape": [-1]} for output, kind in _OUTPUTS.items()]
    return JSONResponse(
        {"name": name, "versions": [deployment.version], "platform": "offmap", "inputs": takes, "outputs": gives}
    )


@router.post("/v2/models/{name}/infer", summary="Score inputs; unknown ones are stored when this answers.")
async def infer(request: Request, name: str) -> Response:
    """Score one tensor of inputs and answer one tensor per column."""
    _check_name(name)
    service: Service = request.app.state.service
    body = await request.body()
    executor, loop = request.app.state.parsers, asyncio.get_running_loop()
    length = request.headers.get(_LENGTH_HEADER)
    parsed, wanted, number = await loop.run_in_executor(executor, parse_infer_request, body, length, service.settings)
    results = await asyncio.wrap_future(service.submit(parsed))
    for row in results:
        row["class"] = "" if row["class"] is None else str(row["class"])
    outputs = [
        {"name": one, "datatype": _OUTPUTS[one], "shape": [len(results)], "data": [row[one] for row in results]}
        for one in wanted
    ]
    answer = {"model_name": name, "model_version": service.deployment.version, "outputs": outputs}
    return JSONResponse(answer if number is None else answer | {"id": number})


def parse_infer_request(
    body: bytes, length: str | None, settings: Settings
) -> tuple[ScoringRequest, list[str], str | None]:
    """Parse the body of an inference request.

    Parameters
    ----------
    body : bytes
        JSON, followed by binary tensors if a length is given.
    length : str or None
        The header ``Inference-Header-Content-Length``.
    settings : Settings
        Limits.

    Returns
    -------
    request : ScoringRequest
        The rows to score.
    outputs : list of str
        The names of the tensors to answer, each once.
    id : str or None
        The client's name for the request.

    Raises
    ------
    RequestError, InputError
        If the body does not follow the protocol.

    Examples
    --------
    >>> body = b'{"inputs": [{"name": "features", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]}]}'
    >>> request, outputs, _ = parse_infer_request(body, None, Settings())
    >>> request.rows, outputs
    (array([[1. , 2.5]], dtype=float32), ['score', 'p_value', 'known', 'class'])
    """
    end = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS and int(length) <= len(body)):
            raise RequestError(400, f"{_LENGTH_HEADER}: {length[:40]!r} of a body of {len(body)} bytes")
        end = int(length)
    given = load_json(body[:end])
    tensors = given.get("inputs") if isinstance(given, dict) else None
    if not isinstance(tensors, list) or len(tensors) != 1 or not isinstance(tensors[0], dict):
        raise RequestError(400, f"inputs: one tensor is needed, named {', '.join(_KINDS)}")
    outputs, number = _read_outputs(given.get("outputs", [])), given.get("id")
    if number is not None and not (isinstance(number, str) and len(number) <= _MAX_ID and number.isprintable()):
        raise InputError(f"id: a printable text of at most {_MAX_ID} characters is needed")
    tensor = tensors[0]
    kind = _KINDS.get(str(tensor.get("name")))
    if kind is None:
        raise InputError(f"inputs: the tensor is named {', '.join(_KINDS)}, not {str(tensor.get('name'))[:80]!r}")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise InputError(f"inputs: the shape is a list of 1 to {MAX_DIMENSIONS} whole numbers")
    if not all(type(size) is int and 0 < size < 2**31 for size in shape):
        raise InputError("inputs: the shape is a list of whole numbers from 1 on")
    if shape[0] > settings.max_rows:
        raise RequestError(413, f"{shape[0]} rows, the limit is {settings.max_rows}; send them in parts")
    binary = body[end:] if length is not None else None
    if kind == "texts":
        return make_text_request(_read_texts(tensor, shape, binary), settings), outputs, number
    return ScoringRequest(kind, _read_numbers(tensor, shape, binary)), outputs, number


def _read_outputs(given: Any) -> list[str]:
    """Return the names of the tensors to answer, all by default; one that is named often is answered once."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RequestError(400, 'outputs: a list such as [{"name": "score"}] is needed')
    names = [str(one.get("name")) for one in given]
    for name in names:
        if name not in _OUTPUTS:
            raise InputError(f"outputs: there is no {name[:80]!r}; there are {', '.join(_OUTPUTS)}")
    return list(dict.fromkeys(names)) or list(_OUTPUTS)


def _read_numbers(tensor: dict[str, Any], shape: list[int], binary: bytes | None) -> Array:
    kind = _TYPES.get(str(tensor.get("datatype")))
    if kind is None:
        raise InputError(f"datatype {str(tensor.get('datatype'))[:40]!r}: choose one of {', '.join(_TYPES)}")
    count = math.prod(shape)
    if "data" not in tensor and binary is not None:
        if len(binary) != count * np.dtype(kind).itemsize:
            raise InputError(f"{len(binary)} binary bytes for {count} numbers of {tensor['datatype']}")
        return np.frombuffer(binary, kind).reshape(shape)
    flat = _flatten(tensor.get("data"))
    if len(flat) != count or not all(type(number) in (int, float) for number in flat):
        raise InputError(f"data: {count} numbers are needed for the shape {shape}")
    if kind.lstrip("<")[0] in "iu" and not all(float(number).is_integer() for number in flat if type(number) is float):
        raise InputError(f"data: whole numbers are needed for {tensor['datatype']}")
    try:
        return np.array(flat, kind).reshape(shape)
    except OverflowError as error:
        raise InputError(f"data: numbers beyond {tensor['datatype']}") from error


def _read_texts(tensor: dict[str, Any], shape: list[int], binary: bytes | None) -> list[Any]:
    if tensor.get("datatype") != "BYTES" or math.prod(shape) != shape[0]:
        raise InputError("texts: one text per row is needed, of datatype BYTES")
    found = _flatten(tensor.get("data")) if "data" in tensor or binary is None else _split_texts(binary, shape[0])
    if len(found) != shape[0]:
        raise InputError(f"texts: {len(found)} for the shape {shape}")
    return found


def _split_texts(binary: bytes, limit: int) -> list[str]:
    """Cut binary texts apart, each preceded by its length; what is cut short or left over is refused, not guessed."""
    found: list[str] = []
    place = 0
    while place < len(binary) and len(found) <= limit:
        start = place + 4
        place = start + int.from_bytes(binary[place:start], "little")
        if start > len(binary) or place > len(binary):
            raise InputError(f"texts: text {len(found)} ends after the {len(binary)} binary bytes")
        try:
            found.append(binary[start:place].decode())
        except UnicodeDecodeError as error:
            raise InputError(f"texts: text {len(found)} is not UTF-8 (at byte {error.start})") from error
    return found


def _flatten(data: Any) -> list[Any]:
    """Lists within lists as one list; the protocol allows both."""
    flat, lists = [], [data if isinstance(data, list) else []]
    while lists:
        some = lists.pop()
        if some and all(isinstance(one, list) for one in some):
            lists += reversed(some)
        else:
            flat += some
    return flat


def _check_name(name: str) -> None:
    if name != MODEL:
        raise RequestError(404, f"there is one model here, called {MODEL}")
