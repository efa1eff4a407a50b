"""Proposed groups of unknown inputs: a discovery, and the edits of the journal applied to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap import store
from offmap.discovery import Discovery
from offmap.errors import InputError, StoreError
from offmap.openworld import LabeledInputs
from offmap.service.triage.journal import Journal
from offmap.service.triage.records import Entry

MAX_NAME = 80
MAX_PARTS = 10
SHOWN = 12
_ROWS = "rows.offmap"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proposal:
    """Proposed groups with the edits that people made.

    Parameters
    ----------
    number : int
        Of the proposal in the journal.
    ids : list of str
        The unknown inputs, in the order of the last rows of the discovery.
    found : Discovery
        The groups as they are now.
    first : int
        The number of labelled rows in the discovery, which come before those of the unknown inputs.
    named : frozenset of int, default=frozenset()
        Groups that a person has named.
    assigned : tuple of (row, class), default=()
        Unknown inputs that a person has assigned to known classes. A discovery puts inputs into known classes too, but
        only those that a person assigned are learned as such.
    """

    number: int
    ids: list[str]
    found: Discovery
    first: int
    named: frozenset[int] = frozenset()
    assigned: tuple[tuple[int, int], ...] = ()

    @property
    def n_known(self) -> int:
        """The number of known classes."""
        return len(self.found.known_ids)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The group or class of each unknown input, -1 for none."""
        return self.found.labels[self.first :]

    def apply_edit(self, action: str, details: dict[str, Any]) -> Proposal:
        """Apply one edit.

        Parameters
        ----------
        action : {"name", "merge", "split", "discard", "known"}
            What to do.
        details : dict
            ``group`` (or ``groups`` to merge), and ``name``, ``parts`` or ``class``.

        Returns
        -------
        Proposal
            The edited groups.

        Raises
        ------
        InputError
            If the edit does not fit the groups.
        """
        edits = {
            "name": (self._name, {"group", "name"}),
            "merge": (self._merge, {"groups"}),
            "split": (self._split, {"group", "parts"}),
            "discard": (self._discard, {"group"}),
            "known": (self._assign, {"group", "class"}),
        }
        if action not in edits:
            raise InputError(f"action {str(action)[:40]!r}: choose one of {', '.join(edits)}")
        apply, allowed = edits[action]
        unknown = sorted(details.keys() - allowed)
        if unknown:
            raise InputError(f"{action}: {unknown[0][:40]!r} is not known; give {' and '.join(sorted(allowed))}")
        return apply(details)

    def _name(self, details: dict[str, Any]) -> Proposal:
        group = self._check_group(details.get("group"))
        name = self._check_name(details.get("name"), group)
        return replace(self, found=self.found.rename({group: name}), named=self.named | {group})

    def _merge(self, details: dict[str, Any]) -> Proposal:
        groups = details.get("groups")
        if not isinstance(groups, list) or len(groups) < 2:
            raise InputError("merge: name two groups or more")
        chosen = [self._check_group(group) for group in groups]
        names = [self.found.names[group] for group in chosen if group in self.named]
        found, named = self.found.merge(chosen), self.named - set(chosen)
        if names:
            found, named = found.rename({min(chosen): names[0]}), named | {min(chosen)}
        return replace(self, found=found, named=named)

    def _split(self, details: dict[str, Any]) -> Proposal:
        parts = details.get("parts", 2)
        if not isinstance(parts, int) or isinstance(parts, bool) or not 2 <= parts <= MAX_PARTS:
            raise InputError(f"split: 2 to {MAX_PARTS} parts are possible")
        return replace(self, found=self.found.split(self._check_group(details.get("group")), parts))

    def _discard(self, details: dict[str, Any]) -> Proposal:
        group = self._check_group(details.get("group"))
        return replace(self, found=self.found.discard(group), named=self.named - {group})

    def _assign(self, details: dict[str, Any]) -> Proposal:
        group, into = self._check_group(details.get("group")), details.get("class")
        if isinstance(into, bool) or not isinstance(into, int) or into not in self.found.known_ids:
            raise InputError(f"known: class {str(into)[:40]} is not one of the {self.n_known} known classes")
        rows = np.flatnonzero(self.labels == group).tolist()
        assigned = self.assigned + tuple((row, into) for row in rows)
        return replace(self, found=self.found.merge([group, into]), named=self.named - {group}, assigned=assigned)

    def to_json(self, keywords: Mapping[int, str] | None = None) -> dict[str, Any]:
        """Return the groups as the page shows them, the largest first, with their keywords where there are any."""
        labels, confidence = self.labels, self.found.confidence[self.first :]
        names = self.found.names
        groups: list[dict[str, Any]] = []
        known: list[dict[str, Any]] = []
        for info in self.found.classes:
            rows = np.flatnonzero(labels == info.id)
            if not len(rows):
                continue
            if info.known:
                known.append({"id": info.id, "name": info.name, "size": len(rows)})
                continue
            groups.append(
                {
                    "id": info.id,
                    "name": info.name if info.id in self.named else None,
                    "suggestion": info.name,
                    "keywords": (keywords or {}).get(info.id),
                    "size": len(rows),
                    "confidence": float(confidence[rows].mean()),
                    "nearest": [names[near] for near in info.nearest_known],
                    "exemplars": self._shown_ids(info.exemplars),
                    "doubtful": self._shown_ids(info.boundary),
                }
            )
        groups.sort(key=lambda group: -group["size"])
        return {
            "number": self.number,
            "inputs": len(self.ids),
            "groups": groups,
            "known": known,
            "discarded": int((labels < 0).sum()),
            "classes": [{"id": int(one), "name": names[int(one)]} for one in self.found.known_ids],
        }

    def label_inputs(self, inputs: LabeledInputs, n_known: int) -> tuple[LabeledInputs, dict[int, str]]:
        """Label the unknown inputs with the classes to learn.

        Parameters
        ----------
        inputs : LabeledInputs
            The unknown inputs, in the order of `ids`.
        n_known : int
            The number of known classes; new ones are numbered from there.

        Returns
        -------
        inputs : LabeledInputs
            Labels of named groups and of assigned inputs, -1 for all others.
        names : dict of int to str
            The names of the new classes.
        """
        out = np.full(len(self.labels), -1, np.int64)
        for row, into in self.assigned:
            out[row] = into
        names: dict[int, str] = {}
        for number, group in enumerate(sorted(self.named), start=n_known):
            out[self.labels == group] = number
            names[number] = self.found.names[group]
        return LabeledInputs(inputs.features, out, inputs.inputs), names

    def discarded(self) -> list[str]:
        """Return the ids of inputs in groups that were discarded."""
        return [self.ids[row] for row in np.flatnonzero(self.labels < 0)]

    def _shown_ids(self, rows: tuple[int, ...]) -> list[str]:
        return [self.ids[row - self.first] for row in rows if row >= self.first][:SHOWN]

    def _check_group(self, group: Any) -> int:
        novel = {info.id for info in self.found.classes if not info.known and info.size}
        if isinstance(group, bool) or not isinstance(group, int) or group not in novel:
            raise InputError(f"group {str(group)[:40]}: there is no such group any more; look at the page again")
        return group

    def _check_name(self, name: Any, group: int) -> str:
        if not isinstance(name, str) or not name.strip() or len(name.strip()) > MAX_NAME or not name.isprintable():
            raise InputError(f"a name is a text of 1 to {MAX_NAME} characters")
        wanted = name.strip()
        for info in self.found.classes:
            if info.name == wanted and info.id != group and (info.known or info.id in self.named):
                kind = "a known class" if info.known else "another group"
                raise InputError(f"{wanted!r} is the name of {kind}; merge with it instead, or choose another name")
        return wanted


