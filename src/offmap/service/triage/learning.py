"""Group and learn unknown inputs, in a thread of the service or in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offmap.discovery import Discovery
from offmap.errors import InputError, OffmapError
from offmap.openworld import Deployment, LearningState, learn_classes, propose, start
from offmap.service.loading import DeploymentFiles
from offmap.service.request_errors import to_sentence
from offmap.service.requests import TEXT
from offmap.service.settings import Settings
from offmap.service.stores import open_unknown_store
from offmap.service.triage import versions
from offmap.service.triage.inputs import KnownData, clone_network, read_unknown_inputs
from offmap.service.triage.journal import Journal
from offmap.service.triage.naming import name_by_model
from offmap.service.triage.proposal import Proposal, load_proposal
from offmap.service.unknowns import UnknownStore

KEYWORDS = 6  # of a group, on the page
MAX_TEXT = 10_000  # characters of each text that keywords and names are taken from
MIN_INPUTS = 10  # unknown inputs that can be grouped
_PATHS = ("guard", "weights", "classes")  # of `DeploymentFiles`
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LearnedVersion:
    """A version that was learned and written, not yet in the journal.

    Parameters
    ----------
    folder : str
        From `offmap.service.triage.versions.write_version`.
    outcome : dict
        From `offmap.openworld.Round.to_json`.
    learned, discarded : list of str
        Ids of unknown inputs that are resolved or discarded once it is in service.
    """

    folder: str
    outcome: dict[str, Any]
    learned: list[str]
    discarded: list[str]


@dataclass
class Workspace:
    """Everything that grouping and learning read.

    Parameters
    ----------
    base : Deployment
        What the service was started with; its network must not be run by another thread.
    known : KnownData or None
        Labelled data of the known classes; without it inputs can be grouped, but not learned.
    settings : Settings
        Of the service.
    unknowns : UnknownStore
        The unknown inputs.
    journal : Journal
        Knows the version in service.
    """

    base: Deployment
    known: KnownData | None
    settings: Settings
    unknowns: UnknownStore
    journal: Journal
    _state: tuple[int, LearningState] | None = None

    def load_state(self) -> LearningState:
        """Return the state of the loop for the version in service."""
        assert self.known is not None
        current = self.journal.current
        if self._state is None or self._state[0] != current:
            network = clone_network(self.base.network)
            known = self.known.read(network, self.base.class_names, self.settings, self.base.encoder)
            first = start(self.base.detector, known, network)
            self._state = current, versions.load_state(self.settings.store_dir, self.journal, current, first)
        return self._state[1]

    def load_proposal(self) -> Proposal | None:
        """Load the open proposal with its edits; `None` without one."""
        found = self.journal.open_proposal()
        if found is None:
            return None
        number, ids = found
        return load_proposal(self.proposal_folder(number), number, ids, self.journal)

    def proposal_folder(self, number: int) -> Path:
        """Return the folder of a proposal."""
        return self.settings.store_dir / "proposals" / str(number)

    def group(self, progress: Progress) -> tuple[list[str], Discovery]:
        """Group the newest unknown inputs.

        Parameters
        ----------
        progress : callable
            Called with words and the share that is done.

        Returns
        -------
        ids : list of str
            The inputs that were grouped.
        found : Discovery
            Their groups; beside the known classes where there are labelled data.
        """
        state = None if self.known is None else self.load_state()
        network, detector = (None, self.base.detector) if state is None else (state.network, state.detector)
        ids, inputs = read_unknown_inputs(self.unknowns, network, _width(detector), self.settings, keep_inputs=False)
        if len(ids) < MIN_INPUTS:
            raise InputError(f"{len(ids)} unknown inputs can be compared; at least {MIN_INPUTS} are needed for groups")
        progress(f"looking for groups in {len(ids)} inputs", 0.3)
        texts = self.read_texts(ids)
        if state is not None:
            found = propose(state, inputs, texts=texts)
        else:
            from offmap.discovery import discover

            found = discover(inputs.features, texts=texts)
        return ids, found if texts is None else name_by_model(found, texts, self.settings)

    def find_keywords(self, proposal: Proposal) -> dict[int, str]:
        """Return the words that are frequent in each group of texts and rare in the others; none for other inputs."""
        from offmap.discovery.naming import suggest_names

        texts = self.read_texts(proposal.ids)
        return {} if texts is None else suggest_names(texts, proposal.labels, words=KEYWORDS)

    def learn(self, proposal: Proposal, progress: Progress, **options: Any) -> LearnedVersion:
        """Learn the named groups of a proposal, and write the new version.

        Parameters
        ----------
        proposal : Proposal
            With names.
        progress : callable
            Called with words and the share that is done.
        **options : Any
            Of `offmap.openworld.learn_classes`.

        Returns
        -------
        LearnedVersion
            In a folder without a number.
        """
        state = self.load_state()
        if proposal.n_known != len(state.known.class_names):
            raise InputError("the groups were made beside other known classes; group the unknown inputs again")
        width = _width(state.detector)
        ids, inputs = read_unknown_inputs(self.unknowns, state.network, width, self.settings, proposal.ids)
        if len(ids) < len(proposal.ids):
            raise InputError("some inputs of these groups are no longer stored; group the unknown inputs again")
        labelled, names = proposal.label_inputs(inputs, len(state.known.class_names))
        done = learn_classes(state, labelled, names, progress=progress, discovery=proposal.found, **options)
        folder = versions.write_version(self.settings.store_dir, done)
        learned = [id for id, label in zip(ids, labelled.labels, strict=True) if label >= 0]
        return LearnedVersion(str(folder), done.to_json(), learned, proposal.discarded())

    def read_texts(self, ids: list[str]) -> list[str] | None:
        """Return unknown inputs as texts: what was sent, or their references when all have several words."""
        items = self.unknowns.get(ids, contents=False)  # those of images may not fit in memory
        if len(items) < len(ids):
            return None
        if items and all(item.content_type == TEXT for item in items):
            blocks = self.unknowns.iter_blocks(ids=ids)
            sent = [(item.content or b"").decode()[:MAX_TEXT] for block in blocks for item in block]
            return sent if len(sent) == len(ids) else None
        texts = [item.reference or "" for item in items]
        return texts if texts and all(" " in text for text in texts) else None


def _width(detector: Any) -> int | None:
    return None if detector.fitting is None else detector.fitting.width


class LearningProcess:
    """Learns the open proposal in a process of its own, with a lower priority and a memory limit.

    A crash of it, such as for lack of memory, harms nothing: a version counts only once the journal knows of it.

    Parameters
    ----------
    files : DeploymentFiles
        From which the process loads the base deployment again.
    workspace : Workspace
        What is learned; only its names and settings are passed on.
    options : dict
        Of `offmap.openworld.learn_classes`.
    """

    def __init__(self, files: DeploymentFiles, workspace: Workspace, options: dict[str, Any]) -> None:
        assert workspace.known is not None
        secret = {"token", "token_file"}
        self._order = {
            "files": {name: None if value is None else str(value) for name, value in asdict(files).items()},
            "known": [None if path is None else str(path) for path in asdict(workspace.known).values()],
            "settings": workspace.settings.model_dump(mode="json", exclude=secret),
            "version": workspace.base.version,
            "options": options,
        }
        self._settings = workspace.settings
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "offmap.service.triage.learning"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def run(self, progress: Progress) -> LearnedVersion:
        """Wait for the process.

        Parameters
        ----------
        progress : callable
            Called with words and the share that is done.

        Returns
        -------
        LearnedVersion
            What was learned.

        Raises
        ------
        InputError
            If nothing could be learned, or the process has ended without a result.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer: dict[str, Any] = {}
        with self._process:
            try:
                self._process.stdin.write(json.dumps(self._order))
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended already, and what it answered says why
            for line in self._process.stdout:
                answer = json.loads(line)
                if "share" in answer:
                    self._report(progress, answer)
        if "learned" in answer:
            return LearnedVersion(**answer)
        if "error" in answer:
            raise InputError(answer["error"])
        raise InputError(
            f"learning ended without a result (status {self._process.returncode}); nothing has changed. It may use "
            f"{self._settings.learn_memory:,} bytes of memory (OFFMAP_LEARN_MEMORY); the service's log may say more"
        )

    def _report(self, progress: Progress, answer: dict[str, Any]) -> None:
        try:
            progress(answer["words"], answer["share"])
        except BaseException:  # nobody waits for the result any more
            self.stop()
            raise

    def stop(self) -> None:
        """End the process."""
        self._process.kill()


