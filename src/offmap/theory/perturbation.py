"""The effect of labels on clusters (SORL): the K-means measure as labels are mixed into the graph.

Labelling a class adds ``δ 𝔩𝔩ᵀ`` to the adjacency, 𝔩 being every node's connection to the class. The slope of
the measure at δ = 0 says whether clusters get tighter, before a single label is bought.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.graph import Graph, Spectrum, spectral_embedding
from offmap.graph.adjacency import Matrix, as_graph, inverse_root
from offmap.metrics.kmeans_measure import class_scatter, kmeans_measure
from offmap.typing import FloatArray


def kmeans_measure_derivative(
    A: Graph | Matrix,
    connection: npt.ArrayLike,
    labels: npt.ArrayLike,
    k: int,
    closed_form: bool = False,
) -> float | FloatArray:
    """Compute ``dM_kms/dδ`` at δ = 0 for ``A(δ) = A + δ 𝔩𝔩ᵀ``; negative means labels will tighten the clusters.

    Parameters
    ----------
    A : Graph or matrix of shape (n_nodes, n_nodes)
        Adjacency without labels; its degrees need not be 1 as they are in the thesis.
    connection : array_like of shape (n_nodes,) or (n_nodes, n_classes)
        𝔩, one number per node; or one column per class that could be labelled (then one derivative for each; labelling
        several together adds them up).
    labels : array_like of shape (n_nodes,)
        True partition that the measure is taken over; nodes marked -1 are not counted.
    k : int
        Dimensions of the embedding.
    closed_form : bool, default=False
        Use the thesis' approximation (section 7.4.2, theorem 7.2), which drops terms of the order of one over the
        spectral gap.

    Returns
    -------
    float or ndarray
        One number, or one per column of `connection`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> half = rng.random((12, 12))
    >>> A = half @ half.T
    >>> labels, bond = np.repeat([0, 1, 2], 4), rng.random(12)
    >>> h = 1e-5
    >>> nudged = [kmeans_measure(spectral_embedding(A + d * np.outer(bond, bond), 3).features, labels)
    ...           for d in (-h, h)]
    >>> exact = kmeans_measure_derivative(A, bond, labels, 3)
    >>> bool(abs((nudged[1] - nudged[0]) / (2 * h) / exact - 1) < 1e-5)
    True
    """
    graph = as_graph(A)
    spectrum = spectral_embedding(graph, k if closed_form else graph.n_nodes, dense_nodes=graph.n_nodes)
    return measure_gradient(spectrum, labels, k)(connection)


@dataclass(frozen=True)
class MeasureGradient:
    """The derivative of the measure as a function of the connection 𝔩: ``−(𝔩ᵀQ𝔩 − g·𝔩 Σ𝔩)/M_inter``.

    Made by `measure_gradient`; call it with one connection, or one per column.
    """

    left: FloatArray
    right: FloatArray
    diagonal: FloatArray
    scale: float

    def __call__(self, connection: npt.ArrayLike) -> float | FloatArray:
        """Compute the derivative for one connection, or for each column."""
        given = np.asarray(connection, dtype=np.float64)
        bonds = given[:, None] if given.ndim == 1 else given
        if len(bonds) != len(self.diagonal):
            raise InputError(
                f"connection of {len(bonds)} nodes, the graph has {len(self.diagonal)}; give one number per node"
            )
        quadratic = ((self.left.T @ bonds) * (self.right.T @ bonds)).sum(axis=0)
        linear = (self.diagonal @ bonds) * bonds.sum(axis=0)
        value = -self.scale * (quadratic - linear)
        return float(value[0]) if given.ndim == 1 else value


def measure_gradient(spectrum: Spectrum, labels: npt.ArrayLike, k: int) -> MeasureGradient:
    """Compute the gradient from a spectrum of K ≥ k eigenpairs: with all pairs exact, with K = k the closed form.

    In between, eigenvalues beyond the K-th count as 0, so the error falls as K grows. This is how graphs too large for
    a full decomposition are handled.

    Parameters
    ----------
    spectrum : Spectrum
        From `offmap.graph.spectral_embedding`.
    labels : array_like of shape (n_nodes,)
        Partition, -1 for nodes that are not counted.
    k : int
        Dimensions of the embedding.

    Returns
    -------
    MeasureGradient

    Raises
    ------
    InputError
        If the k-th eigenvalue is 0 or equals the next, or the class means coincide.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> half = rng.random((12, 12))
    >>> spectrum = spectral_embedding(half @ half.T, 6)
    >>> gradient = measure_gradient(spectrum, np.repeat([0, 1, 2], 4), 3)
    >>> gradient(np.eye(12)[:, :2]).shape
    (2,)
    """
    values, vectors = spectrum.values, spectrum.vectors
    n, found = vectors.shape
    given = np.asarray(labels)
    if given.shape != (n,):
        raise InputError(f"labels of shape {given.shape}: one for each of the {n} nodes is needed, -1 to leave out")
    if not 1 <= k <= found:
        raise InputError(f"k={k}: between 1 and the {found} eigenvectors at hand")
    if values[k - 1] <= 1e-12:
        raise InputError(
            f"k={k}: eigenvalue {k} is {values[k - 1]:.2g} and adds nothing to the embedding; take a smaller k"
        )
    if found > k and values[k - 1] - values[k] < 1e-10:
        raise InputError(
            f"k={k}: eigenvalues {k} and {k + 1} are equal: the embedding is not determined; take another k"
        )
    top, lead = vectors[:, :k], values[:k]
    root = inverse_root(spectrum.degrees)
    inside, between = class_scatter(top * np.sqrt(lead) * root[:, None], given)
    if between <= 0:
        raise InputError("the class means coincide in the embedding: the measure is infinite and has no slope")
    structure = root[:, None] * _upsilon(root[:, None] * top, given, inside / between)
    mixed = vectors.T @ structure
    pull = np.ones((found, k))  # weights of 𝔩𝔩ᵀ and of diag(𝔩), in the eigenbasis
    push = np.broadcast_to(2 * lead, (found, k)).copy()
    if found > k:
        gaps = lead[None, :] - values[k:, None]
        pull[k:] = 2 * lead / gaps
        push[k:] = 2 * lead**2 / gaps
    rest = structure - vectors @ mixed
    left = root[:, None] * (vectors @ (pull * mixed) + 2 * rest)
    diagonal = ((vectors @ (push * mixed) + 2 * rest * lead) * top).sum(axis=1)
    return MeasureGradient(left, root[:, None] * top, diagonal * root**2, 1 / between)


def _upsilon(columns: FloatArray, labels: npt.NDArray[np.int64], ratio: float) -> FloatArray:
    """Multiply Υ = (1+e)H − I − (e/N)11ᵀ (thesis, appendix B.2.3, lemma B.22) with columns; rows marked -1 become 0."""
    counted = labels >= 0
    part = columns[counted]
    _, group, sizes = np.unique(labels[counted], return_inverse=True, return_counts=True)
    means = np.zeros((len(sizes), columns.shape[1]))
    np.add.at(means, group, part)
    means /= sizes[:, None]
    out = np.zeros_like(columns)
    out[counted] = (1 + ratio) * means[group] - part - ratio * part.mean(axis=0)
    return out


def kmeans_measure_change(
    A: Graph | Matrix, connection: npt.ArrayLike, labels: npt.ArrayLike, k: int, delta: float
) -> float:
    """Compute ``Δ_kms(δ) = M_kms(0) − M_kms(δ)`` by embedding twice (thesis, section 7.4.2); positive is better.

    Parameters
    ----------
    A, connection, labels, k : Graph or Matrix
        As in `kmeans_measure_derivative`.
    delta : float
        Weight δ of the labels.

    Returns
    -------
    float

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> half = rng.random((12, 12))
    >>> kmeans_measure_change(half @ half.T, np.ones(12), np.repeat([0, 1, 2], 4), 3, delta=0.0)
    0.0
    """
    graph = as_graph(A)
    bonds = np.asarray(connection, dtype=np.float64).reshape(graph.n_nodes, -1) * np.sqrt(delta)
    from scipy import sparse

    extra = (
        bonds
        if graph.factors is None
        else sparse.hstack([sparse.csr_array(graph.factors), sparse.csr_array(bonds)]).tocsr()
    )
    before = spectral_embedding(graph, k).features
    after = spectral_embedding(Graph(graph.base, extra), k).features
    return kmeans_measure(before, labels) - kmeans_measure(after, labels)


@dataclass(frozen=True)
class PerturbationReport:
    """Predicted and actual change of the measure for each class that could be labelled.

    Attributes
    ----------
    classes : ndarray of int
        The classes, in order.
    predicted : ndarray
        ``−δ dM/dδ``: the derivative's forecast.
    closed : ndarray
        The same by the thesis' closed form.
    actual : ndarray
        ``M(0) − M(δ)`` with the labels really added.
    delta : float
        The weight δ.
    """

    classes: npt.NDArray[np.int64]
    predicted: FloatArray
    closed: FloatArray
    actual: FloatArray
    delta: float

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation of predicted and actual change over classes."""
        return rank_correlation(self.predicted, self.actual)

    def __str__(self) -> str:
        hurt = int((self.actual < 0).sum())
        return (
            f"over {len(self.classes)} classes the predicted and the actual change correlate at "
            f"{self.correlation:.2f} (ranks; closed form {rank_correlation(self.closed, self.actual):.2f}); "
            f"labelling {hurt} of them makes clusters worse at δ = {self.delta:g}"
        )


