"""`Triage`: the work behind the triage page. Proposals, edits, background tasks, deployment and rollback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from offmap.errors import InputError, OffmapError, StoreError
from offmap.openworld import Deployment
from offmap.openworld.learners import LEARNERS
from offmap.openworld.rounds import MAX_FORGETTING
from offmap.service.loading import DeploymentFiles
from offmap.service.request_errors import RequestError
from offmap.service.service import Service
from offmap.service.triage import versions
from offmap.service.triage.inputs import KnownData, clone_network
from offmap.service.triage.intents import finish_intent, undo_intent
from offmap.service.triage.journal import EDITS
from offmap.service.triage.learning import LearnedVersion, ProposedGroups, Workspace
from offmap.service.triage.open_proposal import OpenProposal
from offmap.service.triage.process import Task, TriageProcess
from offmap.service.triage.proposal import Proposal
from offmap.service.triage.records import Intent
from offmap.service.triage.replicas import BUSY, open_journal, open_replicas
from offmap.service.triage.tasks import BackgroundTask, TaskRunner

SHOWN_ENTRIES = 30
_FOLLOW_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Triage:
    """Group unknown inputs, edit the groups, learn them, deploy the result and roll it back.

    Parameters
    ----------
    service : Service
        A version that was deployed before the service stopped is put in service again here.
    known : KnownData or None, default=None
        Labelled data of the known classes; without it groups can be inspected and named, but not learned.
    max_forgetting : float, default=0.02
        By how much the accuracy on known classes may fall.
    learner : str, default="auto"
        How classes are learned.
    files : DeploymentFiles or None, default=None
        Where the deployment of the service came from: then inputs are grouped and classes learned in processes of their
        own, else in a thread of this one.
    **settings : Any
        Further options of `offmap.openworld.learn_classes`.
    """

    def __init__(
        self,
        service: Service,
        known: KnownData | None = None,
        max_forgetting: float = MAX_FORGETTING,
        learner: str = "auto",
        files: DeploymentFiles | None = None,
        **settings: Any,
    ) -> None:
        if learner != "auto":
            LEARNERS.get(learner, also=("auto",))
        base = service.deployment
        if base.network is None and learner in ("finetune", "opencon"):
            raise InputError(f"learner={learner!r}: it makes new features, so a network is needed; give --model")
        if base.encoder is not None and learner == "auto":
            learner = "linear"  # stored features of texts are compared, so that no round may map them
        self.service, self.known = service, known
        self._options = {"learner": learner, "max_forgetting": max_forgetting, **settings}
        self.journal = open_journal(service.settings, service.unknowns)
        self._replicas = open_replicas(service.settings, service.unknowns)
        self._base = replace(base, network=clone_network(base.network))
        self._workspace = Workspace(self._base, known, service.settings, service.unknowns, self.journal, base.width)
        self._proposal = OpenProposal(self.journal, self._workspace, self._replicas)
        self._files = files
        self._lock = threading.RLock()
        self._number = 0  # of the version in service here
        self._process: TriageProcess | None = None
        self.tasks = TaskRunner(self._lock)
        self._expected = base.version
        self.notice: str | None = None
        self._closing = threading.Event()
        versions.clear_leftovers(service.store_dir)
        with self._exclusively():
            self._resume()
        service.on_reload, service.on_close = self._record_reload, self.close
        self._follower = threading.Thread(target=self._follow_always, name="offmap-replicas", daemon=True)
        if self._replicas.shared:
            self._follower.start()

    def view(self) -> dict[str, Any]:
        """Return everything that the page shows."""
        with self._lock:
            self._notice_reload()
            self._follow()
            proposal = self._proposal.load()
            current = self.journal.current
            return {
                "stats": self.service.summarize(),
                "guard": self.service.describe(),
                "board": None if proposal is None else self._proposal.describe(proposal),
                "can_undo": proposal is not None and bool(self.journal.edits(proposal.number)),
                "job": self._describe_task(),
                "missing": self._missing(),
                "notice": self.notice,
                "current": current,
                "versions": [
                    {"id": v.id, "time": v.time, "parent": v.parent, "usable": v.parent == current, **v.outcome}
                    for v in self.journal.versions()
                    if v.base == self._base.version
                ],
                "journal": [entry.to_json() for entry in self.journal.entries(SHOWN_ENTRIES)],
                "max_forgetting": self._options["max_forgetting"],
            }

    def group(self) -> None:
        """Group the unknown inputs again, in the background."""
        self._start("group", "reading the unknown inputs", self._group)

    def apply_edit(self, number: int, action: str, details: dict[str, Any], revision: int | None = None) -> None:
        """Apply one edit of a person to the proposal; it is in the journal on return.

        Parameters
        ----------
        number : int
            The proposal that the person sees.
        action : str
            One of `offmap.service.triage.journal.EDITS`.
        details : dict
            The groups and values of the edit.
        revision : int or None, default=None
            The revision that the person sees: the edit is rejected when someone else has edited the groups since.
        """
        with self._exclusively():
            proposal = self._check_proposal(number, revision)
            if action not in EDITS:
                raise InputError(f"action {action[:40]!r}: choose one of {', '.join(EDITS)}")
            edited = proposal.apply_edit(action, details)
            self._proposal.keep(self.journal.note(action, details, proposal.number), edited)

    def undo(self, number: int, revision: int | None = None) -> None:
        """Undo the last edit of a proposal; see `apply_edit`."""
        with self._exclusively():
            proposal = self._check_proposal(number, revision)
            if self.journal.undo(proposal.number) is None:
                raise RequestError(409, "there is nothing to take back")
            self._proposal.forget()

    def learn(self, number: int, revision: int | None = None) -> None:
        """Learn the named groups of a proposal, in the background; see `apply_edit`."""
        with self._exclusively():
            proposal = self._check_proposal(number, revision)
            missing = self._missing()
            if missing is not None:
                raise RequestError(409, missing)
            if not proposal.named and not proposal.assigned:
                raise RequestError(409, "no group has a name yet; name at least one")
            self._start("learn", "preparing", self._learn)

    def deploy(self, number: int) -> None:
        """Put a learned version in service; its inputs are resolved or discarded."""
        with self._exclusively():
            self._check_idle()
            self._notice_reload()
            if self.notice is not None:
                raise RequestError(409, self.notice)
            if self._finish_pending() == Intent("deploy", number):
                return
            version = self.journal.version(number)
            if version is None or version.base != self._base.version:
                raise RequestError(404, f"version {number}: there is no such version of this guard")
            if not version.outcome["accepted"]:
                raise RequestError(409, f"version {number} is not deployed: {version.outcome['reason']}")
            if version.parent != self.journal.current:
                raise RequestError(409, f"version {number} was learned on top of another one; learn again from here")
            self._carry_out(Intent("deploy", number), number)

    def rollback(self) -> None:
        """Put back the version that was in service before the present one; its inputs are open again."""
        with self._exclusively():
            self._check_idle()
            finished = self._finish_pending()
            if finished is not None and finished.action == "rollback":
                return
            version = self.journal.version(self.journal.current)
            if version is None:
                raise RequestError(
                    409, "what the service was started with is in service; there is nothing to roll back"
                )
            self._carry_out(Intent("rollback", version.id), version.parent)

    def close(self) -> None:
        """Stop the task in the background and close the journal; what it has not finished counts as not begun."""
        self._closing.set()
        self.tasks.stop()
        if self._process is not None:
            self._process.stop()
        self.tasks.join(self.service.settings.shutdown_seconds)
        if self._follower.is_alive():
            self._follower.join(_FOLLOW_SECONDS)
        self.journal.close()

    def _resume(self) -> None:
        """After a start, finish what had begun, and put the deployed version in service again."""
        finish_intent(self.journal, self.service.unknowns)
        current = self.journal.current
        if not current:
            return
        version = self.journal.version(current)
        if version is None:
            self.notice = (
                f"the journal holds no usable record of version {current}, so what was learned is not in service"
            )
            return
        if version.base != self._base.version:
            self.notice = (
                "another guard was named at the start, so what was learned on top of the earlier one is not in service"
            )
            return
        self._put_in_service(current)

    def _record_reload(self, deployment: Deployment) -> None:
        """Before a reload takes effect, record that what was learned on top is no longer in service."""
        with self._lock:
            self._notice_version(deployment.version)

    def _notice_reload(self) -> None:
        self._notice_version(self.service.deployment.version)

    def _notice_version(self, version: str) -> None:
        if version == self._expected:
            return
        self._expected = version
        if version == self._base.version:
            self.journal.set_current(0, "reload")
            self._number = 0
        else:
            self.notice = "another guard was read from the file meanwhile; start the service again to learn with it"

    def _put_in_service(self, number: int) -> None:
        found = self._load(number)
        self._expected, self._number = self.service.deploy(found), number

    def _load(self, number: int) -> Deployment:
        for version in versions.list_ancestors(self.journal, number):
            self._replicas.fetch(f"{versions.FOLDER}/{version.id}")
        return versions.load_version(self.service.store_dir, self.journal, number, self._base)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Keep other threads and other replicas from editing, and see what they have done."""
        with self._lock, self._replicas.exclusive():
            yield

    def _follow(self) -> None:
        """Put in service what another replica has deployed or rolled back."""
        if not self._replicas.shared or self.notice is not None:
            return
        current = self.journal.current
        if current != self._number:
            version = self.journal.version(current)
            if current == 0 or (version is not None and version.base == self._base.version):
                self._put_in_service(current)
                self._proposal.forget()

    def _follow_always(self) -> None:
        while not self._closing.wait(_FOLLOW_SECONDS):
            try:
                with self._lock:
                    if not self._closing.is_set():
                        self._finish_for_others()
                        self._follow()
            except OffmapError as error:
                _log.warning("what other replicas have deployed cannot be read: %s", error)
            except Exception:  # whatever it is, this thread must go on
                _log.exception("what other replicas have deployed cannot be read")

    def _finish_for_others(self) -> None:
        """Finish on disk what a replica had begun that has died; one that lives is waited for and has done it."""
        if self.journal.intent is not None:
            with self._exclusively():
                finish_intent(self.journal, self.service.unknowns)

    def _start(self, kind: str, words: str, work: Callable[[], None]) -> None:
        """Start a task that no other replica runs at the same time."""
        with self._lock:
            self.tasks.check_idle()
            release = self._replicas.begin_task()

            def run() -> None:
                try:
                    work()
                finally:
                    release()

            self.tasks.start(kind, words, run)

    def _check_idle(self) -> None:
        self.tasks.check_idle()
        if self._replicas.is_busy_elsewhere():
            raise RequestError(409, BUSY)

    def _describe_task(self) -> dict[str, Any] | None:
        task = self.tasks.current
        if (task is None or not task.running) and self._replicas.is_busy_elsewhere():
            task = BackgroundTask("group", "another replica is working", 0.0)
        return None if task is None else asdict(task)

    def _carry_out(self, intent: Intent, target: int) -> None:
        """Deploy or roll back: everything or, where a write fails, nothing."""
        found = self._load(target)
        self.journal.begin(intent)
        try:
            finish_intent(self.journal, self.service.unknowns)
        except StoreError:
            undo_intent(self.journal, self.service.unknowns, intent)
            raise
        self._expected, self._number = self.service.deploy(found), target
        self._proposal.forget()

    def _finish_pending(self) -> Intent | None:
        """Finish what had begun but could neither be finished nor undone."""
        intent = finish_intent(self.journal, self.service.unknowns)
        if intent is not None:
            self._put_in_service(self.journal.current)
            self._proposal.forget()
        return intent

    def _missing(self) -> str | None:
        """Return what learning lacks, in a sentence; `None` when it can begin."""
        if self.known is None:
            return "Learning needs labelled inputs of the known classes: start the service with --known DATA."
        return self.notice

    def _check_proposal(self, number: int, revision: int | None) -> Proposal:
        proposal = self._proposal.check(number, revision)
        self._check_idle()
        return proposal

    def _group(self) -> None:
        if self._files is None:
            done = self._workspace.group(self.tasks.report_progress)
        else:
            done = ProposedGroups(**self._run_process("group", self._files))
        with self._exclusively():
            number = self.journal.next_proposal
            self._replicas.publish(Path(done.folder), f"{versions.PROPOSALS}/{number}")
            versions.keep_version(Path(done.folder), number)
            self.journal.propose(done.ids)
            self._proposal.forget()
        self._proposal.remove_closed()

    def _learn(self) -> None:
        proposal = self._proposal.load()
        assert proposal is not None
        if self._files is None:
            done = self._workspace.learn(proposal, self.tasks.report_progress, **self._options)
        else:
            done = LearnedVersion(**self._run_process("learn", self._files))
        with self._exclusively():
            # the folder first: a version that the journal knows of always exists
            number = self.journal.next_version
            self._replicas.publish(Path(done.folder), f"{versions.FOLDER}/{number}")
            versions.keep_version(Path(done.folder), number)
            parent = self.journal.current
            self.journal.add_version(
                parent, self._base.version, proposal.number, done.outcome, done.learned, done.discarded
            )

    def _run_process(self, task: Task, files: DeploymentFiles) -> dict[str, Any]:
        self._process = TriageProcess(task, files, self._workspace, self._base.version, self._options)
        return self._process.run(self.tasks.report_progress)
