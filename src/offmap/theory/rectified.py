"""Why clipping works (ReAct): expectations of rectified Gaussian and epsilon-skew-normal activations.

An activation is ``z = max(x, 0)`` with x ~ ESN(μ, σ², ε): two half Gaussians of scales σ(1+ε) below μ and
σ(1−ε) above it; ε < 0 is a long right tail, ε = 0 the rectified Gaussian the thesis takes for known inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from offmap.errors import InputError
from offmap.theory.values import unwrap
from offmap.typing import FloatArray

ROOT_2PI = float(np.sqrt(2 * np.pi))


def esn_pdf(x: npt.ArrayLike, mu: npt.ArrayLike, sigma: npt.ArrayLike, epsilon: npt.ArrayLike = 0.0) -> FloatArray:
    """Compute the density of the epsilon-skew-normal (thesis, section 3.4, eq. 3.5; Mudholkar & Hutson 2000).

    Parameters
    ----------
    x : array_like
        Points.
    mu, sigma, epsilon : array_like
        Mode, scale (larger than 0) and skew in [−1, 1] (default 0); negative is a long right tail.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> esn_pdf([0.0, 1.0], mu=0.0, sigma=1.0, epsilon=0.0).round(4)
    array([0.3989, 0.242 ])
    """
    point, centre, scale, skew = _arguments(x, mu, sigma, epsilon)
    side = np.where(point < centre, 1 + skew, 1 - skew)
    return unwrap(_phi(_ratio(point - centre, side * scale)) / scale)


def esn_excess(
    threshold: npt.ArrayLike, mu: npt.ArrayLike, sigma: npt.ArrayLike, epsilon: npt.ArrayLike = 0.0
) -> FloatArray:
    """Compute ``E[max(x − threshold, 0)]`` for x ~ ESN, on either side of the mode.

    The thesis prints one branch of each (section 3.4: eq. 3.8 needs c ≥ μ, eq. 3.6 needs μ ≥ 0); this holds everywhere.

    Parameters
    ----------
    threshold : array_like
        Threshold on x.
    mu, sigma, epsilon : array_like
        As in `esn_pdf`.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(esn_excess(0.0, mu=0.0, sigma=1.0).round(4))
    0.3989
    """
    level, centre, scale, skew = _arguments(threshold, mu, sigma, epsilon)
    gap = level - centre
    above = _tail(np.abs(gap), (1 - skew) * scale) * (1 - skew)
    below = _tail(np.abs(gap), (1 + skew) * scale) * (1 + skew)
    # below the mode: E[(x − a)+] = E[x] − a + E[(a − x)+]
    mean = centre - 4 * skew * scale / ROOT_2PI
    return unwrap(np.where(gap >= 0, above, mean - level + below))


def esn_mean(mu: npt.ArrayLike, sigma: npt.ArrayLike, epsilon: npt.ArrayLike = 0.0) -> FloatArray:
    """Compute ``E[max(x, 0)]`` for x ~ ESN(μ, σ², ε) (thesis, section 3.4, eq. 3.6).

    With ε = 0 it is the mean of the rectified Gaussian.

    Parameters
    ----------
    mu : array_like
        Mode.
    sigma : array_like
        Scale, the chaoticness of the thesis; larger than 0.
    epsilon : array_like, default=0.0
        Skew in [−1, 1]; negative is a long right tail.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(esn_mean(0.5, 1.0, -0.4).round(4))
    1.1791
    """
    return esn_excess(0.0, mu, sigma, epsilon)


def esn_reduction(mu: npt.ArrayLike, sigma: npt.ArrayLike, epsilon: npt.ArrayLike, c: npt.ArrayLike) -> FloatArray:
    """Compute ``E[z − min(z, c)]`` for z = max(x, 0): what clipping at c takes from an activation.

    Thesis, section 3.4, eq. 3.8.

    Parameters
    ----------
    mu, sigma, epsilon : array_like
        As in `esn_mean`.
    c : array_like
        Clipping threshold.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(esn_reduction(0.5, 1.0, 0.0, c=1.0).round(4))
    0.1978
    >>> float(esn_reduction(0.5, 1.0, -0.4, c=1.0).round(4))
    0.4813
    """
    level = np.asarray(c, dtype=np.float64)
    clipped = esn_excess(np.maximum(level, 0.0), mu, sigma, epsilon)
    return unwrap(np.where(level >= 0, clipped, esn_mean(mu, sigma, epsilon) - level))


def reduction_surface(
    mu: float = 0.5,
    c: float = 1.0,
    sigmas: npt.ArrayLike | None = None,
    epsilons: npt.ArrayLike | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute the reduction over σ (columns) and ε (rows), as in figure 3.3 of the thesis (section 3.4).

    Parameters
    ----------
    mu : float, default=0.5
        Mode.
    c : float, default=1.0
        Clipping threshold.
    sigmas, epsilons : array_like, optional
        Grids of scales and skews; those of the figure by default.

    Returns
    -------
    sigmas, epsilons, surface : ndarray

    Examples
    --------
    >>> sigmas, epsilons, surface = reduction_surface()
    >>> bool((np.diff(surface, axis=1) > 0).all() and (np.diff(surface, axis=0) < 0).all())
    True
    """
    across = np.linspace(0.2, 1.0, 33) if sigmas is None else np.asarray(sigmas, dtype=np.float64)
    down = np.linspace(-0.8, 0.4, 25) if epsilons is None else np.asarray(epsilons, dtype=np.float64)
    return across, down, esn_reduction(mu, across[None, :], down[:, None], c)