def perturbation_report(
    A: Graph | Matrix, labels: npt.ArrayLike, k: int, connections: npt.ArrayLike, delta: float
) -> PerturbationReport:
    """Predict the effect of labelling each class, then label it and measure.

    Parameters
    ----------
    A : Graph or matrix of shape (n_nodes, n_nodes)
        Unlabelled adjacency.
    labels : array_like of shape (n_nodes,)
        True partition, in which every class 0 … C−1 occurs.
    k : int
        Dimensions of the embedding.
    connections : array_like of shape (n_nodes, n_classes)
        𝔩 of each class.
    delta : float
        Weight of a class' labels.

    Returns
    -------
    PerturbationReport

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> half = rng.random((12, 12))
    >>> labels = np.repeat([0, 1, 2], 4)
    >>> report = perturbation_report(half @ half.T, labels, 3, np.eye(3)[labels] / 4, delta=0.1)
    >>> report.actual.shape
    (3,)
    """
    bonds = np.asarray(connections, dtype=np.float64)
    exact = np.asarray(kmeans_measure_derivative(A, bonds, labels, k))
    closed = np.asarray(kmeans_measure_derivative(A, bonds, labels, k, closed_form=True))
    actual = [kmeans_measure_change(A, bonds[:, c], labels, k, delta) for c in range(bonds.shape[1])]
    return PerturbationReport(np.arange(bonds.shape[1]), -delta * exact, -delta * closed, np.array(actual), delta)


def rank_correlation(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Compute Spearman's correlation; 0 when one side does not vary.

    Parameters
    ----------
    first, second : array_like of shape (n,)
        Numbers to compare.

    Returns
    -------
    float

    Examples
    --------
    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    from scipy.stats import rankdata

    a, b = rankdata(np.asarray(first)), rankdata(np.asarray(second))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float(a @ b / size) if size > 0 else 0.0
