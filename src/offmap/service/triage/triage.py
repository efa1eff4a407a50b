"""`Triage`: the work of the page. Groups, edits, background jobs, versions put in service and taken back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from offmap.errors import InputError, OffmapError
from offmap.openworld import LearningState, learn_classes, propose, start
from offmap.openworld.learners import LEARNERS
from offmap.openworld.rounds import MAX_FORGETTING
from offmap.service.request_errors import RequestError, one_sentence
from offmap.service.service import Service
from offmap.service.triage import versions
from offmap.service.triage.board import Board, load_board, save_board
from offmap.service.triage.inputs import KnownData, clone_network, read_pile
from offmap.service.triage.journal import EDITS, Journal
from offmap.service.triage.versions import InService

FEWEST = 10  # inputs on the pile before it is grouped
SHOWN_ENTRIES = 30
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What goes on in the background, or went on last."""

    kind: str
    words: str
    share: float
    running: bool = True
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the page shows it."""
        return {
            "kind": self.kind,
            "words": self.words,
            "share": self.share,
            "running": self.running,
            "error": self.error,
        }


class Triage:
    """What people do with the pile of a service.

    Parameters
    ----------
    service
        The service; a version that was deployed before it stopped is put in service again here.
    known
        Labelled data of the known classes; without it groups can be looked at and named, but not learned.
    max_forgetting
        By how much accuracy on known classes may fall.
    learner, settings
        As `offmap.openworld.learn_classes` takes them.
    """

    def __init__(
        self,
        service: Service,
        known: KnownData | None = None,
        max_forgetting: float = MAX_FORGETTING,
        learner: str = "auto",
        **settings: Any,
    ) -> None:
        if learner != "auto":
            LEARNERS.get(learner, also=("auto",))
        if service.network is None and learner in ("finetune", "opencon"):
            raise InputError(f"learner={learner!r}: it makes new features, so a network is needed; give --model")
        self.service, self.known = service, known
        self._options = {"learner": learner, "max_forgetting": max_forgetting, **settings}
        self.journal = Journal(service.store_dir)
        self._base_version = service.deployed.version
        self._base = InService(service.guard, None, clone_network(service.network), service.class_names)
        self._lock = threading.RLock()
        self._board: Board | None = None
        self._state: tuple[int, LearningState] | None = None
        self._job: Job | None = None
        self._expected = self._base_version
        self.notice: str | None = None
        versions.clear_leftovers(service.store_dir)
        self._resume()

    def view(self) -> dict[str, Any]:
        """Everything the page shows."""
        with self._lock:
            self._notice_reload()
            board = self._board_now()
            current = self.journal.current
            return {
                "stats": self.service.watch.summary() | {"pile": self.service.pile.counts()},
                "guard": self.service.deployed.describe(),
                "board": None if board is None else board.to_json(),
                "can_undo": board is not None and bool(self.journal.edits(board.number)),
                "job": None if self._job is None else self._job.to_json(),
                "missing": self._missing(),
                "notice": self.notice,
                "current": current,
                "versions": [
                    {"id": v.id, "time": v.time, "parent": v.parent, "usable": v.parent == current, **v.outcome}
                    for v in self.journal.versions()
                    if v.base == self._base_version
                ],
                "journal": [entry.to_json() for entry in self.journal.entries(SHOWN_ENTRIES)],
                "max_forgetting": self._options["max_forgetting"],
            }

    def group(self) -> None:
        """Group the pile anew, in the background."""
        self._start("group", "reading the pile", self._group)

    def act(self, number: int, action: str, details: dict[str, Any]) -> None:
        """One edit of a person. It is in the journal when this returns."""
        with self._lock:
            board = self._board_for(number)
            if action not in EDITS:
                raise InputError(f"action {action[:40]!r}: choose one of {', '.join(EDITS)}")
            after = board.after(action, details)
            self.journal.note(action, details, board.number)
            self._board = after

    def undo(self, number: int) -> None:
        """Take the last edit back."""
        with self._lock:
            board = self._board_for(number)
            if self.journal.undo(board.number) is None:
                raise RequestError(409, "there is nothing to take back")
            self._board = None

    def learn(self, number: int) -> None:
        """Learn the named groups, in the background."""
        with self._lock:
            board = self._board_for(number)
            missing = self._missing()
            if missing is not None:
                raise RequestError(409, missing)
            if not board.named and not board.called:
                raise RequestError(409, "no group has a name yet; name at least one")
        self._start("learn", "preparing", self._learn)

    def deploy(self, number: int) -> None:
        """Put a version in service."""
        with self._lock:
            self._idle()
            self._notice_reload()
            if self.notice is not None:
                raise RequestError(409, self.notice)
            version = self.journal.version(number)
            if version is None or version.base != self._base_version:
                raise RequestError(404, f"version {number}: there is no such version of this guard")
            if not version.outcome["accepted"]:
                raise RequestError(409, f"version {number} is not deployed: {version.outcome['reason']}")
            if version.parent != self.journal.current:
                raise RequestError(409, f"version {number} was learned on top of another one; learn again from here")
            self._put(number, "deploy")
            self._settle(number)
            self.journal.close_proposals()
            self._board = None

    def rollback(self) -> None:
        """Put back what was in service before the version that is."""
        with self._lock:
            self._idle()
            version = self.journal.version(self.journal.current)
            if version is None:
                raise RequestError(
                    409, "what the service was started with is in service; there is nothing to roll back"
                )
            self._put(version.parent, "rollback")
            self.service.pile.mark(version.learned + version.discarded, "open")
            self.journal.reopen_proposal(version.proposal)
            self._board = None

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()

    def wait(self, seconds: float = 600.0) -> None:
        """Wait until nothing goes on in the background."""
        end = time.monotonic() + seconds
        while self._job is not None and self._job.running:
            if time.monotonic() > end:
                raise TimeoutError("the job in the background has not ended")
            time.sleep(0.02)

    def _resume(self) -> None:
        """After a start: what was deployed is in service again, and what was to be marked is marked."""
        current = self.journal.current
        if not current:
            return
        version = self.journal.version(current)
        if version is None or version.base != self._base_version:
            self.notice = (
                "another guard was named at the start, so what was learned on top of the earlier one is not in service"
            )
            return
        self._swap(current)
        for one in versions.chain(self.journal, current):
            self._settle(one.id)

    def _notice_reload(self) -> None:
        """The guard's file may be read anew behind our back: then what was learned on top is no longer in service."""
        there = self.service.deployed.version
        if there == self._expected:
            return
        self._expected = there
        if there == self._base_version:
            self.journal.set_current(0, "reload")
        else:
            self.notice = "another guard was read from the file meanwhile; start the service again to learn with it"

    def _put(self, number: int, action: str) -> None:
        """First in service, then in the journal: a version that cannot be loaded changes nothing."""
        self._swap(number)
        self.journal.set_current(number, action)

    def _swap(self, number: int) -> None:
        found = versions.load_version(self.service.store_dir, self.journal, number, self._base)
        # the service has a network of its own, as jobs in the background run another
        served = replace(found, network=clone_network(found.network)).for_service()
        self._expected = self.service.swap(found.guard, served, found.class_names)

    def _settle(self, number: int) -> None:
        version = self.journal.version(number)
        assert version is not None
        self.service.pile.mark(version.learned, "resolved")
        self.service.pile.mark(version.discarded, "discarded")

    def _missing(self) -> str | None:
        """What learning lacks, in a sentence; `None` when it can begin."""
        if self.known is None:
            return "Learning needs labelled inputs of the known classes: start the service with --known DATA."
        if self.notice is not None:
            return self.notice
        return None

    def _board_now(self) -> Board | None:
        if self._board is None:
            there = self.journal.open_proposal()
            if there is not None:
                number, ids = there
                self._board = load_board(self._folder(number), number, ids, self.journal)
        return self._board

    def _board_for(self, number: int) -> Board:
        board = self._board_now()
        if board is None or board.number != number:
            raise RequestError(409, "the groups have changed meanwhile; look at the page again")
        self._idle()
        return board

    def _idle(self) -> None:
        if self._job is not None and self._job.running:
            raise RequestError(409, "something is being worked on; wait until it is done")

    def _folder(self, number: int) -> Any:
        return self.service.store_dir / "proposals" / str(number)

    def _loop_state(self) -> LearningState:
        """The state of the loop for what is in service, with a network of its own."""
        current = self.journal.current
        if self._state is None or self._state[0] != current:
            network = clone_network(self._base.network)
            if self.known is None:
                raise RequestError(409, str(self._missing()))
            known = self.known.read(network, self._base.class_names, self.service.settings)
            first = start(self._base.guard, known, network)
            self._state = current, versions.load_state(self.service.store_dir, self.journal, current, first)
        return self._state[1]

    def _start(self, kind: str, words: str, work: Callable[[], None]) -> None:
        with self._lock:
            self._idle()
            self._job = Job(kind, words, 0.0)

        def run() -> None:
            try:
                work()
            except OffmapError as error:
                self._ended(one_sentence(error))
            except Exception as error:
                _log.exception("%s failed", kind)
                self._ended(f"it failed ({one_sentence(error)[:200]}); the service's log says more")
            else:
                self._ended(None)

        threading.Thread(target=run, name=f"offmap-{kind}", daemon=True).start()

    def _ended(self, error: str | None) -> None:
        with self._lock:
            assert self._job is not None
            self._job = replace(self._job, running=False, error=error, share=1.0, words=error or "done")

    def _tell(self, words: str, share: float) -> None:
        with self._lock:
            assert self._job is not None
            self._job = replace(self._job, words=words, share=share)

    def _group(self) -> None:
        service = self.service
        network = None if self.known is None else self._loop_state().network
        ids, pile = read_pile(service.pile, network, service.deployed.width, service.settings)
        if len(ids) < FEWEST:
            raise InputError(f"{len(ids)} inputs on the pile can be compared; at least {FEWEST} are needed for groups")
        self._tell(f"looking for groups in {len(ids)} inputs", 0.3)
        texts = _texts(service, ids)
        if self.known is None:
            from offmap.discovery import discover

            found = discover(pile.features)
            if texts is not None:
                found = found.name_by_texts(texts)
        else:
            found = propose(self._loop_state(), pile, texts=texts)
        with self._lock:
            save_board(self._folder(self.journal.next_proposal), found)
            self.journal.propose(ids)
            self._board = None

    def _learn(self) -> None:
        board = self._board_now()
        assert board is not None
        state = self._loop_state()
        if board.n_known != len(state.known.class_names):
            raise InputError("the groups were made beside other known classes; group the pile again")
        ids, pile = read_pile(
            self.service.pile, state.network, self.service.deployed.width, self.service.settings, board.ids
        )
        where = {one: row for row, one in enumerate(ids)}
        kept = [row for row, one in enumerate(board.ids) if one in where]
        if len(kept) < len(board.ids):
            raise InputError("some inputs of these groups have left the pile; group it again")
        labelled, names = board.chosen(pile, state)
        done = learn_classes(state, labelled, names, progress=self._tell, discovery=board.found, **self._options)
        folder = versions.write_version(self.service.store_dir, done)
        learned = [one for one, label in zip(ids, labelled.labels, strict=True) if label >= 0]
        with self._lock:
            # the folder first: a version that the journal knows of is always there
            versions.keep_version(folder, self.journal.next_version)
            self.journal.add_version(
                self.journal.current, self._base_version, board.number, done.to_json(), learned, board.discarded()
            )


def _texts(service: Service, ids: list[str]) -> list[str] | None:
    """What clients call the inputs, when every one of them came with words: then they are texts."""
    items = service.pile.get(ids)
    words = [item.reference or "" for item in items]
    return words if words and all(" " in word for word in words) else None
