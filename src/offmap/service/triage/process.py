"""Group and learn in a process of its own, so that scoring is not held up and the memory goes back."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from offmap.errors import InputError, OffmapError
from offmap.openworld import Deployment
from offmap.service.loading import DeploymentFiles
from offmap.service.request_errors import to_sentence
from offmap.service.settings import Settings
from offmap.service.stores import open_unknown_store
from offmap.service.triage.inputs import KnownData
from offmap.service.triage.learning import LearnedVersion, Progress, ProposedGroups, Workspace
from offmap.service.triage.replicas import open_journal

Task = Literal["group", "learn"]
_WORDS: dict[Task, str] = {"group": "grouping", "learn": "learning"}


class TriageProcess:
    """Groups unknown inputs or learns the open proposal in a process of its own, nicer and with a memory limit.

    The memory goes back to the machine when it ends. A crash of it, such as for lack of memory, harms nothing: groups
    and versions count only once the journal knows of them.

    Parameters
    ----------
    task : {"group", "learn"}
        What to do.
    files : DeploymentFiles
        From which the process loads the base deployment again.
    workspace : Workspace
        What is read; only its names and settings are passed on.
    version : str
        Of the base deployment; when the files hold another one by now, the process refuses.
    options : dict
        Of `offmap.openworld.learn_classes`.
    """

    def __init__(
        self,
        task: Task,
        files: DeploymentFiles,
        workspace: Workspace,
        version: str,
        options: dict[str, Any],
    ) -> None:
        known, settings = workspace.known, workspace.settings
        secret = {"token", "token_file", "events_token", "naming_token"}
        self._order = {
            "task": task,
            "files": _to_texts(files),
            "known": None if known is None else _to_texts(known),
            "settings": settings.model_dump(mode="json", exclude=secret),
            "naming_token": None if settings.naming_token is None else settings.naming_token.get_secret_value(),
            "version": version,
            "width": workspace.width,
            "options": options,
        }
        self._task = _WORDS[task]
        self._settings = settings
        spare = max(torch.get_num_threads() - 1, 1)  # a core is left to scoring, which has all that are allowed
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(spare),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "offmap.service.triage.process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip
        with suppress(OSError):  # it may have ended already; from the first import on, which takes seconds
            os.setpriority(os.PRIO_PROCESS, self._process.pid, os.nice(0) + settings.learn_nice)

    def run(self, progress: Progress) -> dict[str, Any]:
        """Wait for the process.

        Parameters
        ----------
        progress : callable
            Called with words and the share that is done.

        Returns
        -------
        dict
            A `ProposedGroups` or `LearnedVersion`, field by field.

        Raises
        ------
        InputError
            If it failed, or the process has ended without a result.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer: dict[str, Any] = {}
        with self._process:
            try:
                self._process.stdin.write(json.dumps(self._order) + "\n")
                self._process.stdin.flush()  # and stays open: its end tells the process that the service is gone
            except BrokenPipeError:
                pass  # it has ended already, and what it answered says why
            for line in self._process.stdout:
                answer = json.loads(line)
                if "share" in answer:
                    self._report(progress, answer)
        if "folder" in answer:
            return answer
        if "error" in answer:
            raise InputError(answer["error"])
        raise InputError(
            f"{self._task} ended without a result (status {self._process.returncode}); nothing has changed. It may use "
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
    """Do what the order on standard input says; answer in lines of JSON on standard output."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_service, daemon=True).start()
    settings = Settings(**order["settings"], naming_token=order["naming_token"])
    resource.setrlimit(resource.RLIMIT_DATA, (settings.learn_memory, settings.learn_memory))
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what a model prints goes to the log

        def answer(content: dict[str, Any]) -> None:
            answers.write(json.dumps(content) + "\n")

        try:
            answer(asdict(_work(order, settings, lambda words, share: answer({"words": words, "share": share}))))
        except Exception as error:
            # an end without an answer: the service says then what may be changed
            if _lacks_memory(error) or _fills_memory(settings.learn_memory):
                raise SystemExit(f"{_WORDS[order['task']]} has run out of memory: {to_sentence(error)}") from error
            if not isinstance(error, OffmapError):
                raise
            answer({"error": to_sentence(error)})


def _end_with_service() -> None:
    """End this process when the service has ended, however it did: nobody would take the result."""
    while os.read(0, 2**12):  # not by sys.stdin, whose lock a thread that waits would hold at the end of the process
        pass
    os._exit(1)


def _lacks_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it was made from, is a lack of memory.

    torch and the loader of libraries have no kind of their own for it, and Python calls a module that it could not
    compile for lack of memory a wrong one.
    """
    words = ("allocate memory", "failed to map segment", "map zero-fill pages")
    while error is not None:
        if isinstance(error, MemoryError | SyntaxError) or any(part in str(error) for part in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def _fills_memory(limit: int) -> bool:
    """Tell whether this process is at its limit: any error may be one of memory then, also a file that is not read."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, MemoryError):
        return False  # not on every system
    return pages * resource.getpagesize() > 0.9 * limit


def _to_texts(named: DeploymentFiles | KnownData) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in asdict(named).items()}


def _to_path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _work(order: dict[str, Any], settings: Settings, progress: Progress) -> ProposedGroups | LearnedVersion:
    unknowns = open_unknown_store(settings.store, settings.store_limits)
    journal = open_journal(settings, unknowns)
    if order["known"] is None:  # stored features are grouped by themselves: no network, no guard
        return Workspace(None, None, settings, unknowns, journal, order["width"]).group(progress)
    named = order["known"]
    known = KnownData(**{**named, "path": Path(named["path"]), "held_out": _to_path(named["held_out"])})
    workspace = Workspace(_load_base(order), known, settings, unknowns, journal, order["width"])
    if order["task"] == "group":
        return workspace.group(progress)
    proposal = workspace.load_proposal()
    if proposal is None:
        raise InputError("there are no groups to learn any more; look at the page again")
    return workspace.learn(proposal, progress, **order["options"])


def _load_base(order: dict[str, Any]) -> Deployment:
    paths = {
        name: Path(value)
        for name, value in order["files"].items()
        if value is not None and name not in ("model", "layer", "encoder")
    }
    base = DeploymentFiles(**{**order["files"], **paths}).load()
    if base.version != order["version"]:
        raise InputError("the guard's file has changed since the start; start the service again to work with it")
    return base


if __name__ == "__main__":
    main()
