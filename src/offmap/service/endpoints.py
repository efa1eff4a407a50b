"""The HTTP endpoints of the service: each with the schema of its answer, all on one router.

To add an endpoint, add a function here; the documents, the metrics and the middleware follow from the router.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from offmap.detection.verdicts import limit_value
from offmap.errors import InputError, OffmapError
from offmap.openworld.deployment import RowKind
from offmap.service.access import RESERVATION, allow_without_token
from offmap.service.parsing import parse_request
from offmap.service.request_errors import RequestError, hide_folders, to_sentence
from offmap.service.service import Service
from offmap.service.unknown_inputs import ID_LENGTH, STATUSES, UnknownInput

MAX_PAGE = 10_000
_SMALL_BODY = 2**16  # parsed at once rather than on another thread


class Failure(BaseModel):
    """Why a request was not accepted."""

    error: str = Field(description="One sentence.")


FAILURES: dict[int | str, dict[str, Any]] = {"4XX": {"model": Failure}, "5XX": {"model": Failure}}
router = APIRouter(responses=FAILURES)


class NearestText(BaseModel):
    """A known text that an input is like."""

    text: str
    class_: str | int | None = Field(alias="class")
    similarity: float = Field(description="The cosine of their embeddings.")


class ScoredInput(BaseModel):
    """The verdict on one input."""

    id: str = Field(description="Identifies the input; an unknown one is stored under this id.")
    score: float = Field(description="How well the input is known; higher = known.")
    p_value: float = Field(description="Conformal p-value: small when the input is unlike the known ones.")
    known: bool
    class_: str | int | None = Field(
        alias="class",
        description="The nearest known class: its name where names are known, else its index; null without a head.",
    )
    nearest: list[NearestText] | None = Field(
        default=None, description="Of texts, where the guard holds known ones: those that it is most like."
    )


class Scored(BaseModel):
    """One result per row, in order."""

    results: list[ScoredInput]


_BINARY = {"schema": {"type": "string", "format": "binary"}}
_SCORE_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "One of features, inputs, images and texts.",
                "properties": {
                    "features": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    "inputs": {"type": "array", "items": {"type": "array"}, "description": "What the network reads."},
                    "images": {"type": "array", "items": {"type": "string", "format": "byte"}},
                    "texts": {"type": "array", "items": {"type": "string"}},
                    "references": {"type": "array", "items": {"type": "string", "maxLength": 1024}},
                },
            },
            "example": {"features": [[0.1, 0.2], [0.3, 0.4]], "references": ["a.png", "b.png"]},
        },
        **dict.fromkeys(("application/x-npy", "image/png", "image/jpeg", "image/webp", "image/bmp"), _BINARY),
    },
}


@router.post(
    "/v1/score",
    summary="Score inputs; unknown ones are stored when this answers.",
    openapi_extra={"requestBody": _SCORE_BODY},
    responses={200: {"model": Scored}},
)
async def score(
    request: Request,
    kind: Annotated[str | None, Query(description="Of a .npy body: features or inputs.")] = None,
) -> Response:
    """Parse the body, score its rows and answer one result per row."""
    service: Service = request.app.state.service
    arguments = _check_kind(kind, service), service.settings, request.scope[RESERVATION].reserve
    content_type = request.headers.get("content-type", "").lower()
    body = await request.body()
    if len(body) <= _SMALL_BODY and content_type.startswith(("application/json", "application/x-npy")):
        parsed = parse_request(body, content_type, *arguments)
    else:
        executor, loop = request.app.state.parsers, asyncio.get_running_loop()
        parsed = await loop.run_in_executor(executor, parse_request, body, content_type, *arguments)
    return JSONResponse({"results": await asyncio.wrap_future(service.submit(parsed))})


class UnknownItem(BaseModel):
    """An unknown input."""

    id: str
    time: float = Field(description="When it was scored, in seconds since 1970.")
    score: float
    p_value: float
    class_: str | int | None = Field(alias="class")
    guard: str = Field(description="The version of the guard that scored it.")
    status: str = Field(description="open, resolved or discarded.")
    reference: str | None = Field(description="The client's name for it.")
    content_type: str | None = Field(description="The type of the stored input; null when only features were sent.")


class UnknownPage(BaseModel):
    """A page of unknown inputs, oldest first."""

    items: list[UnknownItem]
    next: str | None = Field(description="Pass as `after` for the next page; null at the end.")


@router.get("/v1/unknowns", summary="Unknown inputs, oldest first.", responses={200: {"model": UnknownPage}})
async def list_unknowns(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    after: Annotated[str | None, Query(description="`next` of the previous page, or the id of an item.")] = None,
    status: Annotated[str | None, Query(description="Only items that are open, resolved or discarded.")] = None,
) -> Response:
    """Answer a page of unknown inputs."""
    service: Service = request.app.state.service
    if status is not None and status not in STATUSES:
        raise InputError(f"status={status[:40]}: choose one of {', '.join(STATUSES)}")
    async with request.app.state.readers:
        position = await run_in_threadpool(_find_position, service, after)
        page = await run_in_threadpool(service.unknowns.read_page, limit, position, status)
        following = None if page.next is None else str(page.next)
        return JSONResponse({"items": [_describe_unknown(item) for item in page.items], "next": following})


class UnknownItemDetail(UnknownItem):
    """An unknown input with its features and content."""

    features: list[float] | None
    content: str | None = Field(description="The stored input in base64.")


@router.get("/v1/unknowns/{id}", summary="One unknown input.", responses={200: {"model": UnknownItemDetail}})
async def get_unknown(request: Request, id: str) -> Response:
    """Answer one unknown input with its features and content."""
    async with request.app.state.readers:
        item = await run_in_threadpool(find_unknown, request.app.state.service, id)
        # a network may give features beyond its numbers, which JSON does not have
        features = None if item.features is None else [limit_value(value) for value in item.features.tolist()]
        content = None if item.content is None else base64.b64encode(item.content).decode()
        return JSONResponse(_describe_unknown(item) | {"features": features, "content": content})


class Guard(BaseModel):
    """The guard in service."""

    detector: str
    version: str
    since: float
    tpr: float = Field(description="The share of known inputs that is accepted.")
    confidence: float | None = Field(description="With which that holds for this calibration; null: on average.")
    threshold: float | None = Field(
        description="The score from which an input is known; null when calibrated by class or with weights."
    )
    thresholds: dict[str, float] | None = Field(description="The same for each class, when calibrated by class.")
    calibrated_on: int
    classes: int | None
    class_names: list[str] | None
    features: int | None = Field(description="Features per row, when the guard knows.")
    takes_inputs: bool = Field(description="Whether a network is there to run inputs.")
    takes_texts: bool = Field(description="Whether a text encoder is there.")


@router.get("/v1/guard", summary="The guard in service.", responses={200: {"model": Guard}})
async def describe_guard(request: Request) -> Response:
    """Answer a description of the deployment in service."""
    service: Service = request.app.state.service
    return JSONResponse(service.describe())


class Reloaded(BaseModel):
    """The guard now in service."""

    version: str


@router.post("/v1/guard/reload", summary="Read the guard's file again.", responses={200: {"model": Reloaded}})
async def reload_guard(request: Request) -> Response:
    """Reload the deployment from its files; the old one stays when that fails."""
    service: Service = request.app.state.service
    try:
        version = await run_in_threadpool(service.reload)
    except RequestError:
        raise
    except OffmapError as error:
        raise RequestError(
            409, f"the guard in service stays, as the new one cannot be used: {hide_folders(to_sentence(error))}"
        ) from error
    return JSONResponse({"version": version})


@router.get("/v1/stats", summary="Share of unknown inputs, scores and drift since this guard is in service.")
async def summarize_stats(request: Request) -> Response:
    """Answer the main figures in JSON."""
    service: Service = request.app.state.service
    return JSONResponse(await run_in_threadpool(service.summarize))


class Status(BaseModel):
    """The state of the process."""

    status: str


@router.get("/healthz", summary="Whether the process lives.", responses={200: {"model": Status}})
@allow_without_token
async def check_health() -> Response:
    """Answer that the process lives."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", summary="Whether requests can be answered.", responses={200: {"model": Status}})
