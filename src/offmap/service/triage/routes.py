"""The page at ``/`` and its JSON interface under ``/v1/triage``."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from offmap.service import schemas
from offmap.service.request_errors import RequestError
from offmap.service.triage.inputs import thumbnail
from offmap.service.triage.triage import Triage

PUBLIC = ("/", "/triage.css", "/triage.js")  # they hold no data, so they need no token
MAX_BODY = 100_000
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


def triage_router(triage: Triage) -> APIRouter:
    """The routes of a page over a service's pile."""
    router = APIRouter(responses={"4XX": {"model": schemas.Failure}, "5XX": {"model": schemas.Failure}})

    async def static(request: Request) -> Response:
        name, kind = _STATIC[request.url.path]
        content = (files("offmap.service.triage") / "static" / name).read_bytes()
        return Response(content, media_type=kind, headers=_HEADERS)

    for path in _STATIC:
        router.add_api_route(path, static, include_in_schema=False)

    @router.get("/v1/triage", summary="Groups, edits, versions and what goes on.")
    async def view() -> Response:
        return JSONResponse(await run_in_threadpool(triage.view))

    @router.get("/v1/triage/items/{id}", summary="An input of the pile as the page shows it.")
    async def item(id: str) -> Response:
        found = await run_in_threadpool(triage.service.pile.get, [id])
        if not found:
            raise RequestError(404, "there is no such item on the pile; it may have been dropped")
        picture = await run_in_threadpool(thumbnail, found[0])
        if picture is not None:
            return Response(picture[0], media_type=picture[1], headers={"cache-control": "private, max-age=86400"})
        return JSONResponse({"text": found[0].reference, "score": found[0].score, "time": found[0].time})

    @router.post("/v1/triage/group", summary="Group the pile anew, in the background.")
    async def group(request: Request) -> Response:
        await _body(request)
        return await _done(triage, triage.group)

    @router.post("/v1/triage/act", summary="Name, merge, split or discard groups, or say which class one is.")
    async def act(request: Request) -> Response:
        body = await _body(request)
        board, action = _number(body, "board"), body.pop("action", None)
        if not isinstance(action, str):
            raise RequestError(422, "action: name, merge, split, discard or known is needed")
        return await _done(triage, triage.act, board, action, body)

    @router.post("/v1/triage/undo", summary="Take the last edit back.")
    async def undo(request: Request) -> Response:
        return await _done(triage, triage.undo, _number(await _body(request), "board"))

    @router.post("/v1/triage/learn", summary="Learn the named groups, in the background.")
    async def learn(request: Request) -> Response:
        return await _done(triage, triage.learn, _number(await _body(request), "board"))

    @router.post("/v1/triage/deploy", summary="Put a learned version in service.")
    async def deploy(request: Request) -> Response:
        return await _done(triage, triage.deploy, _number(await _body(request), "version"))

    @router.post("/v1/triage/rollback", summary="Put back what was in service before.")
    async def rollback(request: Request) -> Response:
        await _body(request)
        return await _done(triage, triage.rollback)

    return router


async def _body(request: Request) -> dict[str, Any]:
    """A JSON object; a form of another site cannot send one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "content-type: application/json is needed")
    content = await request.body()
    if len(content) > MAX_BODY:
        raise RequestError(413, f"the body has more than {MAX_BODY} bytes")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise RequestError(422, "the body is not a JSON object")
    return body


def _number(body: dict[str, Any], name: str) -> int:
    value = body.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(422, f"{name}: a number is needed")
    return value


async def _done(triage: Triage, work: Any, *args: Any) -> Response:
    await run_in_threadpool(work, *args)
    return JSONResponse(await run_in_threadpool(triage.view))
