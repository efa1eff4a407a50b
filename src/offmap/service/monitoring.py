"""Metrics of the service: counters and histograms for Prometheus, and a summary in JSON."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from offmap.detection import Verdicts
from offmap.detection.drift import DriftMonitor
from offmap.detection.drift_columns import ColumnDrift
from offmap.openworld import Deployment
from offmap.typing import Array

RECENT = 1000
SHOWN_DRIFTS = 20
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_P_VALUES = tuple(round(0.05 * k, 2) for k in range(1, 21))
_LEVELS = np.array([0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])


class BatchHistogram:
    """A histogram with fixed edges that counts whole batches of values.

    Parameters
    ----------
    edges : array-like
        Upper edges of the bins, increasing; a last bin takes all larger values.

    Examples
    --------
    >>> histogram = BatchHistogram([0.0, 1.0])
    >>> histogram.add(np.array([-1.0, 0.5, 1.0, 7.0]))
    >>> histogram.counts, histogram.cumulative_counts()
    (array([1, 2, 1]), [('0.0', 1), ('1.0', 3), ('+Inf', 4)])
    """

    def __init__(self, edges: npt.ArrayLike) -> None:
        self.edges = np.asarray(edges, np.float64)
        self.counts = np.zeros(len(self.edges) + 1, np.int64)
        self.total = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Count values; a value on an edge belongs to the bin below it."""
        self.counts += np.bincount(np.searchsorted(self.edges, values), minlength=len(self.counts))
        self.total += float(values.sum())

    def cumulative_counts(self) -> list[tuple[str, int]]:
        """Return how many values were at most each edge, in the form of Prometheus."""
        names = [*map(floatToGoString, self.edges), "+Inf"]
        return list(zip(names, np.cumsum(self.counts).tolist(), strict=True))


class RowBudget:
    """Allow so many rows per second, and as many as of three seconds at once.

    Parameters
    ----------
    per_second : float
        The rate.

    Examples
    --------
    >>> budget = RowBudget(20.0)
    >>> budget.take(1000), budget.take(1000)
    (60, 0)
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = 3 * per_second
        self._time = time.monotonic()

    def take(self, rows: int) -> int:
        """Return how many of these rows are within the budget, and charge for them."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._time) * self._per_second, 3 * self._per_second)
        self._time = now
        taken = min(rows, int(self._left))
        self._left -= taken
        return taken


