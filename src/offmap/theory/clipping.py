"""ReAct on this network: what clipping takes from known and unknown activations, predicted and measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.theory.rectified import EsnFit, fit_esn
from offmap.typing import FloatArray

PERCENTILES = (50.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True)
class ClipReport:
    """The thesis' account of ReAct at several thresholds, on given activations.

    Attributes
    ----------
    levels : ndarray
        Thresholds c.
    known_loss, unknown_loss : ndarray
        Mean activation that clipping takes, measured.
    known_predicted, unknown_predicted : ndarray
        The same by the skew-normal fits.
    auroc, plain_auroc : ndarray, float
        AUROC of the energy score after clipping and without; `None` when there is no head.
    known_fit, unknown_fit : EsnFit
        μ, σ, ε of all activations together.
    known_units, unknown_units : ndarray of shape (3, n_units)
        Mean, standard deviation (chaoticness) and skewness of each unit.
    """

    levels: FloatArray
    known_loss: FloatArray
    unknown_loss: FloatArray
    known_predicted: FloatArray
    unknown_predicted: FloatArray
    auroc: FloatArray | None
    plain_auroc: float | None
    known_fit: EsnFit
    unknown_fit: EsnFit
    known_units: FloatArray
    unknown_units: FloatArray

    @property
    def best(self) -> int:
        """Index of the threshold to look at: the best AUROC, or the widest difference in losses without a head."""
        return int(np.argmax(self.unknown_loss - self.known_loss if self.auroc is None else self.auroc))

    @property
    def theory_says(self) -> bool:
        """True if unknown activations lose more there than known ones: the thesis' criterion (section 3.4)."""
        return bool(self.unknown_loss[self.best] > self.known_loss[self.best])

    @property
    def helps(self) -> bool:
        """True if clipping separates better: measured with a head, by the criterion without."""
        if self.auroc is None or self.plain_auroc is None:
            return self.theory_says
        return bool(self.auroc[self.best] > self.plain_auroc)

    @property
    def fit_holds(self) -> bool:
        """True if the skew-normal fits foresee both losses there within a factor of two."""
        i = self.best
        pairs = (
            (self.known_predicted[i], self.known_loss[i]),
            (self.unknown_predicted[i], self.unknown_loss[i]),
        )
        return bool(all(loss / 2 <= guess <= 2 * loss for guess, loss in pairs))

    def __str__(self) -> str:
        i = self.best
        text = (
            f"clipping at c = {self.levels[i]:.3g} takes {self.unknown_loss[i]:.3g} from these unknown and "
            f"{self.known_loss[i]:.3g} from known units on average, so ReAct's condition "
            f"{'holds' if self.theory_says else 'fails'} for them "
            f"(skew-normal fit: {self.unknown_predicted[i]:.3g} and {self.known_predicted[i]:.3g}"
            f"{'' if self.fit_holds else ', so it does not describe these tails'})"
        )
        if self.auroc is not None and self.plain_auroc is not None:
            text += f"; energy tells them apart at AUROC {self.auroc[i]:.3f} instead of {self.plain_auroc:.3f}"
            if self.helps != self.theory_says:
                text += ", the opposite of what the condition foretells"
        return text


def clip_report(
    known: npt.ArrayLike,
    unknown: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    levels: npt.ArrayLike | None = None,
    most: int = 20_000,
) -> ClipReport:
    """Fit, predict and measure what clipping does to known and unknown activations.

    Parameters
    ----------
    known, unknown : array_like of shape (n_inputs, n_units)
        Activations from 0 up; `unknown` may be noise.
    weight, bias : array_like, optional
        The head, to measure the effect on the energy score.
    levels : array_like, optional
        Thresholds c; several percentiles of the known activations by default.
    most : int, default=20_000
        Number of activations that each fit is made from, evenly spaced.

    Returns
    -------
    ClipReport

    Raises
    ------
    InputError
        If an activation is negative.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> report = clip_report(np.maximum(rng.normal(0.5, 0.2, (200, 6)), 0), rng.gamma(1.0, 0.8, (200, 6)))
    >>> report.helps
    True
    """
    inside, outside = (np.asarray(part, dtype=np.float64) for part in (known, unknown))
    if min(inside.min(), outside.min()) < 0:
        raise InputError("clip_report: activations must not be negative; ReAct is about what comes out of a ReLU")
    given = np.percentile(inside, PERCENTILES) if levels is None else np.asarray(levels, dtype=np.float64)
    at = np.atleast_1d(given)
    fits = [fit_esn(_thinned(part, most)) for part in (inside, outside)]
    losses = [np.array([np.maximum(part - c, 0).mean() for c in at]) for part in (inside, outside)]
    predicted = [np.array([float(fit.reduction(c)) for c in at]) for fit in fits]
    auroc = plain = None
    if weight is not None:
        head = np.asarray(weight, dtype=np.float64)
        shift = np.zeros(len(head)) if bias is None else np.asarray(bias, dtype=np.float64)
        auroc = np.array([energy_auroc(inside, outside, head, shift, float(c)) for c in at])
        plain = energy_auroc(inside, outside, head, shift, np.inf)
    units = [_unit_moments(part) for part in (inside, outside)]
    return ClipReport(
        at,
        losses[0],
        losses[1],
        predicted[0],
        predicted[1],
        auroc,
        plain,
        fits[0],
        fits[1],
        units[0],
        units[1],
    )


def energy_auroc(known: FloatArray, unknown: FloatArray, weight: FloatArray, bias: FloatArray, c: float) -> float:
    """Compute the AUROC of the energy score after clipping features at c; known inputs are the high side.

    Parameters
    ----------
    known, unknown : ndarray of shape (n_inputs, n_units)
        Features.
    weight, bias : ndarray
        The head, of shapes (n_classes, n_units) and (n_classes,).
    c : float
        Clipping threshold; infinity for none.

    Returns
    -------
    float

    Examples
    --------
    >>> energy_auroc(np.full((4, 2), 2.0), np.full((4, 2), 1.0), np.eye(2), np.zeros(2), np.inf)
    1.0
    """
    from scipy.special import logsumexp

    from offmap.metrics.detection import auroc

    scores = [logsumexp(np.minimum(part, c) @ weight.T + bias, axis=1) for part in (known, unknown)]
    return float(auroc(*scores))


def _thinned(part: FloatArray, most: int) -> FloatArray:
    flat = part.reshape(-1)
    return flat[np.unique(np.linspace(0, flat.size - 1, min(flat.size, most)).astype(np.int64))]


def _unit_moments(part: FloatArray) -> FloatArray:
    """Mean, standard deviation and skewness of every unit."""
    mean, spread = part.mean(axis=0), part.std(axis=0)
    third = ((part - mean) ** 3).mean(axis=0)
    return np.stack([mean, spread, np.where(spread > 0, third / np.where(spread > 0, spread, 1.0) ** 3, 0.0)])
