"""The proposal that people edit, as the journal has it now."""

from __future__ import annotations

import shutil
from typing import Any

from offmap.service.request_errors import RequestError
from offmap.service.triage.journal import Journal
from offmap.service.triage.learning import Workspace
from offmap.service.triage.proposal import Proposal
from offmap.service.triage.replicas import Alone
from offmap.service.triage.versions import PROPOSALS


class OutdatedError(RequestError):
    """An edit of groups that have changed since the person saw them."""

    def __init__(self, sentence: str) -> None:
        super().__init__(409, sentence)


class OpenProposal:
    """Read the open proposal, once per revision, and check that a person edits what they see.

    Parameters
    ----------
    journal : Journal
        Says which proposal is open, and which edits were made.
    workspace : Workspace
        Reads its files.
    replicas : Alone
        Another replica may have made or edited it.
    """

    def __init__(self, journal: Journal, workspace: Workspace, replicas: Alone) -> None:
        self._journal, self._workspace, self._replicas = journal, workspace, replicas
        self._read: tuple[int, Proposal] | None = None  # with its revision
        self._keywords: tuple[tuple[int, int] | None, dict[int, str]] = (None, {})

    def load(self) -> Proposal | None:
        """Return the open proposal with all edits; `None` when there is none."""
        number = self._journal.open_number
        if number is None:
            return None
        revision = self._journal.revision(number)  # another replica may have edited the groups, or made new ones
        if self._read is None or (self._read[1].number, self._read[0]) != (number, revision):
            self._replicas.fetch(f"{PROPOSALS}/{number}")
            found = self._workspace.load_proposal()
            self._read = None if found is None else (revision, found)
        return None if self._read is None else self._read[1]

    def check(self, number: int, revision: int | None) -> Proposal:
        """Return the open proposal if it is the one that a person sees.

        Parameters
        ----------
        number : int
            The proposal that the person sees.
        revision : int or None
            The revision that they see; `None` for any.

        Returns
        -------
        Proposal
            With all edits.

        Raises
        ------
        OutdatedError
            If there is another one by now, or someone has edited it since.
        """
        proposal = self.load()
        if proposal is None or proposal.number != number:
            raise OutdatedError("the groups have changed meanwhile; look at the page again")
        if revision is not None and revision != self._journal.revision(number):
            raise OutdatedError("someone else has changed the groups meanwhile; look at them and try again")
        return proposal

    def keep(self, revision: int, proposal: Proposal) -> None:
        """Take the proposal as it is after an edit, which need not be read again."""
        self._read = revision, proposal

    def forget(self) -> None:
        """Read the proposal anew when it is needed next."""
        self._read = None

    def describe(self, proposal: Proposal) -> dict[str, Any]:
        """Return what the page shows of a proposal."""
        revision = self._journal.revision(proposal.number)
        seen = proposal.number, revision
        if self._keywords[0] != seen:  # the page asks every few seconds
            self._keywords = seen, self._workspace.find_keywords(proposal)
        return proposal.to_json(self._keywords[1]) | {"revision": revision}

    def remove_closed(self) -> None:
        """Remove the files of closed proposals, except those that a rollback opens again."""
        opened = self._journal.open_proposal()
        needed = {version.proposal for version in self._journal.versions()} | ({opened[0]} if opened else set())
        for folder in self._workspace.proposal_folder(0).parent.glob("*"):
            if folder.name.isdigit() and int(folder.name) not in needed:
                shutil.rmtree(folder, ignore_errors=True)
        closed = [number for number in range(1, self._journal.next_proposal) if number not in needed]
        self._replicas.remove([f"{PROPOSALS}/{number}" for number in closed])
