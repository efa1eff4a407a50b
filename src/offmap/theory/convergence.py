"""How fast the nearest-neighbour density comes near the true one as inputs grow in number (thesis, appendix A.3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offmap.errors import InputError
from offmap.theory.density import cap_area, knn_density
from offmap.typing import FloatArray

QUERIES = 200


@dataclass(frozen=True)
class DensityConvergence:
    """Error of the density estimate at each size.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of inputs n.
    neighbours : tuple of int
        k at each.
    error : ndarray
        Mean |p̂ − p| over queries, relative to p.
    rate : ndarray
        (k/n)^(1/(m−1)) + (1/k)^(1/2), what the lemma compares it with.
    """

    sizes: tuple[int, ...]
    neighbours: tuple[int, ...]
    error: FloatArray
    rate: FloatArray


def density_convergence(
    sizes: Sequence[int], ambient: int = 4, neighbours: Callable[[int], int] | None = None, seed: int = 0
) -> DensityConvergence:
    """Measure the error of `knn_density` for uniform inputs on the sphere, where the true density is known.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of inputs.
    ambient : int, default=4
        m: the sphere is that of R^m.
    neighbours : callable, optional
        From n to k; the root of n by default, so that k grows and k/n vanishes. The lemma prints the second only,
        but with k fixed the error stays.
    seed : int, default=0
        Seed of inputs and queries.

    Returns
    -------
    DensityConvergence

    Examples
    --------
    >>> found = density_convergence([100, 10_000])
    >>> bool(found.error[1] < found.error[0])
    True
    """
    if ambient < 2 or not sizes or min(sizes) < 2:
        raise InputError(f"density_convergence({list(sizes)}, ambient={ambient}): sizes from 2 and a sphere from R² on")
    count = neighbours or (lambda n: max(round(n**0.5), 1))
    chosen = tuple(count(n) for n in sizes)
    rng = np.random.default_rng(seed)
    queries = _uniform(QUERIES, ambient, rng)
    true = 1 / float(cap_area(np.array(2.0), ambient))
    errors = []
    for n, k in zip(sizes, chosen, strict=True):
        if not 1 <= k <= n:
            raise InputError(f"density_convergence: {k} neighbours of {n} inputs; k is between 1 and n")
        rows = _uniform(n, ambient, rng)
        similar = np.partition(queries @ rows.T, n - k, axis=1)[:, n - k]
        radius = np.sqrt(np.maximum(2 - 2 * similar, 0))
        errors.append(float(np.abs(knn_density(radius, k, n, ambient - 1) / true - 1).mean()))
    rate = [(k / n) ** (1 / (ambient - 1)) + k**-0.5 for n, k in zip(sizes, chosen, strict=True)]
    return DensityConvergence(tuple(sizes), chosen, np.array(errors), np.array(rate))


def _uniform(n: int, ambient: int, rng: np.random.Generator) -> FloatArray:
    rows = rng.standard_normal((n, ambient))
    made: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return made
