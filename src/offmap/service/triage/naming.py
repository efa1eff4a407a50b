"""Names for groups of texts, proposed by a language model behind HTTP; used only where a setting names one."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from offmap.discovery import Discovery
from offmap.service.settings import Settings
from offmap.service.triage.proposal import MAX_NAME

SHOWN = 8  # texts of a group that the model sees
MAX_TEXT = 500  # characters of each
MAX_GROUPS = 50
MAX_SECONDS = 120.0  # for the names of all groups
_MAX_ANSWER = 2**20
_log = logging.getLogger(__name__)

PROMPT = (
    "These messages belong to one group. Answer with a name for the group of at most five words, in the language of "
    "the messages, and nothing else.\n\n"
)


def name_by_model(found: Discovery, texts: Sequence[str], settings: Settings) -> Discovery:
    """Rename the novel groups of a discovery as a language model proposes; a group keeps its name where that fails.

    Only the address that the settings name is asked: a redirect is not followed, as it would take texts and the token
    elsewhere.

    Parameters
    ----------
    found : Discovery
        The last rows of it are those of the texts.
    texts : sequence of str
        The unknown texts; some of each group are sent to the service that `settings` names.
    settings : Settings
        The address, the model and the token of the service.

    Returns
    -------
    Discovery
        The same without a service.
    """
    if settings.naming_url is None:
        return found
    first = len(found) - len(texts)
    taken = {info.name for info in found.classes}
    end = time.monotonic() + MAX_SECONDS
    for info in found.novel[:MAX_GROUPS]:
        if time.monotonic() > end:
            _log.warning("the language model is slow, so the other groups keep their keywords")
            break
        shown = [texts[row - first][:MAX_TEXT] for row in info.exemplars if row >= first][:SHOWN]
        try:
            name = _ask(shown, settings)
        except (OSError, http.client.HTTPException) as error:
            _log.warning("no name from the language model, the keywords stay: %s %s", type(error).__name__, error)
            return found  # it does not answer: do not wait for each group
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            _log.warning("no name from the language model, the keywords stay: %s", type(error).__name__)
            continue
        if name and name not in taken:
            taken.add(name)
            found = found.rename({info.id: name})
    return found


def _ask(texts: Sequence[str], settings: Settings) -> str:
    """Ask the service for a name; the answer is cut to what a name may be."""
    content = PROMPT + "\n".join(f"- {json.dumps(text, ensure_ascii=False)}" for text in texts)
    body = {
        "model": settings.naming_model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 30,
    }
    headers = {"content-type": "application/json"}
    if settings.naming_token is not None:
        headers["authorization"] = f"Bearer {settings.naming_token.get_secret_value()}"
    said: Any = json.loads(_post(str(settings.naming_url), json.dumps(body).encode(), headers, settings.naming_seconds))
    text = str(said["choices"][0]["message"]["content"]).strip().strip("\"'.").splitlines()[0]
    return "".join(letter for letter in text if letter.isprintable()).strip()[:MAX_NAME]


def _shut(opened: socket.socket) -> None:
    with suppress(OSError):  # closed by itself just now
        opened.shutdown(socket.SHUT_RDWR)


def _post(url: str, body: bytes, headers: dict[str, str], seconds: float) -> bytes:
    """Return the answer to a request; whatever the other side does, it takes no longer than `seconds`."""
    where = urlsplit(url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=seconds)
    connection.connect()
    opened = connection.sock
    # a timeout of the socket begins anew with every byte
    timer = threading.Timer(seconds, _shut, [opened])
    timer.start()
    try:
        path = f"{where.path or '/'}?{where.query}" if where.query else where.path or "/"
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise ConnectionError(f"status {answer.status}")
        return answer.read(_MAX_ANSWER)
    finally:
        timer.cancel()
        connection.close()
