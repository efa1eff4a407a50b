"""What the triage page's journal holds: lines, learned versions and intents, and how their texts are read.

A record whose text cannot be used, of a damaged file or an earlier version of offmap, is `None` here; the journal sets
it aside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


def parse_details(text: str) -> dict[str, Any] | None:
    """Parse the details of a line; `None` when they cannot be sent to a browser again."""
    details = parse_json(text)
    return details if isinstance(details, dict) else None


def parse_json(text: str) -> Any:
    """Parse a text of the journal; `None` when it is no JSON, or none that can be sent to a browser again."""

    def reject(constant: str) -> None:
        raise ValueError(constant)

    try:
        value = json.loads(text, parse_constant=reject)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # fails on lone surrogates and on 1e999
    except (ValueError, TypeError, RecursionError):
        return None
    return value


def parse_ids(text: str) -> list[str] | None:
    """Parse a list of ids of unknown inputs; `None` when it is none."""
    ids = parse_json(text)
    return ids if isinstance(ids, list) and all(isinstance(one, str) for one in ids) else None


@dataclass(frozen=True)
class Entry:
    """One line of the journal.

    Parameters
    ----------
    id : int
        Its number from 1.
    time : float
        In seconds since 1970.
    proposal : int or None
        The proposal it belongs to.
    action : str
        What was done.
    details : dict
        With what.
    undone : bool
        Whether it was undone.
    """

    id: int
    time: float
    proposal: int | None
    action: str
    details: dict[str, Any]
    undone: bool

    def to_json(self) -> dict[str, Any]:
        """Return the line as the page shows it."""
        return {
            "id": self.id,
            "time": self.time,
            "action": self.action,
            "details": self.details,
            "undone": self.undone,
        }


@dataclass(frozen=True)
class Version:
    """A learned version.

    Parameters
    ----------
    id : int
        Its number from 1.
    time : float
        When it was learned, in seconds since 1970.
    parent : int
        The version that was in service then; 0 is what the service was started with.
    base : str
        The version of the deployment that the service was started with.
    proposal : int
        The groups it was learned from.
    outcome : dict
        From `offmap.openworld.Round.to_json`.
    learned, discarded : list of str
        Ids of unknown inputs that are resolved or discarded once it is in service.
    """

    id: int
    time: float
    parent: int
    base: str
    proposal: int
    outcome: dict[str, Any]
    learned: list[str]
    discarded: list[str]

    @staticmethod
    def parse(row: tuple[Any, ...]) -> Version | None:
        """Make a version of its row in the journal; `None` when that cannot be used."""
        number, time, parent, base, proposal, *texts = row
        outcome, learned, discarded = parse_details(texts[0]), parse_ids(texts[1]), parse_ids(texts[2])
        if outcome is None or learned is None or discarded is None:
            return None
        if not isinstance(outcome.get("accepted"), bool) or not isinstance(outcome.get("reason"), str):
            return None
        if not isinstance(parent, int) or not parent < number:  # else there would be no first one
            return None
        return Version(number, time, parent, base, proposal, outcome, learned, discarded)


@dataclass(frozen=True)
class Intent:
    """A deployment or rollback that has begun.

    It changes the journal and the store of unknown inputs, which have no common transaction. So it is recorded first,
    and after a crash it is finished.

    Parameters
    ----------
    action : {"deploy", "rollback"}
        What is done.
    version : int
        The version that is put in service or taken out of it.
    """

    action: str
    version: int

    @staticmethod
    def parse(text: str) -> Intent | None:
        """Make an intent of its text in the journal; `None` when that cannot be used."""
        match parse_json(text):
            case ["deploy" | "rollback" as action, int(version)]:
                return Intent(action, version)
        return None
