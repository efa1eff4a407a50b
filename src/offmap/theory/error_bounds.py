"""Bounds on errors: of clustering by the K-means measure (SORL), of a linear probe by all novel classes (NSCL)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.metrics.kmeans_measure import kmeans_measure
from offmap.theory.residuals import (
    average_labelled,
    discovery_bound,
    linear_probe_error,
    split_spectrum,
    weighted_cosine_floor,
)


@dataclass(frozen=True)
class ClusteringError:
    """Both sides of SORL's theorem on K-means errors (thesis, appendix B.2.3).

    Attributes
    ----------
    error : float
        Harmonic mean over pairs of classes of the share of inputs that are closer to the other class's mean.
    bound : float
        C(C − 1)/2 times the K-means measure, which the error does not exceed.
    """

    error: float
    bound: float


def clustering_error(Z: npt.ArrayLike, labels: npt.ArrayLike) -> ClusteringError:
    """Compute the harmonic mean of pairwise errors and the bound that the K-means measure puts on it.

    The thesis prints the order, 𝓔 = O(𝓜); its proof gives the constant C(C − 1)/2, for |π||π'| / (|π| + |π'|) is at
    most a quarter of all inputs. A pair of classes without an error makes the harmonic mean 0.

    Parameters
    ----------
    Z : array_like of shape (n_inputs, n_dimensions)
        Representation.
    labels : array_like of shape (n_inputs,)
        Classes; inputs marked -1 are left out.

    Returns
    -------
    ClusteringError

    Examples
    --------
    >>> found = clustering_error([[0.0], [4.0], [3.0], [9.0]], [0, 0, 1, 1])
    >>> found.error, round(found.bound, 3)
    (0.25, 1.625)
    """
    rows, given = np.asarray(Z, dtype=np.float64), np.asarray(labels)
    measure = kmeans_measure(rows, given)
    rows, given = rows[given >= 0], given[given >= 0]
    classes = np.unique(given)
    if len(classes) < 2:
        raise InputError("clustering_error: one class has no other to be mistaken for; at least two are needed")
    means = np.stack([rows[given == label].mean(axis=0) for label in classes])
    inverse = 0.0
    for place, label in enumerate(classes):
        members = rows[given == label]
        own = np.linalg.norm(members - means[place], axis=1)
        for other, mean in enumerate(means):
            if other == place:
                continue
            wrong = int((own >= np.linalg.norm(members - mean, axis=1)).sum())
            both = len(members) + int((given == classes[other]).sum())
            inverse += both / wrong if wrong else np.inf
    pairs = len(classes) * (len(classes) - 1)
    return ClusteringError(float(pairs / inverse), pairs / 2 * measure)


@dataclass(frozen=True)
class ProbeErrorBound:
    """The error of a linear probe on all novel classes, and its bounds (thesis, section 6.4.3, theorem 6.7).

    Attributes
    ----------
    errors : int
        Unlabelled inputs that the least-squares probe gets wrong.
    twice_residual : float
        2 R(U*), which they do not exceed.
    bound : float or None
        2 Σ (‖y‖² 𝔗²(1 − κ²) + the cost of averaging labelled nodes); `None` when the gap assumption fails.
    as_printed : float
        The sum of the theorem as printed, with 𝔗 to the first power; an order, not a bound.
    """

    errors: int
    twice_residual: float
    bound: float | None
    as_printed: float


def probe_error_bound(adjacency: npt.ArrayLike, classes: npt.ArrayLike, n_labelled: int, k: int) -> ProbeErrorBound:
    """Add up `discovery_bound` over the novel classes, beside the true error of a linear probe.

    Parameters
    ----------
    adjacency : array_like of shape (n_nodes, n_nodes)
        The (normalised) adjacency, labelled nodes first; dense.
    classes : array_like of int of shape (n_unlabelled,)
        The class of each unlabelled node.
    n_labelled : int
        Number of labelled nodes, at least 1.
    k : int
        Number of eigenvectors that make the representation.

    Returns
    -------
    ProbeErrorBound

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> half = rng.random((8, 8))
    >>> found = probe_error_bound(half @ half.T, [0, 0, 0, 1, 1, 1], n_labelled=2, k=3)
    >>> found.errors <= found.twice_residual
    True
    """
    matrix, given = np.asarray(adjacency, dtype=np.float64), np.asarray(classes)
    kinds = np.unique(given)
    targets = (given[:, None] == kinds).astype(np.float64)
    parts = [discovery_bound(matrix, target, n_labelled, k) for target in targets.T]
    split = split_spectrum(matrix, n_labelled, k)
    bounds = [part.bound for part in parts]
    shift = _relative_shift(matrix, n_labelled, k)
    printed = 2 * len(given) / len(kinds) * (sum(part.ignorance * (1 - part.coverage**2) for part in parts) + shift)
    return ProbeErrorBound(
        linear_probe_error(split.unlabelled_top, targets),
        2 * sum(part.residual for part in parts),
        None if any(bound is None for bound in bounds) else 2 * sum(bound for bound in bounds if bound is not None),
        float(printed),
    )


def _relative_shift(matrix: npt.NDArray[np.float64], n_labelled: int, k: int) -> float:
    values = split_spectrum(matrix, n_labelled, k).values
    gap = float(values[k - 1] - values[k])
    distance = float(np.linalg.norm(matrix - average_labelled(matrix, n_labelled), 2))
    return distance / gap if gap > 0 else np.inf


def ratio_coverage(adjacency: npt.ArrayLike, y: npt.ArrayLike, n_labelled: int, k: int) -> tuple[float, float | None]:
    """Compute how well labelled nodes point at a class among discarded eigenvectors, and its floor by yᵀq / ηᵀq.

    q are the eigenvectors of the unlabelled block, η the mean links of unlabelled to labelled nodes. The vector yᵀq
    over the discarded q is ω ∘ ηᵀq with ω = yᵀq / ηᵀq, so its cosine with ηᵀq is at least 2√(ω_i ω_j) / (ω_i + ω_j),
    least over pairs (thesis, section 6.4.3, theorem 6.7). There the cosine stands for κ, which it comes near as links
    grow weak.

    Parameters
    ----------
    adjacency : array_like of shape (n_nodes, n_nodes)
        Labelled nodes first.
    y : array_like of shape (n_unlabelled,)
        0/1 on the unlabelled nodes.
    n_labelled, k : int
        Labelled nodes; eigenvectors that are kept.

    Returns
    -------
    cosine : float
        From -1 to 1.
    floor : float or None
        `None` when some ω is not above 0: then the bound says nothing.

    Examples
    --------
    >>> links = np.array([[0.0, 0.2, 0.1], [0.2, 1.0, 0.0], [0.1, 0.0, 0.5]])
    >>> ratio_coverage(links, [1, 1], n_labelled=1, k=1)
    (1.0, 1.0)
    """
    matrix, target = np.asarray(adjacency, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if n_labelled < 1 or matrix.shape[0] - n_labelled != len(target) or not 0 <= k < len(target):
        raise InputError(
            f"ratio_coverage({matrix.shape[0]} nodes, {n_labelled} labelled, k={k}): {len(target)} classes given; one "
            "for each unlabelled node, at least one labelled node and fewer kept eigenvectors than unlabelled nodes"
        )
    eta = matrix[n_labelled:, :n_labelled].mean(axis=1)
    _, vectors = np.linalg.eigh(matrix[n_labelled:, n_labelled:])
    rest = vectors[:, ::-1][:, k:]
    known, wanted = rest.T @ eta, rest.T @ target
    size = float(np.linalg.norm(known) * np.linalg.norm(wanted))
    cosine = float(known @ wanted / size) if size > 0 else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = wanted / known
    usable = bool(np.isfinite(ratios).all() and (ratios > 0).all())
    return cosine, weighted_cosine_floor(ratios) if usable else None
