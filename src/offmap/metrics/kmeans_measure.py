"""The K-means measure of the thesis: scatter inside classes over scatter between them; lower is better."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError


def kmeans_measure(Z: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Compute the scatter within classes relative to that between them (thesis, chapter 7, section 7.4.2, eq. 7.8).

    ``M_kms = Σ_π Σ_{i∈π} ‖z_i − μ_π‖² / Σ_π |π| ‖μ_π − μ‖²``.

    Parameters
    ----------
    Z : array-like
        Inputs × dimensions.
    labels : array-like
        The true class of each input; inputs marked -1 are left out.

    Returns
    -------
    float
        0 when every class is one point; infinite when all class means coincide.

    Examples
    --------
    >>> kmeans_measure([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    0.04
    """
    inside, between = class_scatter(Z, labels)
    if between > 0:
        return inside / between
    return float("inf") if inside > 0 else float("nan")


def class_scatter(Z: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[float, float]:
    """Compute the scatter within classes and between them, numerator and denominator of `kmeans_measure`.

    Parameters
    ----------
    Z : array-like of shape (n, d)
        The features.
    labels : array-like of shape (n,)
        Their classes.

    Returns
    -------
    tuple of 2 float
        Within and between.

    Examples
    --------
    >>> class_scatter([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    (4.0, 100.0)
    """
    rows, given = np.asarray(Z, dtype=np.float64), np.asarray(labels)
    if rows.ndim != 2 or given.shape != (len(rows),):
        raise InputError(f"kmeans_measure: {rows.shape} features and labels of shape {given.shape}; one label per row")
    counted = given >= 0
    if not counted.any():
        raise InputError("kmeans_measure: every label is -1; nothing is left to measure")
    rows = rows[counted]
    _, group, sizes = np.unique(given[counted], return_inverse=True, return_counts=True)
    means = np.zeros((len(sizes), rows.shape[1]))
    np.add.at(means, group, rows)
    means /= sizes[:, None]
    inside = float(((rows - means[group]) ** 2).sum())
    between = float((sizes[:, None] * (means - rows.mean(axis=0)) ** 2).sum())
    return inside, between
