"""Remarks on data that would make a threshold say nothing: fitting data again, equal scores, tables, one logit."""

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
_NARROW = 0.01  # a column that varies less than this part of the widest one is not seen beside it


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
        _warn(
            f"{detector}: about {min(share, 1):.0%} of the calibration inputs were fitted on, so known inputs will "
            "be flagged more often than promised; calibrate on known inputs that were held out"
        )


def warn_of_probabilities(detector: Any, acts: Activations) -> None:
    """Warn when probabilities, or their logarithms, were given as logits to a detector that reads logits."""
    given = acts.given_logits
    if given is None or acts.head is not None or not _reads_logits(detector):
        return
    kind = name_probabilities(given[:256])
    if kind is not None:
        _warn(
            f"{detector}: the logits given are {kind}, not logits, and most scores lose by it; pass those from before "
            "the softmax, or features and the head: offmap.Activations(features, offmap.Head(weight, bias))"
        )


def warn_of_equal_scores(detector: Any, scores: Array) -> None:
    """Warn when all calibration inputs have the same score, so that nothing can be told apart."""
    if len(scores) > 1 and scores.min() == scores.max():
        _warn(
            f"{detector}: all {len(scores)} calibration inputs score {scores[0]:.6g}, so it tells nothing apart; use "
            "another method, or check what the network gives"
        )


def warn_of_one_logit(detector: Any, acts: Activations) -> None:
    """Warn when a detector that reads logits is given the one logit of a network for two classes."""
    if not acts.has_logits or acts.n_classes > 1 or not _reads_logits(detector):
        return
    if acts.head is None or (acts.labels is not None and acts.labels.max(initial=0) > 0):
        _warn(
            f"{detector}: one logit per input, so one of two classes would count as unknown; write the logit z as two, "
            "logits=numpy.column_stack([-z / 2, z / 2]), as offmap.Network does by itself"
        )


def warn_of_table_columns(detector: Any, acts: Activations) -> None:
    """Warn when neighbours are looked for in a table whose columns hide what is far.

    Columns that vary far less than the widest one are not seen. Rows of standardised columns differ in length, and by
    angle a row far from all others may point the way of a near one.
    """
    neighbours = [part for chain in detector.plan.chains for part in chain if part.name == "knn"]
    seen_otherwise = len(neighbours) < len(detector.plan.chains)  # another term of the sum sees how far a row is
    if not neighbours or seen_otherwise or acts.has_logits or not acts.has_features or len(acts) < 2:
        return
    rows = np.asarray(next(acts.blocks()).features, np.float64)
    if _has_narrow_columns(rows):
        _warn(
            f"{detector}: most columns vary less than {_NARROW:.0%} of the widest one, so knn does not see them; scale "
            "the columns first, such as by a StandardScaler, and write knn(k, normalize=false)"
        )
    elif all(part.normalize for part in neighbours) and _looks_standardized(rows):
        _warn(
            f"{detector}: the columns look standardised, and knn brings each row to length 1, which hides how far it "
            "is from the others; for a table write knn(k, normalize=false), for embeddings ignore this"
        )


def _has_narrow_columns(rows: Array) -> bool:
    """Tell whether most of the columns that vary do so by next to nothing beside the widest one."""
    spread = rows.std(axis=0)
    varying = spread[spread > 0]
    return bool(len(varying) > 1 and np.median(varying) < _NARROW * varying.max())


def _looks_standardized(rows: Array) -> bool:
    """Tell whether most columns lie about 0, in rows of different lengths."""
    lengths, spread = np.linalg.norm(rows, axis=1), rows.std(axis=0)
    centred = np.abs(rows.mean(axis=0)) <= _CENTRED * np.maximum(spread, 1e-12)
    return bool(lengths.std() > _FIXED_LENGTH * lengths.mean() and centred.mean() > 0.8)


def _reads_logits(detector: Any) -> bool:
    return any("logits" in part.reads for part in detector.plan.components)


def _warn(words: str) -> None:
    """Warn where a method of the detector was called."""
    warnings.warn(words, OffmapWarning, stacklevel=4)
