"""Contrastive losses seen as other things: OpenCon as expectation-maximisation, SimCLR as an eigenproblem."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax, xlogy

from offmap.errors import InputError

Array = npt.NDArray[np.float64]


def vmf_posterior(
    features: npt.ArrayLike, prototypes: npt.ArrayLike, kappa: float = 1.0, prior: npt.ArrayLike | None = None
) -> Array:
    """The E-step of OpenCon: ``p(c | x)`` for von Mises–Fisher classes of one concentration (thesis, section 8.3.1,
    assumption 8.1).

    Parameters
    ----------
    features, prototypes
        Unit vectors: inputs × dimensions, classes × dimensions.
    kappa
        The concentration; the thesis writes the softmax without it (κ = 1).
    prior
        Class probabilities; equal when absent.

    Examples
    --------
    >>> vmf_posterior([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], kappa=2.0).round(3)
    array([[0.881, 0.119]])
    """
    scores = kappa * np.asarray(features, float) @ np.asarray(prototypes, float).T
    if prior is not None:
        scores = scores + np.log(np.asarray(prior, dtype=np.float64))
    return np.asarray(softmax(scores, axis=1))


def evidence_bound(log_joint: npt.ArrayLike, q: npt.ArrayLike) -> tuple[Array, Array]:
    """``log p(x)`` and its bound ``Σ_c q(c) log(p(x, c)/q(c))``, equal when q is the posterior (section 8.3.1).

    The thesis prints the logarithm outside the sum over classes; the bound has it inside.

    Parameters
    ----------
    log_joint
        Inputs × classes: log p(x, c).
    q
        Inputs × classes: any distribution over classes for each input.

    Examples
    --------
    >>> log_p, bound = evidence_bound(np.log([[0.2, 0.1]]), [[2 / 3, 1 / 3]])
    >>> bool(np.allclose(log_p, bound))
    True
    """
    joint, weights = np.asarray(log_joint, float), np.asarray(q, float)
    lower = (weights * joint).sum(axis=1) - xlogy(weights, weights).sum(axis=1)
    return np.asarray(logsumexp(joint, axis=1)), lower


def alignment_loss(features: npt.ArrayLike, assignments: npt.ArrayLike, tau: float = 1.0) -> float:
    """``Σ_x L_a(x)``: minus the mean inner product with the others of the same class, over τ (thesis, section 8.3.2).

    Classes of a single input have no positives and count 0.

    Examples
    --------
    >>> round(alignment_loss([[1.0, 0.0], [0.6, 0.8]], [0, 0]), 4)
    -1.2
    """
    rows, given = np.asarray(features, float), np.asarray(assignments)
    total = 0.0
    for c in np.unique(given):
        members = rows[given == c]
        n = len(members)
        if n > 1:
            sums = members @ members.sum(axis=0) - (members**2).sum(axis=1)
            total -= float(sums.sum()) / (n - 1)
    return total / tau


def alignment_identity(features: npt.ArrayLike, assignments: npt.ArrayLike, tau: float = 1.0) -> float:
    """The same sum for unit vectors by class means only: ``−(1/τ) Σ_c (n²‖mean‖² − n)/(n − 1)``.

    The thesis (section 8.3.2, lemma 8.3) calls alignment equivalent to maximising ``Σ φ·μ_c``; that is an
    approximation, this is exact: the loss sees the *squared* length of the class mean, not the length.

    Examples
    --------
    >>> round(alignment_identity([[1.0, 0.0], [0.6, 0.8]], [0, 0]), 4)
    -1.2
    """
    rows, given = np.asarray(features, float), np.asarray(assignments)
    if not np.allclose((rows**2).sum(axis=1), 1.0, atol=1e-6):
        raise InputError("alignment_identity: it holds for unit vectors; scale the features first")
    total = 0.0
    for c in np.unique(given):
        members = rows[given == c]
        n = len(members)
        if n > 1:
            total -= (n**2 * float((members.mean(axis=0) ** 2).sum()) - n) / (n - 1)
    return total / tau


def optimal_prototypes(features: npt.ArrayLike, assignments: npt.ArrayLike) -> Array:
    """The M-step for prototypes: class means scaled to unit length (thesis, section 8.3.2); zero for empty classes.

    Examples
    --------
    >>> optimal_prototypes([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]], [0, 0, 1])
    array([[1., 0.],
           [0., 1.]])
    """
    rows, given = np.asarray(features, float), np.asarray(assignments)
    sums = np.zeros((int(given.max()) + 1, rows.shape[1]))
    np.add.at(sums, given, rows)
    return np.asarray(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12))


def mean_classifier_bound(features: npt.ArrayLike, assignments: npt.ArrayLike, tau: float = 1.0) -> tuple[float, float]:
    """Both sides of the thesis, appendix B.3.3, lemma B.29: the contrastive loss in expectation, and
    ``(1 − γ)/τ · L_sup``.

    γ is the chance that two random inputs share a class, so *fewer* classes make it larger, and with
    L_sup ≤ 0 the right side rises. The thesis argues the reverse; the inequality itself holds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.standard_normal((30, 4))
    >>> z /= np.linalg.norm(z, axis=1, keepdims=True)
    >>> left, right = mean_classifier_bound(z, rng.integers(3, size=30))
    >>> bool(left >= right)
    True
    """
    rows, given = np.asarray(features, float), np.asarray(assignments)
    _, group, sizes = np.unique(given, return_inverse=True, return_counts=True)
    means = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(means, group, rows)
    means /= sizes[:, None]
    share = sizes / len(rows)
    closeness = float((rows * means[group]).sum(axis=1).mean()) / tau
    spread = logsumexp(rows @ rows.T / tau, axis=1) - np.log(len(rows))
    gamma = float((share**2).sum())
    if gamma >= 1:
        return float(spread.mean()) - closeness, 0.0
    pairs = np.outer(share, share) * (1 - np.eye(len(share))) / (1 - gamma)
    products = means @ means.T
    supervised = -float((pairs * (np.diag(products)[:, None] - products)).sum())
    return float(spread.mean()) - closeness, (1 - gamma) / tau * supervised


def simclr_loss(Z: npt.ArrayLike, A: npt.ArrayLike, tau: float) -> float:
    """SimCLR-like losses as a function of the graph, with the logarithm outside (thesis, appendix B.2.4).

    ``−(1/τ) Tr(ZᵀAZ) + log Σ_{x≠x'} w_x w_x' exp(z_x·z_x'/τ)``: unlabelled edges make SimCLR, labelled ones
    SupCon, both together GCD and OpenCon.

    Examples
    --------
    >>> round(simclr_loss(np.zeros((2, 1)), np.full((2, 2), 0.25), tau=1.0), 4)
    -0.6931
    """
    rows, adjacency = np.asarray(Z, float), np.asarray(A, float)
    degrees = adjacency.sum(axis=1)
    pairs = np.outer(degrees, degrees)
    np.fill_diagonal(pairs, 0.0)
    pull = float((rows * (adjacency @ rows)).sum()) / tau
    return float(logsumexp(rows @ rows.T / tau, b=pairs)) - pull


def simclr_matrix(A: npt.ArrayLike) -> Array:
    """For large τ the loss is ``−(1/τ) Tr(ZᵀMZ)``, so its optimum is M's top eigenvectors (thesis, appendix B.2.4).

    ``M = A − (D11ᵀD − D²) / (Tr(D)² − Tr(D²))``.

    Examples
    --------
    >>> simclr_matrix(np.full((2, 2), 0.25))
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    adjacency = np.asarray(A, dtype=np.float64)
    degrees = adjacency.sum(axis=1)
    pairs = np.outer(degrees, degrees)
    np.fill_diagonal(pairs, 0.0)
    return np.asarray(adjacency - pairs / (degrees.sum() ** 2 - (degrees**2).sum()))
