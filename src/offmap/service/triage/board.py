"""The groups people work on: a discovery over the pile, and the edits of the journal applied to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap import store
from offmap.discovery import Discovery
from offmap.errors import InputError, StoreError
from offmap.openworld import LabeledInputs, LearningState
from offmap.service.triage.journal import Entry, Journal

MAX_NAME = 80
MAX_PARTS = 10
SHOWN = 12
_ROWS = "rows.offmap"


@dataclass(frozen=True)
class Board:
    """A proposal with its edits.

    Parameters
    ----------
    number
        Of the proposal.
    ids
        Of the inputs on the pile, in the order of the discovery's last rows.
    found
        The groups as they are now.
    first
        How many of the discovery's rows are labelled ones, which come before those of the pile.
    named
        Groups that a person has given a name.
    called
        Rows of the pile that a person has called known, each with the class. A discovery puts inputs into known
        classes too, but only where a person said so are they taken for it.
    """

    number: int
    ids: list[str]
    found: Discovery
    first: int
    named: frozenset[int] = frozenset()
    called: tuple[tuple[int, int], ...] = ()

    @property
    def n_known(self) -> int:
        """How many classes were known."""
        return len(self.found.known_ids)

    def after(self, action: str, details: dict[str, Any]) -> Board:
        """The board after one more edit; refused with a sentence when it makes no sense."""
        found, named, called = self.found, self.named, self.called
        if action == "name":
            group = self._novel(details.get("group"))
            name = self._free_name(details.get("name"), group)
            found, named = found.rename({group: name}), named | {group}
        elif action == "merge":
            groups = details.get("groups")
            if not isinstance(groups, list) or len(groups) < 2:
                raise InputError("merge: name two groups or more")
            chosen = [self._novel(group) for group in groups]
            names = [found.names[group] for group in chosen if group in named]
            found = found.merge(chosen)
            named = named - set(chosen)
            if names:
                found, named = found.rename({min(chosen): names[0]}), named | {min(chosen)}
        elif action == "split":
            parts = details.get("parts", 2)
            if not isinstance(parts, int) or isinstance(parts, bool) or not 2 <= parts <= MAX_PARTS:
                raise InputError(f"split: 2 to {MAX_PARTS} parts are possible")
            found = found.split(self._novel(details.get("group")), parts)
        elif action == "discard":
            group = self._novel(details.get("group"))
            found, named = found.discard(group), named - {group}
        elif action == "known":
            group, into = self._novel(details.get("group")), details.get("class")
            if isinstance(into, bool) or not isinstance(into, int) or into not in found.known_ids:
                raise InputError(f"known: class {str(into)[:40]} is not one of the {self.n_known} known classes")
            rows = np.flatnonzero(self.labels() == group).tolist()
            called += tuple((row, into) for row in rows)
            found, named = found.merge([group, into]), named - {group}
        else:
            raise InputError(f"action {str(action)[:40]!r}: choose name, merge, split, discard or known")
        return replace(self, found=found, named=named, called=called)

    def labels(self) -> Any:
        """The class of each input of the pile, -1 for none."""
        return self.found.labels[self.first :]

    def to_json(self) -> dict[str, Any]:
        """Groups as the page shows them, the largest first."""
        labels, confidence = self.labels(), self.found.confidence[self.first :]
        names = self.found.names
        groups: list[dict[str, Any]] = []
        familiar: list[dict[str, Any]] = []
        for info in self.found.classes:
            rows = np.flatnonzero(labels == info.id)
            if not len(rows):
                continue
            if info.known:
                familiar.append({"id": info.id, "name": info.name, "size": len(rows)})
                continue
            groups.append(
                {
                    "id": info.id,
                    "name": info.name if info.id in self.named else None,
                    "suggestion": info.name,
                    "size": len(rows),
                    "confidence": float(confidence[rows].mean()),
                    "nearest": [names[near] for near in info.nearest_known],
                    "exemplars": self._items(info.exemplars),
                    "doubtful": self._items(info.boundary),
                }
            )
        groups.sort(key=lambda group: -group["size"])
        return {
            "number": self.number,
            "inputs": len(self.ids),
            "groups": groups,
            "known": familiar,
            "discarded": int((labels < 0).sum()),
            "classes": [{"id": int(one), "name": names[int(one)]} for one in self.found.known_ids],
        }

    def chosen(self, pile: LabeledInputs, state: LearningState) -> tuple[LabeledInputs, dict[int, str]]:
        """The pile with classes to learn: named groups as new ones, and what was called known; the others are -1."""
        labels = self.labels()
        out = np.full(len(labels), -1, np.int64)
        for row, into in self.called:
            out[row] = into
        names: dict[int, str] = {}
        for place, group in enumerate(sorted(self.named)):
            number = len(state.known.class_names) + place
            out[labels == group] = number
            names[number] = self.found.names[group]
        return LabeledInputs(pile.features, out, pile.inputs), names

    def discarded(self) -> list[str]:
        """Ids of inputs in groups that were discarded."""
        return [self.ids[row] for row in np.flatnonzero(self.labels() < 0)]

    def _items(self, rows: tuple[int, ...]) -> list[str]:
        return [self.ids[row - self.first] for row in rows if row >= self.first][:SHOWN]

    def _novel(self, group: Any) -> int:
        there = {info.id for info in self.found.classes if not info.known and info.size}
        if isinstance(group, bool) or not isinstance(group, int) or group not in there:
            raise InputError(f"group {str(group)[:40]}: there is no such group any more; look at the page again")
        return group

    def _free_name(self, name: Any, group: int) -> str:
        if not isinstance(name, str) or not name.strip() or len(name.strip()) > MAX_NAME or not name.isprintable():
            raise InputError(f"a name is a text of 1 to {MAX_NAME} characters")
        wanted = name.strip()
        for info in self.found.classes:
            if info.name == wanted and info.id != group and (info.known or info.id in self.named):
                kind = "a known class" if info.known else "another group"
                raise InputError(f"{wanted!r} is the name of {kind}; merge with it instead, or choose another name")
        return wanted


def save_board(folder: Path, found: Discovery) -> None:
    """Keep a proposal as it was made, before any edit."""
    folder.mkdir(parents=True, exist_ok=True)
    assert found.rows is not None
    store.save(folder / _ROWS, "rows", {}, {"rows": found.rows})
    found.save(folder / "discovery.offmap")


def load_board(folder: Path, number: int, ids: list[str], journal: Journal) -> Board:
    """A proposal with the edits that hold."""
    rows = store.load(folder / _ROWS, "rows").tensors["rows"]
    found = Discovery.load(folder / "discovery.offmap", rows)
    if len(found) < len(ids):
        raise StoreError(f"{folder}: holds {len(found)} rows for {len(ids)} inputs")
    board = Board(number, ids, found, len(found) - len(ids))
    return replayed(board, journal.edits(number))


def replayed(board: Board, edits: list[Entry]) -> Board:
    """The board after these edits."""
    for edit in edits:
        board = board.after(edit.action, edit.details)
    return board
