"""The meaning of a k-th neighbour distance (KNN): a density on the sphere, a posterior, and the threshold between.

The thesis' dimension is that of the feature space, m − 1 on the sphere. Hundreds of dimensions make the
density meaningless (r^(m−1) underflows or explodes); data fill far fewer, so that number is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, gammaln

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.theory.values import unwrap
from offmap.typing import FloatArray


def log_ball_constant(dimension: float) -> float:
    """Compute ``log c_b``, the log volume of the unit ball; a small cap on the sphere approaches it.

    Parameters
    ----------
    dimension : float
        Dimension of the ball, larger than 0.

    Returns
    -------
    float

    Examples
    --------
    >>> round(float(np.exp(log_ball_constant(2))), 4)  # a disc: π
    3.1416
    """
    if dimension <= 0:
        raise InputError(f"dimension={dimension}: a ball needs a positive dimension")
    return float(dimension / 2 * np.log(np.pi) - gammaln(dimension / 2 + 1))


def cap_area(r: npt.ArrayLike, m: int) -> FloatArray:
    """Compute the exact area of ``{z on the unit sphere of R^m : ‖z − centre‖ ≤ r}``.

    This is the ball B of the thesis, appendix A.3.1.

    Parameters
    ----------
    r : array_like
        Chord lengths, cut to [0, 2].
    m : int
        Dimension of the space around the sphere, at least 2.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(cap_area(2.0, 3).round(4))  # the whole sphere: 4π
    12.5664
    """
    if m < 2:
        raise InputError(f"cap_area(m={m}): a sphere needs at least two dimensions")
    distance = np.clip(np.asarray(r, dtype=np.float64), 0.0, 2.0)
    whole = np.exp(np.log(2) + m / 2 * np.log(np.pi) - gammaln(m / 2))
    # a chord r spans an angle with sin²(θ/2) = r²/4, so sin²θ = r²(1 − r²/4)
    squared_sine = np.clip(distance**2 * (1 - distance**2 / 4), 0.0, 1.0)
    half = 0.5 * whole * betainc((m - 1) / 2, 0.5, squared_sine)
    return unwrap(np.where(distance**2 <= 2, half, whole - half))


def knn_density(
    r: npt.ArrayLike, k: int, n: int, dimension: float, *, log: bool = False, exact_sphere: bool = False
) -> FloatArray:
    """Estimate ``p̂(z) = k / (c_b n r^d)`` by the distance to the k-th of n neighbours (thesis, appendix A.3.1).

    Parameters
    ----------
    r : array_like
        Distances to the k-th neighbour.
    k, n : int
        Which neighbour, of how many.
    dimension : float
        Dimension d that the data fill: the intrinsic one, or m − 1 as in the thesis.
    log : bool, default=False
        Return the logarithm, which does not under- or overflow.
    exact_sphere : bool, default=False
        Divide by the exact area of the cap on the sphere of R^(dimension + 1) instead of its limit for small r.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(knn_density(0.5, k=3, n=100, dimension=2).round(4))
    0.0382
    """
    distance = np.asarray(r, dtype=np.float64)
    if not 1 <= k <= n:
        raise InputError(f"knn_density(k={k}, n={n}): k must be between 1 and n")
    with np.errstate(divide="ignore"):
        if exact_sphere:
            volume = np.log(cap_area(distance, round(dimension) + 1))
        else:
            volume = log_ball_constant(dimension) + dimension * np.log(distance)
    value = np.log(k / n) - volume
    return unwrap(value if log else np.exp(value))


def id_posterior(density: npt.ArrayLike, c0: float, beta: float, epsilon: float) -> FloatArray:
    """Compute ``p̂(known | z)`` when unknown inputs have density `c0` wherever p̂_in is low (thesis, appendix A.3.1).

    The region of the unknown inputs is chosen by the threshold that the decision uses, so the posterior is 1 above it.

    Parameters
    ----------
    density : array_like
        ``p̂_in(z)``, for example from `knn_density`.
    c0 : float
        Density of unknown inputs in their region.
    beta : float
        Posterior that the decision asks for, between 0 and 1.
    epsilon : float
        Prior probability of an unknown input, between 0 and 1.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> id_posterior([10.0, 0.1, 0.01], c0=1.0, beta=0.5, epsilon=0.1).round(3)
    array([1.   , 0.474, 0.083])
    """
    inside = np.asarray(density, dtype=np.float64)
    _shares(beta, epsilon)
    outside = np.where(inside < beta * epsilon * c0 / ((1 - beta) * (1 - epsilon)), c0, 0.0)
    known = (1 - epsilon) * inside
    total = known + epsilon * outside
    return unwrap(np.where(total > 0, known / np.where(total > 0, total, 1.0), 0.0))


def bayes_threshold(k: int, n: int, dimension: float, c0: float, beta: float, epsilon: float) -> float:
    """Compute λ of theorem 5.1: accepting when −r_k ≥ λ is accepting when the posterior is at least β.

    Thesis, section 5.5. True for every input, and circular: the region of the unknown inputs is defined by this very
    threshold. It turns a prior ε, a density c0 and a confidence β into a distance; it does not show k-NN to be best.

    Parameters
    ----------
    k, n : int
        Which neighbour, of how many.
    dimension : float
        Dimension that the data fill.
    c0 : float
        Density of unknown inputs, larger than 0.
    beta, epsilon : float
        Posterior asked for and prior of unknown inputs, between 0 and 1.

    Returns
    -------
    float

    Examples
    --------
    >>> round(bayes_threshold(k=10, n=1000, dimension=8, c0=1.0, beta=0.5, epsilon=0.1), 4)
    -0.6212
    """
    _shares(beta, epsilon)
    if c0 <= 0:
        raise InputError(f"c0={c0}: the density of unknown inputs must be positive")
    log_ratio = np.log1p(-beta) + np.log1p(-epsilon) + np.log(k) - np.log(beta) - np.log(epsilon) - np.log(n)
    return float(-np.exp((log_ratio - np.log(c0) - log_ball_constant(dimension)) / dimension))


def _shares(beta: float, epsilon: float) -> None:
    for name, value in (("beta", beta), ("epsilon", epsilon)):
        if not 0 < value < 1:
            raise InputError(f"{name}={value}: a probability strictly between 0 and 1 is needed")


def intrinsic_dimension(distances: npt.ArrayLike) -> float:
    """Estimate the dimension that neighbour distances grow with (Levina & Bickel 2004), pooled by the harmonic mean.

    Parameters
    ----------
    distances : array_like of shape (n_inputs, k)
        Distances to the k nearest others, ascending, k at least 3.

    Returns
    -------
    float

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> flat = rng.random((400, 2)) @ rng.standard_normal((2, 50))  # a plane in 50 dimensions
    >>> gaps = np.sort(np.linalg.norm(flat[:, None] - flat[None], axis=2), axis=1)[:, 1:21]
    >>> round(intrinsic_dimension(gaps))
    2
    """
    rows = np.asarray(distances, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] < 3:
        raise InputError(f"intrinsic_dimension(shape {rows.shape}): three or more neighbours per input are needed")
    rows = rows[rows[:, 0] > 0]  # exact copies say nothing about the dimension
    if not len(rows):
        raise InputError("intrinsic_dimension: every input has an exact copy; remove duplicates first")
    k = rows.shape[1]
    inverse = np.log(rows[:, -1:] / rows[:, :-1]).sum(axis=1) / (k - 2)
    mean = float(inverse.mean())
    if mean <= 0:
        raise InputError("intrinsic_dimension: all neighbours are equally far; the dimension is not determined")
    return 1.0 / mean


@dataclass(frozen=True)
class NeighbourReport:
    """Densities of known and unknown inputs by k-NN, in the intrinsic and in the ambient dimension.

    Attributes
    ----------
    k : int
        Neighbour whose distance was used.
    ambient, intrinsic : int, float
        Number of units, and estimated dimension that the features fill.
    known_log_density, unknown_log_density : ndarray
        Logarithms of p̂; the second is `None` without unknown inputs.
    ambient_range : float
        Orders of magnitude between known inputs' densities if all units counted as dimensions.
    """

    k: int
    ambient: int
    intrinsic: float
    known_log_density: FloatArray
    unknown_log_density: FloatArray | None
    ambient_range: float

    def __str__(self) -> str:
        text = (
            f"features fill about {self.intrinsic:.1f} of {self.ambient} dimensions; with all of them the "
            f"density would span {self.ambient_range:.0f} orders of magnitude between known inputs, so "
            f"p̂ uses {self.intrinsic:.1f}"
        )
        if self.unknown_log_density is None:
            return text
        factor = float(np.median(self.known_log_density) - np.median(self.unknown_log_density)) / np.log(10)
        side = "denser" if factor >= 0 else "THINNER"
        return f"{text}; known inputs lie where it is 10^{abs(factor):.1f} times {side} than unknown ones"


def neighbour_report(known: Any, unknown: Any = None, k: int = 20, most: int = 4000) -> NeighbourReport:
    """Estimate the intrinsic dimension of normalised features, and densities with it.

    Parameters
    ----------
    known : array_like of shape (n_inputs, n_units)
        Features of known inputs.
    unknown : array_like of shape (n_unknown, n_units), optional
        Features of unknown inputs.
    k : int, default=20
        Neighbour whose distance is used.
    most : int, default=4000
        Number of known inputs used: an even sample, half as the bank and half as queries.

    Returns
    -------
    NeighbourReport

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> report = neighbour_report(rng.standard_normal((300, 3)), k=5)
    >>> round(report.intrinsic)  # the sphere of R³
    2
    """
    from offmap.neighbors import Bank
    from offmap.neighbors.vectors import unit_and_length

    rows = unit_and_length(as_array(known, "known"))[0]
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))]
    bank, queries = rows[::2], rows[1::2]
    if k >= len(bank):
        raise InputError(f"neighbour_report(k={k}): only {len(bank)} inputs to compare with; take a smaller k")
    searcher = Bank.of(np.ascontiguousarray(bank))
    distances = np.asarray(searcher.search(queries, k)[0], dtype=np.float64)
    dimension = intrinsic_dimension(distances)
    m = rows.shape[1]
    last = np.maximum(distances[:, -1], 1e-12)
    spread = (m - 1) * float(np.ptp(np.log10(last)))
    other = None
    if unknown is not None:
        asked = unit_and_length(as_array(unknown, "unknown")[:most])[0]
        far = np.asarray(searcher.search(asked, k)[0], dtype=np.float64)
        other = knn_density(np.maximum(far[:, -1], 1e-12), k, len(bank), dimension, log=True)
    return NeighbourReport(k, m, dimension, knn_density(last, k, len(bank), dimension, log=True), other, spread)
