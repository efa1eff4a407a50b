"""Estimate how much likelier each kind of input has become: the density ratio of a covariate shift.

A classifier that tells recent inputs from calibration inputs by their features gives the ratio of their densities
(Bickel, Brückner & Scheffer 2009): odds times the ratio of the numbers of inputs. `offmap.detection.calibration`
weights calibration inputs by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offmap import store
from offmap.activations import Activations
from offmap.errors import InputError
from offmap.typing import Array

Weigh = Callable[[Activations], Array]

FEWEST = 20
FOLDS = 5
STRENGTHS = (1e-3, 1e-2, 1e-1)  # of sklearn's C, for standardised features; chosen by held-out likelihood
LIMIT = 20.0  # the most and, inverted, the least that a ratio is taken for


@dataclass(frozen=True)
class CovariateShift:
    """A density ratio w(x) = exp(coefficients · x + offset), within limits.

    Parameters
    ----------
    coefficients : array of shape (width,)
        Of the features.
    offset : float
        Of the logarithm.
    limit : float, default=20
        Ratios are kept between ``1 / limit`` and `limit`: one input must not outweigh all others.

    Examples
    --------
    >>> CovariateShift(np.array([1.0, 0.0]), 0.0).ratios(np.array([[0.0, 5.0], [1.0, 5.0], [9.0, 5.0]])).round(2)
    array([ 1.  ,  2.72, 20.  ])
    """

    coefficients: Array
    offset: float
    limit: float = LIMIT

    @classmethod
    def fit(cls, calibration: Array, recent: Array, seed: int = 0) -> tuple[CovariateShift, Array]:
        """Estimate the ratio from features of calibration inputs and of recent ones.

        Parameters
        ----------
        calibration : array of shape (n, width)
            Features of calibration inputs.
        recent : array of shape (m, width)
            Features of recent inputs, without labels.
        seed : int, default=0
            Of the folds.

        Returns
        -------
        shift : CovariateShift
            For new inputs, estimated on all.
        ratios : array of shape (n,)
            At the calibration inputs, each from a classifier that has not seen it.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> shift, ratios = CovariateShift.fit(rng.normal(size=(500, 3)), rng.normal(size=(500, 3)) + [1, 0, 0])
        >>> bool(shift.coefficients[0] > 0.9), bool(np.abs(shift.coefficients[1:]).max() < 0.2)
        (True, True)
        """
        old, new = (np.asarray(rows, np.float64) for rows in (calibration, recent))
        if min(len(old), len(new)) < FEWEST:
            raise InputError(
                f"{len(old)} calibration and {len(new)} recent inputs: at least {FEWEST} of each are needed to "
                "estimate a shift"
            )
        if old.shape[1] != new.shape[1]:
            raise InputError(f"{new.shape[1]} features of recent inputs, but {old.shape[1]} of calibration inputs")
        rows = np.concatenate([old, new])
        is_new = np.repeat([0, 1], [len(old), len(new)])
        rng = np.random.default_rng(seed)
        folds = np.concatenate([rng.permutation(np.arange(len(part)) % FOLDS) for part in (old, new)])
        strength, held_out = _choose_strength(rows, is_new, folds)
        whole = _fit_logits(rows, is_new, strength)
        prior = np.log(len(old) / len(new))
        shift = cls(whole[0], float(whole[1] + prior))
        return shift, shift._bound(held_out[: len(old)] + prior)

    def __call__(self, acts: Activations) -> Array:
        """Compute the ratio at each input."""
        return self.ratios(acts.features)

    def ratios(self, features: Array) -> Array:
        """Compute the ratio at each row of features."""
        if features.shape[1] != len(self.coefficients):
            raise InputError(
                f"{features.shape[1]} features per input; the shift was estimated on {len(self.coefficients)}"
            )
        return self._bound(np.asarray(features, np.float64) @ self.coefficients + self.offset)

    def _bound(self, logarithms: Array) -> Array:
        most = np.log(self.limit)
        return np.exp(np.clip(logarithms, -most, most))

    def arrays(self) -> dict[str, Array]:
        """Give everything, by name."""
        return {
            "coefficients": self.coefficients,
            "offset": np.array(self.offset),
            "limit": np.array(self.limit),
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> CovariateShift:
        """Make the shift that gave these arrays."""
        store.check_arrays("shift", arrays, {"coefficients": ("f", 1), "offset": ("f", 0), "limit": ("f", 0)})
        return cls(arrays["coefficients"], float(arrays["offset"]), float(arrays["limit"]))


def _choose_strength(rows: Array, is_new: Array, folds: Array) -> tuple[float, Array]:
    """Choose the regularisation by held-out likelihood; give it with the held-out log odds of all rows."""
    best, found = -np.inf, (STRENGTHS[0], np.zeros(len(rows)))
    for strength in STRENGTHS:
        odds = np.empty(len(rows))
        for fold in range(FOLDS):
            held_out = folds == fold
            coefficients, offset = _fit_logits(rows[~held_out], is_new[~held_out], strength)
            odds[held_out] = rows[held_out] @ coefficients + offset
        likelihood = -np.logaddexp(0, np.where(is_new, -odds, odds)).mean()
        if likelihood > best:
            best, found = likelihood, (strength, odds)
    return found


def _fit_logits(rows: Array, is_new: Array, strength: float) -> tuple[Array, float]:
    """Fit a logistic regression on standardised rows; give it for rows as they are."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale == 0] = 1.0
    fitted = LogisticRegression(C=strength * len(rows), max_iter=200).fit((rows - mean) / scale, is_new)
    coefficients: Array = fitted.coef_[0] / scale
    return coefficients, float(fitted.intercept_[0] - coefficients @ mean)
