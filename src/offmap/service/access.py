"""Middleware for every request: host and origin, token, rate, size and time limits, and the count of answers.

It is plain ASGI around the application, so that it holds for every endpoint that is ever added.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offmap.service.memory import MemoryBudget, Reservation
from offmap.service.monitoring import ServiceMetrics
from offmap.service.request_errors import RequestError
from offmap.service.settings import Settings

_MAX_ADDRESSES = 10_000
_PIECE = 2**16  # bytes of an answer that are handed to the connection at a time
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_PROBES = frozenset({"/healthz", "/readyz"})
_SAFE_HEADERS = (  # browsers neither guess types nor show or read answers in pages of other sites
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
RESERVATION = "offmap.reservation"  # the key of a request's `Reservation` in its ASGI scope
_log = logging.getLogger(__name__)
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def allow_without_token(endpoint: _Endpoint) -> _Endpoint:
    """Mark an endpoint that answers without a token, such as a page that holds no data.

    Parameters
    ----------
    endpoint : callable
        The function of a route.

    Returns
    -------
    callable
        The same function.
    """
    endpoint.needs_token = False  # type: ignore[attr-defined]
    return endpoint


def find_open_paths(routes: Iterable[Any]) -> frozenset[str]:
    """Find the paths of endpoints marked with `allow_without_token`.

    Parameters
    ----------
    routes : iterable of Route
        Of a router.

    Returns
    -------
    frozenset of str
        Their paths.
    """
    return frozenset(route.path for route in routes if not getattr(route.endpoint, "needs_token", True))


class TokenBucket:
    """Limit the requests per second of each address; twice as many may come at once.

    Parameters
    ----------
    rate : float
        Requests per second.
    clock : callable, default=time.monotonic
        Returns seconds that only grow.

    Examples
    --------
    >>> bucket = TokenBucket(1.0, clock=lambda: 0.0)
    >>> [bucket.take("a") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, max(1.0, 2 * rate)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Take one request; return 0 when it is allowed, else the seconds to wait."""
        now = self._clock()
        left, then = self._left.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._left[address] = (left - 1 if wait == 0 else left, now)
        if len(self._left) > _MAX_ADDRESSES:
            self._left.popitem(last=False)
        return wait


class AccessMiddleware:
    """ASGI middleware that accepts or rejects requests and counts all answers.

    Parameters
    ----------
    app : ASGIApp
        The application.
    settings : Settings
        Limits and the token.
    metrics : ServiceMetrics
        Where answers are counted.
    open_paths : frozenset of str, default=frozenset()
        Paths that need no token.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: ServiceMetrics, open_paths: frozenset[str] = frozenset()
    ) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._open_paths = open_paths
        token = settings.read_token()
        self._digest = None if token is None else hashlib.sha256(token.encode()).digest()
        rate = settings.requests_per_second
        self._bucket = None if rate is None else TokenBucket(rate)
        self._running = 0
        self._memory = MemoryBudget(settings.max_memory)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reservation = scope[RESERVATION] = self._memory.open_reservation()
        exchange = _Exchange(self._settings, reservation, receive, send)
        began = time.perf_counter()
        self._running += 1
        self._metrics.running.set(self._running)
        try:
            rejection = self._reject(scope, exchange)
            await (rejection or self._app)(scope, exchange.receive, exchange.send)
        except Exception:
            _log.exception("a request failed")
            await exchange.fail()
        finally:
            reservation.release()
            self._running -= 1
            self._metrics.running.set(self._running)
            # the template of the route, as a label per path would let clients create any number of series
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(exchange.status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)

    def _reject(self, scope: Scope, exchange: _Exchange) -> JSONResponse | None:
        """Return the answer to a request that is not accepted; `None` when it is."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check_site(headers)
            self._check_rate(scope)  # before the token, so that guessing tokens is limited too
            if scope["path"] not in self._open_paths:
                self._check_token(headers)
            exchange.check_size(headers)
            if self._running > self._settings.max_requests:
                raise RequestError(503, "too many requests at a time; come back in a moment")
        except RequestError as error:
            return error_response(error)
        return None

    def _check_site(self, headers: dict[str, str]) -> None:
        """Reject requests that pages of other sites make through a visitor's browser."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and _parse_host(origin) != host:
            raise RequestError(403, f"requests from pages of {origin[:100]!r} are not taken")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        # browsers always name a host; a probe without one is no browser
        if host and self._digest is None and self._settings.is_loopback and name not in _LOCAL_NAMES:
            raise RequestError(403, f"host {host[:100]!r}: without a token only this machine's own names are answered")

    def _check_token(self, headers: dict[str, str]) -> None:
        if self._digest is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # digests have one length, so that the time of the comparison reveals nothing about the token
        given = hashlib.sha256(token.strip().encode("latin-1")).digest()
        if not (hmac.compare_digest(given, self._digest) and scheme.lower() == "bearer"):
            raise RequestError(401, "a token is needed: send the header Authorization: Bearer …")

    def _check_rate(self, scope: Scope) -> None:
        if self._bucket is None or scope["path"] in _PROBES:
            return
        address = scope["client"][0] if scope.get("client") else ""
        wait = self._bucket.take(address)
        if wait > 0:
            raise RequestError(429, f"more than {self._bucket.rate:g} requests per second; come back in {wait:.1f} s")


