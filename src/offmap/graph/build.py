"""Where graphs come from: neighbours of features, augmentations (probabilities or counts), labels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.graph.adjacency import Graph, Matrix, as_graph

Labels = npt.NDArray[Any]

Weights = Literal["binary", "cosine", "gaussian"]
Symmetry = Literal["union", "mutual", "mean"]
Setting = Literal["sorl", "nscl"]

PAIRS = 200_000  # edges weighed at a time


def knn_graph(
    features: Any,
    k: int,
    *,
    weights: Weights = "binary",
    symmetry: Symmetry = "mean",
    metric: Literal["euclidean", "cosine"] = "euclidean",
) -> Matrix:
    """Each row joined to its `k` nearest others: a sparse, symmetric adjacency without loops.

    Parameters
    ----------
    features : array-like
        One row per node.
    k : int
        Neighbours per node, the node itself not counted.
    weights : Weights, default="binary"
        ``"binary"`` gives every edge 1; ``"cosine"`` the cosine clipped at 0; ``"gaussian"``
        ``exp(-d²/(s_i s_j))`` with s the distance to a node's own k-th neighbour (self-tuning).
    symmetry : Symmetry, default="mean"
        ``"mean"`` halves an edge seen from one side only, ``"union"`` keeps it whole, ``"mutual"`` drops it.
    metric : {"euclidean", "cosine"}, default="euclidean"
        ``"cosine"`` scales rows to unit length first.

    Returns
    -------
    scipy.sparse.csr_array
        Nodes × nodes, float64.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [1.1], [5.0]])
    >>> knn_graph(points, 1, symmetry="union").toarray()
    array([[0., 1., 0., 0.],
           [1., 0., 1., 0.],
           [0., 1., 0., 1.],
           [0., 0., 1., 0.]])
    """
    rows = as_array(features, "features")
    if rows.ndim != 2:
        raise InputError(f"knn_graph(features of shape {rows.shape}): one row per node is needed")
    n = len(rows)
    if not 1 <= k < n:
        raise InputError(f"knn_graph(k={k}): with {n} nodes, k must be between 1 and {n - 1}")
    _one_of("weights", weights, ("binary", "cosine", "gaussian"))
    _one_of("symmetry", symmetry, ("union", "mutual", "mean"))
    _one_of("metric", metric, ("euclidean", "cosine"))
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise InputError("knn_graph: the features hold NaN or infinity; remove those rows first")
    if metric == "cosine" or weights == "cosine":
        unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        rows = unit if metric == "cosine" else rows
    distances, indices = nearest_neighbors(rows, k)
    starts = np.repeat(np.arange(n), k)
    ends = indices.reshape(-1)
    if weights == "binary":
        values = np.ones(n * k)
    elif weights == "cosine":
        values = np.clip(np.einsum("ij,ij->i", unit[starts], unit[ends]).astype(np.float64), 0.0, None)
    else:
        reach = np.maximum(distances[:, -1], 1e-12)
        values = np.exp(-(distances.reshape(-1) ** 2) / (reach[starts] * reach[ends]))
    directed = sparse.csr_array((values, (starts, ends)), shape=(n, n))
    both = directed.T.tocsr()
    if symmetry == "union":
        return directed.maximum(both).tocsr()
    if symmetry == "mutual":
        return directed.minimum(both).tocsr()
    return ((directed + both) * 0.5).tocsr()


def nearest_neighbors(rows: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Find the `k` nearest others of each row by exact search: distances and row numbers, nearest first.

    Among exact copies a row may stand anywhere in its own list, or not at all; it is dropped either way.

    Examples
    --------
    >>> nearest_neighbors(np.array([[0.0], [1.0], [5.0]], np.float32), 1)[1].tolist()
    [[1], [0], [1]]
    """
    from offmap.neighbors import Bank

    found, near = Bank.of(rows, normalize=False).search(rows, k + 1)
    own = near == np.arange(len(rows))[:, None]
    own[~own.any(axis=1), -1] = True
    distances = np.asarray(found, dtype=np.float64)[~own].reshape(len(rows), k)
    return distances, near[~own].reshape(len(rows), k).astype(np.int64)


def directed_graph(neighbors: npt.NDArray[np.int64]) -> Matrix:
    """Return the sparse 0/1 adjacency with an edge from each row to each of its neighbours."""
    n, k = neighbors.shape
    edges = (np.ones(n * k), neighbors.reshape(-1), np.arange(0, n * k + 1, k))
    return sparse.csr_array(edges, shape=(n, n))


