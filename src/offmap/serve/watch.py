"""What the service says about itself: counters and histograms for Prometheus, and the same for a page."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from offmap.detection import Verdicts
from offmap.serve.deployed import Deployed
from offmap.serve.drift import Drift

RECENT = 1000
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_P_VALUES = tuple(round(0.05 * k, 2) for k in range(1, 21))
_LEVELS = np.array([0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])


class Watch:
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
        self.p_values = made(Histogram, "p_value", "p-values of inputs; even when all are known.", buckets=_P_VALUES)
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
        self._score: Any = None
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self.start(deployed)

    def start(self, deployed: Deployed) -> None:
        """Begin anew for another guard: its scores are on a scale of their own."""
        scores = deployed.calibration.scores
        edges = np.unique(np.quantile(scores, _LEVELS))
        with self._lock:
            if self._score is not None:
                self.registry.unregister(self._score)
            self._score = Histogram(
                "offmap_score", "Scores, in bins between quantiles of the calibration scores.", ("guard",),
                registry=self.registry, buckets=[*edges.tolist(), math.inf],
            )  # fmt: skip
            self._deployed = deployed
            self._scores = self._score.labels(deployed.version)
            self._edges = edges
            self._counts = np.zeros(len(edges) + 1, np.int64)
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
        for value in verdicts.p_value:
            self.p_values.observe(value)
        with self._lock:
            if deployed is not self._deployed:
                return  # the last answers of a guard that was replaced
            for score in verdicts.score:
                self._scores.observe(score)
            self._counts += np.bincount(np.searchsorted(self._edges, verdicts.score), minlength=len(self._counts))
            self._recent.extend(~verdicts.known)
            self.share.set(sum(self._recent) / len(self._recent))
            if self._drift is not None:
                evidence = self._drift.update(verdicts.score)
                self.drift_log10.set(math.log10(evidence.capital))
                self.drift_highest.set(math.log10(evidence.highest))
                self.drift_alarm.set(evidence.alarm_at is not None)

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
                "scored": int(self._counts.sum()),
                "recent": len(recent),
                "unknown_share": sum(map(bool, recent)) / len(recent) if recent else None,
                "scores": {"edges": self._edges.tolist(), "counts": self._counts.tolist()},
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