def save_proposal(folder: Path, found: Discovery) -> None:
    """Save proposed groups before any edit.

    Parameters
    ----------
    folder : Path
        Created when it does not exist.
    found : Discovery
        With its rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    assert found.rows is not None
    store.save(folder / _ROWS, "rows", {}, {"rows": found.rows})
    found.save(folder / "discovery.offmap")


@store.restoring("proposal")
def load_proposal(folder: Path, number: int, ids: list[str], journal: Journal) -> Proposal:
    """Load a proposal and apply the edits of the journal that were not undone.

    Parameters
    ----------
    folder : Path
        From `save_proposal`.
    number : int
        Of the proposal in the journal.
    ids : list of str
        Its unknown inputs.
    journal : Journal
        Holds the edits.

    Returns
    -------
    Proposal
        As people left it.
    """
    rows = store.load(folder / _ROWS, "rows").tensors["rows"]
    found = Discovery.load(folder / "discovery.offmap", rows)
    if len(found) < len(ids):
        raise StoreError(f"{folder}: holds {len(found)} rows for {len(ids)} inputs")
    return replay_edits(Proposal(number, ids, found, len(found) - len(ids)), journal.edits(number))


def replay_edits(proposal: Proposal, edits: list[Entry]) -> Proposal:
    """Apply edits of the journal, in order; one that cannot be applied is skipped with a warning.

    Parameters
    ----------
    proposal : Proposal
        As it was saved.
    edits : list of Entry
        From `Journal.edits`.

    Returns
    -------
    Proposal
        After all edits.
    """
    for edit in edits:
        try:
            proposal = proposal.apply_edit(edit.action, edit.details)
        except InputError as error:
            _log.warning("line %d of the journal is skipped: %s", edit.id, error)
    return proposal
