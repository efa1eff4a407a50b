"""The k largest of a matrix product at the price of the product: a guessed bound, and a check of the guess.

1. Each thread multiplies its own tiles, on one core, and compares them with a bound per query while they are in
   cache; the few values above the bound go into a buffer.
2. Each tile is an even spread over the bank, so what was seen of it says where the k-th value of the whole will
   be. The bound is set from the first tile, with a margin, and raised each time twice as much has been seen.
3. A query whose k-th value lies below a bound (the guess was wrong) is named, and searched without a guess.

A buffer that fills up all the same is cut to its k best. Mapped files are read in order instead of spread, with
bounds from a small spread sample read before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offmap.neighbors.cores import in_threads
from offmap.neighbors.largest import best, last, top
from offmap.neighbors.vectors import as_floats, is_mapped, take
from offmap.typing import Array, Float32Array

TILE_QUERIES = 1024
TILE_ROWS = 2048
CHOICE_QUERIES = 128
BUFFER_BYTES = 256 * 2**20
DEVIATIONS = 3.0  # between a guess and what is expected: about one guess in 700 is wrong, and made good for its price


@dataclass(frozen=True)
class Tile:
    """Rows ``start, start + step, …`` of a bank, and what to subtract from their products."""

    start: int
    step: int
    rows: Array
    penalty: Float32Array | None

    def __getitem__(self, part: slice) -> Tile:
        """Return some of the rows."""
        penalty = None if self.penalty is None else self.penalty[part]
        return Tile(self.start + (part.start or 0) * self.step, self.step, self.rows[part], penalty)

    def widen(self) -> Tile:
        """Return the same rows in float32."""
        return Tile(self.start, self.step, as_floats(self.rows), self.penalty)

    def closeness(self, queries: Float32Array, out: Float32Array | None = None) -> Float32Array:
        """Multiply queries with the rows of the tile; larger is nearer.

        Parameters
        ----------
        queries : ndarray of float32 of shape (n, d)
            The queries.
        out : ndarray of float32 or None, default=None
            Where to write.

        Returns
        -------
        ndarray of float32 of shape (n, rows)
            Inner products less the penalties.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 a row is infinitely far, not an error
            values: Float32Array = np.matmul(queries, as_floats(self.rows).T, out=out)
            if self.penalty is not None:
                values -= self.penalty
                values[:, ~np.isfinite(self.penalty)] = -np.inf
        return values


