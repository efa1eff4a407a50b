"""The triage page at ``/`` and its JSON endpoints under ``/v1/triage``.

To add an endpoint of the page, add a function to `create_triage_router`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from offmap.service.access import allow_without_token
from offmap.service.endpoints import FAILURES, find_unknown
from offmap.service.request_errors import RequestError
from offmap.service.requests import TEXT
from offmap.service.triage.inputs import make_thumbnail
from offmap.service.triage.open_proposal import OutdatedError
from offmap.service.triage.triage import Triage

MAX_BODY = 100_000
MAX_SHOWN = 2000  # characters of a text on the page
_STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/triage.css": ("triage.css", "text/css; charset=utf-8"),
    "/triage.js": ("triage.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def create_triage_router(triage: Triage) -> APIRouter:
    """Create the routes of the triage page.

    Parameters
    ----------
    triage : Triage
        What the page shows and does.

    Returns
    -------
    APIRouter
        For `offmap.service.create_app`.
    """
    router = APIRouter(responses=FAILURES)

    @allow_without_token  # the page holds no data
    async def static(request: Request) -> Response:
        name, kind = _STATIC[request.url.path]
        content = (files("offmap.service.triage") / "static" / name).read_bytes()
        return Response(content, media_type=kind, headers=_HEADERS)

    for path in _STATIC:
        router.add_api_route(path, static, include_in_schema=False)

    @router.get("/v1/triage", summary="Groups, edits, versions and the task in the background.")
    async def view() -> Response:
        return JSONResponse(await run_in_threadpool(triage.view))

    @router.get("/v1/triage/items/{id}", summary="An unknown input as the page shows it.")
    async def item(request: Request, id: str) -> Response:
        async with request.app.state.readers:
            found = await run_in_threadpool(find_unknown, triage.service, id)
            image = await run_in_threadpool(make_thumbnail, found)
        if image is not None:
            return Response(image[0], media_type=image[1], headers={"cache-control": "private, max-age=86400"})
        text = found.reference
        if found.content_type == TEXT and found.content is not None:
            text = found.content.decode()[:MAX_SHOWN]
        return JSONResponse({"text": text, "score": found.score, "time": found.time})

    @router.post("/v1/triage/group", summary="Group the unknown inputs again, in the background.")
    async def group(request: Request) -> Response:
        await _read_numbers(request)
        return await _run(triage, triage.group)

    @router.post("/v1/triage/act", summary="Name, merge, split or discard groups, or assign one to a known class.")
    async def edit(request: Request) -> Response:
        body = await _read_body(request)
        number, action = _pop_number(body, "board"), body.pop("action", None)
        revision = _pop_number(body, "revision") if "revision" in body else None
        if not isinstance(action, str):
            raise RequestError(422, "action: name, merge, split, discard or known is needed")
        return await _run(triage, triage.apply_edit, number, action, body, revision)

    @router.post("/v1/triage/undo", summary="Undo the last edit.")
    async def undo(request: Request) -> Response:
        return await _run(triage, triage.undo, *await _read_numbers(request, "board", optional="revision"))

    @router.post("/v1/triage/learn", summary="Learn the named groups, in the background.")
    async def learn(request: Request) -> Response:
        return await _run(triage, triage.learn, *await _read_numbers(request, "board", optional="revision"))

    @router.post("/v1/triage/deploy", summary="Put a learned version in service.")
    async def deploy(request: Request) -> Response:
        return await _run(triage, triage.deploy, *await _read_numbers(request, "version"))

    @router.post("/v1/triage/rollback", summary="Put the previous version back in service.")
    async def rollback(request: Request) -> Response:
        await _read_numbers(request)
        return await _run(triage, triage.rollback)

    return router


async def _read_body(request: Request) -> dict[str, Any]:
    """Read a JSON object; a form of another site cannot send one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "content-type: application/json is needed")
    content = await request.body()
    if len(content) > MAX_BODY:
        raise RequestError(413, f"the body has more than {MAX_BODY} bytes")
    try:
        body = json.loads(content, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise RequestError(422, "the body is not a JSON object")
    return body


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def _read_numbers(request: Request, *names: str, optional: str = "") -> list[int]:
    """Read a JSON object that holds these numbers, perhaps an optional one, and nothing else."""
    body = await _read_body(request)
    numbers = [_pop_number(body, name) for name in (*names, *([optional] if optional in body else []))]
    if body:
        raise RequestError(422, f"{next(iter(body))[:40]!r} is not known; give {', '.join(names) or 'an empty object'}")
    return numbers


def _pop_number(body: dict[str, Any], name: str) -> int:
    value = body.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(422, f"{name}: a number is needed")
    return value


async def _run(triage: Triage, work: Any, *args: Any) -> Response:
    """Do the work and answer the new state; also where the client's state was outdated."""
    try:
        await run_in_threadpool(work, *args)
    except OutdatedError as error:
        return JSONResponse({"error": str(error), "view": await run_in_threadpool(triage.view)}, error.status)
    return JSONResponse(await run_in_threadpool(triage.view))
