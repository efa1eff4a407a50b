"""The web application around a `Service`: endpoints, middleware, and errors as one sentence of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from offmap import __version__
from offmap.errors import InputError, MissingError, OffmapError, StoreError
from offmap.service import endpoints, inference_protocol
from offmap.service.access import AccessMiddleware, error_response, find_open_paths
from offmap.service.request_errors import RequestError, to_sentence
from offmap.service.service import Service

_PARSERS = 2
_READERS = 4  # requests that read stored inputs at a time, until their answer is ready and counts as memory in use
_SENTENCES = {
    404: "there is nothing at this address; see /openapi.json",
    405: "this address does not take that method; see /openapi.json",
}


def create_app(service: Service, routers: Iterable[APIRouter] = (), close: bool = True) -> FastAPI:
    """Create the web application of a service.

    Parameters
    ----------
    service : Service
        What answers; the application keeps it as ``app.state.service``.
    routers : iterable of APIRouter, default=()
        Further endpoints, such as those of the triage page.
    close : bool, default=True
        Whether the service is closed with the application.

    Returns
    -------
    FastAPI
        To be served by any ASGI server.

    See Also
    --------
    offmap.service.serve : Serve it with time limits and signals.

    Examples
    --------
    >>> import offmap, tempfile, numpy as np
    >>> known = offmap.Activations(np.random.default_rng(0).random((100, 2)), head=offmap.Head(np.eye(2)))
    >>> guard = offmap.detector("energy").fit(known).calibrate(known)
    >>> from offmap.service import Deployment, Settings
    >>> with Service(Deployment(guard), Settings(store=tempfile.mkdtemp())) as service:
    ...     sorted(create_app(service).openapi()["paths"])[:4]
    ['/healthz', '/metrics', '/readyz', '/v1/guard']
    """
    service.settings.read_token()  # one that cannot be used is an error now, not at the first request

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ThreadPoolExecutor(_PARSERS, thread_name_prefix="offmap-parsing") as parsers:
            app.state.parsers = parsers
            app.state.readers = asyncio.Semaphore(_READERS)
            yield
        if close:
            await run_in_threadpool(service.close)

    app = FastAPI(
        title="offmap",
        version=__version__,
        description="Scores inputs by how well they are known, and stores those that are not.",
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from elsewhere; the document itself is at /openapi.json
        redoc_url=None,
    )
    app.state.service = service
    open_paths: frozenset[str] = frozenset()
    for router in (endpoints.router, inference_protocol.router, *routers):
        app.include_router(router)
        open_paths |= find_open_paths(router.routes)
    app.add_middleware(AccessMiddleware, settings=service.settings, metrics=service.metrics, open_paths=open_paths)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_parameter)
    app.add_exception_handler(OffmapError, _answer_offmap_error)
    app.add_exception_handler(ClientDisconnect, _answer_disconnect)
    app.add_exception_handler(MemoryError, _answer_out_of_memory)
    return app


async def _answer_offmap_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestError):
        return error_response(error)
    if isinstance(error, InputError | MissingError):
        return error_response(RequestError(422, to_sentence(error)))
    if isinstance(error, StoreError):
        return error_response(RequestError(503, "the unknown inputs cannot be read or written now; try again"))
    return error_response(RequestError(500, to_sentence(error)))


async def _answer_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase.lower()
    detail = str(error.detail) if error.detail and str(error.detail).lower() != phrase else ""
    answer = error_response(RequestError(error.status_code, detail or _SENTENCES.get(error.status_code, phrase)))
    answer.headers.update(error.headers or {})
    return answer


async def _answer_invalid_parameter(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return error_response(RequestError(422, f"{where}: {first['msg']}" if where else str(first["msg"])))


async def _answer_disconnect(_: Request, error: Exception) -> JSONResponse:
    del error  # nobody reads this answer, and it is no fault of the service
    return error_response(RequestError(400, "the client left before the request was complete"))


async def _answer_out_of_memory(_: Request, error: Exception) -> JSONResponse:
    del error
    return error_response(RequestError(503, "there is not enough memory for this request now; try again"))
