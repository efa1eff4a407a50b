"""Rank rows that are so near a query that their products with it differ by less than float32 rounds.

Closeness is a product, of size 1 for unit vectors, and half a squared distance is what it lacks of its largest value.
At a distance of 0.005 that is 0.00001, of which float32 keeps two digits: which row is the k-th nearest would be
decided by rounding, differently in every batch. So queries with such neighbours are answered once more, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offmap.neighbors.tiled import tiles
from offmap.neighbors.vectors import as_floats
from offmap.typing import Array, Float32Array, FloatArray

NEAR = 0.005  # share of the size of a product below which a squared distance says that rows must be ranked again
QUERIES = 512  # answered at a time
TILE_ROWS = 2048  # widened at a time


def rank(parts: Sequence[Array], queries: Float32Array, k: int) -> Array:
    """Find the k nearest rows of each query by products in float64, nearest first; of equal ones the first.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.
    queries : ndarray of float32 of shape (n, d)
        The queries.
    k : int
        How many rows.

    Returns
    -------
    ndarray of int64 of shape (n, k)
        Row numbers.

    Examples
    --------
    >>> bank = np.array([[1.0, 0.00001], [1.0, 0.0]], dtype=np.float32)
    >>> rank([bank], np.array([[1.0, 0.0]], dtype=np.float32), 2)
    array([[1, 0]])
    """
    rows = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), QUERIES):
        block = slice(start, start + QUERIES)
        rows[block] = _rank(parts, queries[block].astype(np.float64), k)
    return rows


def _rank(parts: Sequence[Array], queries: FloatArray, k: int) -> Array:
    held = np.empty((len(queries), 0))
    numbers = np.empty((len(queries), 0), np.int64)
    for tile in tiles(parts, None, max(TILE_ROWS, 2 * k)):
        rows = as_floats(tile.rows).astype(np.float64)
        closeness = queries @ rows.T
        closeness -= np.square(rows).sum(axis=1) / 2
        here = np.broadcast_to(np.arange(tile.start, tile.start + len(rows)), closeness.shape)
        held, numbers = np.concatenate([held, closeness], axis=1), np.concatenate([numbers, here], axis=1)
        if held.shape[1] > k:
            place = held.shape[1] - k
            kept = np.argpartition(held, place, axis=1)[:, place:]
            held, numbers = np.take_along_axis(held, kept, axis=1), np.take_along_axis(numbers, kept, axis=1)
    return np.take_along_axis(numbers, np.lexsort((numbers, -held), axis=-1), axis=1)
