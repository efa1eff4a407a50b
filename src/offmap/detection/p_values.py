"""Conformal p-values and what follows from them: order statistics as thresholds, false discovery control.

Assumption, for every promise here: calibration inputs and future known inputs are exchangeable (drawn alike), and the
calibration inputs were not used for fitting. Then a known input's p-value is at most α with probability at most α
(Vovk, Gammerman & Shafer 2005), whatever the detector and the network are.
"""

from __future__ import annotations

from math import ceil, floor, log

import numpy as np

from offmap.errors import InputError
from offmap.typing import Array


def p_values(calibration: Array, scores: Array) -> Array:
    """Compute conformal p-values (1 + #{calibration ≤ score}) / (n + 1), for calibration scores sorted upwards.

    Examples
    --------
    >>> p_values(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0]))
    array([0.25, 0.75, 1.  ])
    """
    return (1 + np.searchsorted(calibration, scores, side="right")) / (len(calibration) + 1)


def weighted_p_values(calibration: Array, scores: Array, calibration_weights: Array, weights: Array) -> Array:
    """Compute p-values (w + Σ w_i [calibration_i ≤ score]) / (w + Σ w_i) under a covariate shift.

    With w the density ratio between future known inputs and calibration inputs, a future known input has a p-value of
    at most α with probability at most α (Tibshirani, Barber, Candès & Ramdas 2019). Any common factor of all weights
    cancels out.

    Parameters
    ----------
    calibration : array of shape (n,)
        Scores of calibration inputs, sorted upwards.
    scores : array of shape (m,)
        Scores of new inputs.
    calibration_weights : array of shape (n,)
        The ratio at each calibration input, in the order of `calibration`.
    weights : array of shape (m,)
        The ratio at each new input.

    Examples
    --------
    >>> scores = np.array([1.0, 2.0, 3.0])
    >>> weighted_p_values(scores, np.array([0.0, 2.0]), np.array([1.0, 1.0, 6.0]), np.array([1.0, 2.0]))
    array([0.11111111, 0.4       ])
    """
    below = np.concatenate([[0.0], np.cumsum(calibration_weights)])
    return (weights + below[np.searchsorted(calibration, scores, side="right")]) / (weights + below[-1])


def conditional_p_values(calibration: Array, scores: Array, confidence: float) -> Array:
    """Compute p-values that hold given the calibration set, with some confidence in that set.

    With probability at least `confidence` over calibration sets, all of these hold at once: for every α, of all future
    known inputs at most a share α has a p-value of at most α. Given the set they are independent of each other, as
    procedures on streams require. The bound on the order statistics is the generalised Simes inequality of Bates,
    Candès, Lei, Romano & Sesia (2023), section 3.2.

    Parameters
    ----------
    calibration : array of shape (n,)
        Scores of calibration inputs, sorted upwards.
    scores : array of shape (m,)
        Scores of new inputs.
    confidence : float
        Such as 0.95.

    Returns
    -------
    array of shape (m,)
        Larger than `p_values` by a factor that falls from about 2 log(1 / (1 - confidence)).

    Examples
    --------
    >>> conditional_p_values(np.arange(1000.0), np.array([-1.0, 49.5, 600.0]), 0.95).round(4)
    array([0.006 , 0.0749, 1.    ])
    """
    check_confidence(confidence)
    n = len(calibration)
    half = max(n // 2, 1)
    # log of i(i - 1)…(i - half + 1) / n(n - 1)…(n - half + 1) for i = n, n - 1, …; -inf from i < half on
    steps = np.arange(n - half)
    falls = np.concatenate([[0.0], np.cumsum(np.log1p(-half / (n - steps)))])
    bounds = np.ones(n + 1)
    bounds[: len(falls)] = -np.expm1((np.log1p(-confidence) + falls) / half)
    return bounds[np.searchsorted(calibration, scores, side="right")]


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not between 0 and 1."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence={confidence}: a probability between 0 and 1 is needed, such as 0.95")


def order_statistic(n: int, tpr: float, confidence: float | None = None) -> int:
    """Find which smallest calibration score is the threshold; refuse when that is none.

    On average over calibration sets it is the ⌊α(n + 1)⌋-th with α = 1 - tpr; then ``p > α`` and
    ``score ≥ threshold`` say the same. With a confidence, the share of known inputs below the k-th smallest score
    is at most as large as a Beta(k, n + 1 - k) variable, so k is the largest with P(Beta ≤ α) ≥ confidence (Vovk 2012,
    proposition 2).

    Parameters
    ----------
    n : int
        The number of calibration inputs.
    tpr : float
        The share of known inputs to accept.
    confidence : float, optional
        In this calibration set; without it the promise is on average over calibration sets.

    Examples
    --------
    >>> order_statistic(1000, 0.95), order_statistic(1000, 0.95, confidence=0.95)
    (50, 39)
    """
    if not 0 < tpr < 1:
        raise InputError(f"tpr={tpr}: the share of known inputs to accept lies between 0 and 1")
    alpha = 1 - tpr
    if confidence is None:
        place = floor(alpha * (n + 1) + 1e-9)  # 1e-9: 1 - 0.95 is not quite 0.05
        least = ceil(1 / alpha - 1e-9) - 1
        promised = f"tpr={tpr}"
    else:
        check_confidence(confidence)
        from scipy.stats import binom

        # P(Beta(k, n + 1 - k) ≤ α) = P(Binomial(n, α) ≥ k)
        place = int(binom.isf(confidence - 1e-12, n, alpha)) if n else 0
        least = ceil(log(1 - confidence) / log(tpr) - 1e-9)
        promised = f"tpr={tpr} with a confidence of {confidence}"
    if place < 1:
        raise InputError(f"{promised} cannot be promised from {n} calibration inputs; at least {least} are needed")
    return place


def effective_size(weights: Array) -> float:
    """Compute (Σ w)² / Σ w²: how many equally weighted inputs carry as much.

    Examples
    --------
    >>> effective_size(np.ones(10)), effective_size(np.array([1.0, 0.0]))
    (10.0, 1.0)
    """
    return float(weights.sum() ** 2 / np.square(weights).sum())


def discoveries(values: Array, fdr: float) -> Array:
    """Say which p-values are discoveries at this false discovery rate (Benjamini & Hochberg 1995).

    Conformal p-values that share a calibration set are positively dependent, for which the procedure keeps its promise
    (Bates et al. 2023).

    Examples
    --------
    >>> discoveries(np.array([0.01, 0.02, 0.5, 0.9]), fdr=0.1)
    array([ True,  True, False, False])
    """
    if not 0 < fdr < 1:
        raise InputError(f"fdr={fdr}: a rate between 0 and 1 is needed")
    if len(values) == 0:
        return np.zeros(0, dtype=bool)
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(values, method="bh") <= fdr)
