"""Exact nearest neighbours in a bank that is a list of arrays, each read once per block of queries.

Closeness is one number that falls with distance, ``q · b`` for unit vectors and ``q · b − |b|² / 2`` otherwise,
so that closeness to a run of rows is one matrix product. The k largest per query are then found in one of three
ways:

- a few queries: the bank is read once, by BLAS on all cores, and nothing else costs much. Threads of our own would
  wait here for those that BLAS, OpenMP or torch keep spinning after their last call;
- a small bank, or a k near its size: whole rows of closeness are partitioned;
- else tiles of closeness are compared with a guessed bound while they are in cache (`tiled`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offmap.neighbors import tiled
from offmap.neighbors.cores import in_threads, one_core_products
from offmap.neighbors.largest import best, last
from offmap.neighbors.tiled import Tile
from offmap.typing import Array, Float32Array

FEW_QUERIES = 16
ONE_BY_ONE = 2  # up to so many queries, a product with a vector each is faster than one with a matrix
FEW_WORK = 2**20  # multiplications that are done before a second thread has started
VALUES = 2**22  # of closeness held at a time by one thread
HALVES = 2**17  # float16 elements widened at a time
DENSE_ROWS = 4096
DENSE_SHARE = 1 / 8


def nearest(
    parts: Sequence[Array],
    queries: Float32Array,
    k: int,
    penalties: Sequence[Float32Array] | None = None,
    last_only: bool = False,
) -> tuple[Float32Array, Array]:
    """Find the k nearest rows of each query, nearest first; or the k-th alone.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank: arrays of equal width, in memory or mapped.
    queries : ndarray of float32
        Rows of the same width, float32.
    k : int
        At most the number of rows in the bank.
    penalties : sequence of ndarray of float32 or None, default=None
        Half the squared norm of each row, per part; none for unit vectors.
    last_only : bool, default=False
        Answer with one column, the k-th neighbour.

    Returns
    -------
    closeness : ndarray of float32 of shape (n, k)
        Inner products less the penalties; larger is nearer.
    rows : ndarray of int64 of shape (n, k)
        Row numbers. One column with `last_only`.

    Examples
    --------
    >>> import numpy as np
    >>> bank = np.eye(3, dtype=np.float32)
    >>> closeness, rows = nearest([bank], np.array([[0.6, 0.0, 0.8]], dtype=np.float32), 2)
    >>> rows
    array([[2, 0]])
    """
    total = sum(len(part) for part in parts)
    columns = 1 if last_only else k
    values = np.empty((len(queries), columns), np.float32)
    rows = np.empty((len(queries), columns), np.int64)

    def dense(block: slice | Array) -> None:
        values[block], rows[block] = _dense(parts, queries[block], k, penalties, last_only)

    if len(queries) <= FEW_QUERIES or len(queries) * total * queries.shape[1] <= FEW_WORK:
        dense(slice(None))
        return values, rows
    with one_core_products() as threads:
        if total <= DENSE_ROWS or k > DENSE_SHARE * total:
            size = max(1, min(VALUES // total, -(-len(queries) // threads)))

            def work(thread: int) -> None:
                for start in range(thread * size, len(queries), threads * size):
                    dense(slice(start, start + size))

            in_threads(work, threads)
        else:
            size = tiled.queries_at_once(total, k, threads)
            for start in range(0, len(queries), size):
                block = slice(start, start + size)
                wrong = tiled.nearest(parts, queries[block], k, penalties, threads, values[block], rows[block])
                few = max(1, VALUES // k)
                for some in range(0, len(wrong), few):
                    dense(wrong[some : some + few] + start)
    return values, rows


def _dense(
    parts: Sequence[Array],
    queries: Float32Array,
    k: int,
    penalties: Sequence[Float32Array] | None,
    last_only: bool,
) -> tuple[Float32Array, Array]:
    """Whole rows of closeness, a long run of the bank at a time, and the best k so far."""
    held = np.empty((len(queries), 0), np.float32)
    numbers = np.empty((len(queries), 0), np.int64)
    size = max(k, VALUES // max(1, len(queries)))
    for tile in tiled.tiles(parts, penalties, size):
        values = _closeness(tile, queries)
        if len(tile.rows) == sum(len(part) for part in parts):
            return last(values, k) if last_only else best(values, k)
        here = np.tile(np.arange(tile.start, tile.start + len(tile.rows)), (len(queries), 1))
        values, numbers = np.concatenate([held, values], axis=1), np.concatenate([numbers, here], axis=1)
        held, chosen = best(values, min(k, values.shape[1]))
        numbers = np.take_along_axis(numbers, chosen, axis=1)
    return (held[:, -1:], numbers[:, -1:]) if last_only else (held, numbers)


def _closeness(tile: Tile, queries: Float32Array) -> Float32Array:
    """Return queries × rows, in runs of rows that are still in cache when float16 has been widened."""
    values = np.empty((len(queries), len(tile.rows)), np.float32)
    run = len(tile.rows) if tile.rows.dtype == np.float32 else max(1, HALVES // queries.shape[1])
    for start in range(0, len(tile.rows), run):
        part, here = tile[start : start + run].widen(), slice(start, start + run)
        if len(queries) > ONE_BY_ONE:
            values[:, here] = part.closeness(queries)
        else:
            for query, own in zip(queries, values, strict=True):
                np.dot(part.rows, query, out=own[here])
                if part.penalty is not None:
                    own[here] -= part.penalty
    return values