class ServiceMetrics:
    """Metrics of requests, verdicts, drift and the store.

    Parameters
    ----------
    deployment : Deployment
        The first deployment in service.
    alpha : float
        The probability of ever reporting drift of the scores when there is none, and as much of ever naming a class or
        feature that drifts.
    tested_per_second : float, default=20
        The most inputs that are tested class by class and feature by feature; which ones does not depend on them.
    """

    def __init__(self, deployment: Deployment, alpha: float, tested_per_second: float = 20.0) -> None:
        self.registry = CollectorRegistry()
        self._alpha = alpha
        self._budget = RowBudget(tested_per_second)
        self._lock = threading.Lock()

        def make(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"offmap_{name}", text, labels, registry=self.registry, **options)

        self.requests = make(Counter, "requests", "Requests answered.", ("path", "status"))
        self.seconds = make(Histogram, "request_seconds", "Time from head to answer.", ("path",), buckets=_SECONDS)
        self.running = make(Gauge, "requests_running", "Requests being handled.")
        self.waiting = make(Gauge, "inputs_waiting", "Inputs that wait to be scored.")
        self.inputs = make(Counter, "inputs", "Inputs scored.", ("verdict",))
        self.share = make(Gauge, "unknown_share", f"Share of unknown inputs among the last {RECENT}.")
        self.dropped = make(Counter, "pile_dropped", "Unknown inputs dropped from the store.", ("reason",))
        self.stored_items = make(Gauge, "pile_items", "Unknown inputs in the store.")
        self.stored_bytes = make(Gauge, "pile_bytes", "Approximate bytes of unknown inputs in the store.")
        self.reloads = make(Counter, "guard_reloads", "Guards put in service after the first.", ("outcome",))
        self.guard = make(Gauge, "guard_info", "The guard in service.", ("version", "detector"))
        self.drift_log10 = make(Gauge, "drift_evidence_log10", "Evidence for drift: log10 of the test's capital.")
        self.drift_highest = make(Gauge, "drift_evidence_highest_log10", "The largest evidence since the start.")
        self.drift_alarm = make(Gauge, "drift_alarm", "1 once drift was found, until another guard is in service.")
        text = "Drifting shares and scores of classes, and features, by kind."
        self.drift_columns = make(Gauge, "drift_columns", text, ("what",))
        for verdict in ("known", "unknown"):
            self.inputs.labels(verdict)
        for reason in ("size", "age"):
            self.dropped.labels(reason)
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._p_values = BatchHistogram(_P_VALUES)
        self.start(deployment)
        self.registry.register(self)  # it calls `collect`

    def start(self, deployment: Deployment) -> None:
        """Reset scores, share and drift for a new deployment, whose scores are on another scale."""
        # an infinite score of one calibration input says nothing about where the others lie
        scores = deployment.calibration.scores[np.isfinite(deployment.calibration.scores)]
        edges = np.unique(np.quantile(scores, _LEVELS)) if len(scores) else np.zeros(1)
        with self._lock:
            self._deployment = deployment
            self._scores = BatchHistogram(edges)
            self._recent.clear()
            self._drift = DriftMonitor(scores, self._alpha) if len(scores) > 1 else None
            reference = deployment.detector.reference
            self._columns = None if reference is None else ColumnDrift(reference, self._alpha)
            for what in ("share", "score", "feature"):
                self.drift_columns.labels(what).set(0)
            self.guard.clear()
            self.guard.labels(deployment.version, deployment.detector.chosen).set(1)
            for gauge in (self.drift_log10, self.drift_highest, self.drift_alarm, self.share):
                gauge.set(0)

    def record(self, deployment: Deployment, verdicts: Verdicts, features: Array | None = None) -> None:
        """Count the verdicts of a batch, and test them for drift."""
        unknown = int(np.sum(~verdicts.known))
        self.inputs.labels("known").inc(len(verdicts) - unknown)
        self.inputs.labels("unknown").inc(unknown)
        with self._lock:
            self._p_values.add(verdicts.p_value)
            if deployment is not self._deployment:
                return  # the last answers of a deployment that was replaced
            self._scores.add(verdicts.score)
            self._recent.extend((~verdicts.known).tolist())
            self.share.set(sum(self._recent) / len(self._recent))
            if self._drift is not None:
                evidence = self._drift.update(verdicts.score)
                self.drift_log10.set(math.log10(evidence.capital))
                self.drift_highest.set(math.log10(evidence.highest))
                self.drift_alarm.set(evidence.alarm_at is not None)
            self._test_columns(verdicts, features)

    def _test_columns(self, verdicts: Verdicts, features: Array | None) -> None:
        if self._columns is None or not (rows := self._budget.take(len(verdicts))):
            return
        predicted = None if verdicts.predicted is None else verdicts.predicted[:rows]
        found = self._columns.update(verdicts.score[:rows], predicted, None if features is None else features[:rows])
        for what in ("share", "score", "feature"):
            self.drift_columns.labels(what).set(sum(one.what == what for one in found))

    def _describe_columns(self) -> dict[str, Any]:
        """Describe which classes and features drift, by name; the caller holds the lock."""
        found = [] if self._columns is None else self._columns.alarms()
        name = self._deployment.class_name
        return {
            "tested": 0 if self._columns is None else self._columns.seen,
            "classes": [
                {
                    "class": name(one.index),
                    "what": one.what,
                    "direction": one.direction,
                    "alarm_after": one.alarm_at,
                    "evidence_log10": one.evidence,
                }
                for one in found
                if one.what != "feature"
            ][:SHOWN_DRIFTS],
            "features": [
                {
                    "feature": one.index,
                    "direction": one.direction,
                    "alarm_after": one.alarm_at,
                    "evidence_log10": one.evidence,
                }
                for one in found
                if one.what == "feature"
            ][:SHOWN_DRIFTS],
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the histograms of p-values and scores, for the registry."""
        with self._lock:
            p_value = HistogramMetricFamily("offmap_p_value", "p-values of inputs; even when all are known.")
            p_value.add_metric([], self._p_values.cumulative_counts(), self._p_values.total)
            text = "Scores, in bins between quantiles of the calibration scores."
            score = HistogramMetricFamily("offmap_score", text, labels=["guard"])
            score.add_metric([self._deployment.version], self._scores.cumulative_counts(), self._scores.total)
        yield p_value
        yield score

    def record_dropped(self, dropped: dict[str, int]) -> None:
        """Count items that the store dropped, by reason."""
        for reason, count in dropped.items():
            self.dropped.labels(reason).inc(count)

    def summarize(self) -> dict[str, Any]:
        """Return the main figures since the present deployment is in service."""
        with self._lock:
            recent = list(self._recent)
            evidence = None if self._drift is None else self._drift.evidence
            return {
                "guard": self._deployment.version,
                "scored": int(self._scores.counts.sum()),
                "recent": len(recent),
                "unknown_share": sum(recent) / len(recent) if recent else None,
                "scores": {"edges": self._scores.edges.tolist(), "counts": self._scores.counts.tolist()},
                "drift": None
                if evidence is None
                else {
                    "evidence_log10": math.log10(evidence.capital),
                    "highest_log10": math.log10(evidence.highest),
                    "alarm": evidence.alarm_at is not None,
                    "alarm_after": evidence.alarm_at,
                    "alpha": self._alpha,
                    **self._describe_columns(),
                },
            }

    def render(self, stored_items: float, stored_bytes: float, waiting: int) -> bytes:
        """Render all metrics in the text format of Prometheus."""
        self.stored_items.set(stored_items)
        self.stored_bytes.set(stored_bytes)
        self.waiting.set(waiting)
        return generate_latest(self.registry)
