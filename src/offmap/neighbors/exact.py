"""Exact nearest neighbours at the speed of the matrix product: tiles, a guessed bound, a check of the guess.

A bank is a list of arrays, each read once per block of queries. Closeness is one number that falls with
distance, ``q · b`` for unit vectors and ``q · b − |b|² / 2`` otherwise, so that a tile of closeness is one
matrix product. What is left is the choice of the k largest per query, and most of its cost is avoided:

1. A small sample of the bank gives each query a bound that about k rows (and a margin) will pass.
2. Each thread multiplies its own tiles, on one core, and compares them with the bound while they are in
   cache; the few values above go into a buffer. A full one is cut to its k best, which raises the bound.
3. A query whose bound let fewer than k rows pass (the guess was wrong) is searched again without a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.neighbors.vectors import Array, Floats, take

TILE_QUERIES = 512
TILE_ROWS = 1024
BUFFER_BYTES = 128 * 2**20
SAMPLE_SHARE = 1 / 50
SAMPLE_ROWS = 8192
DEVIATIONS = 3.5  # of the number of rows above a guessed bound: about one query in 4,000 is searched twice
FEW_QUERIES = 8  # up to here a search is bounded by reading the bank, not by arithmetic
FEW_VALUES = 2**24
FEW_WORK = 2**20  # multiplications that are done before a second thread has started


@dataclass(frozen=True)
class Tile:
    """A run of bank rows: where it starts in the bank, its rows, and what to subtract from the products."""

    start: int
    rows: Array
    penalty: Floats | None

    def closeness(self, queries: Floats, out: Floats | None = None) -> Floats:
        """Queries × rows; larger is nearer."""
        rows = self.rows.astype(np.float32, copy=False)
        values: Floats = np.matmul(queries, rows.T, out=out)
        if self.penalty is not None:
            values -= self.penalty
        return values


def tiles(parts: Sequence[Array], penalties: Sequence[Floats] | None, size: int) -> list[Tile]:
    """Cut the parts of a bank into runs of at most `size` rows."""
    cut, before = [], 0
    for number, part in enumerate(parts):
        for start in range(0, len(part), size):
            stop = min(start + size, len(part))
            penalty = None if penalties is None else penalties[number][start:stop]
            cut.append(Tile(before + start, part[start:stop], penalty))
        before += len(part)
    return cut


def nearest(
    parts: Sequence[Array],
    queries: Floats,
    k: int,
    penalties: Sequence[Floats] | None = None,
    last_only: bool = False,
) -> tuple[Floats, Array]:
    """The closeness and the row numbers of the k nearest rows, nearest first; or of the k-th alone.

    Parameters
    ----------
    parts
        The bank: arrays of equal width, in memory or mapped.
    queries
        Rows of the same width, float32.
    k
        At most the number of rows in the bank.
    penalties
        Half the squared norm of each row, per part; none for unit vectors.
    last_only
        Answer with one column, the k-th neighbour.

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
    if len(queries) <= FEW_QUERIES:
        for number in range(len(queries)):
            values[number], rows[number] = _one(parts, queries[number], k, penalties, last_only)
        return values, rows
    with one_thread_blas() as threads:
        plan = Plan.of(total, k, threads)
        for start in range(0, len(queries), plan.queries):
            block = slice(start, start + plan.queries)
            found = _block(parts, queries[block], k, penalties, last_only, plan)
            values[block], rows[block] = found
    return values, rows


