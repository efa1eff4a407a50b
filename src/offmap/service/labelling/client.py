"""The triage page's requests for labelling tools: typical inputs of each group out, names of groups in."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from offmap.errors import InputError, MissingError

DISCARD, OTHER = "(discard)", "(another name)"  # choices beside the classes
_MAX_ANSWER = 2**29


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the token in the headers would go along to wherever they lead."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True)
class LabelTask:
    """An unknown input to be labelled.

    Parameters
    ----------
    id : str
        Of the unknown input.
    group : int
        The group it is typical of, or doubtful in.
    suggestion : str
        The proposed name of the group.
    text : str or None
        The input, where it is a text.
    image : bytes or None
        The input, where it can be shown as a picture.
    content_type : str
        Of the picture.
    """

    id: str
    group: int
    suggestion: str
    text: str | None = None
    image: bytes | None = None
    content_type: str = ""

    @property
    def data_uri(self) -> str:
        """The picture as an address that holds it, for tools that show addresses."""
        return f"data:{self.content_type};base64,{base64.b64encode(self.image or b'').decode()}"


@dataclass(frozen=True)
class LabelOutcome:
    """The changes that labels have made to the groups of a proposal.

    Parameters
    ----------
    named, known : dict of int to str
        Groups that were named, and those that turned out to be a known class.
    discarded, disputed, unlabelled : list of int
        Groups that were discarded, on which labels disagree, and without labels; the last two are left as they are.
    """

    named: dict[int, str] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)
    discarded: list[int] = field(default_factory=list)
    disputed: list[int] = field(default_factory=list)
    unlabelled: list[int] = field(default_factory=list)


class TriageClient:
    """A running service whose groups are labelled elsewhere.

    Parameters
    ----------
    url : str
        Of ``offmap serve``, such as ``"http://127.0.0.1:8000"``.
    token : str or None, default=None
        Its token, where it has one.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def read_board(self) -> dict[str, Any]:
        """Return the proposal on the page, with its groups and known classes.

        Raises
        ------
        MissingError
            If nothing is grouped yet.
        """
        board = self._ask("/v1/triage")[0]["board"]
        if board is None:
            raise MissingError("there are no groups yet; group the unknown inputs on the triage page first")
        return dict(board)

    def list_choices(self) -> list[str]:
        """Return what a label can be: a known class, a proposed name, to discard, or another name."""
        board = self.read_board()
        names = [one["name"] for one in board["classes"]] + [one["suggestion"] for one in board["groups"]]
        return [*dict.fromkeys(map(str, names)), DISCARD, OTHER]

    def make_tasks(self, per_group: int = 10) -> list[LabelTask]:
        """Return the inputs of each group that are to be labelled: the most typical ones, then doubtful ones."""
        tasks = []
        for group in self.read_board()["groups"]:
            for id in list(dict.fromkeys([*group["exemplars"], *group["doubtful"]]))[:per_group]:
                shown, kind = self._ask(f"/v1/triage/items/{id}")
                what = {"image": shown, "content_type": kind} if isinstance(shown, bytes) else {"text": shown["text"]}
                tasks.append(LabelTask(id, group["id"], str(group["suggestion"]), **what))
        return tasks

    def apply_labels(self, labels: Mapping[str, str], agreement: float = 2 / 3) -> LabelOutcome:
        """Name, assign or discard the groups of the page as the labels of their inputs say; then ``learn`` can begin.

        Parameters
        ----------
        labels : mapping of str to str
            A label per id of `make_tasks`; inputs without one may be missing.
        agreement : float, default=2/3
            The share of a group's labels that must be the same for the group to be changed.

        Returns
        -------
        LabelOutcome
            What was done. Groups with one name in common are merged.

        Raises
        ------
        InputError
            If the service refuses, as when someone else edits the groups meanwhile: what they did stays, and the edits
            before it; look at the page, then apply the labels again.
        """
        if not 0.5 < agreement <= 1:
            raise InputError(f"agreement={agreement}: a share above one half and at most 1 is needed")
        board, done = self.read_board(), LabelOutcome()
        classes = {str(one["name"]): one["id"] for one in board["classes"]}
        by_name: dict[str, list[int]] = {}
        for group in board["groups"]:
            number, ids = group["id"], {*group["exemplars"], *group["doubtful"]}
            votes = Counter(labels[id].strip() for id in ids if labels.get(id, "").strip())
            name, count = votes.most_common(1)[0] if votes else ("", 0)
            if not votes:
                done.unlabelled.append(number)
            elif count < agreement * votes.total():
                done.disputed.append(number)
            elif name == DISCARD:
                self._act(board, "discard", group=number)
                done.discarded.append(number)
            elif name in classes:
                self._act(board, "known", group=number, **{"class": classes[name]})
                done.known[number] = name
            else:
                by_name.setdefault(name, []).append(number)
                done.named[number] = name
        for name, groups in by_name.items():
            if len(groups) > 1:
                self._act(board, "merge", groups=groups)
            self._act(board, "name", group=min(groups), name=name)  # the smallest number stays
        return done

    def learn(self) -> None:
        """Have the named groups learned, in the background, as the button on the page does."""
        board = self.read_board()
        self._ask("/v1/triage/learn", {"board": board["number"], "revision": board["revision"]})

    def _act(self, board: dict[str, Any], action: str, **details: Any) -> None:
        """Edit the groups as they were when they were read, or as the last edit left them."""
        seen = {"board": board["number"], "revision": board["revision"]}
        board["revision"] = self._ask("/v1/triage/act", {**seen, "action": action, **details})[0]["board"]["revision"]

    def _ask(self, path: str, body: Any = None) -> tuple[Any, str]:
        return ask(self.url + path, self._headers, body)


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn an answer of another form than the tool documents into an `InputError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{url}: its answer has another form than is known here ({error!r:.100})") from error


def ask(url: str, headers: Mapping[str, str], body: Any = None, method: str | None = None) -> tuple[Any, str]:
    """Send a request and return the answer, parsed where it is JSON, with its type; a redirect is refused.

    Raises
    ------
    InputError
        If the service refuses, or cannot be reached; the sentence has its own words.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with _OPENER.open(request, timeout=60) as answer:
            content, kind = answer.read(_MAX_ANSWER + 1), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        with error:
            raise InputError(f"{url}: answered {error.code}: {error.read(300).decode(errors='replace')}") from error
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}: cannot be reached ({error})") from error
    if len(content) > _MAX_ANSWER:
        raise InputError(f"{url}: answered more than {_MAX_ANSWER:,} bytes")
    if kind != "application/json":
        return content, kind
    try:
        return json.loads(content) if content else None, kind
    except (ValueError, RecursionError) as error:
        raise InputError(f"{url}: answered what is not JSON") from error
