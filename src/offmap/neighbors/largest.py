"""The largest values of each row of a matrix, and where they stand."""

from __future__ import annotations

import numpy as np

from offmap.typing import Array, Float32Array


def top(values: Float32Array, k: int) -> Array:
    """Find where the k largest values of each row stand, in no order.

    Parameters
    ----------
    values : ndarray of float32 of shape (n, m)
        The values.
    k : int
        How many.

    Returns
    -------
    ndarray of int of shape (n, k)
        Columns.

    Examples
    --------
    >>> top(np.array([[3.0, 1.0, 2.0]], dtype=np.float32), 1)
    array([[0]])
    """
    place = values.shape[1] - k
    return np.argpartition(values, place, axis=1)[:, place:]


def best(values: Float32Array, k: int) -> tuple[Float32Array, Array]:
    """Find the k largest values of each row, largest first.

    Parameters
    ----------
    values : ndarray of float32 of shape (n, m)
        The values.
    k : int
        How many.

    Returns
    -------
    tuple of 2 ndarray of shape (n, k)
        The values and their columns.

    Examples
    --------
    >>> best(np.array([[3.0, 1.0, 2.0]], dtype=np.float32), 2)
    (array([[3., 2.]], dtype=float32), array([[0, 2]]))
    """
    chosen = top(values, k)
    kept = np.take_along_axis(values, chosen, axis=1)
    order = np.argsort(-kept, axis=1)
    return np.take_along_axis(kept, order, axis=1), np.take_along_axis(chosen, order, axis=1)


def last(values: Float32Array, k: int) -> tuple[Float32Array, Array]:
    """Find the k-th largest value of each row: cheaper than `best`, for it sorts no places.

    Parameters
    ----------
    values : ndarray of float32 of shape (n, m)
        The values.
    k : int
        Which.

    Returns
    -------
    tuple of 2 ndarray of shape (n, 1)
        The value and its column.

    Examples
    --------
    >>> last(np.array([[3.0, 1.0, 2.0]], dtype=np.float32), 2)
    (array([[2.]], dtype=float32), array([[2]]))
    """
    place = values.shape[1] - k
    kth = np.partition(values, place, axis=1)[:, place, None]
    return kth, np.argmax(values == kth, axis=1)[:, None]