@dataclass(frozen=True)
class Plan:
    """How one search is cut: worked out from the sizes alone, so that equal calls do equal work."""

    threads: int
    sample: int
    rank: int
    buffer: int
    queries: int

    @classmethod
    def of(cls, total: int, k: int, threads: int) -> Plan:
        """A plan for k neighbours among `total` rows."""
        sample = min(SAMPLE_ROWS, math.ceil(total * SAMPLE_SHARE))
        share = sample / total
        # Of the sample's values above the bound, `rank` many, the bank holds rank / share, give or take
        # sqrt(rank) / share; the rank is the smallest that leaves k even at DEVIATIONS below the mean.
        rank = math.ceil(((DEVIATIONS + math.sqrt(DEVIATIONS**2 + 4 * k * share)) / 2) ** 2)
        if total < 8 * TILE_ROWS or rank >= sample:
            sample = rank = 0
            expected = 2.0 * k
        else:
            expected = rank / share / threads
        buffer = min(k + int(1.5 * expected) + 64, max(total, 1))
        buffer = max(buffer, k)
        queries = int(np.clip(BUFFER_BYTES // (12 * threads * buffer), 1, 4 * TILE_QUERIES))
        return cls(threads, sample, rank, buffer, queries)


def _block(
    parts: Sequence[Array],
    queries: Floats,
    k: int,
    penalties: Sequence[Floats] | None,
    last_only: bool,
    plan: Plan,
) -> tuple[Floats, Array]:
    """Search one block of queries: bound, tiles, final choice."""
    cut = tiles(parts, penalties, TILE_ROWS)
    threads = min(plan.threads, len(cut))
    bounds = np.full(len(queries), -np.inf, np.float32)
    if plan.sample:
        bounds = _guess(parts, penalties, queries, plan)
    buffer = Buffer(len(queries), k, plan.buffer, threads)

    def work(thread: int) -> None:
        lane = buffer.lane(thread, bounds)
        for tile in cut[thread::threads]:
            lane.take(tile, queries)

    _in_threads(work, threads)
    values, rows = buffer.last() if last_only else buffer.best()
    if plan.sample:
        short = np.flatnonzero(buffer.held() < k)
        if len(short):
            again = Plan(plan.threads, 0, 0, max(plan.buffer, 2 * k), plan.queries)
            values[short], rows[short] = _block(parts, queries[short], k, penalties, last_only, again)
    return values, rows


def _one(
    parts: Sequence[Array], query: Floats, k: int, penalties: Sequence[Floats] | None, last_only: bool
) -> tuple[Floats, Array]:
    """Search one query: the matrix-vector product reads the bank once, on as many cores as BLAS uses."""
    best, rows = np.empty(0, np.float32), np.empty(0, np.int64)
    for tile in tiles(parts, penalties, FEW_VALUES):
        values = tile.closeness(query[None])[0]
        best = np.concatenate([best, values])
        rows = np.concatenate([rows, np.arange(tile.start, tile.start + len(values))])
        if len(best) > k:
            chosen = np.argpartition(best, len(best) - k)[len(best) - k :]
            best, rows = best[chosen], rows[chosen]
    order = np.lexsort((rows, -best))
    chosen = order[-1:] if last_only else order
    return best[chosen], rows[chosen]


def _guess(parts: Sequence[Array], penalties: Sequence[Floats] | None, queries: Floats, plan: Plan) -> Floats:
    """For each query, the closeness that `plan.rank` rows of an evenly spaced sample reach."""
    total = sum(len(part) for part in parts)
    chosen = np.arange(plan.sample) * total // plan.sample
    sample = Tile(0, take(parts, chosen), None if penalties is None else take(penalties, chosen))
    bounds = np.empty(len(queries), np.float32)
    pieces = [slice(start, start + 256) for start in range(0, len(queries), 256)]

    def work(thread: int) -> None:
        for piece in pieces[thread :: plan.threads]:
            values = sample.closeness(queries[piece])
            values.partition(plan.sample - plan.rank, axis=1)
            bounds[piece] = values[:, plan.sample - plan.rank]

    _in_threads(work, min(plan.threads, len(pieces)))
    return np.nextafter(bounds, np.float32(-np.inf))  # rows that only equal the bound pass too


class Buffer:
    """Room for the candidates of each query: one lane per thread, side by side, for one choice at the end."""

    def __init__(self, queries: int, k: int, size: int, threads: int) -> None:
        self.k = k
        self.size = size
        self.values = np.full((queries, threads * size), -np.inf, np.float32)
        self.rows = np.empty((queries, threads * size), np.int64)
        self.fill = np.zeros((threads, queries), np.int64)

    def lane(self, thread: int, bounds: Floats) -> Lane:
        """The part that one thread fills."""
        where = slice(thread * self.size, (thread + 1) * self.size)
        return Lane(self, where, self.fill[thread], bounds.copy())

    def held(self) -> Array:
        """How many candidates each query has."""
        held: Array = self.fill.sum(axis=0)
        return held

    def last(self) -> tuple[Floats, Array]:
        """The k-th best candidate of each query."""
        place = self.values.shape[1] - self.k
        kth = np.partition(self.values, place, axis=1)[:, place, None]
        where = np.argmax(self.values == kth, axis=1)[:, None]
        return kth, np.take_along_axis(self.rows, where, axis=1)

    def best(self) -> tuple[Floats, Array]:
        """The k best candidates of each query, best first."""
        chosen = _top(self.values, self.k)
        values = np.take_along_axis(self.values, chosen, axis=1)
        rows = np.take_along_axis(self.rows, chosen, axis=1)
        order = np.lexsort((rows, -values), axis=1)
        return np.take_along_axis(values, order, axis=1), np.take_along_axis(rows, order, axis=1)


@dataclass
class Lane:
    """One thread's view of the buffer and its own bounds."""

    buffer: Buffer
    where: slice
    fill: Array
    bounds: Floats

    def take(self, tile: Tile, queries: Floats) -> None:
        """Multiply one run of bank rows with all queries and keep what passes the bounds."""
        ready = Tile(tile.start, tile.rows.astype(np.float32, copy=False), tile.penalty)
        out = np.empty((min(TILE_QUERIES, len(queries)), len(ready.rows)), np.float32)
        for start in range(0, len(queries), TILE_QUERIES):
            block = slice(start, min(start + TILE_QUERIES, len(queries)))
            values = ready.closeness(queries[block], out[: block.stop - start])
            self._keep(values, tile.start, start)

    def _keep(self, values: Floats, first_row: int, first_query: int) -> None:
        block = slice(first_query, first_query + len(values))
        width = values.shape[1]
        passed = values > self.bounds[block, None]
        flat, query, counts = _where(passed)
        fill = self.fill[block]
        if (fill + counts).max() > self.buffer.size:
            over = np.flatnonzero(fill + counts > self.buffer.size)
            self._cut(values, over, first_row, first_query)
            passed[over] = False
            flat, query, counts = _where(passed)
        stride = self.buffer.values.shape[1]
        place = (np.arange(len(values)) + first_query) * stride + self.where.start + fill
        place -= np.cumsum(counts) - counts
        target = place[query] + np.arange(len(flat))
        self.buffer.values.reshape(-1)[target] = values.reshape(-1)[flat]
        self.buffer.rows.reshape(-1)[target] = flat - query * width + first_row
        fill += counts

    def _cut(self, values: Floats, over: Array, first_row: int, first_query: int) -> None:
        """Keep the k best of what is held and what has come, and raise the bound to the last of them."""
        k, queries = self.buffer.k, over + first_query
        held = self.buffer.values[queries, self.where]
        both = np.concatenate([held, values[over]], axis=1)
        numbers = np.empty(both.shape, np.int64)
        numbers[:, : held.shape[1]] = self.buffer.rows[queries, self.where]
        numbers[:, held.shape[1] :] = np.arange(first_row, first_row + values.shape[1])
        chosen = _top(both, k)
        best = np.take_along_axis(both, chosen, axis=1)
        start = self.where.start
        self.buffer.values[queries, self.where] = -np.inf
        self.buffer.values[queries, start : start + k] = best
        self.buffer.rows[queries, start : start + k] = np.take_along_axis(numbers, chosen, axis=1)
        self.fill[queries] = k
        self.bounds[queries] = best.min(axis=1)


def _where(passed: Array) -> tuple[Array, Array, Array]:
    """Where a mask is true: the flat places, their rows, and how many there are per row."""
    flat = np.flatnonzero(passed)
    row = flat // passed.shape[1]
    return flat, row, np.bincount(row, minlength=len(passed))


def _top(values: Floats, k: int) -> Array:
    """Where the k largest values of each row stand, in no order."""
    place = values.shape[1] - k
    return np.argpartition(values, place, axis=1)[:, place:]


@contextmanager
def one_thread_blas() -> Iterator[int]:
    """Let each of our threads multiply on its own core; gives the number of cores the user allows."""
    import threadpoolctl

    libraries = threadpoolctl.ThreadpoolController().select(user_api="blas")
    allowed = max((library.num_threads for library in libraries.lib_controllers), default=1)
    with libraries.limit(limits=1):
        yield allowed


def _in_threads(work: Any, threads: int) -> None:
    """Run ``work(0) … work(threads - 1)`` side by side and let the first error out."""
    if threads == 1:
        work(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, thread) for thread in range(threads)]:
            done.result()
