"""Remarks on data that would make a threshold say nothing: fitting data again, equal scores, scaled tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from offmap.activations import Activations, name_probabilities
from offmap.detection.fitted_inputs import FittedInputs
from offmap.errors import OffmapWarning
from offmap.typing import Array

_SHARED = 0.1  # share of calibration inputs that were fitted on, from which it is said
_FIXED_LENGTH = 0.02  # rows whose lengths vary less were brought to one length on purpose
_CENTRED = 0.1  # columns whose mean is within so many deviations of 0 were standardised


@contextmanager
def without_advice() -> Iterator[None]:
    """Leave out advice on the settings of methods that nobody named: `auto` chose them by trials that count the cost.

    Examples
    --------
    >>> with without_advice():
    ...     warnings.warn("the covariance is singular: 3 of 8 directions have no variance", OffmapWarning)
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the covariance is singular", OffmapWarning)
        yield


def warn_of_fitted_inputs(detector: Any, fitted: FittedInputs, acts: Activations) -> None:
    """Warn when many of the calibration inputs are among those that were fitted on.

    Parameters
    ----------
    detector : Detector
        For the message.
    fitted : FittedInputs
        What is kept of the fitted inputs.
    acts : Activations
        Of the calibration inputs.
    """
    share = fitted.estimate_share(acts)
    if share >= _SHARED:
        warnings.warn(
            f"{detector}: about {min(share, 1):.0%} of the calibration inputs were fitted on, so known inputs will "
            "be flagged more often than promised; calibrate on known inputs that were held out",
            OffmapWarning,
            stacklevel=3,
        )


def warn_of_probabilities(detector: Any, acts: Activations) -> None:
    """Warn when probabilities, or their logarithms, were given as logits to a detector that reads logits."""
    given = acts.given_logits
    if given is None or acts.head is not None or not any("logits" in part.reads for part in detector.plan.components):
        return
    kind = name_probabilities(given[:256])
    if kind is not None:
        warnings.warn(
            f"{detector}: the logits given are {kind}, not logits, and most scores lose by it; pass those from before "
            "the softmax, or features and the head: offmap.Activations(features, offmap.Head(weight, bias))",
            OffmapWarning,
            stacklevel=3,
        )


def warn_of_equal_scores(detector: Any, scores: Array) -> None:
    """Warn when all calibration inputs have the same score, so that nothing can be told apart."""
    if len(scores) > 1 and scores.min() == scores.max():
        warnings.warn(
            f"{detector}: all {len(scores)} calibration inputs score {scores[0]:.6g}, so it tells nothing apart; use "
            "another method, or check what the network gives",
            OffmapWarning,
            stacklevel=3,
        )


def warn_of_standardized_columns(detector: Any, acts: Activations) -> None:
    """Warn when neighbours are looked for by angle in a table whose columns were standardised.

    Such rows differ in length, and a row far from all others may point the way of a near one.
    """
    blind = [
        component
        for chain in detector.plan.chains
        for component in chain
        if component.name == "knn" and getattr(component, "normalize", False)
    ]
    seen_otherwise = len(blind) < len(detector.plan.chains)  # another term of the sum sees how far a row is
    if not blind or seen_otherwise or acts.has_logits or not acts.has_features or len(acts) < 2:
        return
    rows = np.asarray(next(acts.blocks()).features, np.float64)
    lengths, spread = np.linalg.norm(rows, axis=1), rows.std(axis=0)
    centred = np.abs(rows.mean(axis=0)) <= _CENTRED * np.maximum(spread, 1e-12)
    if lengths.std() > _FIXED_LENGTH * lengths.mean() and centred.mean() > 0.8:
        warnings.warn(
            f"{detector}: the columns look standardised, and knn brings each row to length 1, which hides how far it "
            "is from the others; for a table write knn(k, normalize=false), for embeddings ignore this",
            OffmapWarning,
            stacklevel=3,
        )
