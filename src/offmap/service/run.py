"""Run the application: the socket, time limits below HTTP, signals, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from fastapi import APIRouter
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from offmap.errors import InputError, OffmapError
from offmap.service.app import create_app
from offmap.service.events import start_publisher
from offmap.service.loading import DeploymentFiles
from offmap.service.service import Service
from offmap.service.settings import Settings
from offmap.service.stores import is_url
from offmap.service.telemetry import start_telemetry

if TYPE_CHECKING:
    from offmap.service.triage.inputs import KnownData

_DRAIN_SECONDS = 0.2
_log = logging.getLogger(__name__)


class HttpProtocol(H11Protocol):
    """HTTP with time limits for headers and for reading answers, and protocol errors in JSON."""

    header_seconds = 10.0
    answer_seconds = 30.0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the time limit of the headers."""
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Stop the time limit once the headers are complete; the body has a limit of its own."""
        super().data_received(data)
        if self._busy:
            self._stop_header_timer()
        elif self._header_timer is None:
            self._expect_headers()

    def on_response_complete(self) -> None:
        """Leave the connection to uvicorn's limit for unused ones."""
        self._stop_header_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the time limit of a client that reads more slowly than the service writes."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop it: the client has caught up."""
        self._stop_write_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an unused connection; one whose last answer was never read cannot be closed gently."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer in JSON that this is not HTTP."""
        self._send_error(400, msg.rstrip(".").lower())

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_seconds, self._give_up)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if not self._busy and not self.transport.is_closing():
            self._send_error(408, f"no request arrived within {self.header_seconds:g} seconds")

    def _send_error(self, status: int, sentence: str) -> None:
        body = json.dumps({"error": sentence}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        try:
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # in the middle of an answer: another one cannot be sent
        self.transport.close()


def bind_socket(settings: Settings) -> socket.socket:
    """Bind a socket to the address and port of the settings.

    Parameters
    ----------
    settings : Settings
        Host and port; without a token only loopback, unless `no_auth` is set.

    Returns
    -------
    socket
        Bound, not yet listening.

    Raises
    ------
    InputError
        If the address cannot be bound, or others could connect without a token.

    Examples
    --------
    >>> with bind_socket(Settings(port=0)) as bound:
    ...     format_url(bound).rpartition(":")[0]
    'http://127.0.0.1'
    """
    settings.check_exposure()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # with the protocol named, asyncio sets TCP_NODELAY on accepted connections; else answers wait for acknowledgements
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except OSError as error:
        bound.close()
        raise InputError(f"{settings.host}:{settings.port}: cannot listen there ({error.strerror})") from error
    return bound


def format_url(bound: socket.socket) -> str:
    """Return the URL of a bound socket.

    Parameters
    ----------
    bound : socket
        From `bind_socket`.

    Returns
    -------
    str
        With the port that was assigned.

    Examples
    --------
    >>> with bind_socket(Settings(host="::1", port=0)) as bound:
    ...     format_url(bound).rpartition(":")[0]
    'http://[::1]'
    """
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_files(
    files: DeploymentFiles,
    settings: Settings,
    ready: Callable[[str], None],
    known: KnownData | None = None,
    learner: str = "auto",
    max_forgetting: float = 0.02,
) -> None:
    """Serve a deployment from files, with the triage page, until a signal stops it.

    Parameters
    ----------
    files : DeploymentFiles
        Read at the start and at every reload.
    settings : Settings
        Limits, the address and the store.
    ready : callable
        Called with one line that says what is served and where.
    known : KnownData or None, default=None
        Labelled inputs from which the triage page can learn new classes.
    learner : str, default="auto"
        How the page learns; see `offmap.openworld.learn_classes`.
    max_forgetting : float, default=0.02
        By how much the accuracy on known classes may fall.
    """
    from offmap.service.triage.routes import create_triage_router
    from offmap.service.triage.triage import Triage

    bound = bind_socket(settings)
    service = Service(files.load(), settings, files.load)
    triage = Triage(service, known, max_forgetting, learner, files)
    place = "PostgreSQL" if is_url(settings.store) else settings.store  # a URL may hold a password

    def announce(url: str) -> None:
        ready(f"{service.deployment.detector.chosen} on {url}, unknown inputs in {place}")

    serve(service, bound, announce, [create_triage_router(triage)])
    if triage.tasks.is_busy:  # in native code: the interpreter would be torn down under it, which aborts the process
        logging.shutdown()
        os._exit(0)


def serve(
    service: Service,
    bound: socket.socket,
    ready: Callable[[str], None] = lambda url: None,
    routers: Iterable[APIRouter] = (),
) -> None:
    """Serve until a signal stops it; SIGHUP reloads the deployment.

    Parameters
    ----------
    service : Service
        Closed at the end, after all accepted requests were answered.
    bound : socket
        From `bind_socket`.
    ready : callable, optional
        Called with the URL once requests are answered.
    routers : iterable of APIRouter, default=()
        Further endpoints; see `create_app`.
    """
    settings = service.settings
    limits = {"header_seconds": settings.header_seconds, "answer_seconds": settings.answer_seconds}
    protocol = type("LimitedProtocol", (HttpProtocol,), limits)
    trace, stop_telemetry = start_telemetry(service)
    config = uvicorn.Config(
        _announce(trace(create_app(service, routers)), lambda: ready(format_url(bound))),
        http=protocol,
        ws="none",
        loop="asyncio",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        backlog=1024,
    )
    server = _DrainingServer(config)
    stop_events = start_publisher(service)
    try:
        with _handle_signals(service, server):
            server.run(sockets=[bound])
    finally:
        stop_events()
        stop_telemetry()
        service.close()
        bound.close()


class _DrainingServer(uvicorn.Server):
    """A server that answers the requests which have reached the machine before it stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening without a reset of connections that wait to be accepted or read, then stop."""
        for bound in sockets or ():
            bound.listen(0)  # the kernel queues hardly any more connections, while those in the queue are accepted
        await asyncio.sleep(_DRAIN_SECONDS)
        last = [connection for bound in sockets or () for connection in _accept_waiting(bound)]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in last:
            await loop.connect_accepted_socket(self._create_protocol, connection)
        await asyncio.sleep(_DRAIN_SECONDS)  # their requests are read
        await super().shutdown(sockets)

    def _create_protocol(self) -> asyncio.Protocol:
        states = {"server_state": self.server_state, "app_state": self.lifespan.state}
        return self.config.http_protocol_class(config=self.config, **states)  # type: ignore[call-arg]


def _accept_waiting(bound: socket.socket) -> Iterator[socket.socket]:
    with suppress(BlockingIOError):
        while True:
            yield bound.accept()[0]


def _announce(app: ASGIApp, ready: Callable[[], None]) -> Any:
    """Wrap the application so that `ready` is called once it has started."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def send_and_call(message: Any) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                asyncio.get_running_loop().call_soon(ready)

        await app(scope, receive, send_and_call if scope["type"] == "lifespan" else send)

    return wrapped


@contextmanager
def _handle_signals(service: Service, server: uvicorn.Server) -> Iterator[None]:
    """Reload on SIGHUP, stop on SIGTERM and SIGINT, which uvicorn raises again after an orderly shutdown."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def reload() -> None:
        try:
            service.reload()
        except OffmapError as error:
            _log.error("the guard in service stays: %s", error)
        except Exception:
            _log.exception("the guard in service stays")

    def hangup(*_: object) -> None:
        threading.Thread(target=reload, name="offmap-reload", daemon=True).start()

    def stop(*_: object) -> None:
        server.should_exit = True

    handlers = {signal.SIGHUP: hangup, signal.SIGTERM: stop, signal.SIGINT: stop}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
