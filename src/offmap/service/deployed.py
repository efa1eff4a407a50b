"""What is in service at a time: a calibrated guard, its network, the names of the classes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from offmap.activations import Activations
from offmap.detection import Calibration, Detector, Verdicts
from offmap.errors import InputError
from offmap.extra_passes import Requirements
from offmap.network import Network
from offmap.service.request_errors import one_sentence
from offmap.typing import Array

Kind = Literal["features", "inputs"]


@dataclass(frozen=True)
class Deployed:
    """A guard in service. Every request is answered by the one that was there when it was accepted.

    Parameters
    ----------
    guard
        Fitted and calibrated.
    network
        Runs inputs; without it only features can be scored.
    class_names
        One per class of the network, when they have names.
    since
        When it was put in service, in seconds since 1970.

    Examples
    --------
    >>> import offmap
    >>> known = offmap.Activations(np.random.default_rng(0).normal(3, size=(200, 2)), head=offmap.Head(np.eye(2)))
    >>> guard = offmap.detector("energy").fit(known[:100]).calibrate(known[100:])
    >>> verdicts, features = Deployed(guard).judge("features", np.full((2, 2), -9.0, np.float32), 128)
    >>> verdicts.known
    array([False, False])
    """

    guard: Detector
    network: Network | None = None
    class_names: tuple[str, ...] | None = None
    since: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if not self.guard.is_fitted or self.guard.calibration is None:
            raise InputError(f"{self.guard}: it has no threshold; calibrate it first, as offmap fit --calibrate does")
        n_classes = self.guard.n_classes
        if self.class_names is not None and n_classes is not None and len(self.class_names) != n_classes:
            raise InputError(f"{len(self.class_names)} class names, but the guard was fitted on {n_classes} classes")
        if self.network is None and self.requirements.extras:
            raise InputError(
                f"{self.guard}: it reads {self.requirements.describe()}, so a network is needed; give --model"
            )

    @property
    def calibration(self) -> Calibration:
        """The scores of held-out known inputs."""
        assert self.guard.calibration is not None
        return self.guard.calibration

    @cached_property
    def requirements(self) -> Requirements:
        """What the guard asks of a network."""
        return replace(self.guard.requirements, labels=False)

    @cached_property
    def version(self) -> str:
        """Twelve letters that tell guards apart."""
        digest = hashlib.sha256(self.guard.chosen.encode())
        digest.update(repr(self.calibration.tpr).encode())
        for array in self.calibration.arrays().values():
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:12]

    @property
    def width(self) -> int | None:
        """How many features the guard reads, when it knows."""
        return None if self.guard.fitting is None else self.guard.fitting.width

    def class_of(self, index: int | None) -> str | int | None:
        """The name of a class where there are names, else its index."""
        if index is None or self.class_names is None or index >= len(self.class_names):
            return index
        return self.class_names[index]

    def judge(self, kind: Kind, rows: Array, batch: int) -> tuple[Verdicts, Array | None]:
        """Verdicts of some inputs or features, and their features."""
        acts = Activations(rows) if kind == "features" else self._run(rows, batch)
        verdicts = self.guard.verdicts(acts)
        bad = np.flatnonzero(~np.isfinite(verdicts.score))
        if len(bad):
            raise InputError(f"row {bad[0]} has no finite score; its values are too large")
        return verdicts, acts.features if acts.has_features else None

    def _run(self, rows: Array, batch: int) -> Activations:
        assert self.network is not None
        try:
            if len(rows) <= batch:
                return self.network(rows, self.requirements)
            return self.network.extract(rows, self.requirements, batch_size=batch, progress=False)
        except MemoryError:
            raise
        except Exception as error:  # a model raises whatever it likes about inputs it was not made for
            shape = "×".join(map(str, rows.shape[1:]))
            said = one_sentence(error).replace(repr(self.network), "the network")[:300]  # clients need not know files
            raise InputError(
                f"the network does not take inputs of shape {shape}, type {rows.dtype} ({said})"
            ) from error

    def describe(self) -> dict[str, Any]:
        """What anyone may know about it."""
        calibration = self.calibration
        by_class = calibration.classes is not None
        return {
            "detector": self.guard.chosen,
            "version": self.version,
            "since": self.since,
            "tpr": calibration.tpr,
            "threshold": None if by_class else calibration.threshold,
            "thresholds": _named(calibration.thresholds(), self.class_names) if by_class else None,
            "calibrated_on": len(calibration.scores),
            "classes": self.guard.n_classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "features": self.width,
            "takes_inputs": self.network is not None,
        }


def checked_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Class names as a tuple of text, all different.

    Examples
    --------
    >>> checked_names(["ant", "bee"])
    ('ant', 'bee')
    """
    if names is None:
        return None
    found = tuple(map(str, names))
    if len(set(found)) != len(found):
        raise InputError("class names: two classes have the same name; give each its own")
    return found


def _named(thresholds: dict[int, float], names: tuple[str, ...] | None) -> dict[str, float]:
    return {str(index if names is None else names[index]): value for index, value in thresholds.items()}
