"""Running the application: the socket, time limits below HTTP, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from fastapi import APIRouter, FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from offmap.errors import InputError, OffmapError
from offmap.service.app import create_app
from offmap.service.service import Service
from offmap.service.settings import Settings

_log = logging.getLogger(__name__)


class Protocol(H11Protocol):
    """HTTP that waits for ever neither for a request's head nor for an answer to be read, and refuses in JSON."""

    header_seconds = 10.0
    answer_seconds = 30.0
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the clock."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Stop the clock once a head is complete; the body has a clock of its own."""
        super().data_received(data)
        if self._busy:
            self._stop_clock()
        elif self._late is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        """Between requests uvicorn's own clock for unused connections runs."""
        self._stop_clock()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write: it has so long to catch up, or is cut off."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._caught_up()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an unused connection; one whose last answer was never read cannot be closed gently."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_clock()
        self._caught_up()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say in JSON that this is not HTTP."""
        self._refuse(400, msg.rstrip(".").lower())

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(self.header_seconds, self._give_up)

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _caught_up(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._late = None
        if not self._busy and not self.transport.is_closing():
            self._refuse(408, f"no request arrived within {self.header_seconds:g} seconds")

    def _refuse(self, status: int, sentence: str) -> None:
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
            pass  # in the middle of an answer: nothing more can be said
        self.transport.close()


def bind(settings: Settings) -> socket.socket:
    """A socket on the address and port of the settings, after checking that it may be opened.

    Examples
    --------
    >>> with bind(Settings(port=0)) as bound:
    ...     address(bound).rpartition(":")[0]
    'http://127.0.0.1'
    """
    settings.check_exposure()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        raise InputError(f"{settings.host}:{settings.port}: cannot listen there ({error.strerror})") from error
    return made


def address(bound: socket.socket) -> str:
    """The URL at which a socket is reached.

    Examples
    --------
    >>> with bind(Settings(host="::1", port=0)) as bound:
    ...     address(bound).rpartition(":")[0]
    'http://[::1]'
    """
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    service: Service,
    bound: socket.socket,
    ready: Callable[[str], None] = lambda url: None,
    routers: Iterable[APIRouter] = (),
    public: Iterable[str] = (),
) -> None:
    """Answer requests until a signal ends it; SIGHUP reads the guard anew.

    Parameters
    ----------
    service
        Closed at the end, after all accepted requests were answered.
    bound
        From `bind`.
    ready
        Called with the URL once requests are answered.
    routers, public
        See `create_app`.
    """
    settings = service.settings
    limits = {"header_seconds": settings.header_seconds, "answer_seconds": settings.answer_seconds}
    protocol = type("LimitedProtocol", (Protocol,), limits)
    config = uvicorn.Config(
        _announcing(create_app(service, routers, public), lambda: ready(address(bound))),
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
    server = uvicorn.Server(config)
    try:
        with _signals(service, server):
            server.run(sockets=[bound])
    finally:
        service.close()
        bound.close()


def _announcing(app: FastAPI, ready: Callable[[], None]) -> Any:
    """The application, which says that it is ready when it is."""

    async def announced(scope: Any, receive: Any, send: Any) -> None:
        async def told(message: Any) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                asyncio.get_running_loop().call_soon(ready)

        await app(scope, receive, told if scope["type"] == "lifespan" else send)

    return announced


@contextmanager
def _signals(service: Service, server: uvicorn.Server) -> Iterator[None]:
    """SIGHUP reads the guard anew; SIGTERM and SIGINT, which uvicorn raises again after an orderly end, are no news."""
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
