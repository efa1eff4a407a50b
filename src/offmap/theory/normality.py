"""The Henze–Zirkler test of multivariate normality, vectorised, with its p-value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from offmap.errors import InputError
from offmap.typing import FloatArray


class HenzeZirkler(NamedTuple):
    """The statistic and the probability of one at least as large under a Gaussian."""

    statistic: float
    p_value: float


def henze_zirkler(X: npt.ArrayLike) -> HenzeZirkler:
    """Test if rows come from one Gaussian (Henze & Zirkler 1990), by its log-normal approximation.

    Parameters
    ----------
    X : array_like of shape (n_inputs, n_dimensions)
        More inputs than dimensions: with fewer no affine-invariant test exists.

    Returns
    -------
    HenzeZirkler
        ``statistic``, ``p_value``; also a plain pair.

    Raises
    ------
    InputError
        If there are too few rows, or a direction does not vary.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bool(henze_zirkler(rng.standard_normal((300, 3))).p_value > 0.05)
    True
    >>> bool(henze_zirkler(rng.exponential(size=(300, 3))).p_value < 0.001)
    True
    """
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim == 1:
        rows = rows[:, None]
    n, d = rows.shape
    if n <= d + 1:
        raise InputError(
            f"henze_zirkler({n} rows × {d} columns): more rows than columns are needed; "
            "project onto fewer directions first (project_principal does)"
        )
    centred = rows - rows.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    if sizes[-1] <= 1e-10 * max(float(sizes[0]), 1e-300):
        raise InputError(
            "henze_zirkler: some directions do not vary (a singular covariance); "
            "project onto fewer directions first (project_principal does)"
        )
    white = left * np.sqrt(n)  # rows with covariance exactly the identity (maximum likelihood)
    norms = (white**2).sum(axis=1)
    beta = _smoothing(n, d)
    square = beta**2
    total = 0.0
    for start in range(0, n, 2048):
        part = white[start : start + 2048]
        distances = norms[start : start + 2048, None] + norms[None, :] - 2 * part @ white.T
        total += float(np.exp(-0.5 * square * np.maximum(distances, 0)).sum())
    statistic = (
        total / n
        - 2 * (1 + square) ** (-d / 2) * float(np.exp(-0.5 * square / (1 + square) * norms).sum())
        + n * (1 + 2 * square) ** (-d / 2)
    )
    mean, variance = null_moments(n, d)
    spread = np.log1p(variance / mean**2)
    centre = np.log(mean) - spread / 2
    score = (np.log(max(statistic, 1e-300)) - centre) / np.sqrt(spread)
    return HenzeZirkler(float(statistic), float(ndtr(-score)))


def null_moments(n: int, d: int) -> tuple[float, float]:
    """Compute mean and variance of the statistic under a Gaussian (Henze & Zirkler 1990, theorem 2.4).

    Parameters
    ----------
    n, d : int
        Numbers of inputs and dimensions.

    Returns
    -------
    mean, variance : float

    Examples
    --------
    >>> mean, variance = null_moments(200, 3)
    >>> bool(0.5 < mean < 1 and variance < 0.05)
    True
    """
    square = _smoothing(n, d) ** 2
    a, w = 1 + 2 * square, (1 + square) * (1 + 3 * square)
    mean = 1 - a ** (-d / 2) * (1 + d * square / a + d * (d + 2) * square**2 / (2 * a**2))
    variance = (
        2 * (1 + 4 * square) ** (-d / 2)
        + 2 * a ** (-d) * (1 + 2 * d * square**2 / a**2 + 3 * d * (d + 2) * square**4 / (4 * a**4))
        - 4 * w ** (-d / 2) * (1 + 3 * d * square**2 / (2 * w) + d * (d + 2) * square**4 / (2 * w**2))
    )
    return float(mean), float(variance)


def _smoothing(n: int, d: int) -> float:
    """Compute β of the test: the bandwidth it was tabulated for."""
    return float((n * (2 * d + 1) / 4) ** (1 / (d + 4)) / np.sqrt(2))


def project_principal(X: npt.ArrayLike, dimensions: int) -> FloatArray:
    """Project rows onto their leading principal directions; a Gaussian stays a Gaussian.

    Parameters
    ----------
    X : array_like of shape (n_inputs, n_units)
        Features.
    dimensions : int
        Directions to keep, at most the rank.

    Returns
    -------
    ndarray of shape (n_inputs, n_kept)

    Examples
    --------
    >>> project_principal(np.eye(4), 2).shape
    (4, 2)
    """
    rows = np.asarray(X, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    rank = int((sizes > 1e-8 * max(float(sizes[0]), 1e-300)).sum())
    count = min(dimensions, rank)
    return np.asarray(left[:, :count] * sizes[:count])


@dataclass(frozen=True)
class NormalityByClass:
    """The test of every class; a Gaussian (Mahalanobis) suits only those with a large p-value.

    Attributes
    ----------
    classes : ndarray of int
        Classes with enough inputs.
    statistics, p_values : ndarray
        Results of the test.
    dimensions : int
        Directions that the tests used at least.
    level : float
        Level of the verdict.
    """

    classes: npt.NDArray[np.int64]
    statistics: FloatArray
    p_values: FloatArray
    dimensions: int
    level: float = 0.05

    @property
    def rejected(self) -> float:
        """Share of classes that are not Gaussian at this level, after Holm's correction."""
        order = np.sort(self.p_values)
        steps = order * np.arange(len(order), 0, -1)
        stop = np.flatnonzero(steps > self.level)
        return float((stop[0] if len(stop) else len(order)) / len(order))

    def __str__(self) -> str:
        verdict = (
            "Gaussian classes are wrong here"
            if self.rejected > 0.5
            else "most classes were not refuted, which with few inputs proves little"
        )
        return (
            f"{self.rejected:.0%} of {len(self.classes)} classes are not Gaussian in their {self.dimensions} "
            f"leading directions (Henze–Zirkler, {self.level:g} after Holm): {verdict}"
        )


def normality_by_class(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    dimensions: int = 10,
    level: float = 0.05,
    most: int = 1000,
) -> NormalityByClass:
    """Test each class for normality in its leading principal directions.

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_units)
        Features.
    labels : array_like of int of shape (n_inputs,)
        Classes; -1 is left out.
    dimensions : int, default=10
        Directions kept per class; fewer when a class has few inputs.
    level : float, default=0.05
        Level of the verdict.
    most : int, default=1000
        Inputs used per class; the test compares all pairs.

    Returns
    -------
    NormalityByClass

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = normality_by_class(rng.standard_normal((400, 5)), np.repeat([0, 1], 200), dimensions=3)
    >>> found.rejected
    0.0
    """
    rows, given = np.asarray(features), np.asarray(labels)
    if len(rows) != len(given):
        raise InputError(f"normality_by_class: {len(rows)} rows of features but {len(given)} labels")
    classes, statistics, p_values, width = [], [], [], dimensions
    for label in np.unique(given[given >= 0]):
        members = rows[np.flatnonzero(given == label)[:most]]
        if len(members) < 8:
            continue
        part = project_principal(members, min(dimensions, len(members) // 4))
        width = min(width, part.shape[1])
        test = henze_zirkler(part)
        classes.append(int(label))
        statistics.append(test.statistic)
        p_values.append(test.p_value)
    if not classes:
        raise InputError("normality_by_class: no class has eight inputs, too few to test")
    return NormalityByClass(np.array(classes), np.array(statistics), np.array(p_values), width, level)
