"""What the service says about itself: counters and histograms for Prometheus, and the same for a page."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from offmap.detection import Verdicts
from offmap.service.deployed import Deployed
from offmap.service.drift import Drift

RECENT = 1000
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_P_VALUES = tuple(round(0.05 * k, 2) for k in range(1, 21))
_LEVELS = np.array([0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])


class Tally:
    """How many values fell between edges, and their sum; whole batches at a time.

    Examples
    --------
    >>> tally = Tally([0.0, 1.0])
    >>> tally.add(np.array([-1.0, 0.5, 1.0, 7.0]))
    >>> tally.counts, tally.cumulated()
    (array([1, 2, 1]), [('0.0', 1), ('1.0', 3), ('+Inf', 4)])
    """

    def __init__(self, edges: npt.ArrayLike) -> None:
        self.edges = np.asarray(edges, np.float64)
        self.counts = np.zeros(len(self.edges) + 1, np.int64)
        self.total = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Count values; one on an edge belongs below it."""
        self.counts += np.bincount(np.searchsorted(self.edges, values), minlength=len(self.counts))
        self.total += float(values.sum())

    def cumulated(self) -> list[tuple[str, int]]:
        """How many values were at most each edge, as Prometheus has it."""
        names = [*map(floatToGoString, self.edges), "+Inf"]
        return list(zip(names, np.cumsum(self.counts).tolist(), strict=True))


class ServiceMetrics:
    """Counts what passes through the service.

    Parameters
    ----------
    deployed
        What is in service first.
    alpha
        The chance of ever reporting drift when there is none.
    """

    def __init__(self, deployed: Deployed, alpha: float) -> None:
        self.registry = CollectorRegistry()
        self._alpha = alpha
        self._lock = threading.Lock()

        def made(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"offmap_{name}", text, labels, registry=self.registry, **options)

        self.requests = made(Counter, "requests", "Requests answered.", ("path", "status"))
        self.seconds = made(Histogram, "request_seconds", "Time from head to answer.", ("path",), buckets=_SECONDS)
        self.running = made(Gauge, "requests_running", "Requests being handled.")
        self.waiting = made(Gauge, "inputs_waiting", "Inputs that wait to be scored.")
        self.inputs = made(Counter, "inputs", "Inputs scored.", ("verdict",))
        self.share = made(Gauge, "unknown_share", f"Share of unknown inputs among the last {RECENT}.")
        self.dropped = made(Counter, "pile_dropped", "Unknown inputs dropped from the pile.", ("reason",))
        self.pile_items = made(Gauge, "pile_items", "Unknown inputs on the pile.")
        self.pile_bytes = made(Gauge, "pile_bytes", "Bytes of unknown inputs on the pile, roughly.")
        self.reloads = made(Counter, "guard_reloads", "Guards put in service after the first.", ("outcome",))
        self.guard = made(Gauge, "guard_info", "The guard in service.", ("version", "detector"))
        self.drift_log10 = made(Gauge, "drift_evidence_log10", "Evidence for drift: log10 of the test's capital.")
        self.drift_highest = made(Gauge, "drift_evidence_highest_log10", "The most evidence there ever was.")
        self.drift_alarm = made(Gauge, "drift_alarm", "1 once drift was found, until another guard is in service.")
        for verdict in ("known", "unknown"):
            self.inputs.labels(verdict)
        for reason in ("size", "age"):
            self.dropped.labels(reason)
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._p_values = Tally(_P_VALUES)
        self.start(deployed)
        self.registry.register(self)  # for what `collect` gives

    def start(self, deployed: Deployed) -> None:
        """Begin anew for another guard: its scores are on a scale of their own."""
        scores = deployed.calibration.scores
        with self._lock:
            self._deployed = deployed
            self._scores = Tally(np.unique(np.quantile(scores, _LEVELS)))
            self._recent.clear()
            self._drift = Drift(scores, self._alpha) if len(scores) > 1 else None
            self.guard.clear()
            self.guard.labels(deployed.version, deployed.guard.chosen).set(1)
            for gauge in (self.drift_log10, self.drift_highest, self.drift_alarm, self.share):
                gauge.set(0)

    def seen(self, deployed: Deployed, verdicts: Verdicts) -> None:
        """Take in the verdicts of a batch."""
        unknown = int(np.sum(~verdicts.known))
        self.inputs.labels("known").inc(len(verdicts) - unknown)
        self.inputs.labels("unknown").inc(unknown)
        with self._lock:
            self._p_values.add(verdicts.p_value)
            if deployed is not self._deployed:
                return  # the last answers of a guard that was replaced
            self._scores.add(verdicts.score)
            self._recent.extend((~verdicts.known).tolist())
            self.share.set(sum(self._recent) / len(self._recent))
            if self._drift is not None:
                evidence = self._drift.update(verdicts.score)
                self.drift_log10.set(math.log10(evidence.capital))
                self.drift_highest.set(math.log10(evidence.highest))
                self.drift_alarm.set(evidence.alarm_at is not None)

    def collect(self) -> Iterator[Metric]:
        """The two distributions, for the registry."""
        with self._lock:
            p_value = HistogramMetricFamily("offmap_p_value", "p-values of inputs; even when all are known.")
            p_value.add_metric([], self._p_values.cumulated(), self._p_values.total)
            text = "Scores, in bins between quantiles of the calibration scores."
            score = HistogramMetricFamily("offmap_score", text, labels=["guard"])
            score.add_metric([self._deployed.version], self._scores.cumulated(), self._scores.total)
        yield p_value
        yield score

    def count_dropped(self, dropped: dict[str, int]) -> None:
        """Take in what the pile dropped, by reason."""
        for reason, count in dropped.items():
            self.dropped.labels(reason).inc(count)

    def summary(self) -> dict[str, Any]:
        """The main figures, for the guard in service since it was put there."""
        with self._lock:
            recent = list(self._recent)
            evidence = None if self._drift is None else self._drift.evidence
            return {
                "guard": self._deployed.version,
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
                },
            }

    def exposition(self, pile_items: float, pile_bytes: float, waiting: int) -> bytes:
        """The text that Prometheus reads."""
        self.pile_items.set(pile_items)
        self.pile_bytes.set(pile_bytes)
        self.waiting.set(waiting)
        return generate_latest(self.registry)
