"""Features without training: what minimises the spectral losses on a neighbour graph with labelled cliques."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.graph.build import add_labels, knn_graph
from offmap.graph.spectral import spectral_embedding
from offmap.neighbors.vectors import unit_and_length

PER_CLASS = 1.5  # eigenvectors; those after the first for each class still tell classes apart
TOLERANCE = 1e-3  # at 1e-2, and filtered, one of five splits of BANKING77 loses two points


def spectral_features(
    rows: npt.NDArray[np.float32],
    codes: npt.NDArray[np.int64],
    n_classes: int,
    *,
    neighbours: int = 30,
    eta_l: float = 4.0,
    diffusion: float = 4.0,
    columns: int = 0,
    seed: int = 0,
) -> npt.NDArray[np.float32]:
    """Leading eigenvectors, rows of length 1, of the k-NN graph with every labelled class as a clique.

    At the optimum of the spectral losses the features are the leading eigenvectors of the normalised adjacency, each
    weighed by the root of its eigenvalue (thesis, section 7.4.2). The root hardly weighs them: eigenvalues of a
    neighbour graph crowd below 1. A power of four, which is four steps of a random walk over the graph, fades out what
    joins only parts of classes, so that more eigenvectors than classes can be kept.

    Parameters
    ----------
    rows
        In the space where neighbours mean something.
    codes
        Per row its known class or -1.
    n_classes
        Known and novel.
    neighbours
        Of the graph.
    eta_l
        The weight that a labelled row has in its clique, relative to what it has among neighbours.
    diffusion
        The power of an eigenvalue that weighs its eigenvector; 0.5 is the thesis', whose rows keep their lengths, 0
        weighs all alike.
    columns
        How many eigenvectors; 0 for one and a half times the classes.
    seed
        Of the start vector.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    >>> spectral_features(rows, np.full(40, -1), 4, neighbours=5).shape
    (40, 6)
    """
    graph = knn_graph(rows, min(neighbours, len(rows) - 1))
    wanted = columns or math.ceil(PER_CLASS * n_classes)
    return unit_and_length(labelled_eigenvectors(graph, codes, wanted, eta_l=eta_l, diffusion=diffusion, seed=seed))[0]


def labelled_eigenvectors(
    graph: Any,
    codes: npt.NDArray[np.int64],
    columns: int,
    *,
    eta_l: float = 4.0,
    diffusion: float = 4.0,
    seed: int = 0,
) -> npt.NDArray[np.float64]:
    """Return the leading eigenvectors of a graph with labelled cliques, weighed by powers of their eigenvalues.

    Parameters
    ----------
    graph
        Sparse and symmetric, rows × rows.
    codes, eta_l, diffusion, seed
        As in `spectral_features`.
    columns
        How many eigenvectors; at most one fewer than rows.
    """
    n = len(codes)
    known = codes[codes >= 0]
    whole: Any = graph / graph.sum()
    if len(known):
        whole = add_labels(whole, codes, eta_l=eta_l * len(known) / n / len(np.unique(known)))
    spectrum = spectral_embedding(whole, min(columns, n - 1), seed=seed, tolerance=TOLERANCE)
    vectors: npt.NDArray[np.float64] = spectrum.vectors * np.clip(spectrum.values, 0.0, None) ** diffusion
    return vectors
