"""The leading eigenvectors of a graph: dense when small, matrix-free when large.

Lanczos where they have to be exact; where a thousandth is enough, a whole block of vectors is filtered at a time, which
is several times faster because matrices are multiplied instead of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from offmap.errors import InputError
from offmap.graph.adjacency import Graph, Matrix, as_graph, inverse_root
from offmap.typing import Array, FloatArray

DENSE_NODES = 600
ROUGH = 1e-3  # the tolerance from which a block of vectors is filtered
FILTER_DEGREE = 10
MOST_FILTERS = 6


@dataclass(frozen=True)
class Spectrum:
    """The `k` largest eigenvalues of a graph's adjacency and their eigenvectors.

    Attributes
    ----------
    values
        Largest first.
    vectors
        One column per value, of unit length; each column's largest entry is positive.
    degrees
        The weight at each node; ones when the adjacency was not normalised.
    """

    values: FloatArray
    vectors: FloatArray
    degrees: FloatArray

    @property
    def factor(self) -> FloatArray:
        """``F = V sqrt(Σ)``: the minimiser of ``‖A − F Fᵀ‖²`` (thesis, section 6.3.2, eq. 6.3); negative values count
        as 0.
        """
        return self.vectors * np.sqrt(np.clip(self.values, 0.0, None))

    @property
    def features(self) -> FloatArray:
        """``Z = D^(-1/2) V sqrt(Σ)``: what a network trained to the optimum would output (thesis, section 7.4.2)."""
        return self.factor * inverse_root(self.degrees)[:, None]


def spectral_embedding(
    graph: Graph | Matrix,
    k: int,
    *,
    normalized: bool = True,
    seed: int = 0,
    tolerance: float = 1e-6,
    dense_nodes: int = DENSE_NODES,
) -> Spectrum:
    """The top `k` of the (normalised) adjacency, deterministic in sign and start.

    Parameters
    ----------
    graph
        A `Graph`, or a symmetric matrix, dense or sparse.
    k
        How many eigenpairs.
    normalized
        Decompose ``D^(-1/2) A D^(-1/2)``; otherwise A itself (the toy theorems of the thesis do).
    seed
        Of the start vector of Lanczos.
    tolerance
        Relative accuracy of the eigenvalues of a large graph; from 0.001 up a faster method is used.
    dense_nodes
        Up to this many nodes the dense solver is used.

    Examples
    --------
    >>> two_pairs = np.kron(np.eye(2), np.ones((2, 2)))
    >>> spectrum = spectral_embedding(two_pairs, 3)
    >>> spectrum.values.round(6) + 0.0
    array([1., 1., 0.])
    >>> spectrum.features.shape
    (4, 3)
    """
    whole = as_graph(graph)
    n = whole.n_nodes
    if not 1 <= k <= n:
        raise InputError(f"spectral_embedding(k={k}): a graph of {n} nodes has 1 to {n} eigenvectors")
    degrees = whole.degrees if normalized else np.ones(n)
    scaled = whole.scaled(inverse_root(degrees)) if normalized else whole
    if n <= dense_nodes or k >= n - 1:
        values, vectors = eigh(scaled.toarray(), subset_by_index=(n - k, n - 1))
    else:
        solve = _filter_subspace if normalized and tolerance >= ROUGH else _lanczos
        values, vectors = solve(scaled, k, seed, tolerance)
    order = np.argsort(-values, kind="stable")
    return Spectrum(values[order], _signed(vectors[:, order]), degrees)


def _lanczos(graph: Graph, k: int, seed: int, tolerance: float) -> tuple[FloatArray, FloatArray]:
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = graph.n_nodes
    operator = LinearOperator((n, n), matvec=graph.dot, matmat=graph.dot, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(n)
    # A wide basis costs memory but few restarts: the spectrum of a k-NN graph is crowded near 1.
    width = min(n, max(2 * k, k + 40))
    try:
        values, vectors = eigsh(operator, k=k, which="LA", v0=start, ncv=width, tol=tolerance, maxiter=1000)
    except ArpackNoConvergence as error:
        raise InputError(
            f"spectral_embedding(k={k}, tolerance={tolerance:g}): only {len(error.eigenvalues)} eigenvectors "
            "settled; ask for fewer, or pass a larger tolerance"
        ) from error
    return np.asarray(values, dtype=np.float64), np.asarray(vectors, dtype=np.float64)


def _filter_subspace(graph: Graph, k: int, seed: int, tolerance: float) -> tuple[FloatArray, FloatArray]:
    """Filter a block of random vectors by Chebyshev polynomials (Zhou et al. 2006) until its eigenvalues settle.

    A normalised adjacency has its eigenvalues between -1 and 1. The polynomial is small below the last eigenvalue of
    the block and grows fast above it.
    """
    n = graph.n_nodes
    width = min(n, k + max(k // 10, 10))
    light = graph.astype(np.float32)
    block: Array = np.random.default_rng(seed).standard_normal((n, width), dtype=np.float32)
    values: Array = np.zeros(width, np.float32)
    lowest = 0.0
    for _ in range(MOST_FILTERS):
        half, middle = np.float32((lowest + 1) / 2), np.float32((lowest - 1) / 2)
        before, block = block, (light.dot(block) - middle * block) / half
        for _ in range(FILTER_DEGREE - 1):
            before, block = block, 2 * (light.dot(block) - middle * block) / half - before
        block = np.linalg.qr(block)[0]
        old = values
        values, turn = np.linalg.eigh(block.T @ light.dot(block))
        block = block @ turn
        lowest = float(np.clip(values[0], -0.9, 0.999))
        if np.abs(values[-k:] - old[-k:]).max() <= tolerance:
            break
    return values[-k:].astype(np.float64), block[:, -k:].astype(np.float64)


def _signed(vectors: FloatArray) -> FloatArray:
    """Each column with its largest entry (the first of equals, up to rounding) made positive."""
    size = np.abs(vectors)
    first = np.argmax(size >= size.max(axis=0) * (1 - 1e-6), axis=0)
    signs = np.sign(vectors[first, np.arange(vectors.shape[1])])
    return np.ascontiguousarray(vectors * np.where(signs == 0, 1.0, signs))


def eigengap(values: npt.ArrayLike, *, smallest: int = 1, largest: int | None = None) -> tuple[int, float]:
    """Where a spectrum breaks: the k with the largest ``λ_k − λ_(k+1)``, and that gap.

    Parameters
    ----------
    values
        Eigenvalues, largest first; one more than the largest k to consider.
    smallest, largest
        The range of k.

    Examples
    --------
    >>> k, gap = eigengap([1.0, 0.98, 0.95, 0.4, 0.35])
    >>> k, round(gap, 2)
    (3, 0.55)
    """
    ordered = np.asarray(values, dtype=np.float64)
    if ordered.ndim != 1 or len(ordered) < 2:
        raise InputError(f"eigengap(values of shape {ordered.shape}): at least two eigenvalues are needed")
    if (np.diff(ordered) > 1e-9).any():
        raise InputError("eigengap: the eigenvalues must come largest first")
    last = len(ordered) - 1 if largest is None else largest
    if not 1 <= smallest <= last <= len(ordered) - 1:
        raise InputError(
            f"eigengap(smallest={smallest}, largest={largest}): with {len(ordered)} eigenvalues, "
            f"k can be 1 to {len(ordered) - 1}"
        )
    gaps = ordered[smallest - 1 : last] - ordered[smallest : last + 1]
    best = int(np.argmax(gaps))
    return smallest + best, float(gaps[best])