def main() -> None:
    """Learn what the order on standard input says; answer in lines of JSON on standard output."""
    order = json.load(sys.stdin)
    settings = Settings(**order["settings"])
    os.nice(settings.learn_nice)
    resource.setrlimit(resource.RLIMIT_DATA, (settings.learn_memory, settings.learn_memory))
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what a model prints goes to the log

        def answer(content: dict[str, Any]) -> None:
            answers.write(json.dumps(content) + "\n")

        try:
            answer(asdict(_learn(order, settings, lambda words, share: answer({"words": words, "share": share}))))
        except Exception as error:
            if _lacks_memory(error):  # an answer without a result: the service says what may be changed
                raise SystemExit(f"learning has run out of memory: {to_sentence(error)}") from error
            if not isinstance(error, OffmapError):
                raise
            answer({"error": to_sentence(error)})


def _lacks_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it was made from, is a lack of memory; torch has no kind of its own for it."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _to_path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _learn(order: dict[str, Any], settings: Settings, progress: Progress) -> LearnedVersion:
    paths = {
        name: Path(value)
        for name, value in order["files"].items()
        if value is not None and name not in ("model", "layer", "encoder")
    }
    base = DeploymentFiles(**{**order["files"], **paths}).load()
    if base.version != order["version"]:
        raise InputError("the guard's file has changed since the start; start the service again to learn with it")
    path, held_out = order["known"]
    known = KnownData(Path(path), _to_path(held_out))
    journal, unknowns = Journal(settings.store_dir), open_unknown_store(settings.store, settings.store_limits)
    workspace = Workspace(base, known, settings, unknowns, journal)
    proposal = workspace.load_proposal()
    if proposal is None:
        raise InputError("there are no groups to learn any more; look at the page again")
    return workspace.learn(proposal, progress, **order["options"])


if __name__ == "__main__":
    main()
