"""What every request passes first: who may come in, how often, with how much, and how long it may take.

Plain ASGI around the application, so that it holds for every route that is ever added.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offmap.service.monitoring import ServiceMetrics
from offmap.service.request_errors import RequestError
from offmap.service.settings import Settings

_ADDRESSES = 10_000
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_OPEN = frozenset({"/healthz", "/readyz"})


class TokenBucket:
    """So many requests per second and address, twice as many at once.

    Parameters
    ----------
    rate
        Requests per second.
    clock
        Seconds that only grow.

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
        """0 when the request may come in, else how many seconds to wait."""
        now = self._clock()
        left, then = self._left.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._left[address] = (left - 1 if wait == 0 else left, now)
        if len(self._left) > _ADDRESSES:
            self._left.popitem(last=False)
        return wait


class AccessMiddleware:
    """Middleware: names, token, rate, size, time; and the count of all answers.

    Parameters
    ----------
    app
        What is behind it.
    settings
        The limits.
    watch
        Where answers are counted.
    public
        Paths that need no token: a page without data. ``/healthz`` and ``/readyz`` never need one.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, watch: ServiceMetrics, public: frozenset[str] = frozenset()
    ) -> None:
        self._app, self._settings, self._watch = app, settings, watch
        self._open = _OPEN | public
        secret = settings.secret()
        self._digest = None if secret is None else hashlib.sha256(secret.encode()).digest()
        rate = settings.requests_per_second
        self._bucket = None if rate is None else TokenBucket(rate)
        self._running = 0
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(self._settings, receive, send)
        began = time.perf_counter()
        self._running += 1
        self._watch.running.set(self._running)
        try:
            answer = self._refusal(scope, visit)
            if answer is None:
                self._held += visit.expected
                try:
                    await self._app(scope, visit.receive, visit.send)
                finally:
                    self._held -= visit.expected
            else:
                await answer(scope, visit.receive, visit.send)
        except Exception:
            visit.status = 500
            raise
        finally:
            self._running -= 1
            self._watch.running.set(self._running)
            # the route's template, as every path a stranger can think of would make a series of its own
            route = getattr(scope.get("route"), "path", "other")
            self._watch.requests.labels(route, str(visit.status)).inc()
            self._watch.seconds.labels(route).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope, visit: _Visit) -> JSONResponse | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check_names(headers)
            self._check_rate(scope)  # before the token, so that tokens are not guessed quickly either
            if scope["path"] not in self._open:
                self._check_token(headers)
            visit.check_size(headers)
            if self._running > self._settings.max_requests or self._held + visit.expected > self._settings.max_memory:
                raise RequestError(503, "too many requests at a time; come back in a moment")
        except RequestError as refused:
            return refusal(refused)
        return None

    def _check_names(self, headers: dict[str, str]) -> None:
        """Keep pages of other sites from talking to the service through a visitor's browser."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise RequestError(403, f"requests from pages of {origin[:100]} are not taken")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        # browsers always name a host; a probe that does not is none
        if host and self._digest is None and self._settings.is_loopback and name not in _LOCAL_NAMES:
            raise RequestError(403, f"host {host[:100]!r}: without a token only this machine's own names are answered")

    def _check_token(self, headers: dict[str, str]) -> None:
        if self._digest is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # digests have one length, so that the comparison tells nothing about the token
        shown = hashlib.sha256(token.strip().encode("latin-1")).digest()
        if not (hmac.compare_digest(shown, self._digest) and scheme.lower() == "bearer"):
            raise RequestError(401, "a token is needed: send the header Authorization: Bearer …")

    def _check_rate(self, scope: Scope) -> None:
        if self._bucket is None or scope["path"] in _OPEN:
            return
        address = scope["client"][0] if scope.get("client") else ""
        wait = self._bucket.take(address)
        if wait > 0:
            raise RequestError(429, f"more than {self._bucket.rate:g} requests per second; come back in {wait:.1f} s")


class _Visit:
    """One request's messages, measured and timed."""

    def __init__(self, settings: Settings, receive: Receive, send: Send) -> None:
        self._settings, self._receive, self._send = settings, receive, send
        self._deadline = time.monotonic() + settings.body_seconds
        self._read = 0
        self._ended = False
        self.expected = 0  # bytes of the body, as far as the head tells
        self.status = 0

    def check_size(self, headers: dict[str, str]) -> None:
        length = headers.get("content-length")
        chunked = "transfer-encoding" in headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(415, "content-encoding: compressed bodies are not taken; send the body as it is")
        # a body of unknown length may be as long as any
        self.expected = self._settings.max_body if chunked else int(length or 0)
        if self.expected > self._settings.max_body:
            raise RequestError(413, self._too_long())

    async def receive(self) -> Message:
        if self._ended:
            return await self._receive()  # waits for the client to leave
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
        else:
            self._ended = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status == 408:  # of any other refused body the server skips the rest, so that the answer is read
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await self._send(message)

    def _too_long(self) -> str:
        return f"the body has more than {self._settings.max_body} bytes; send it in parts"


def refusal(error: RequestError) -> JSONResponse:
    """The answer that says so.

    Examples
    --------
    >>> refusal(RequestError(404, "there is no such item")).body
    b'{"error":"there is no such item"}'
    """
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (429, 503):
        headers["retry-after"] = "1"
    return JSONResponse({"error": str(error)}, error.status, headers)
