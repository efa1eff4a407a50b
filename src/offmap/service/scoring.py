"""The two threads behind the service: one scores waiting requests in batches, one commits unknown inputs in groups.

A batch is whatever arrived while the last one was scored, so that no request waits for others to come. An answer that
says "unknown" leaves only after the input is on disk; all answers of one or several batches wait for one commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from offmap.activations import Activations
from offmap.detection import Verdicts
from offmap.errors import InputError, OffmapError
from offmap.openworld import Deployment
from offmap.openworld.deployment import RowKind
from offmap.service.request_errors import RequestError, hide_folders, to_sentence
from offmap.service.requests import Result, ScoringRequest
from offmap.service.unknown_inputs import UnknownInput, new_ids
from offmap.service.unknowns import UnknownStore
from offmap.typing import Array

_COMMIT_ROWS = 4096
_TRIM_SECONDS = 60.0
_NEAREST = 3  # known texts that come with an answer
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Answer:
    """The results of a request, and the unknown inputs to store before they are sent."""

    request: ScoringRequest
    results: list[Result]
    unknown: list[UnknownInput]


class Scoring:
    """Accept requests and complete their futures.

    Parameters
    ----------
    unknowns : UnknownStore
        Where unknown inputs are stored before they are answered.
    max_batch : int
        Rows scored at a time.
    max_waiting : int
        Rows that may wait; requests beyond that are rejected.
    on_verdicts : callable
        Called with the deployment, the verdicts and the features of each batch, for the metrics.
    on_dropped : callable
        Called with the number of items that the store dropped, by reason.
    """

    def __init__(
        self,
        unknowns: UnknownStore,
        max_batch: int,
        max_waiting: int,
        on_verdicts: Callable[[Deployment, Verdicts, Array | None], None],
        on_dropped: Callable[[dict[str, int]], None],
    ) -> None:
        self._unknowns, self._max_batch, self._max_waiting = unknowns, max_batch, max_waiting
        self._on_verdicts, self._on_dropped = on_verdicts, on_dropped
        self._waiting: deque[ScoringRequest] = deque()
        self._waiting_rows = 0
        self._scored: deque[_Answer] = deque()
        self._wake_scorer = threading.Condition()
        self._wake_writer = threading.Condition()
        self._closing = False
        self._scored_all = False
        self.write_error: str | None = None  # of the last commit; `None` when it succeeded
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
        """The number of rows that wait to be scored."""
        return self._waiting_rows

    def submit(self, request: ScoringRequest) -> Future[list[Result]]:
        """Queue a validated request.

        Parameters
        ----------
        request : ScoringRequest
            From `ScoringRequest.validate`.

        Returns
        -------
        Future
            Of the request; gives one result per row.

        Raises
        ------
        RequestError
            If too many rows wait already, or the service is stopping.
        """
        with self._wake_scorer:
            if self._closing:
                raise RequestError(503, "the service is stopping; send the request to another one, or later")
            if self._waiting_rows and self._waiting_rows + len(request) > self._max_waiting:
                raise RequestError(503, f"{self._waiting_rows} inputs wait to be scored already; come back in a moment")
            request.future.set_running_or_notify_cancel()  # from here on it is answered, whether anyone waits or not
            self._waiting.append(request)
            self._waiting_rows += len(request)
            self._wake_scorer.notify()
        return request.future

    def close(self) -> None:
        """Answer every accepted request, then end both threads."""
        with self._wake_scorer:
            self._closing = True
            self._wake_scorer.notify()
        self._scorer.join()
        with self._wake_writer:
            self._scored_all = True
            self._wake_writer.notify()
        self._writer.join()

    def _score_forever(self) -> None:
        while batch := self._next_batch():
            for request, answer in zip(batch, self._score_or_fail(batch), strict=True):
                if isinstance(answer, BaseException):
                    request.future.set_exception(answer)
                elif answer.unknown:
                    with self._wake_writer:
                        self._scored.append(answer)
                        self._wake_writer.notify()
                else:
                    request.future.set_result(answer.results)

    def _next_batch(self) -> list[ScoringRequest]:
        """Take the oldest request and all that can join it; none when closing and nothing waits."""
        with self._wake_scorer:
            while not self._waiting:
                if self._closing:
                    return []
                self._wake_scorer.wait()
            batch = [self._waiting.popleft()]
            rows = len(batch[0])
            left: deque[ScoringRequest] = deque()
            while self._waiting:
                request = self._waiting.popleft()
                if rows + len(request) <= self._max_batch and request.can_join(batch[0]):
                    batch.append(request)
                    rows += len(request)
                else:
                    left.append(request)
            self._waiting = left
            self._waiting_rows -= rows
        return batch

    def _score_or_fail(self, batch: list[ScoringRequest]) -> list[_Answer | BaseException]:
        """Score all requests together; where that fails, each by itself, so that one bad request harms no other."""
        try:
            return list(self._score(batch))
        except Exception as error:  # whatever it is, it belongs to the requests, and this thread must go on
            if len(batch) > 1:
                return [answer for request in batch for answer in self._score_or_fail([request])]
            if not isinstance(error, OffmapError):
                _log.exception("scoring failed")
            return [error]

    def _score(self, batch: list[ScoringRequest]) -> list[_Answer]:
        deployment = batch[0].deployment
        assert deployment is not None
        # a copy even of one: a network may work in place, and the stored input must be the one that was sent
        rows = np.concatenate([request.rows for request in batch])
        verdicts, features = _score_rows(deployment, batch[0].kind, rows, self._max_batch)
        nearest = _describe_nearest(deployment, features) if batch[0].kind == "texts" else None
        kept = rows if batch[0].kind == "features" else features  # before any learned map, to be grouped by
        ids, now = new_ids(len(rows)), time.time()
        answers: list[_Answer] = []
        i = 0
        for request in batch:
            answer = _Answer(request, [], [])
            for row in range(len(request)):
                known = bool(verdicts.known[i])
                score, p_value = float(verdicts.score[i]), float(verdicts.p_value[i])
                predicted = deployment.class_name(None if verdicts.predicted is None else int(verdicts.predicted[i]))
                answer.results.append(
                    {"id": ids[i], "score": score, "p_value": p_value, "known": known, "class": predicted}
                )
                if nearest is not None:
                    answer.results[-1]["nearest"] = nearest[i]
                if not known:
                    own = None if kept is None else np.asarray(kept[i], np.float32)
                    verdict = (score, p_value, predicted, deployment.version)
                    answer.unknown.append(
                        UnknownInput(ids[i], now, *verdict, own, *request.content(row), request.reference(row))
                    )
                i += 1
            answers.append(answer)
        try:
            self._on_verdicts(deployment, verdicts, features)
        except Exception:  # a metric that fails is no reason to reject a request
            _log.exception("the metrics failed")
        return answers

    def _write_forever(self) -> None:
        trimmed = time.monotonic()
        while True:
            with self._wake_writer:
                while not self._scored and not self._scored_all:
                    if not self._wake_writer.wait(_TRIM_SECONDS):
                        break
                group: list[_Answer] = []
                rows = 0
                while self._scored and rows < _COMMIT_ROWS:
                    group.append(self._scored.popleft())
                    rows += len(group[-1].unknown)
                if not group and self._scored_all:
                    return
            if group:
                self._commit(group)
            if time.monotonic() - trimmed > _TRIM_SECONDS:
                trimmed = time.monotonic()
                self._trim()

    def _commit(self, group: list[_Answer]) -> None:
        try:
            dropped = self._unknowns.add([item for answer in group for item in answer.unknown])
        except Exception as error:  # a full disk, a database that is gone: report it, and go on
            self.write_error = str(error)
            _log.error("unknown inputs could not be stored: %s", error)
            failure = RequestError(503, "the unknown inputs could not be stored, so nothing was accepted; try again")
            for answer in group:
                answer.request.future.set_exception(failure)
            return
        self.write_error = None
        self._on_dropped(dropped)
        for answer in group:
            answer.request.future.set_result(answer.results)

    def _trim(self) -> None:
        try:
            self._on_dropped(self._unknowns.trim())
        except Exception as error:  # the next commit reports it to whoever asks
            _log.error("old unknown inputs could not be dropped: %s", error)


def _score_rows(deployment: Deployment, kind: RowKind, rows: Array, batch_size: int) -> tuple[Verdicts, Array | None]:
    """Score rows; return their verdicts, with finite scores only, and the features that the detector reads."""
    try:
        acts = deployment.activations(rows, kind, batch_size)
    except (MemoryError, AssertionError):
        raise
    except Exception as error:  # a model raises any kind of error about inputs it was not made for
        shape = "×".join(map(str, rows.shape[1:]))
        reason = hide_folders(to_sentence(error).replace(repr(deployment.network), "the network"))[:300]
        raise InputError(f"the network does not take inputs of shape {shape}, type {rows.dtype} ({reason})") from error
    return deployment.judge(acts), _features(acts)


def _describe_nearest(deployment: Deployment, features: Array | None) -> list[list[Result]] | None:
    """Describe the known texts that each row is most like; `None` where the deployment holds none."""
    known = deployment.examples
    if known is None or features is None or features.shape[1] != known.features.shape[1]:
        return None  # a network that was learned on top of the encoder has features of its own
    places, cosines = known.find_nearest(features, _NEAREST)
    return [
        [
            {
                "text": known.texts[place],
                "class": deployment.class_name(None if known.labels[place] < 0 else int(known.labels[place])),
                "similarity": round(float(cosine), 4),
            }
            for place, cosine in zip(some, near, strict=True)
        ]
        for some, near in zip(places, cosines, strict=True)
    ]


def _features(acts: Activations) -> Array | None:
    return acts.features if acts.has_features else None
