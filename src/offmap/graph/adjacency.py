"""A weighted graph kept as a matrix plus a factored part, so that labelled cliques never become dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from offmap.errors import InputError
from offmap.typing import Array, FloatArray

Matrix = Any  # a dense float64 array or a SciPy sparse array, nodes × something


class Graph:
    """The adjacency ``base + factors @ factors.T`` of a weighted graph without direction.

    A class of 5,000 labelled samples is a clique of 25 million edges but one column of `factors`.

    Parameters
    ----------
    base
        Symmetric, nodes × nodes, dense or sparse; `None` when everything is factored.
    factors
        Nodes × anything, dense or sparse; `None` when there is no such part.

    Examples
    --------
    >>> graph = Graph(np.eye(3), factors=np.array([[1.0], [1.0], [0.0]]))
    >>> graph.toarray()
    array([[2., 1., 0.],
           [1., 2., 0.],
           [0., 0., 1.]])
    >>> graph.degrees
    array([3., 3., 1.])
    """

    def __init__(self, base: Matrix | None, factors: Matrix | None = None) -> None:
        if base is None and factors is None:
            raise InputError("Graph(None): give a base matrix, factors or both")
        self.base = None if base is None else _checked(base, "base")
        self.factors = None if factors is None else _checked(factors, "factors")
        if self.base is not None:
            if self.base.shape[0] != self.base.shape[1]:
                raise InputError(f"Graph(base of shape {self.base.shape}): it must be nodes × nodes")
            if self.factors is not None and self.factors.shape[0] != self.base.shape[0]:
                raise InputError(
                    f"Graph: a base of {self.base.shape[0]} nodes but {self.factors.shape[0]} rows of factors"
                )
            asymmetry = abs(self.base - self.base.T)
            if asymmetry.size and asymmetry.max() > 1e-8 * max(abs(self.base).max(), 1e-300):
                raise InputError("Graph: the base is not symmetric; pass (W + W.T) / 2")

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        part = self.base if self.base is not None else self.factors
        assert part is not None
        return int(part.shape[0])

    @property
    def degrees(self) -> FloatArray:
        """The total weight at each node, ``w_x`` of the thesis (section 6.3.1)."""
        return self.dot(np.ones(self.n_nodes))

    def dot(self, vectors: Array) -> Array:
        """The adjacency times one vector or several columns, never forming it."""
        parts = [] if self.base is None else [self.base @ vectors]
        if self.factors is not None:
            parts.append(self.factors @ (self.factors.T @ vectors))
        return np.asarray(sum(parts))

    def astype(self, dtype: npt.DTypeLike) -> Graph:
        """Return the graph with weights of another precision."""
        parts = (None if part is None else part.astype(dtype) for part in (self.base, self.factors))
        return _trusted(*parts)

    def scaled(self, left: FloatArray) -> Graph:
        """The graph with row and column x multiplied by ``left[x]``."""
        diagonal = sparse.diags_array(left)
        base = None if self.base is None else diagonal @ self.base @ diagonal
        factors = None if self.factors is None else diagonal @ self.factors
        return _trusted(base, factors)

    def toarray(self) -> FloatArray:
        """The adjacency as a dense matrix; for graphs that fit."""
        out = np.zeros((self.n_nodes, self.n_nodes))
        if self.base is not None:
            out += _dense(self.base)
        if self.factors is not None:
            factors = self.factors
            out += _dense(factors @ factors.T)
        return out

    def __repr__(self) -> str:
        rank = 0 if self.factors is None else self.factors.shape[1]
        edges = 0 if self.base is None else int(self.base.nnz if sparse.issparse(self.base) else self.base.size)
        return f"Graph({self.n_nodes} nodes, {edges} stored edges, {rank} factors)"


def normalized_adjacency(graph: Graph | Matrix) -> Graph:
    """``D^(-1/2) A D^(-1/2)`` (thesis, section 6.3.1, eq. 6.2; section 7.3.1, eq. 7.4), factored where the graph is.

    A node without edges keeps a zero row instead of a division by zero.

    Examples
    --------
    >>> normalized_adjacency(np.array([[0.0, 2.0], [2.0, 0.0]])).toarray()
    array([[0., 1.],
           [1., 0.]])
    """
    whole = as_graph(graph)
    return whole.scaled(inverse_root(whole.degrees))


def as_graph(graph: Graph | Matrix) -> Graph:
    """A `Graph` from itself or from a plain symmetric matrix."""
    return graph if isinstance(graph, Graph) else Graph(graph)


def inverse_root(degrees: FloatArray) -> FloatArray:
    """``1/sqrt(degree)``, and 0 for a node without edges; a negative degree is refused."""
    if degrees.size and degrees.min() < -1e-9 * max(float(np.abs(degrees).max()), 1.0):
        raise InputError(f"a node has degree {degrees.min():.3g}: weights must not be negative; clip similarities at 0")
    positive = degrees > 0
    return np.where(positive, 1.0 / np.sqrt(np.where(positive, degrees, 1.0)), 0.0)


def _checked(matrix: Matrix, name: str) -> Matrix:
    if sparse.issparse(matrix):
        out = sparse.csr_array(matrix, dtype=np.float64)
        values = out.data
    else:
        out = np.asarray(matrix, dtype=np.float64)
        values = out
        if out.ndim != 2:
            raise InputError(f"Graph({name} of shape {out.shape}): a matrix is needed")
    if values.size and not np.isfinite(values).all():
        raise InputError(f"Graph: {name} holds NaN or infinity; check the features it was made from")
    return out


def _trusted(base: Matrix | None, factors: Matrix | None) -> Graph:
    """A graph whose parts come from another one, without checking them again."""
    graph = object.__new__(Graph)
    graph.base = base
    graph.factors = factors
    return graph


def _dense(matrix: Matrix) -> FloatArray:
    return np.asarray(matrix.toarray() if sparse.issparse(matrix) else matrix, dtype=np.float64)