def tiles(
    parts: Sequence[Array], penalties: Sequence[Float32Array] | None, size: int, spread: bool = False
) -> list[Tile]:
    """Cut a bank into tiles.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.
    penalties : sequence of ndarray of float32 or None
        Half the squared norm of each row, per part.
    size : int
        Rows of a tile, at most.
    spread : bool, default=False
        Whether a tile takes every n-th row of a part instead of a run.

    Returns
    -------
    list of Tile
        The tiles.
    """
    cut, before = [], 0
    for number, part in enumerate(parts):
        count = -(-len(part) // size)
        for place in range(count):
            where = slice(place, None, count) if spread else slice(place * size, (place + 1) * size)
            penalty = None if penalties is None else np.ascontiguousarray(penalties[number][where])
            cut.append(Tile(before + where.start, where.step or 1, part[where], penalty))
        before += len(part)
    return cut


def rank_for(k: int, share: float) -> int:
    """Find which value of a share of the bank lies below the k-th of the whole bank, almost surely.

    Above the r-th value of the share, the whole has r / share values, give or take sqrt(r) / share. This is the
    smallest r that leaves k of them DEVIATIONS below the mean.

    Parameters
    ----------
    k : int
        Rank in the whole bank.
    share : float
        The share of the bank, from 0 to 1.

    Returns
    -------
    int
        Rank in the share.

    Examples
    --------
    >>> rank_for(1000, 1.0) > 1000, rank_for(1000, 0.1) > 100
    (True, True)
    """
    return math.ceil(((DEVIATIONS + math.sqrt(DEVIATIONS**2 + 4 * k * share)) / 2) ** 2)


def buffer_size(total: int, k: int, threads: int, sample: int) -> int:
    """Compute how many values one thread can hold per query: what will pass its bounds, a margin, at least k.

    `sample` is the number of rows the bounds come from; 0 if they are raised as more of the bank is seen.

    Parameters
    ----------
    total : int
        Rows of the bank.
    k : int
        Neighbours wanted.
    threads : int
        Number of threads.
    sample : int
        Rows that the bounds come from; 0 if they are raised as more of the bank is seen.

    Returns
    -------
    int
        Number of values.
    """
    if sample:
        passing = rank_for(k, sample / total) * total / (sample * threads)
    else:
        share, seen = TILE_ROWS / total, 1
        passing = rank_for(k, share)
        while seen * share * threads < 1:
            passing += rank_for(k, seen * share)
            seen *= 2
    return min(total, max(k, min(int(1.25 * passing), 4 * k + 4096)) + 64)


def queries_at_once(total: int, k: int, threads: int) -> int:
    """Compute how many queries share one reading of the bank, within the memory for their buffers.

    Parameters
    ----------
    total : int
        Rows of the bank.
    k : int
        Neighbours wanted.
    threads : int
        Number of threads.

    Returns
    -------
    int
        At least 1.
    """
    per_query = 12 * threads * max(buffer_size(total, k, threads, 0), buffer_size(total, k, threads, _sample_of(total)))
    return int(np.clip(BUFFER_BYTES // per_query, 1, 16 * TILE_QUERIES))


def nearest(
    parts: Sequence[Array],
    queries: Float32Array,
    k: int,
    penalties: Sequence[Float32Array] | None,
    threads: int,
    values: Float32Array,
    rows: Array,
) -> Array:
    """Write the k nearest of each query, or into one column the k-th alone.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.
    queries : ndarray of float32 of shape (n, d)
        The queries.
    k : int
        Neighbours wanted.
    penalties : sequence of ndarray of float32 or None
        Half the squared norm of each row, per part.
    threads : int
        Number of threads.
    values : ndarray of float32 of shape (n, k or 1)
        Closeness; written to.
    rows : ndarray of int64 of shape (n, k or 1)
        Row numbers; written to.

    Returns
    -------
    ndarray of int
        The queries whose guessed bound was too high, and that must be asked again.
    """
    total = sum(len(part) for part in parts)
    spread = len(parts) == 1 and not is_mapped(parts[0])
    cut = tiles(parts, penalties, TILE_ROWS, spread)
    threads = min(threads, len(cut))
    sample = 0 if spread else _sample_of(total)
    bounds = _sampled_bounds(parts, penalties, queries, k, sample, threads) if sample else None
    size = buffer_size(total, k, threads, sample)
    workers = [Worker(len(queries), k, size, total, bounds) for _ in range(threads)]

    def search(thread: int) -> None:
        for tile in cut[thread::threads]:
            workers[thread].take(tile, queries)

    in_threads(search, threads)

    def choose(thread: int) -> None:
        for start in range(thread * CHOICE_QUERIES, len(queries), threads * CHOICE_QUERIES):
            block = slice(start, start + CHOICE_QUERIES)
            held = np.concatenate([worker.values[block] for worker in workers], axis=1)
            values[block], places = last(held, k) if values.shape[1] < k else best(held, k)
            numbers = np.concatenate([worker.rows[block] for worker in workers], axis=1)
            rows[block] = np.take_along_axis(numbers, places, axis=1)

    in_threads(choose, threads)
    # What a thread left out is at most its bound, so the k best are right if the last reaches every bound.
    bounds = np.max([worker.bounds for worker in workers], axis=0)
    return np.flatnonzero(values[:, -1] < bounds)


class Worker:
    """One thread's bounds and what passed them, for each query of a block."""

    def __init__(self, queries: int, k: int, size: int, total: int, bounds: Float32Array | None) -> None:
        self.k = k
        self.total = total
        self.raises_bounds = bounds is None
        self.bounds = np.full(queries, -np.inf, np.float32) if bounds is None else bounds.copy()
        self.values = np.full((queries, size), -np.inf, np.float32)
        self.rows = np.empty((queries, size), np.int32 if total < 2**31 else np.int64)
        self.filled = np.zeros(queries, np.int64)
        self.tiles_seen = 0
        self.rows_seen = 0
        self._out = np.empty(min(TILE_QUERIES, queries) * TILE_ROWS, np.float32)
        self._passed = np.empty(len(self._out), np.bool_)

    def take(self, tile: Tile, queries: Float32Array) -> None:
        """Multiply one tile with all queries and keep what passes the bounds.

        Parameters
        ----------
        tile : Tile
            Some rows of the bank.
        queries : ndarray of float32 of shape (n, d)
            The queries.
        """
        ready = tile.widen()
        rank = rank_for(self.k, len(tile.rows) / self.total)
        for start in range(0, len(queries), TILE_QUERIES):
            block = slice(start, min(start + TILE_QUERIES, len(queries)))
            shape = (block.stop - start, len(tile.rows))
            values = ready.closeness(queries[block], self._out[: math.prod(shape)].reshape(shape))
            if self.raises_bounds and not self.tiles_seen:
                self.bounds[block] = _bounds(values, rank)
            self._keep(values, tile, block)
        self.tiles_seen += 1
        self.rows_seen += len(tile.rows)
        if self.raises_bounds and self.tiles_seen > 1 and self.tiles_seen & (self.tiles_seen - 1) == 0:
            self._raise_bounds()

    def _raise_bounds(self) -> None:
        rank = rank_for(self.k, self.rows_seen / self.total)
        for start in range(0, len(self.bounds), TILE_QUERIES):
            block = slice(start, start + TILE_QUERIES)
            filled = int(self.filled[block].max())
            if filled >= rank:
                known = _bounds(self.values[block, :filled], rank)
                np.maximum(self.bounds[block], known, out=self.bounds[block])

    def _keep(self, values: Float32Array, tile: Tile, block: slice) -> None:
        passed = self._passed[: values.size].reshape(values.shape)
        np.greater(values, self.bounds[block, None], out=passed)
        flat, ends = _where(passed)
        counts = np.diff(ends, prepend=0)
        held, size = self.filled[block], self.values.shape[1]
        if int((held + counts).max()) > size:
            over = np.flatnonzero(held + counts > size)
            self._cut(values, tile, block, over)
            passed[over] = False
            flat, ends = _where(passed)
            counts = np.diff(ends, prepend=0)
        target = np.repeat(np.arange(block.start, block.stop) * size + held - (ends - counts), counts)
        target += np.arange(len(flat))
        self.values.reshape(-1)[target] = values.reshape(-1).take(flat)
        flat %= values.shape[1]
        self.rows.reshape(-1)[target] = self._numbers(tile).take(flat)
        held += counts

    def _numbers(self, tile: Tile) -> Array:
        """Return the row numbers of a tile."""
        return tile.start + tile.step * np.arange(len(tile.rows), dtype=self.rows.dtype)

    def _cut(self, values: Float32Array, tile: Tile, block: slice, over: Array) -> None:
        """Keep the k best of what is held and what has come, and raise the bound to the last of them."""
        queries = over + block.start
        both = np.concatenate([self.values[queries], values[over]], axis=1)
        numbers = np.concatenate([self.rows[queries], np.tile(self._numbers(tile), (len(over), 1))], axis=1)
        chosen = top(both, self.k)
        kept = np.take_along_axis(both, chosen, axis=1)
        self.values[queries] = -np.inf
        self.values[queries, : self.k] = kept
        self.rows[queries, : self.k] = np.take_along_axis(numbers, chosen, axis=1)
        self.filled[queries] = self.k
        self.bounds[queries] = kept.min(axis=1)


def _bounds(values: Float32Array, rank: int) -> Float32Array:
    """Just below the value of this rank in each row, so that its equals pass too."""
    place = values.shape[1] - rank
    return np.nextafter(np.partition(values, place, axis=1)[:, place], np.float32(-np.inf))


def _sample_of(total: int) -> int:
    return min(8192, max(1024, total // 50))


def _sampled_bounds(
    parts: Sequence[Array],
    penalties: Sequence[Float32Array] | None,
    queries: Float32Array,
    k: int,
    sample: int,
    threads: int,
) -> Float32Array:
    """Bounds for a bank that must be read in order, from an even spread of its rows."""
    total = sum(len(part) for part in parts)
    chosen = np.arange(sample) * total // sample
    tile = Tile(0, 1, take(parts, chosen), None if penalties is None else take(penalties, chosen))
    bounds = np.empty(len(queries), np.float32)

    def work(thread: int) -> None:
        for start in range(thread * CHOICE_QUERIES, len(queries), threads * CHOICE_QUERIES):
            block = slice(start, start + CHOICE_QUERIES)
            bounds[block] = _bounds(tile.closeness(queries[block]), rank_for(k, sample / total))

    in_threads(work, threads)
    return bounds


def _where(passed: Array) -> tuple[Array, Array]:
    """Where a mask is true: the flat places, and how many of them lie in the rows up to each."""
    flat = np.flatnonzero(passed)
    return flat, np.searchsorted(flat, np.arange(1, len(passed) + 1) * passed.shape[1])