@allow_without_token
async def check_readiness(request: Request) -> Response:
    """Answer whether requests can be answered."""
    service: Service = request.app.state.service
    reason = service.readiness_error()
    if reason is not None:
        raise RequestError(503, reason)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", summary="Metrics for Prometheus.", response_class=Response)
async def render_metrics(request: Request) -> Response:
    """Answer the metrics in the text format of Prometheus."""
    service: Service = request.app.state.service
    text = await run_in_threadpool(service.render_metrics)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def find_unknown(service: Service, id: str) -> UnknownInput:
    """Return a stored unknown input, or raise a 404.

    Parameters
    ----------
    service : Service
        Whose store is read.
    id : str
        From a client.

    Returns
    -------
    UnknownInput
        With features and content.
    """
    is_id = len(id) == ID_LENGTH and id.isascii() and id.isalnum()  # a database may refuse other characters
    found = service.unknowns.get([id]) if is_id else []
    if not found:
        raise RequestError(404, "there is no such unknown input; it may have been dropped")
    return found[0]


def _describe_unknown(item: UnknownInput) -> dict[str, Any]:
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


def _check_kind(given: str | None, service: Service) -> RowKind:
    if given is None:
        return "features" if service.deployment.network is None else "inputs"
    if given == "features":
        return "features"
    if given == "inputs":
        return "inputs"
    raise InputError(f"kind={given[:40]}: choose features or inputs")


def _find_position(service: Service, after: str | None) -> int:
    if after is None:
        return 0
    if len(after) == ID_LENGTH:
        position = service.unknowns.find_position(after)
        if position is None:
            raise InputError("after: there is no such unknown input; continue with next, which stays valid")
        return position
    if not (after.isascii() and after.isdigit() and len(after) <= 18):
        raise InputError("after: pass the value of next, or the id of an item")
    return int(after)
