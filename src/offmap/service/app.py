"""The web application around a `Service`: routes, errors, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from offmap import __version__
from offmap.errors import InputError, MissingError, OffmapError, StoreError
from offmap.service import schemas
from offmap.service.access import AccessMiddleware, refusal
from offmap.service.deployed import Kind
from offmap.service.parsing import parse_body
from offmap.service.request_errors import RequestError, one_sentence
from offmap.service.service import Service
from offmap.service.unknowns import ID_LENGTH, STATUSES, Unknown

MAX_PAGE = 10_000
_SMALL_BODY = 2**16  # read at once rather than on another thread
_READERS = 2

router = APIRouter(prefix="/v1", responses={"4XX": {"model": schemas.Failure}, "5XX": {"model": schemas.Failure}})


def create_app(
    service: Service, routers: Iterable[APIRouter] = (), public: Iterable[str] = (), close: bool = True
) -> FastAPI:
    """The application that answers for a service; ``app.state.service`` is the service.

    Parameters
    ----------
    service
        What is served.
    routers
        Further routes, such as those of the triage page.
    public
        Paths that need no token, for pages that hold no data.
    close
        Whether the service ends with the application.

    Examples
    --------
    >>> import offmap, tempfile, numpy as np
    >>> known = offmap.Activations(np.random.default_rng(0).random((100, 2)), head=offmap.Head(np.eye(2)))
    >>> guard = offmap.detector("energy").fit(known).calibrate(known)
    >>> from offmap.service import Settings
    >>> with Service(guard, settings=Settings(store=tempfile.mkdtemp())) as service:
    ...     sorted(create_app(service).openapi()["paths"])[:4]
    ['/healthz', '/metrics', '/readyz', '/v1/guard']
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="offmap-reading") as readers:
            app.state.readers = readers
            yield
        if close:
            await run_in_threadpool(service.close)

    app = FastAPI(
        title="offmap",
        version=__version__,
        description="Scores inputs by how well they are known, and keeps those that are not.",
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from elsewhere; the document itself is at /openapi.json
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(AccessMiddleware, settings=service.settings, watch=service.watch, public=frozenset(public))
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(OffmapError, _on_offmap_error)
    app.add_exception_handler(ClientDisconnect, _on_leaving)
    app.add_exception_handler(Exception, _on_bug)
    app.include_router(router)
    _add_probes(app)
    for other in routers:
        app.include_router(other)
    return app


@router.post(
    "/score",
    summary="Score inputs; unknown ones are on the pile when this answers.",
    openapi_extra={"requestBody": schemas.SCORE_BODY},
    responses={200: {"model": schemas.Scored}},
)
async def _score(
    request: Request,
    kind: Annotated[str | None, Query(description="Of a .npy body: features or inputs.")] = None,
) -> Response:
    service: Service = request.app.state.service
    chosen = _kind(kind, service)
    content_type = request.headers.get("content-type", "").lower()
    body = await request.body()
    if len(body) <= _SMALL_BODY and content_type.startswith(("application/json", "application/x-npy")):
        parsed = parse_body(body, content_type, chosen, service.settings)
    else:
        loop = asyncio.get_running_loop()
        parsed = await loop.run_in_executor(
            request.app.state.readers, parse_body, body, content_type, chosen, service.settings
        )
    future = service.submit(parsed.kind, parsed.rows, parsed.contents, parsed.content_type, parsed.references)
    return JSONResponse({"results": await asyncio.wrap_future(future)})


@router.get("/unknowns", summary="The pile, oldest first.", responses={200: {"model": schemas.Unknowns}})
async def _unknowns(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    after: Annotated[str | None, Query(description="`next` of the page before, or the id of an item.")] = None,
    status: Annotated[str | None, Query(description="Only items that are open, resolved or discarded.")] = None,
) -> Response:
    service: Service = request.app.state.service
    if status is not None and status not in STATUSES:
        raise InputError(f"status={status[:40]}: choose one of {', '.join(STATUSES)}")
    place = await run_in_threadpool(_place, service, after)
    page = await run_in_threadpool(service.pile.page, limit, place, status)
    following = None if page.next is None else str(page.next)
    return JSONResponse({"items": [described(item) for item in page.items], "next": following})


@router.get("/unknowns/{id}", summary="One unknown input, whole.", responses={200: {"model": schemas.WholeUnknown}})
async def _unknown(request: Request, id: str) -> Response:
    service: Service = request.app.state.service
    found = await run_in_threadpool(service.pile.get, [id])
    if not found:
        raise RequestError(404, "there is no such item on the pile; it may have been dropped")
    item = found[0]
    features = None if item.features is None else item.features.tolist()
    content = None if item.content is None else base64.b64encode(item.content).decode()
    return JSONResponse(described(item) | {"features": features, "content": content})


@router.get("/guard", summary="The guard in service.", responses={200: {"model": schemas.Guard}})
async def _guard(request: Request) -> Response:
    service: Service = request.app.state.service
    return JSONResponse(service.deployed.describe())


@router.post("/guard/reload", summary="Read the guard's file anew.", responses={200: {"model": schemas.Reloaded}})
async def _reload(request: Request) -> Response:
    service: Service = request.app.state.service
    try:
        version = await run_in_threadpool(service.reload)
    except RequestError:
        raise
    except OffmapError as error:
        raise RequestError(
            409, f"the guard in service stays, as the new one cannot be used: {one_sentence(error)}"
        ) from error
    return JSONResponse({"version": version})


@router.get("/stats", summary="Share of unknown inputs, scores and drift since this guard is in service.")
async def _stats(request: Request) -> Response:
    service: Service = request.app.state.service
    pile = await run_in_threadpool(service.pile.counts)
    return JSONResponse(service.watch.summary() | {"pile": pile})


def described(item: Unknown) -> dict[str, Any]:
    """An item as the pile's pages show it, without features and content."""
    return {
        "id": item.id,
        "time": item.time,
        "score": item.score,
        "p_value": item.p_value,
        "class": item.predicted,
        "guard": item.guard,
        "status": item.status,
        "reference": item.reference,
        "content_type": item.content_type,
    }


def _add_probes(app: FastAPI) -> None:
    @app.get("/healthz", summary="Whether the process lives.", responses={200: {"model": schemas.Status}})
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", summary="Whether requests can be answered.", responses={200: {"model": schemas.Status}})
    async def readyz(request: Request) -> Response:
        reason = request.app.state.service.unready()
        if reason is not None:
            raise RequestError(503, reason)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", summary="Metrics for Prometheus.", response_class=Response)
    async def metrics(request: Request) -> Response:
        text = await run_in_threadpool(request.app.state.service.metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _kind(given: str | None, service: Service) -> Kind:
    if given is None:
        return "features" if service.network is None else "inputs"
    if given == "features":
        return "features"
    if given == "inputs":
        return "inputs"
    raise InputError(f"kind={given[:40]}: choose features or inputs")


def _place(service: Service, after: str | None) -> int:
    if after is None:
        return 0
    if len(after) == ID_LENGTH:
        place = service.pile.place(after)
        if place is None:
            raise InputError("after: there is no such item on the pile; go on with next, which stays good")
        return place
    if not (after.isascii() and after.isdigit() and len(after) <= 18):
        raise InputError("after: pass what next said, or the id of an item")
    return int(after)


async def _on_offmap_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestError):
        return refusal(error)
    if isinstance(error, InputError | MissingError):
        return refusal(RequestError(422, one_sentence(error)))
    if isinstance(error, StoreError):
        return refusal(RequestError(503, "the pile cannot be read or written now; try again"))
    return refusal(RequestError(500, one_sentence(error)))


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "there is nothing at this address; see /openapi.json",
        405: "this address does not take that method; see /openapi.json",
    }
    phrase = HTTPStatus(error.status_code).phrase.lower()
    detail = str(error.detail) if error.detail and str(error.detail).lower() != phrase else ""
    answer = refusal(RequestError(error.status_code, detail or sentences.get(error.status_code, phrase)))
    answer.headers.update(error.headers or {})
    return answer


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return refusal(RequestError(422, f"{where}: {first['msg']}" if where else str(first["msg"])))


async def _on_leaving(_: Request, error: Exception) -> JSONResponse:
    del error  # nobody is there to read this, and it is no fault of the service
    return refusal(RequestError(400, "the client left before the request was complete"))


async def _on_bug(_: Request, error: Exception) -> JSONResponse:
    del error  # the server logs it; strangers need not see it
    return refusal(RequestError(500, "the service failed on this request; its log says why"))
