"""Similarity graphs and their spectral embedding: what discovery, learning and theory share."""

from offmap.graph.adjacency import Graph, normalized_adjacency
from offmap.graph.build import (
    add_labels,
    augmentation_graph,
    knn_graph,
    label_connections,
    nearest_neighbors,
    shared_neighbor_graph,
)
from offmap.graph.features import labelled_eigenvectors, spectral_features
from offmap.graph.spectral import Spectrum, eigengap, spectral_embedding

__all__ = [
    "Graph",
    "Spectrum",
    "add_labels",
    "augmentation_graph",
    "eigengap",
    "knn_graph",
    "label_connections",
    "labelled_eigenvectors",
    "nearest_neighbors",
    "normalized_adjacency",
    "shared_neighbor_graph",
    "spectral_embedding",
    "spectral_features",
]