@dataclass(frozen=True)
class EsnFit:
    """The parameters of rectified epsilon-skew-normal activations; one entry per unit, or plain numbers.

    Attributes
    ----------
    mu, sigma, epsilon : ndarray or float
        Mode, scale and skew.
    """

    mu: FloatArray
    sigma: FloatArray
    epsilon: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Mean ``E[z]`` of the fit."""
        return esn_mean(self.mu, self.sigma, self.epsilon)

    def reduction(self, c: float) -> FloatArray:
        """Compute what clipping at c takes, by the fit."""
        return esn_reduction(self.mu, self.sigma, self.epsilon, c)


def fit_esn(values: npt.ArrayLike) -> EsnFit:
    """Fit μ, σ, ε to rectified activations by maximum likelihood; zeros count as "x was at most 0".

    For a fixed mode the two scales have a closed form when nothing is rectified, and a short expectation-maximisation
    when something is; the mode is found on a grid that is refined.

    Parameters
    ----------
    values : array_like of shape (n_inputs,) or (n_inputs, n_units)
        Activations from 0 up; one fit, or one per unit.

    Returns
    -------
    EsnFit

    Raises
    ------
    InputError
        If there are fewer than three activations, or a negative or non-finite one.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> fit = fit_esn(np.maximum(rng.normal(1.0, 0.5, 4000), 0))
    >>> bool(abs(fit.mu - 1) < 0.1 and abs(fit.sigma - 0.5) < 0.05 and abs(fit.epsilon) < 0.15)
    True
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in (1, 2) or len(array) < 3:
        raise InputError(f"fit_esn(values of shape {array.shape}): at least three activations are needed")
    if not np.isfinite(array).all() or array.min() < 0:
        raise InputError("fit_esn: activations must be finite and not negative; take them after the ReLU")
    units = array[:, None] if array.ndim == 1 else array
    found = np.array([_fit_unit(units[:, u]) for u in range(units.shape[1])]).T
    if array.ndim == 1:
        found = found[:, 0]
    return EsnFit(*(unwrap(row) for row in found))


