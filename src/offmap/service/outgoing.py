"""Requests that the service itself makes: to one address of the settings, without redirects, within time and size."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

MAX_ANSWER = 2**20
_PASSWORD = re.compile(r"://[^/\s]*@")  # to the last @ of the host: a password may hold one


def check_address(url: str) -> str:
    """Return an address of HTTP; one that holds a name or a password is refused, as addresses are shown in messages.

    Parameters
    ----------
    url : str
        Such as ``"http://host:port/path"``.

    Returns
    -------
    str
        The same.

    Raises
    ------
    ValueError
        If it is anything else.

    Examples
    --------
    >>> check_address("http://collector:4318")
    'http://collector:4318'
    """
    where = urlsplit(url)
    if where.scheme not in ("http", "https") or not where.hostname or where.username is not None:
        raise ValueError("an address that begins with http:// or https://, such as http://host:port/path, is needed")
    where.port  # noqa: B018 - raises ValueError when it is no port
    return url


def hide_passwords(sentence: str) -> str:
    """Leave out names and passwords of addresses.

    Parameters
    ----------
    sentence : str
        Any message.

    Returns
    -------
    str
        With the addresses only.

    Examples
    --------
    >>> hide_passwords("http://me:secret@host/: it is gone")
    'http://…@host/: it is gone'
    >>> hide_passwords("http://me:se@cret@host/")
    'http://…@host/'
    """
    return _PASSWORD.sub("://…@", sentence)


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """Post to an address; whatever the other side does, it takes no longer than `seconds` once it is connected.

    A redirect is an answer like any other: following it would take the body and a token elsewhere, and turn the request
    into one that asks for a page.

    Parameters
    ----------
    url : str
        From the settings, never from a client.
    body : bytes
        What is sent.
    headers : mapping of str to str
        With the type of the body, and perhaps a token.
    seconds : float
        For the connection, and again for all that follows.

    Returns
    -------
    status : int
        Of the answer.
    content : bytes
        Of the answer, at most 1 MiB.

    Raises
    ------
    OSError
        If there is no answer in time, or one that is not HTTP.
    """
    where = urlsplit(url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=seconds)
    timer: threading.Timer | None = None
    try:
        connection.connect()
        # a timeout of the socket begins anew with every byte
        timer = threading.Timer(seconds, _shut, [connection.sock])
        timer.start()
        path = f"{where.path or '/'}?{where.query}" if where.query else where.path or "/"
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER)
    except http.client.HTTPException as error:
        raise ConnectionError(f"no answer in HTTP ({type(error).__name__})") from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _shut(opened: socket.socket) -> None:
    with suppress(OSError):  # closed by itself just now
        opened.shutdown(socket.SHUT_RDWR)
