"""Names for groups of texts, proposed by a language model behind HTTP; used only where a setting names one."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from offmap.discovery import Discovery
from offmap.service.settings import Settings
from offmap.service.triage.proposal import MAX_NAME

SHOWN = 8  # texts of a group that the model sees
MAX_TEXT = 500  # characters of each
MAX_GROUPS = 50
_MAX_ANSWER = 2**20
_log = logging.getLogger(__name__)

PROMPT = (
    "These messages belong to one group. Answer with a name for the group of at most five words, in the language of "
    "the messages, and nothing else.\n\n"
)


def name_by_model(found: Discovery, texts: Sequence[str], settings: Settings) -> Discovery:
    """Rename the novel groups of a discovery as a language model proposes; a group keeps its name where that fails.

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
    for info in found.novel[:MAX_GROUPS]:
        shown = [texts[row - first][:MAX_TEXT] for row in info.exemplars if row >= first][:SHOWN]
        try:
            name = _ask(shown, settings)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            _log.warning("no name from the language model, the keywords stay: %s", type(error).__name__)
            if isinstance(error, OSError):
                return found  # it does not answer: do not wait for each group
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
    request = urllib.request.Request(str(settings.naming_url), json.dumps(body).encode(), headers)
    if request.type not in ("http", "https"):
        raise urllib.error.URLError(f"{request.type} is not HTTP")
    with urllib.request.urlopen(request, timeout=settings.naming_seconds) as answer:
        said: Any = json.loads(answer.read(_MAX_ANSWER))
    text = str(said["choices"][0]["message"]["content"]).strip().strip("\"'.").splitlines()[0]
    return "".join(letter for letter in text if letter.isprintable()).strip()[:MAX_NAME]
