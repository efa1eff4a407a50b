"""Names for groups of texts, proposed by a language model behind HTTP; used only where a setting names one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from offmap.discovery import Discovery
from offmap.service.outgoing import post
from offmap.service.settings import Settings
from offmap.service.triage.proposal import MAX_NAME

SHOWN = 8  # texts of a group that the model sees
MAX_TEXT = 500  # characters of each
MAX_GROUPS = 50
MAX_SECONDS = 120.0  # for the names of all groups
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
        except OSError as error:
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
    status, answer = post(str(settings.naming_url), json.dumps(body).encode(), headers, settings.naming_seconds)
    if status != HTTPStatus.OK:
        raise ConnectionError(f"status {status}")
    said: Any = json.loads(answer)
    text = str(said["choices"][0]["message"]["content"]).strip().strip("\"'.").splitlines()[0]
    return "".join(letter for letter in text if letter.isprintable()).strip()[:MAX_NAME]
