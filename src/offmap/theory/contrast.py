"""Contrastive losses seen as other things: OpenCon as expectation-maximisation, SimCLR as an eigenproblem."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax, xlogy

from offmap.errors import InputError
from offmap.typing import FloatArray


def vmf_posterior(
    features: npt.ArrayLike, prototypes: npt.ArrayLike, kappa: float = 1.0, prior: npt.ArrayLike | None = None
) -> FloatArray:
    """Compute ``p(c | x)`` for von Mises–Fisher classes of one concentration: the E-step of OpenCon.

    Thesis, section 8.3.1, assumption 8.1.

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_dimensions)
        Unit vectors.
    prototypes : array_like of shape (n_classes, n_dimensions)
        Unit vectors.
    kappa : float, default=1.0
        Concentration; the thesis writes the softmax without it.
    prior : array_like of shape (n_classes,), optional
        Class probabilities; equal ones by default.

    Returns
    -------
    ndarray of shape (n_inputs, n_classes)

    Examples
    --------
    >>> vmf_posterior([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], kappa=2.0).round(3)
    array([[0.881, 0.119]])
    """
    scores = kappa * np.asarray(features, float) @ np.asarray(prototypes, float).T
    if prior is not None:
        scores = scores + np.log(np.asarray(prior, dtype=np.float64))
    return np.asarray(softmax(scores, axis=1))


def evidence_bound(log_joint: npt.ArrayLike, q: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Compute ``log p(x)`` and its lower bound ``Σ_c q(c) log(p(x, c)/q(c))``.

    They are equal when q is the posterior. The thesis (section 8.3.1) prints the logarithm outside the sum over
    classes; the bound has it inside.

    Parameters
    ----------
    log_joint : array_like of shape (n_inputs, n_classes)
        ``log p(x, c)``.
    q : array_like of shape (n_inputs, n_classes)
        A distribution over classes for each input.

    Returns
    -------
    log_p, bound : ndarray of shape (n_inputs,)

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
    """Compute ``Σ_x L_a(x)``: minus the mean inner product with the others of the same class, over τ.

    Thesis, section 8.3.2. Classes of a single input have no positives and count 0.

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_dimensions)
        Embeddings.
    assignments : array_like of shape (n_inputs,)
        Class of each input.
    tau : float, default=1.0
        Temperature.

    Returns
    -------
    float

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
    """Compute `alignment_loss` of unit vectors from class means alone: ``−(1/τ) Σ_c (n²‖mean‖² − n)/(n − 1)``.

    The thesis (section 8.3.2, lemma 8.3) calls alignment equivalent to maximising ``Σ φ·μ_c``. That is an
    approximation; this is exact: the loss depends on the *squared* length of the class mean, not on the length.

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_dimensions)
        Unit vectors.
    assignments : array_like of shape (n_inputs,)
        Class of each input.
    tau : float, default=1.0
        Temperature.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If a row is not of unit length.

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


def optimal_prototypes(features: npt.ArrayLike, assignments: npt.ArrayLike) -> FloatArray:
    """Compute the prototypes of OpenCon's M-step: class means scaled to unit length (thesis, section 8.3.2).

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_dimensions)
        Embeddings.
    assignments : array_like of shape (n_inputs,)
        Class of each input, counted from 0.

    Returns
    -------
    ndarray of shape (n_classes, n_dimensions)
        Zero for classes without inputs.

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
    """Compute both sides of lemma B.29: the expected contrastive loss and ``(1 − γ)/τ · L_sup``.

    Thesis, appendix B.3.3. γ is the chance that two random inputs share a class, so *fewer* classes make it larger, and
    with L_sup ≤ 0 the right side rises. The thesis argues the reverse; the inequality itself holds.

    Parameters
    ----------
    features : array_like of shape (n_inputs, n_dimensions)
        Unit vectors.
    assignments : array_like of shape (n_inputs,)
        Class of each input.
    tau : float, default=1.0
        Temperature.

    Returns
    -------
    loss, bound : float

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
    """Compute a SimCLR-like loss as a function of the graph (thesis, appendix B.2.4).

    ``−(1/τ) Tr(ZᵀAZ) + log Σ_{x≠x'} w_x w_x' exp(z_x·z_x'/τ)``, with the logarithm outside: unlabelled edges make
    SimCLR, labelled ones SupCon, both together GCD and OpenCon.

    Parameters
    ----------
    Z : array_like of shape (n_nodes, n_dimensions)
        Embedding of the nodes.
    A : array_like of shape (n_nodes, n_nodes)
        Adjacency.
    tau : float
        Temperature.

    Returns
    -------
    float

    See Also
    --------
    simclr_matrix : The matrix whose eigenvectors minimise it for large τ.

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


def simclr_matrix(A: npt.ArrayLike) -> FloatArray:
    """Compute ``M = A − (D11ᵀD − D²) / (Tr(D)² − Tr(D²))``, whose top eigenvectors minimise `simclr_loss` for large τ.

    Thesis, appendix B.2.4: there the loss is ``−(1/τ) Tr(ZᵀMZ)`` up to a constant.

    Parameters
    ----------
    A : array_like of shape (n_nodes, n_nodes)
        Adjacency.

    Returns
    -------
    ndarray of shape (n_nodes, n_nodes)

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