def shared_neighbor_graph(
    neighbors: npt.NDArray[np.int64], distances: npt.NDArray[np.float64] | None = None, near: int = 4
) -> Matrix:
    """Weigh the edges of a neighbour graph by the share of neighbours that both ends have in common.

    The weight is the Jaccard index of the two lists of neighbours, each row counted in its own list. Edges that leave a
    class become weak, also where the class has fewer rows than there are neighbours. With distances an edge is weaker
    the longer it is beside the distances of both ends to their own nearest rows, by ``exp(1 - d² / (s_i s_j))``: a few
    rows far from all others then hold together.

    Parameters
    ----------
    neighbors : ndarray of int64
        For each row the numbers of its nearest others.
    distances : ndarray of float64 or None, default=None
        The distances to them.
    near : int, default=4
        The neighbour whose distance is the scale s of a row, but at least a quarter of that to the last one: copies
        of a row say nothing about how far apart rows of a class are.

    Returns
    -------
    scipy.sparse.csr_array
        Symmetric, nodes × nodes, without loops.

    Examples
    --------
    >>> shared_neighbor_graph(np.array([[1], [0], [1]])).toarray().round(2)
    array([[0.  , 1.  , 0.  ],
           [1.  , 0.  , 0.33],
           [0.  , 0.33, 0.  ]])
    """
    n, k = neighbors.shape
    lists = directed_graph(neighbors) + sparse.eye_array(n, format="csr")
    pairs = sparse.triu(lists + lists.T, 1).tocoo()
    shared = np.empty(pairs.nnz)
    for start in range(0, pairs.nnz, PAIRS):
        part = slice(start, start + PAIRS)
        shared[part] = np.asarray(lists[pairs.row[part]].multiply(lists[pairs.col[part]]).sum(axis=1)).ravel()
    weights = shared / (2 * (k + 1) - shared)
    if distances is not None:
        weights *= _closeness(neighbors, distances, near, pairs.row, pairs.col)
    upper = sparse.csr_array((weights, (pairs.row, pairs.col)), shape=(n, n))
    return (upper + upper.T).tocsr()


def _closeness(
    neighbors: npt.NDArray[np.int64],
    distances: npt.NDArray[np.float64],
    near: int,
    starts: npt.NDArray[Any],
    ends: npt.NDArray[Any],
) -> npt.NDArray[np.float64]:
    """Return for each edge, seen from either end, how short it is beside the scales of its two ends: 1 at most."""
    n, k = neighbors.shape
    scale = np.maximum(distances[:, min(near, k) - 1], distances[:, -1] / 4)
    scale = np.maximum(scale, 1e-12)
    squares = sparse.csr_array(
        (distances.reshape(-1) ** 2 + 1e-24, directed_graph(neighbors).indices, np.arange(0, n * k + 1, k)),
        shape=(n, n),
    )
    length = np.asarray(squares.maximum(squares.T)[starts, ends]).ravel()
    closeness: npt.NDArray[np.float64] = np.exp(np.minimum(1 - length / (scale[starts] * scale[ends]), 0))
    return closeness


def label_connections(labels: Any, transition: Matrix | None = None) -> Matrix:
    """Return the semantic connection 𝔩 of every node to each labelled class: ``E over the class of T(x | source)``.

    Thesis, section 7.4.2: one column per class that has labels, in the order of the class indices. Without a
    transition matrix a sample is reached from itself only, which makes each class a clique.

    Parameters
    ----------
    labels : array-like
        One class index per source, -1 where unlabelled.
    transition : Matrix or None, default=None
        ``T[x, source]``; the identity when absent.

    Examples
    --------
    >>> label_connections([0, 0, 1, -1]).toarray()
    array([[0.5, 0. ],
           [0.5, 0. ],
           [0. , 1. ],
           [0. , 0. ]])
    """
    given = _labels(labels)
    known = np.flatnonzero(given >= 0)
    classes, inverse, sizes = np.unique(given[known], return_inverse=True, return_counts=True)
    shares = sparse.csr_array((1.0 / sizes[inverse], (known, inverse)), shape=(len(given), len(classes)))
    if transition is None:
        return shares
    if transition.shape[1] != len(given):
        raise InputError(f"label_connections: {len(given)} labels but {transition.shape[1]} sources in T")
    return transition @ shares if sparse.issparse(transition) else np.asarray(transition) @ shares.toarray()


