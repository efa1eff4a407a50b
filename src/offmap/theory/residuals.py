"""When known classes help to find novel ones (NSCL): residual, ignorance, coverage and their bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.typing import FloatArray


def residual(U: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Compute ``R(U, y) = min_μ ‖y − Uμ‖²``: the part of the labels that no linear probe can read.

    Thesis, section 6.4.1, lemma 6.2.

    Parameters
    ----------
    U : array_like of shape (n_inputs, n_dimensions)
        Representation of the unlabelled inputs.
    y : array_like of shape (n_inputs,) or (n_inputs, n_classes)
        0/1 for one class, or one column per class (then the sum over classes).

    Returns
    -------
    float

    Examples
    --------
    >>> round(residual(np.array([[1.0], [1.0], [0.0]]), [1.0, 0.0, 0.0]), 6)
    0.5
    """
    rows, target = _pair(U, y)
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    span = left[:, sizes > 1e-10 * max(float(sizes.max(initial=0.0)), 1e-300)]
    rest = target - span @ (span.T @ target)
    return float((rest**2).sum())


def ignorance_degree(U_rest: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Compute ``‖U♭ᵀy‖ / ‖y‖``: the share of y in the directions that the representation leaves out.

    Thesis, section 6.4.3, theorem 6.7.

    Parameters
    ----------
    U_rest : array_like of shape (n_inputs, n_rest)
        U♭: the unlabelled rows of the eigenvectors beyond the first k.
    y : array_like of shape (n_inputs,)
        Labels of one class on the unlabelled inputs.

    Returns
    -------
    float

    Examples
    --------
    >>> ignorance_degree([[1.0], [0.0]], [1.0, 1.0])
    0.7071067811865475
    """
    rows, target = _pair(U_rest, y)
    return float(np.linalg.norm(rows.T @ target) / np.linalg.norm(target))


def coverage(U_rest: npt.ArrayLike, l_rest: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Compute ``κ(y) = cos(U♭ᵀy, 𝔩♭)``: how much of the ignorance the labelled inputs cover (thesis, section 6.4.3).

    Parameters
    ----------
    U_rest : array_like of shape (n_inputs, n_rest)
        As in `ignorance_degree`.
    l_rest : array_like of shape (n_rest,)
        𝔩♭: for the same eigenvectors, the sum over the labelled rows.
    y : array_like of shape (n_inputs,)
        Labels of one class on the unlabelled inputs.

    Returns
    -------
    float

    Examples
    --------
    >>> coverage([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0], [1.0, 1.0])
    0.7071067811865475
    """
    rows, target = _pair(U_rest, y)
    ignorance, knowledge = rows.T @ target, np.asarray(l_rest, dtype=np.float64)
    size = float(np.linalg.norm(ignorance) * np.linalg.norm(knowledge))
    return float(ignorance @ knowledge / size) if size > 0 else 0.0


@dataclass(frozen=True)
class Split:
    """Eigenvectors of a graph cut in four: labelled rows above, unlabelled below, the first k and the rest.

    𝔩♭ of the thesis is the sum of `labelled_rest` over its rows.
    """

    values: FloatArray
    labelled_top: FloatArray
    labelled_rest: FloatArray
    unlabelled_top: FloatArray
    unlabelled_rest: FloatArray


def split_spectrum(adjacency: npt.ArrayLike, n_labelled: int, k: int) -> Split:
    """Compute all eigenvectors of a symmetric adjacency and cut them as in the thesis (section 6.4.1, eq. 6.5).

    Parameters
    ----------
    adjacency : array_like of shape (n_nodes, n_nodes)
        Symmetric, with the labelled nodes first.
    n_labelled : int
        Number of labelled nodes.
    k : int
        Number of eigenvectors that make the representation.

    Returns
    -------
    Split

    Examples
    --------
    >>> split = split_spectrum(np.diag([3.0, 2.0, 1.0]), n_labelled=1, k=2)
    >>> split.unlabelled_top.shape, split.unlabelled_rest.shape
    ((2, 2), (2, 1))
    """
    matrix = np.asarray(adjacency, dtype=np.float64)
    n = len(matrix)
    if matrix.shape != (n, n) or not 0 <= n_labelled < n or not 1 <= k < n:
        raise InputError(
            f"split_spectrum(shape {matrix.shape}, n_labelled={n_labelled}, k={k}): a square matrix, fewer "
            "labelled nodes than nodes and 1 ≤ k < nodes are needed"
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    upper, lower = vectors[:n_labelled], vectors[n_labelled:]
    return Split(values, upper[:, :k], upper[:, k:], lower[:, :k], lower[:, k:])


def residual_identity(split: Split, y: npt.ArrayLike) -> tuple[float, float]:
    """Compute both sides of theorem 6.6: ``R(U*, y)`` and ``‖(I − P_{L♭}) U♭ᵀy‖²`` (thesis, section 6.4.3).

    Printed as an upper bound, it is an equality: the two numbers agree to rounding.

    Parameters
    ----------
    split : Split
        From `split_spectrum`.
    y : array_like of shape (n_unlabelled,)
        0/1 on the unlabelled nodes.

    Returns
    -------
    residual, bound : float

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> half = rng.random((6, 6))
    >>> left, right = residual_identity(split_spectrum(half @ half.T, 2, 3), [1, 1, 0, 0])
    >>> bool(abs(left - right) < 1e-10)
    True
    """
    target = np.asarray(y, dtype=np.float64)
    ignorance = split.unlabelled_rest.T @ target
    knowledge = split.labelled_rest
    inside = knowledge.T @ (np.linalg.pinv(knowledge @ knowledge.T, rcond=1e-10) @ (knowledge @ ignorance))
    return residual(split.unlabelled_top, target), float(((ignorance - inside) ** 2).sum())


def average_labelled(adjacency: npt.ArrayLike, n_labelled: int) -> FloatArray:
    """Replace the labelled rows and columns by their mean, which gives Ā of eq. B.15 (thesis, appendix B.1.3).

    Parameters
    ----------
    adjacency : array_like of shape (n_nodes, n_nodes)
        Labelled nodes first.
    n_labelled : int
        Number of labelled nodes.

    Returns
    -------
    ndarray of shape (n_nodes, n_nodes)

    Examples
    --------
    >>> average_labelled(np.array([[4.0, 0.0, 1.0], [0.0, 2.0, 3.0], [1.0, 3.0, 9.0]]), 2)
    array([[1.5, 1.5, 2. ],
           [1.5, 1.5, 2. ],
           [2. , 2. , 9. ]])
    """
    matrix = np.array(adjacency, dtype=np.float64)
    head = slice(0, n_labelled)
    if n_labelled:
        matrix[head] = matrix[head].mean(axis=0, keepdims=True)
        matrix[:, head] = matrix[:, head].mean(axis=1, keepdims=True)
    return matrix


def weighted_cosine_floor(weights: npt.ArrayLike) -> float:
    """Compute the least ``lᵀΩl / (‖Ωl‖‖l‖)`` over l for a diagonal Ω > 0: ``2√(w_max w_min) / (w_max + w_min)``.

    The thesis (appendix B.1.3, lemmas B.14 to B.16) prints roots in the denominator, which is not a bound; without them
    it is the inequality of Kantorovich, and tight.

    Parameters
    ----------
    weights : array_like
        Diagonal of Ω, every entry larger than 0.

    Returns
    -------
    float

    Examples
    --------
    >>> weighted_cosine_floor([1.0, 4.0])
    0.8
    """
    w = np.asarray(weights, dtype=np.float64)
    if not (w > 0).all():
        raise InputError("weighted_cosine_floor: the bound needs every weight ω_i > 0; it says nothing otherwise")
    return float(2 * np.sqrt(w.max() * w.min()) / (w.max() + w.min()))


@dataclass(frozen=True)
class DiscoveryBound:
    """Both sides of the thesis' bounds for one novel class, and whether their assumptions hold.

    Attributes
    ----------
    residual, identity : float
        The two sides of theorem 6.6 (section 6.4.3), equal.
    averaged_residual : float
        ``R(Ū*, y)`` of the graph with averaged labelled nodes, equal to ``‖y‖² 𝔗²(1 − κ²)`` (appendix B.1.3, theorem
        B.10).
    ignorance, coverage : float
        𝔗(y) and κ(y) of that graph.
    approximation : float
        ``2‖Ȧ − Ā‖ / (σ_k − σ_(k+1)) · ‖y*‖²``: what the averaging may cost (appendix B.1.3, lemma B.12).
    gap_assumption : bool
        True if ``‖Ȧ − Ā‖ < (σ_k − σ_(k+1))/2``, without which the bound is void.
    coverage_floor : float or None
        Lower bound of κ; `None` when some ω_i ≤ 0 and its assumption fails (appendix B.1.3, lemma B.14).
    """

    residual: float
    identity: float
    averaged_residual: float
    ignorance: float
    coverage: float
    approximation: float
    gap_assumption: bool
    coverage_floor: float | None

    @property
    def bound(self) -> float | None:
        """Upper bound of the residual; `None` when its assumption fails."""
        return self.averaged_residual + self.approximation if self.gap_assumption else None

    def __str__(self) -> str:
        text = (
            f"a linear probe misses {self.residual:.3g} of this class: ignorance {self.ignorance:.2f}, "
            f"covered by the known classes to {self.coverage**2:.0%}"
        )
        if self.bound is None:
            return f"{text}; the general bound's assumption (a wide spectral gap) fails, so it says nothing"
        return f"{text}; bound {self.bound:.3g}"


def discovery_bound(adjacency: npt.ArrayLike, y: npt.ArrayLike, n_labelled: int, k: int) -> DiscoveryBound:
    """Compute everything the thesis says about finding one novel class in a graph, with both sides of each bound.

    Parameters
    ----------
    adjacency : array_like of shape (n_nodes, n_nodes)
        The (normalised) adjacency, labelled nodes first; dense.
    y : array_like of shape (n_unlabelled,)
        0/1 on the unlabelled nodes: the class.
    n_labelled : int
        Number of labelled nodes, at least 1.
    k : int
        Number of eigenvectors that make the representation.

    Returns
    -------
    DiscoveryBound

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> half = rng.random((8, 8))
    >>> found = discovery_bound(half @ half.T, [1, 1, 1, 0, 0, 0], n_labelled=2, k=3)
    >>> bool(abs(found.residual - found.identity) < 1e-9)
    True
    """
    matrix = np.asarray(adjacency, dtype=np.float64)
    target = np.asarray(y, dtype=np.float64)
    if n_labelled < 1:
        raise InputError("discovery_bound: the theory needs at least one labelled node")
    plain = split_spectrum(matrix, n_labelled, k)
    averaged_matrix = average_labelled(matrix, n_labelled)
    averaged = split_spectrum(averaged_matrix, n_labelled, k)
    knowledge = averaged.labelled_rest.sum(axis=0)
    left, right = residual_identity(plain, target)
    ignorance = ignorance_degree(averaged.unlabelled_rest, target)
    kappa = coverage(averaged.unlabelled_rest, knowledge, target)
    distance = float(np.linalg.norm(matrix - averaged_matrix, 2))
    gap = float(plain.values[k - 1] - plain.values[k])
    strength = float(knowledge @ knowledge)
    zeta = float(knowledge @ (averaged.unlabelled_rest.T @ target)) / strength if strength > 1e-12 else 0.0
    extended = float(target @ target) + n_labelled * zeta**2
    return DiscoveryBound(
        residual=left,
        identity=right,
        averaged_residual=float(target @ target) * ignorance**2 * (1 - kappa**2),
        ignorance=ignorance,
        coverage=kappa,
        approximation=2 * distance / gap * extended if gap > 0 else np.inf,
        gap_assumption=bool(distance < gap / 2),
        coverage_floor=_coverage_floor(averaged, averaged_matrix, target, n_labelled, k),
    )


def _coverage_floor(split: Split, matrix: FloatArray, y: FloatArray, n_labelled: int, k: int) -> float | None:
    """Bound κ by ω_i = yᵀ(σ_i I − A_uu)†η_u over eigenvectors that touch labelled nodes (lemma B.14)."""
    inner = matrix[n_labelled:, n_labelled:]
    eta = matrix[n_labelled:, 0]
    touched = np.flatnonzero(np.abs(split.labelled_rest.sum(axis=0)) > 1e-9)
    values, vectors = np.linalg.eigh(inner)
    parts = (vectors.T @ y) * (vectors.T @ eta)
    omega = np.array([(parts / _nonzero(split.values[k + i] - values)).sum() for i in touched])
    if not len(omega) or not (omega > 0).all():
        return None
    return weighted_cosine_floor(omega)


def _nonzero(differences: FloatArray) -> FloatArray:
    """Make differences of equal eigenvalues infinite: the pseudo-inverse leaves those out."""
    return np.where(np.abs(differences) < 1e-12, np.inf, differences)


def linear_probe_error(U: npt.ArrayLike, Y: npt.ArrayLike) -> int:
    """Count the inputs that the least-squares probe misclassifies: at most twice the residual.

    Thesis, section 6.4.1, lemma 6.2.

    Parameters
    ----------
    U : array_like of shape (n_inputs, n_dimensions)
        Representation.
    Y : array_like of shape (n_inputs, n_classes)
        One-hot labels.

    Returns
    -------
    int

    Examples
    --------
    >>> linear_probe_error(np.eye(3), np.eye(3))
    0
    """
    rows, target = _pair(U, Y)
    if target.ndim != 2:
        raise InputError("linear_probe_error: one-hot labels are needed, one column per class")
    weights = np.linalg.pinv(rows, rcond=1e-10) @ target
    return int(((rows @ weights).argmax(axis=1) != target.argmax(axis=1)).sum())


def _pair(U: npt.ArrayLike, y: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    rows, target = np.asarray(U, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(target):
        raise InputError(f"{rows.shape} rows of the representation but labels of shape {target.shape}")
    if not np.any(target):
        raise InputError("the label vector is zero everywhere: no input belongs to the class")
    return rows, target
