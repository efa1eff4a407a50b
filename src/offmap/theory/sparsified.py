"""Why dropping weights works (DICE): how much of a logit's variance goes, with and without correlation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.typing import FloatArray


@dataclass(frozen=True)
class VarianceSplit:
    """The change of a logit's variance, split by where it comes from.

    Attributes
    ----------
    independent : float
        ``Σ σ_i²`` over the units dropped: the whole change if units were independent (thesis, section 4.5, lemma 4.2).
    correlated : float
        What covariances add to it, ``2Σ_{all pairs} − 2Σ_{kept pairs}`` (section 4.5, remark 1); it may be negative.
    full, kept : float
        Variance with all units and with the kept ones.
    """

    independent: float
    correlated: float
    full: float
    kept: float

    @property
    def reduction(self) -> float:
        """Exact change of the variance; negative when dropping units made the logit vary *more*."""
        return self.independent + self.correlated

    def __str__(self) -> str:
        way = "lowers" if self.reduction >= 0 else "RAISES"
        part = abs(self.reduction) / self.full if self.full > 0 else 0.0
        return (
            f"dropping the units {way} the variance by {part:.0%} ({self.full:.4g} → {self.kept:.4g}); "
            f"independence alone predicts −{self.independent:.4g}, correlation changes that by "
            f"{-self.correlated:+.4g}"
        )


def variance_split(contributions: npt.ArrayLike, keep: npt.ArrayLike, ddof: int = 0) -> VarianceSplit:
    """Split the variance that dropping units takes from ``Σ v_i`` (thesis, section 4.5, lemma 4.2 and remark 1).

    Parameters
    ----------
    contributions : array_like of shape (n_inputs, n_units)
        Products of feature and weight for one class.
    keep : array_like
        Units that stay: one truth value per unit, or their indices.
    ddof : int, default=0
        0 for the variance of this sample, 1 for the unbiased estimate.

    Returns
    -------
    VarianceSplit

    Examples
    --------
    >>> v = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    >>> split = variance_split(v, [True, False])
    >>> split.independent, split.correlated
    (2.0, 0.0)
    """
    array = np.asarray(contributions, dtype=np.float64)
    if array.ndim != 2 or len(array) < 2:
        raise InputError(f"contributions of shape {array.shape}: inputs × units, at least two inputs")
    mask = _mask(keep, array.shape[1])
    centred = array - array.mean(axis=0)
    share = 1.0 / (len(array) - ddof)
    variances = (centred**2).sum(axis=0) * share
    full = float((centred.sum(axis=1) ** 2).sum() * share)
    kept = float((centred[:, mask].sum(axis=1) ** 2).sum() * share)
    independent = float(variances[~mask].sum())
    pairs = full - float(variances.sum())  # 2 Σ over pairs i < j
    kept_pairs = kept - float(variances[mask].sum())
    return VarianceSplit(independent, pairs - kept_pairs, full, kept)


def variance_reduction(contributions: npt.ArrayLike, keep: npt.ArrayLike, ddof: int = 0) -> float:
    """Compute ``Var[f] − Var[f_DICE]`` for one class, exact also for correlated units.

    This is remark 1 of the thesis (chapter 4, section 4.5), which expects correlation to make it larger; it can make
    it negative, so look at the sign.

    Parameters
    ----------
    contributions, keep : array-like
        As in `variance_split`.
    ddof : int, default=0
        As in `variance_split`.

    Returns
    -------
    float
        Negative where dropping units adds variance.

    Examples
    --------
    >>> opposite = np.array([[1.0, -1.0], [-1.0, 1.0]])  # the two units cancel: dropping one adds variance
    >>> variance_reduction(opposite, [0])
    -1.0
    """
    return variance_split(contributions, keep, ddof).reduction


@dataclass(frozen=True)
class SparsityProfile:
    """Effect of sparsity p on every class, and on the gap between known and unknown inputs.

    Attributes
    ----------
    sparsity : ndarray
        Values of p.
    predicted, measured : ndarray of shape (n_sparsities, n_classes)
        Share of the unknown inputs' logit variance that goes, by the independent formula and exactly.
    gap : ndarray
        ``Δ = E_known[max_c f_c] − E_unknown[max_c f_c]`` by p (thesis, section 4.5, table 4.5).
    separation : ndarray
        The gap over the pooled standard deviation of the largest logit, which is what a threshold depends on.
    """

    sparsity: FloatArray
    predicted: FloatArray
    measured: FloatArray
    gap: FloatArray
    separation: FloatArray

    def __str__(self) -> str:
        best = int(np.argmax(self.separation))
        worse = float((self.measured < 0).mean())
        dense = float(self.separation[0])
        return (
            f"the largest logit tells known from these unknown inputs best at p = {self.sparsity[best]:g} "
            f"({self.separation[best]:.2f} standard deviations, {dense:.2f} at p = {self.sparsity[0]:g}); "
            f"variance grew instead of shrinking in {worse:.0%} of classes × sparsities; by independence "
            f"{np.median(self.predicted):.0%} of it should go, {np.median(self.measured):.0%} went (medians)"
        )


def sparsity_profile(
    known: npt.ArrayLike,
    unknown: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    sparsity: npt.ArrayLike = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9),
) -> SparsityProfile:
    """Measure the thesis' account of DICE on given features: variance by class, Δ by p.

    Parameters
    ----------
    known, unknown : array_like of shape (n_inputs, n_units)
        Features.
    weight : array_like of shape (n_classes, n_units)
        Weights of the head.
    bias : array_like of shape (n_classes,), optional
        Bias of the head; 0 by default.
    sparsity : array_like, default=(0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
        Shares p of the weights to drop, smallest contributions first (mean over known inputs times weight).

    Returns
    -------
    SparsityProfile

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known, unknown = rng.random((50, 8)) + 1, rng.random((60, 8))
    >>> profile = sparsity_profile(known, unknown, rng.standard_normal((3, 8)))
    >>> profile.measured.shape, float(profile.measured[0].max())
    ((6, 3), 0.0)
    """
    inside, outside = (np.asarray(v, dtype=np.float64) for v in (known, unknown))
    w = np.asarray(weight, dtype=np.float64)
    b = np.zeros(len(w)) if bias is None else np.asarray(bias, dtype=np.float64)
    levels = np.asarray(sparsity, dtype=np.float64)
    if inside.shape[1] != w.shape[1] or outside.shape[1] != w.shape[1]:
        raise InputError(
            f"sparsity_profile: {inside.shape[1]} and {outside.shape[1]} units, the head reads {w.shape[1]}"
        )
    contribution = inside.mean(axis=0) * w
    covariance = np.cov(outside, rowvar=False, ddof=0).reshape(w.shape[1], w.shape[1])
    predicted, measured, gap, separation = [], [], [], []
    full = np.einsum("cm,mn,cn->c", w, covariance, w, optimize=True)
    scale = np.where(full > 0, full, 1.0)
    for p in levels:
        mask = top_contributions(contribution, p)
        thin = w * mask
        left = np.einsum("cm,mn,cn->c", thin, covariance, thin, optimize=True)
        measured.append((full - left) / scale)
        predicted.append(((w * ~mask) ** 2 @ np.diag(covariance)) / scale)
        inner, outer = (inside @ thin.T + b).max(axis=1), (outside @ thin.T + b).max(axis=1)
        gap.append(inner.mean() - outer.mean())
        separation.append(gap[-1] / max(np.sqrt((inner.var() + outer.var()) / 2), 1e-300))
    return SparsityProfile(levels, np.array(predicted), np.array(measured), np.array(gap), np.array(separation))


def top_contributions(contribution: npt.ArrayLike, p: float) -> npt.NDArray[np.bool_]:
    """Select the ``round((1−p)·m·C)`` largest entries of the whole matrix, ties by index (thesis, section 4.2, eq.
    4.1).

    Parameters
    ----------
    contribution : array_like of shape (n_classes, n_units)
        Contribution matrix V.
    p : float
        Sparsity, from 0 up and below 1.

    Returns
    -------
    ndarray of bool of shape (n_classes, n_units)

    Examples
    --------
    >>> top_contributions([[3.0, 1.0], [2.0, 0.0]], p=0.5)
    array([[ True, False],
           [ True, False]])
    """
    matrix = np.asarray(contribution, dtype=np.float64)
    if not 0 <= p < 1:
        raise InputError(f"p={p}: the sparsity must be from 0 up and below 1")
    count = round((1 - p) * matrix.size)
    mask = np.zeros(matrix.size, dtype=bool)
    mask[np.argsort(-matrix.reshape(-1), kind="stable")[:count]] = True
    return mask.reshape(matrix.shape)


def _mask(keep: npt.ArrayLike, n: int) -> npt.NDArray[np.bool_]:
    given = np.asarray(keep)
    if given.dtype == bool:
        if given.shape != (n,):
            raise InputError(f"keep of shape {given.shape}: one truth value for each of the {n} units is needed")
        return given
    if given.size and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= n):
        raise InputError(f"keep: indices of units must be whole numbers from 0 to {n - 1}")
    mask = np.zeros(n, dtype=bool)
    mask[given.astype(np.int64)] = True
    return mask
