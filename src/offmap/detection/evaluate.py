"""The one measuring loop: fit a detector, score known and unknown test inputs, and say how well it tells them apart.

`measure` does it for one detector, with whatever fits it and gives the activations. `offmap.compare` and the benchmark
runner measure with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from offmap.activations import Activations
from offmap.detection.calibration import Calibration
from offmap.detection.detectors import Detector
from offmap.metrics.detection import detection_report, metric_names
from offmap.typing import Array

KNOWN = "id"  # the name of the known test inputs among the sets
LONGEST = 48  # characters of a method in a table
COVERED = 0.95  # the share of known inputs that a threshold for `Measurement.coverage` accepts


@dataclass(frozen=True)
class Measurement:
    """One detector measured.

    Attributes
    ----------
    method : str
        Text form as asked for.
    detector : Detector
        Fitted.
    scores : dict of str to ndarray
        Scores of the known test inputs (``"id"``) and of each unknown set.
    reports : dict of str to dict of str to float
        Metrics by unknown set, as shares.
    id_accuracy : float or None
        The share of known test inputs that get their label after shaping; `None` without labels or classes.
    fit_seconds, score_seconds : float
        Without the passes of the network.
    """

    method: str
    detector: Detector
    scores: dict[str, Array]
    reports: dict[str, dict[str, float]]
    id_accuracy: float | None
    fit_seconds: float
    score_seconds: float

    @property
    def shown(self) -> str:
        """The name in tables and figures, as of a `Row`."""
        return short_name(self.method, self.detector.chosen)

    @property
    def coverage(self) -> float | None:
        """The share of known test inputs accepted at a threshold that should accept 95 %.

        The threshold is calibrated on every other known test input and tried on the rest; `None` where they are fewer
        than 40.
        """
        scores = self.scores[KNOWN]
        if len(scores) < 40:
            return None
        calibration = Calibration.of(scores[::2], COVERED)
        return float(np.mean(scores[1::2] >= calibration.threshold))


def measure(
    made: Detector,
    fit: Callable[[Detector], Detector],
    read: Callable[[Detector], Mapping[str, Activations]],
    device: str | torch.device = "cpu",
) -> Measurement:
    """Fit a detector and measure how it tells known test inputs from unknown ones.

    Parameters
    ----------
    made : Detector
        Not fitted yet.
    fit : callable
        Fits it and gives it back.
    read : callable
        Gives the activations that the fitted detector reads: of the known test inputs as ``"id"``, of unknown sets by
        their names. Not timed, since it may run the network.
    device : str or torch.device, default="cpu"
        Where to score.

    Returns
    -------
    Measurement
        Scores, numbers and times.

    See Also
    --------
    offmap.compare : for several detectors on the same activations.
    """
    method = repr(made)
    started = time.perf_counter()
    fitted = fit(made)
    fit_seconds = time.perf_counter() - started
    acts = read(fitted)
    started = time.perf_counter()
    scores = {name: fitted.score(part, device) for name, part in acts.items()}
    score_seconds = time.perf_counter() - started
    test = acts[KNOWN]
    accuracy = None
    if test.labels is not None and fitted.n_classes is not None:
        accuracy = float(np.mean(fitted.predict_classes(test, device) == test.labels))
    reports = {}
    for name in scores:
        if name != KNOWN:
            report = detection_report(scores[KNOWN], scores[name]).as_dict()
            reports[name] = {metric: report[metric] for metric in metric_names()}
    return Measurement(method, fitted, scores, reports, accuracy, fit_seconds, score_seconds)


def short_name(method: str, chosen: str) -> str:
    """Name a method in tables and figures: by what was chosen, or by what was asked for where that is too long.

    Parameters
    ----------
    method, chosen : str
        Text form as asked for, and with the parameters that were chosen for ``auto``.

    Returns
    -------
    str
        One of them.

    Examples
    --------
    >>> short_name("react(auto)|energy", "react(90)|energy")
    'react(90)|energy'
    >>> short_name("auto", "root(" + " + ".join(["knn(1)"] * 9) + ")")
    'auto'
    """
    return method if len(chosen) > LONGEST else chosen