def add_labels(
    graph: Graph | Matrix,
    labels: Any,
    *,
    eta_u: float = 1.0,
    eta_l: float = 1.0,
    transition: Matrix | None = None,
) -> Graph:
    """``η_u A_u + η_l Σ_c 𝔩_c 𝔩_cᵀ`` (thesis, section 7.3.1, eq. 7.2): a graph perturbed by labels, these kept
    factored.

    Parameters
    ----------
    graph : Graph or Matrix
        The unlabelled graph. Scale it yourself: with total weight 1 it is the thesis' joint probability.
    labels : array-like
        One class index per node, -1 where unlabelled.
    eta_u, eta_l : float, default=1.0
        Weights of the two parts.
    transition : Matrix or None, default=None
        As in `label_connections`: how labels spread to nodes that are not labelled themselves.

    Examples
    --------
    >>> add_labels(np.eye(3), [0, 0, -1], eta_l=4.0).toarray()
    array([[2., 1., 0.],
           [1., 2., 0.],
           [0., 0., 1.]])
    """
    whole = as_graph(graph)
    _weights(eta_u, eta_l)
    given = _labels(labels)
    if len(given) != whole.n_nodes:
        raise InputError(f"add_labels: {len(given)} labels for {whole.n_nodes} nodes; use -1 where unlabelled")
    extra = np.sqrt(eta_l) * label_connections(given, transition)
    base = None if whole.base is None else whole.base * eta_u
    return Graph(base, extra if whole.factors is None else _side_by_side(whole.factors * np.sqrt(eta_u), extra))


def augmentation_graph(
    transition: Matrix,
    labels: Any = None,
    *,
    eta_u: float = 1.0,
    eta_l: float = 1.0,
    setting: Setting = "sorl",
) -> Graph:
    """Return the augmentation graph of the thesis from ``T[x, source]`` = P(view x | source).

    Two nodes are joined when they are views of one source (weight `eta_u`, the mean over sources of
    ``T(x|s)T(x'|s)``) or of two sources with the same label (weight `eta_l`).

    Parameters
    ----------
    transition : Matrix
        Nodes × sources, dense or sparse.
    labels : array-like, default=None
        One class index per source, -1 where unlabelled; `None` when there are no labels.
    eta_u, eta_l : float, default=1.0
        The weights η_u and η_l of SORL; NSCL calls them β and α.
    setting : Setting, default="sorl"
        ``"sorl"`` (section 7.3.1, eq. 7.2): every source counts as unlabelled too; ``"nscl"`` (section 6.3.1, eq. 6.1):
        only those without a label do.

    Returns
    -------
    Graph
        All of it factored: ``A = F Fᵀ`` with one column per source and one per labelled class.

    Examples
    --------
    >>> T = np.array([[0.9, 0.1], [0.1, 0.9]])
    >>> augmentation_graph(T, eta_u=2.0).toarray()
    array([[0.82, 0.18],
           [0.18, 0.82]])
    """
    _one_of("setting", setting, ("sorl", "nscl"))
    _weights(eta_u, eta_l)
    matrix = sparse.csr_array(transition) if sparse.issparse(transition) else np.asarray(transition, float)
    if matrix.ndim != 2:
        raise InputError(f"augmentation_graph(T of shape {matrix.shape}): nodes × sources is needed")
    given = np.full(matrix.shape[1], -1) if labels is None else _labels(labels)
    if len(given) != matrix.shape[1]:
        raise InputError(f"augmentation_graph: {len(given)} labels but {matrix.shape[1]} sources (columns of T)")
    free = np.arange(len(given)) if setting == "sorl" else np.flatnonzero(given < 0)
    if not len(free):
        raise InputError("augmentation_graph(setting='nscl'): there is no unlabelled source (-1) to discover in")
    alone = matrix[:, free] * np.sqrt(eta_u / len(free))
    if not (given >= 0).any():
        return Graph(None, alone)
    return Graph(None, _side_by_side(alone, np.sqrt(eta_l) * label_connections(given, matrix)))


def _side_by_side(left: Matrix, right: Matrix) -> Matrix:
    if sparse.issparse(left) or sparse.issparse(right):
        return sparse.hstack([sparse.csr_array(left), sparse.csr_array(right)]).tocsr()
    return np.hstack([left, right])


def _labels(labels: Any) -> Labels:
    given = as_array(labels, "labels")
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InputError(
            f"labels of shape {given.shape} and type {given.dtype}: whole numbers are needed, one per row, "
            "-1 where unlabelled"
        )
    return given.astype(np.int64, copy=False)


def _weights(eta_u: float, eta_l: float) -> None:
    for name, value in (("eta_u", eta_u), ("eta_l", eta_l)):
        if not (np.isfinite(value) and value >= 0):
            raise InputError(f"{name}={value}: the weight of an edge must be a finite number from 0 up")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value!r}: choose one of {', '.join(choices)}")
