"""`Deployment`: a calibrated detector, its network and the names of the classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.activations import Activations
from offmap.detection import Calibration, Detector, Verdicts
from offmap.errors import InputError
from offmap.extra_passes import Requirements
from offmap.network import Network
from offmap.service.request_errors import to_sentence

Array = npt.NDArray[Any]
Kind = Literal["features", "inputs"]


@dataclass(frozen=True)
class Deployment:
    """A calibrated detector with the network whose activations it reads.

    Parameters
    ----------
    detector : Detector
        Fitted and calibrated.
    network : Network or None, default=None
        Runs inputs; without it only features can be scored.
    class_names : sequence of str or None, default=None
        One name per class, all different; `None` when classes are known by their index only.

    Raises
    ------
    InputError
        If the detector is not calibrated, needs a network that is not given, or the names do not fit it.

    Examples
    --------
    >>> import offmap
    >>> known = offmap.Activations(np.random.default_rng(0).normal(3, size=(200, 2)), head=offmap.Head(np.eye(2)))
    >>> guard = offmap.detector("energy").fit(known[:100]).calibrate(known[100:])
    >>> verdicts, features = Deployment(guard).score("features", np.full((2, 2), -9.0, np.float32))
    >>> verdicts.known
    array([False, False])
    """

    detector: Detector
    network: Network | None = None
    class_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self.detector.is_fitted or self.detector.calibration is None:
            raise InputError(
                f"{self.detector}: it has no threshold; calibrate it first, as offmap fit --calibrate does"
            )
        if self.network is None and self.requirements.extras:
            raise InputError(
                f"{self.detector}: it reads {self.requirements.describe()}, so a network is needed; give --model"
            )
        if self.class_names is None:
            return
        names, n_classes = tuple(map(str, self.class_names)), self.detector.n_classes
        if n_classes is not None and len(names) != n_classes:
            raise InputError(f"{len(names)} class names, but the guard was fitted on {n_classes} classes")
        if len(set(names)) != len(names):
            raise InputError("class names: two classes have the same name; give each its own")
        object.__setattr__(self, "class_names", names)

    @property
    def calibration(self) -> Calibration:
        """The calibration of the detector."""
        assert self.detector.calibration is not None
        return self.detector.calibration

    @cached_property
    def requirements(self) -> Requirements:
        """What the detector reads of a network."""
        return replace(self.detector.requirements, labels=False)

    @cached_property
    def version(self) -> str:
        """Twelve characters that identify the detector and its calibration."""
        digest = hashlib.sha256(self.detector.chosen.encode())
        digest.update(repr(self.calibration.tpr).encode())
        for array in self.calibration.arrays().values():
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:12]

    @property
    def width(self) -> int | None:
        """The number of features that the detector reads; `None` when any number will do."""
        return None if self.detector.fitting is None else self.detector.fitting.width

    def class_label(self, index: int | None) -> str | int | None:
        """Return the name of a class where there are names, else its index."""
        if index is None or self.class_names is None or index >= len(self.class_names):
            return index
        return self.class_names[index]

    def score(self, kind: Kind, rows: Array, batch_size: int = 128) -> tuple[Verdicts, Array | None]:
        """Score features or inputs.

        Parameters
        ----------
        kind : {"features", "inputs"}
            What the rows are.
        rows : ndarray
            One row per input.
        batch_size : int, default=128
            Inputs that the network runs at a time.

        Returns
        -------
        verdicts : Verdicts
            One verdict per row.
        features : ndarray or None
            The features that were scored; `None` when the network has none.
        """
        acts = Activations(rows) if kind == "features" else self._run_network(rows, batch_size)
        verdicts = self.detector.verdicts(acts)
        bad = np.flatnonzero(~np.isfinite(verdicts.score))
        if len(bad):
            raise InputError(f"row {bad[0]} has no finite score; its values are too large")
        return verdicts, acts.features if acts.has_features else None

    def _run_network(self, rows: Array, batch_size: int) -> Activations:
        assert self.network is not None
        try:
            if len(rows) <= batch_size:
                return self.network(rows, self.requirements)
            return self.network.extract(rows, self.requirements, batch_size=batch_size, progress=False)
        except MemoryError:
            raise
        except Exception as error:  # a model raises any kind of error about inputs it was not made for
            shape = "×".join(map(str, rows.shape[1:]))
            reason = to_sentence(error).replace(repr(self.network), "the network")[:300]  # it may name a file
            raise InputError(
                f"the network does not take inputs of shape {shape}, type {rows.dtype} ({reason})"
            ) from error
