"""SORL without training: the spectral loss has a closed form on a neighbour graph with labelled cliques.

Thesis l.2757: at the optimum the features are the leading eigenvectors of the normalised adjacency. With a k-NN graph
in the whitened space for the unlabelled part, that is one sparse eigenproblem: seconds instead of minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

SETTINGS: Mapping[str, Any] = {"neighbours": 30, "eta_l": 4.0, "shrinkage": 0.5, "columns": 0, "nearest": 10}


def spectral_features(
    rows: npt.NDArray[np.float32],
    codes: npt.NDArray[np.int64],
    columns: int,
    *,
    neighbours: int = 30,
    eta_l: float = 4.0,
    seed: int = 0,
) -> npt.NDArray[np.float32]:
    """Leading eigenvectors, rows of length 1, of the k-NN graph with every labelled class as a clique.

    Parameters
    ----------
    rows
        In the space where neighbours mean something.
    codes
        Per row its known class or -1.
    columns
        How many eigenvectors: as many as classes.
    neighbours
        Of the graph.
    eta_l
        The weight that a labelled row has in its clique, relative to what it has among neighbours.
    seed
        Of the start vector.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    >>> spectral_features(rows, np.full(40, -1), 4, neighbours=5).shape
    (40, 4)
    """
    from offmap.graph import add_labels, knn_graph, spectral_embedding

    n = len(rows)
    graph = knn_graph(rows, min(neighbours, n - 1), metric="cosine")
    graph = graph / graph.sum()
    known = codes[codes >= 0]
    whole: Any = graph
    if len(known):
        whole = add_labels(graph, codes, eta_l=eta_l * len(known) / n / len(np.unique(known)))
    spectrum = spectral_embedding(whole, min(columns, n - 1), seed=seed, tolerance=1e-3)
    vectors = spectrum.vectors
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1), np.float32)
