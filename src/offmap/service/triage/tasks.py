"""Tasks of the triage page that run in the background, one at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from offmap.errors import OffmapError
from offmap.service.request_errors import RequestError, hide_folders, to_sentence

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackgroundTask:
    """The task that runs in the background, or the last one that did.

    Parameters
    ----------
    kind : {"group", "learn"}
        What it does.
    words : str
        What it is doing now, for people.
    share : float
        The share that is done, from 0 to 1.
    running : bool, default=True
        Whether it still runs.
    error : str or None, default=None
        Why it failed.
    """

    kind: str
    words: str
    share: float
    running: bool = True
    error: str | None = None


class TaskRunner:
    """Run one task at a time in a thread, and keep its progress.

    Parameters
    ----------
    lock : threading.RLock
        Held whenever `current` changes.

    Attributes
    ----------
    current : BackgroundTask or None
        The task that runs, or the last one that did.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._thread: threading.Thread | None = None
        self._closing = False
        self.current: BackgroundTask | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a thread still works on a task, also after `close`."""
        return self._thread is not None and self._thread.is_alive()

    def check_idle(self) -> None:
        """Raise a `RequestError` while a task runs."""
        if self.current is not None and self.current.running:
            raise RequestError(409, "something is being worked on; wait until it is done")

    def start(self, kind: str, words: str, work: Callable[[], None]) -> None:
        """Start a task.

        Parameters
        ----------
        kind : {"group", "learn"}
            What it does.
        words : str
            What it does first, for people.
        work : callable
            Does it, without arguments; an error it raises becomes the error of the task.

        Raises
        ------
        RequestError
            If another task runs.
        """
        with self._lock:
            self.check_idle()
            self.current = BackgroundTask(kind, words, 0.0)

        def run() -> None:
            try:
                work()
            except OffmapError as error:
                _log.warning("%s failed: %s", kind, error)
                self._end(hide_folders(to_sentence(error)))
            except Exception:
                _log.exception("%s failed", kind)
                self._end("it failed; the service's log says why")
            else:
                self._end(None)

        self._thread = threading.Thread(target=run, name=f"offmap-{kind}", daemon=True)
        self._thread.start()

    def report_progress(self, words: str, share: float) -> None:
        """Record how far the task is; raises a `RequestError` when it must stop."""
        with self._lock:
            if self._closing:
                raise RequestError(503, "the service is stopping")
            assert self.current is not None
            self.current = replace(self.current, words=words, share=share)

    def wait(self, seconds: float = 600.0) -> None:
        """Wait until no task runs."""
        end = time.monotonic() + seconds
        while self.current is not None and self.current.running:
            if time.monotonic() > end:
                raise TimeoutError("the task in the background has not ended")
            time.sleep(0.02)

    def stop(self) -> None:
        """Let the task end at its next report of progress."""
        with self._lock:
            self._closing = True

    def join(self, seconds: float) -> None:
        """Wait for the thread, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _end(self, error: str | None) -> None:
        with self._lock:
            assert self.current is not None
            self.current = replace(self.current, running=False, error=error, share=1.0, words=error or "done")
