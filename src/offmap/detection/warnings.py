"""Remarks on data that would make a threshold say nothing: the fitting data again, equal scores, scaled tables."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from offmap.activations import Activations
from offmap.errors import OffmapWarning
from offmap.typing import Array

SKETCH = 64  # hashes kept of the inputs that were fitted on
_COLUMNS = 256  # read of each input, which is enough to tell it from others
_SHARED = 0.1  # share of calibration inputs that were fitted on, from which it is said
_FIXED_LENGTH = 0.02  # rows whose lengths vary less were brought to one length on purpose
_CENTRED = 0.1  # columns whose mean is within so many deviations of 0 were standardised


def sketch_rows(acts: Activations) -> Array:
    """Keep the smallest hashes of the inputs: the same inputs have the same, in whatever order they come.

    Parameters
    ----------
    acts : Activations
        Of the inputs.

    Returns
    -------
    array of uint64
        At most 64, sorted upwards.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(500, 8))
    >>> one, other = sketch_rows(Activations(rows)), sketch_rows(Activations(rows[::-1]))
    >>> len(one), np.array_equal(one, other)
    (64, True)
    """
    kept = np.empty(0, np.uint64)
    for part in acts.blocks():
        kept = np.unique(np.concatenate([kept, hash_rows(part)]))[:SKETCH]
    return kept


def hash_rows(acts: Activations) -> Array:
    """Compute a number of 64 bits per input from the bits of its features, or of its logits."""
    rows = acts.features if acts.has_features else acts.logits
    bits = np.ascontiguousarray(rows[:, :_COLUMNS], np.float32).view(np.uint32).astype(np.uint64)
    odd = np.random.default_rng(0).integers(1, 2**63, bits.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        mixed = (bits * odd).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(31)
        return np.asarray(mixed * np.uint64(0x9E3779B97F4A7C15))


def warn_of_fitted_inputs(detector: Any, sketch: Array, n_fitted: int, acts: Activations) -> None:
    """Warn when many of the calibration inputs are among those that were fitted on.

    Parameters
    ----------
    detector : Detector
        For the message.
    sketch : array of uint64
        What `sketch_rows` gave for the fitted inputs.
    n_fitted : int
        How many there were.
    acts : Activations
        Of the calibration inputs.
    """
    if not len(sketch) or not len(acts):
        return
    again = sum(int(np.isin(hash_rows(part), sketch).sum()) for part in acts.blocks())
    share = again / len(sketch) * n_fitted / len(acts)
    if again > 1 and share >= _SHARED:
        warnings.warn(
            f"{detector}: about {min(share, 1):.0%} of the calibration inputs were fitted on, so known inputs will "
            "be flagged more often than promised; calibrate on known inputs that were held out",
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
    if not blind or acts.has_logits or not acts.has_features or len(acts) < 2:
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
