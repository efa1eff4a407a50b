"""The two threads behind the service: one scores what waits in batches, one commits unknown inputs in groups.

A batch is whatever came in while the last one was scored, so that nobody waits for company. An answer that says
"unknown" leaves only after the input is on disk; all answers of a batch or several wait for one commit.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offmap.detection import Verdicts
from offmap.errors import OffmapError
from offmap.service.deployed import Deployed, Kind
from offmap.service.request_errors import RequestError
from offmap.service.unknowns import Unknown, UnknownStore, new_ids
from offmap.typing import Array

Result = dict[str, Any]
NPY = "application/x-npy"
_COMMIT_ROWS = 4096
_TRIM_SECONDS = 60.0
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """The rows of one request, on their way to an answer.

    Parameters
    ----------
    deployed
        What was in service when it was accepted.
    kind, rows
        Features or inputs, checked.
    contents, content_type
        The inputs as they came, where they are not just the rows.
    references
        What the client calls them.
    """

    deployed: Deployed
    kind: Kind
    rows: Array
    contents: Sequence[bytes] | None = None
    content_type: str | None = None
    references: Sequence[str] | None = None
    future: Future[list[Result]] = field(default_factory=Future)

    def fits(self, other: Job) -> bool:
        """Whether both can be scored in one go."""
        return (
            self.deployed is other.deployed
            and self.kind == other.kind
            and self.rows.shape[1:] == other.rows.shape[1:]
            and self.rows.dtype == other.rows.dtype
        )

    def content(self, row: int) -> tuple[bytes | None, str | None]:
        """The input of a row as it is kept on the pile."""
        if self.contents is not None:
            return self.contents[row], self.content_type
        if self.kind == "features":
            return None, None
        out = io.BytesIO()
        np.save(out, self.rows[row], allow_pickle=False)
        return out.getvalue(), NPY

    def reference(self, row: int) -> str | None:
        """What the client calls a row."""
        return None if self.references is None else self.references[row]


class Scoring:
    """Takes jobs, answers their futures.

    Parameters
    ----------
    pile
        Where unknown inputs go before they are answered.
    max_batch
        Rows scored at a time.
    max_waiting
        Rows that may wait; a job beyond that is refused.
    seen
        Told of all verdicts of a batch, for the metrics.
    dropped
        Told what the pile dropped, by reason.
    """

    def __init__(
        self,
        pile: UnknownStore,
        max_batch: int,
        max_waiting: int,
        seen: Callable[[Deployed, Verdicts], None],
        dropped: Callable[[dict[str, int]], None],
    ) -> None:
        self._pile, self._max_batch, self._max_waiting = pile, max_batch, max_waiting
        self._seen, self._dropped = seen, dropped
        self._waiting: deque[Job] = deque()
        self._waiting_rows = 0
        self._judged: deque[tuple[Job, list[Result], list[Unknown]]] = deque()
        self._wake_scorer = threading.Condition()
        self._wake_writer = threading.Condition()
        self._closing = False
        self._scored_all = False
        self.write_error: str | None = None  # of the last commit, `None` when it went well
        self._scorer = threading.Thread(target=self._score_forever, name="offmap-scoring", daemon=True)
        self._writer = threading.Thread(target=self._write_forever, name="offmap-writing", daemon=True)
        self._scorer.start()
        self._writer.start()

    @property
    def alive(self) -> bool:
        """Whether both threads run."""
        return self._scorer.is_alive() and self._writer.is_alive()

    @property
    def waiting_rows(self) -> int:
        """How many rows wait to be scored."""
        return self._waiting_rows

    def submit(self, job: Job) -> Future[list[Result]]:
        """Take a job, or refuse it when too much waits already."""
        with self._wake_scorer:
            if self._closing:
                raise RequestError(503, "the service is stopping; send the request to another one, or later")
            if self._waiting_rows and self._waiting_rows + len(job.rows) > self._max_waiting:
                raise RequestError(503, f"{self._waiting_rows} inputs wait to be scored already; come back in a moment")
            job.future.set_running_or_notify_cancel()  # from here on it is answered, whether anyone waits or not
            self._waiting.append(job)
            self._waiting_rows += len(job.rows)
            self._wake_scorer.notify()
        return job.future

    def close(self) -> None:
        """Answer everything that was taken, then end both threads."""
        with self._wake_scorer:
            self._closing = True
            self._wake_scorer.notify()
        self._scorer.join()
        with self._wake_writer:
            self._scored_all = True
            self._wake_writer.notify()
        self._writer.join()

    def _score_forever(self) -> None:
        while jobs := self._next_batch():
            for job, judged in zip(jobs, self._judge_all(jobs), strict=True):
                if isinstance(judged, BaseException):
                    job.future.set_exception(judged)
                elif judged[1]:
                    with self._wake_writer:
                        self._judged.append((job, *judged))
                        self._wake_writer.notify()
                else:
                    job.future.set_result(judged[0])

    def _next_batch(self) -> list[Job]:
        """The oldest job and all that fit with it; none when closing and nothing waits."""
        with self._wake_scorer:
            while not self._waiting:
                if self._closing:
                    return []
                self._wake_scorer.wait()
            jobs = [self._waiting.popleft()]
            rows = len(jobs[0].rows)
            left: deque[Job] = deque()
            while self._waiting:
                job = self._waiting.popleft()
                if rows + len(job.rows) <= self._max_batch and job.fits(jobs[0]):
                    jobs.append(job)
                    rows += len(job.rows)
                else:
                    left.append(job)
            self._waiting = left
            self._waiting_rows -= rows
        return jobs

    def _judge_all(self, jobs: list[Job]) -> list[tuple[list[Result], list[Unknown]] | BaseException]:
        """Verdicts of all jobs together; where that fails, of each by itself: one bad request harms no other."""
        try:
            return list(self._judge(jobs))
        except Exception as error:  # whatever it is, it belongs to the requests, and this thread must live on
            if len(jobs) > 1:
                return [judged for job in jobs for judged in self._judge_all([job])]
            if not isinstance(error, OffmapError):
                _log.exception("scoring failed")
            return [error]

    def _judge(self, jobs: list[Job]) -> list[tuple[list[Result], list[Unknown]]]:
        deployed = jobs[0].deployed
        # a copy even of one: a network may work in place, and what is kept must be what came
        rows = np.concatenate([job.rows for job in jobs])
        verdicts, features = deployed.judge(jobs[0].kind, rows, self._max_batch)
        ids, now = new_ids(len(rows)), time.time()
        answers: list[tuple[list[Result], list[Unknown]]] = []
        place = 0
        for job in jobs:
            results: list[Result] = []
            unknown: list[Unknown] = []
            for row in range(len(job.rows)):
                known = bool(verdicts.known[place])
                score, p_value = float(verdicts.score[place]), float(verdicts.p_value[place])
                predicted = deployed.class_of(None if verdicts.predicted is None else int(verdicts.predicted[place]))
                results.append(
                    {"id": ids[place], "score": score, "p_value": p_value, "known": known, "class": predicted}
                )
                if not known:
                    own = None if features is None else np.asarray(features[place], np.float32)
                    verdict = (score, p_value, predicted, deployed.version)
                    unknown.append(Unknown(ids[place], now, *verdict, own, *job.content(row), job.reference(row)))
                place += 1
            answers.append((results, unknown))
        try:
            self._seen(deployed, verdicts)
        except Exception:  # a figure that cannot be kept is no reason to refuse an answer
            _log.exception("the metrics failed")
        return answers

    def _write_forever(self) -> None:
        trimmed = time.monotonic()
        while True:
            with self._wake_writer:
                while not self._judged and not self._scored_all:
                    if not self._wake_writer.wait(_TRIM_SECONDS):
                        break
                group: list[tuple[Job, list[Result], list[Unknown]]] = []
                rows = 0
                while self._judged and rows < _COMMIT_ROWS:
                    group.append(self._judged.popleft())
                    rows += len(group[-1][2])
                if not group and self._scored_all:
                    return
            if group:
                self._commit(group)
            if time.monotonic() - trimmed > _TRIM_SECONDS:
                trimmed = time.monotonic()
                self._trim()

    def _commit(self, group: list[tuple[Job, list[Result], list[Unknown]]]) -> None:
        try:
            dropped = self._pile.add([item for _, _, items in group for item in items])
        except Exception as error:  # a full disk, a database that is gone: say so, and go on
            self.write_error = str(error)
            _log.error("unknown inputs could not be stored: %s", error)
            refusal = RequestError(503, "the unknown inputs could not be stored, so nothing was accepted; try again")
            for job, _, _ in group:
                job.future.set_exception(refusal)
            return
        self.write_error = None
        self._dropped(dropped)
        for job, results, _ in group:
            job.future.set_result(results)

    def _trim(self) -> None:
        try:
            self._dropped(self._pile.trim())
        except Exception as error:  # the next commit will tell whoever asks
            _log.error("old unknown inputs could not be dropped: %s", error)