def _fit_unit(z: FloatArray) -> tuple[float, float, float]:
    positive = np.sort(z[z > 0])
    if len(positive) < 3 or positive[-1] - positive[0] < 1e-12:
        spread = max(float(z.std()), 1e-9)
        return float(z.mean()), spread, 0.0
    zeros = len(z) - len(positive)
    low = positive[0] if zeros == 0 else positive[0] - 3 * positive.std()
    span = (low, float(positive[-1]))
    for _ in range(3):
        grid = np.linspace(span[0], span[1], 41)
        likelihood, a, b = _profile(positive, zeros, grid)
        best = int(np.argmax(likelihood))
        span = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    return float(grid[best]), float(a[best] + b[best]) / 2, float((a[best] - b[best]) / (a[best] + b[best]))


def _profile(positive: FloatArray, zeros: int, mu: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Per candidate mode: the best log-likelihood and the scales a = σ(1+ε), b = σ(1−ε) that reach it."""
    n = len(positive) + zeros
    sums = np.concatenate([[0.0], np.cumsum(positive)])
    squares = np.concatenate([[0.0], np.cumsum(positive**2)])
    cut = np.searchsorted(positive, mu, side="left")
    left = squares[cut] - 2 * mu * sums[cut] + cut * mu**2
    right = squares[-1] - squares[cut] - 2 * mu * (sums[-1] - sums[cut]) + (len(positive) - cut) * mu**2
    floor = 1e-9 * max(float(squares[-1]), 1e-12)
    a, b = _scales(left + floor, right + floor, n)
    if zeros:
        for _ in range(60):
            share_a, share_b = _hidden(mu, a, b)
            a, b = _scales(left + zeros * share_a + floor, right + zeros * share_b + floor, n)
    likelihood = -len(positive) * np.log((a + b) / 2) - left / (2 * a**2) - right / (2 * b**2)
    if zeros:
        likelihood += zeros * np.log(np.clip(_below_zero(mu, a, b), 1e-300, None))
    return likelihood, a, b


def _scales(left: FloatArray, right: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Return the scales of two half Gaussians from the sums of squares on either side (Mudholkar & Hutson 2000)."""
    a, b = np.cbrt(left), np.cbrt(right)
    size = np.sqrt((a + b) / n)
    return a * size, b * size


def _below_zero(mu: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """P(x ≤ 0)."""
    left = 2 * a / (a + b) * ndtr(-np.maximum(mu, 0) / a)
    return np.asarray(left + 2 * b / (a + b) * (ndtr(np.maximum(-mu, 0) / b) - 0.5))


def _hidden(mu: FloatArray, a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Given x ≤ 0, the mean of (x−μ)² counted on the left of the mode, and on its right."""
    chance = np.clip(_below_zero(mu, a, b), 1e-300, None)
    far = np.maximum(mu, 0) / a
    left = 2 * a / (a + b) * a**2 * (ndtr(-far) + far * _phi(far))
    near = np.maximum(-mu, 0) / b
    right = 2 * b / (a + b) * b**2 * (ndtr(near) - 0.5 - near * _phi(near))
    return left / chance, right / chance


def _tail(gap: FloatArray, scale: FloatArray) -> FloatArray:
    """``E[(g − gap)+]`` for g ~ N(0, scale²), gap ≥ 0."""
    reach = _ratio(gap, scale)
    return np.asarray(scale * _phi(reach) - gap * ndtr(-reach))


def _ratio(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Return a quotient that goes to infinity, not to NaN, where a scale is 0 (|ε| = 1)."""
    safe = np.where(bottom > 0, bottom, 1.0)
    return np.where(bottom > 0, top / safe, np.where(top == 0, 0.0, np.inf))


def _phi(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * x**2) / ROOT_2PI)


def _arguments(
    x: npt.ArrayLike, mu: npt.ArrayLike, sigma: npt.ArrayLike, epsilon: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    point, centre, scale, skew = (np.asarray(v, dtype=np.float64) for v in (x, mu, sigma, epsilon))
    if not (scale > 0).all():
        raise InputError(f"sigma={np.min(scale):g}: the scale must be larger than 0")
    if not (np.abs(skew) <= 1).all():
        raise InputError(f"epsilon={skew.flat[np.argmax(np.abs(skew))]:g}: the skew must be between -1 and 1")
    return point, centre, scale, skew
