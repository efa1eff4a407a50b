"""Which classes labels help (SORL): the sufficient condition of the thesis, class by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offmap.metrics.kmeans_measure import class_scatter
from offmap.typing import FloatArray


@dataclass(frozen=True)
class ClassPerturbation:
    """Per class, how strongly it is tied to the labels and how well it clusters by itself.

    Thesis, chapter 7, section 7.4.2, theorem 7.3.

    Attributes
    ----------
    classes, sizes : ndarray of int
        Class indices and numbers of nodes.
    connection : ndarray
        𝔩_π − 1/N: mean bond of the class to the labelled data, over that of a random node.
    intra, inter : ndarray
        Mean inner product of its features with each other, and with other classes' features.
    delta : ndarray
        ``Δ_π = connection − 2(1 − |π|/N)(intra − inter)``; positive when labels are predicted to help it.
    """

    classes: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    connection: FloatArray
    intra: FloatArray
    inter: FloatArray
    delta: FloatArray

    def __str__(self) -> str:
        count = int((self.delta > 0).sum())
        best = int(np.argmax(self.delta))
        return (
            f"labels are sure to help {count} of {len(self.classes)} classes by the sufficient condition "
            f"(connection > self-clusterability), class {self.classes[best]} most; it is loose: a negative Δ "
            "does not mean harm"
        )


def class_perturbation(Z: npt.ArrayLike, connection: npt.ArrayLike, labels: npt.ArrayLike) -> ClassPerturbation:
    """Compute Δ_π for every class from the embedding without labels (thesis, chapter 7, theorem 7.3).

    Parameters
    ----------
    Z : array_like of shape (n_nodes, k)
        The features `spectral_embedding(A, k).features`, with unit degrees.
    connection : array_like of shape (n_nodes,)
        𝔩, summing to 1.
    labels : array_like of shape (n_nodes,)
        Partition.

    Returns
    -------
    ClassPerturbation
        One entry per class.

    Examples
    --------
    >>> Z = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> class_perturbation(Z, [0.5, 0.5, 0.0, 0.0], [0, 0, 1, 1]).delta
    array([-0.75, -1.25])
    """
    rows, bonds, given = np.asarray(Z, float), np.asarray(connection, float), np.asarray(labels)
    n = len(rows)
    classes, group, sizes = np.unique(given, return_inverse=True, return_counts=True)
    member = np.zeros((len(classes), n))
    member[group, np.arange(n)] = 1.0
    sums = member @ rows
    total = sums.sum(axis=0)
    intra = (sums**2).sum(axis=1) / sizes**2
    others = np.maximum(n - sizes, 1)
    inter = (sums * (total - sums)).sum(axis=1) / (sizes * others)
    tie = member @ bonds / sizes - 1 / n
    delta = tie - 2 * (1 - sizes / n) * (intra - inter)
    return ClassPerturbation(classes, sizes, tie, intra, inter, delta)


def intuitive_bound(Z: npt.ArrayLike, connection: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Compute the lower bound ``η_1 η_2 Σ |π| 𝔩_π Δ_π`` of −dM/dδ (thesis, chapter 7, theorem 7.3).

    𝔩 is averaged within classes. The bound needs a wide gap, 𝔩 in the span of the embedding and constant on classes,
    and unit degrees.

    Parameters
    ----------
    Z, connection, labels : array-like
        As in `class_perturbation`.

    Returns
    -------
    float
        Positive where labels are sure to tighten the clusters.

    Examples
    --------
    >>> Z = np.array([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0], [0.0, 0.8]])
    >>> bool(intuitive_bound(Z, [0.5, 0.5, 0.0, 0.0], [0, 0, 1, 1]) < 0)
    True
    """
    found = class_perturbation(Z, connection, labels)
    inside, between = class_scatter(Z, labels)
    mean = found.connection + 1 / len(np.asarray(labels))
    return float(inside / between**2 * (found.sizes * mean * found.delta).sum())