def _parse_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as "http://["
        return None


class _Exchange:
    """The messages of one request and its answer, with limits on size and time.

    Bytes are reserved as they arrive, not as declared: a client that sends nothing takes no memory from others.
    A long answer is reserved too, and handed over in pieces, as a client may be slow to read it.
    """

    def __init__(self, settings: Settings, reservation: Reservation, receive: Receive, send: Send) -> None:
        self._settings, self._reservation, self._receive, self._send = settings, reservation, receive, send
        self._deadline = time.monotonic() + settings.body_seconds
        self._read = 0
        self._ended = False
        self._start: Message | None = None  # of an answer whose body is not there yet
        self._begun = False
        self.status = 0

    def check_size(self, headers: dict[str, str]) -> None:
        """Check the size of the body as declared by the headers."""
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(415, "content-encoding: compressed bodies are not taken; send the body as it is")
        if int(headers.get("content-length") or 0) > self._settings.max_body:
            raise RequestError(413, self._too_long())

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()  # waits for the client to disconnect
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, f"the body did not arrive within {self._settings.body_seconds:g} seconds") from None
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._ended = not message.get("more_body", False)
            if self._read > self._settings.max_body:
                raise RequestError(413, self._too_long())
            self._reservation.reserve(len(message.get("body", b"")))
        else:
            self._ended = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            present = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in _SAFE_HEADERS if name not in present]
            if self.status == 408:  # the rest of any other rejected body is skipped, so that the answer is read
                headers.append((b"connection", b"close"))
            message["headers"] = headers
            self._start = message
            return
        body = memoryview(message.get("body", b""))
        if self._start is not None:
            start, self._start = self._start, None
            if len(body) > _PIECE:
                try:
                    self._reservation.reserve(len(body))
                except RequestError as error:
                    await error_response(RequestError(503, str(error)))({"type": "http"}, self.receive, self.send)
                    return
            self._begun = True
            await self._send(start)
        for first in range(0, len(body), _PIECE):  # each waits until the client has read most of those before
            more = first + _PIECE < len(body) or message.get("more_body", False)
            await self._send({**message, "body": bytes(body[first : first + _PIECE]), "more_body": more})
        if not body:
            await self._send(message)

    async def fail(self) -> None:
        """Answer that the service failed; where an answer has begun, the connection is cut instead."""
        if self._begun:
            self.status = 500
            raise ConnectionAbortedError("an answer was cut off")
        self._start = None
        answer = error_response(RequestError(500, "the service failed on this request; its log says why"))
        await answer({"type": "http"}, self.receive, self.send)

    def _too_long(self) -> str:
        return f"the body has more than {self._settings.max_body} bytes; send it in parts"


def error_response(error: RequestError) -> JSONResponse:
    """Make the answer to a request that is not accepted.

    Parameters
    ----------
    error : RequestError
        Status and sentence.

    Returns
    -------
    JSONResponse
        With ``{"error": sentence}``.

    Examples
    --------
    >>> error_response(RequestError(404, "there is no such item")).body
    b'{"error":"there is no such item"}'
    """
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (429, 503):
        headers["retry-after"] = "1"
    return JSONResponse({"error": str(error)}, error.status, headers)
