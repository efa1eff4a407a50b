"""K-means as functions: choosing starts, Lloyd's iterations with labels that are forced, balanced sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import numpy as np
from scipy import sparse

from offmap.discovery.assign import (
    Assignment,
    Doubles,
    Floats,
    Labels,
    Rows,
    block_rows,
    distances,
    sweep,
)
from offmap.errors import InputError
from offmap.neighbors.vectors import unit

SEED_ROWS = 64  # rows per centre that a start is chosen from; a larger sample does not choose better
BALANCE_STEPS = 200
BALANCE_ROWS = 4096


@dataclass(frozen=True)
class Fit:
    """Where a run of k-means ended: rows' groups, centres, the sum of squared distances, iterations."""

    labels: Labels
    centres: Floats
    inertia: float
    n_iter: int


def sample_rows(rows: Rows, k: int, rng: np.random.Generator, free: Labels | None = None) -> Labels:
    """Return indices of the rows that starts are chosen from, in order: all, or a sample of 64 per centre.

    Examples
    --------
    >>> sample_rows(Rows(np.eye(3)), 2, np.random.default_rng(0)).tolist()
    [0, 1, 2]
    """
    pool = np.arange(len(rows)) if free is None else free
    wanted = max(SEED_ROWS * k, 4096)
    return pool if len(pool) <= wanted else np.sort(rng.choice(pool, wanted, replace=False))


def plus_plus(
    rows: Rows,
    k: int,
    rng: np.random.Generator,
    *,
    given: Floats | None = None,
    free: Labels | None = None,
    farthest: bool = False,
) -> Floats:
    """K-means++ (Arthur & Vassilvitskii 2007): each new centre a row, drawn by its squared distance to the nearest.

    Of a few rows drawn, the one that lowers the sum most is kept. With labels (Vaze et al. 2022) the means of the
    known classes are `given`, and only `free` rows may become centres.

    Parameters
    ----------
    rows, k, rng : Rows, int and numpy.random.Generator
        `k` counts the given centres too.
    given, free : ndarray of float32 or None and ndarray of int64 or None, default=None
        Centres that are there already; indices of the rows that may become centres.
    farthest : bool, default=False
        Take the farthest row each time instead of drawing (the start of SORL's authors).
    """
    index = sample_rows(rows, k, rng, free)
    if len(index) < k - (0 if given is None else len(given)):
        raise InputError(f"k={k}: only {len(index)} rows may become centres; ask for fewer classes")
    pool = rows.take(index)
    squares = np.einsum("ij,ij->i", pool, pool)
    chosen: list[Floats] = []
    if given is None or not len(given):
        first = int(rng.integers(len(pool)))
        chosen.append(pool[first])
        gap = _gap(pool, squares, pool[first : first + 1])[:, 0]
        done = 1
    else:
        chosen.extend(given)
        gap = _gap(pool, squares, given).min(axis=1)
        done = len(given)
    trials = 2 + int(log(k))
    for _ in range(done, k):
        if farthest:
            drawn = np.array([int(np.argmax(gap))])
        else:
            share = np.cumsum(gap, dtype=np.float64)
            draws = rng.random(trials) * share[-1] if share[-1] > 0 else np.zeros(trials)
            drawn = np.minimum(np.searchsorted(share, draws, side="right"), len(pool) - 1)
        left = np.minimum(gap[:, None], _gap(pool, squares, pool[drawn]))
        best = int(np.argmin(left.sum(axis=0, dtype=np.float64)))
        chosen.append(pool[drawn[best]])
        gap = left[:, best].copy()
    return np.stack(chosen).astype(np.float32)


def _gap(pool: Floats, squares: Floats, centres: Floats) -> Floats:
    """Squared distances, rows × centres."""
    gap = pool @ centres.T
    gap *= -2
    gap += squares[:, None] + np.einsum("ij,ij->i", centres, centres)
    return np.maximum(gap, 0, out=gap)


def lloyd(
    rows: Rows,
    centres: Floats,
    *,
    forced: Labels | None = None,
    frozen: int = 0,
    balance: Doubles | None = None,
    max_iter: int = 300,
    tol: float = 1e-4,
) -> Fit:
    """Lloyd's iterations from these centres: assign, move the centres to the means, until they rest.

    Parameters
    ----------
    rows, centres : Rows and ndarray of float32
        What is grouped, and the start.
    forced : ndarray of int64 or None, default=None
        Per row the centre it must have, -1 where it is free.
    frozen : int, default=0
        The first so many centres never move.
    balance : ndarray of float64 or None, default=None
        The share of rows each group should have; `None` leaves sizes free.
    max_iter, tol : int and float, default=300 and 0.0001
        Stop after so many iterations, or when the centres' squared moves sum to less than `tol` times the mean
        variance of a column.

    Examples
    --------
    >>> fit = lloyd(Rows(np.array([[0.0], [1.0], [9.0]])), np.array([[0.0], [1.0]], np.float32))
    >>> fit.labels.tolist(), fit.centres.ravel().tolist()
    ([0, 0, 1], [0.5, 9.0])
    """
    n, k = len(rows), len(centres)
    state = Assignment.empty(n, k, rows.width)
    enough = tol * _variance(rows)
    offsets = None if balance is None else np.zeros(k, np.float32)
    n_iter = 0
    while True:
        if balance is not None and offsets is not None:
            offsets = balancing(rows, centres, balance, offsets)
        changed = sweep(rows, centres, state, forced, offsets)
        if n_iter >= max_iter or not changed:
            break
        moved = state.centres(centres, rows.metric, frozen)
        moved = _refill(rows, moved, state, forced, frozen)
        state.move(centres, moved)
        rest = float((state.shift.astype(np.float64) ** 2).sum()) <= enough
        centres = moved
        n_iter += 1
        if rest:
            sweep(rows, centres, state, forced, offsets)
            break
    inertia = float(distances(rows, centres, state.labels).sum(dtype=np.float64))
    return Fit(state.labels, centres, inertia, n_iter)


def best_of(fits: Iterator[Fit]) -> Fit:
    """Return the run with the lowest inertia, the first of equals."""
    return min(fits, key=lambda fit: fit.inertia)


def class_means(rows: Rows, forced: Labels, n_known: int) -> Floats:
    """Return the mean of each known class, read block by block."""
    sums, sizes = np.zeros((n_known, rows.width)), np.zeros(n_known)
    labelled = np.flatnonzero(forced >= 0)
    step = block_rows(rows.width, n_known)
    for start in range(0, len(labelled), step):
        index = labelled[start : start + step]
        member = sparse.csr_array((np.ones(len(index)), (forced[index], np.arange(len(index)))), (n_known, len(index)))
        sums += member @ rows.take(index).astype(np.float64)
        sizes += np.bincount(forced[index], minlength=n_known)
    means = sums / np.maximum(sizes, 1)[:, None]
    return np.asarray(unit(means) if rows.metric == "cosine" else means, dtype=np.float32)


def balancing(rows: Rows, centres: Floats, shares: Doubles, offsets: Floats) -> Floats:
    """Return what to add to squared distances so that group sizes come near `shares`: Sinkhorn's column scaling.

    Entropic optimal transport between rows and centres (Cuturi 2013). Only one number per centre is needed, so an
    even sample of the rows is enough to find it.
    """
    smoothing = 0.05 * max(_variance(rows) * rows.width, 1e-30)
    squares = np.einsum("ij,ij->i", centres, centres)
    few = np.linspace(0, len(rows) - 1, min(len(rows), BALANCE_ROWS)).astype(np.int64)
    gaps = squares - 2 * (rows.take(few) @ centres.T).astype(np.float64)
    current = offsets.astype(np.float64)
    for _ in range(BALANCE_STEPS):
        energy = (gaps + current) / -smoothing
        energy -= energy.max(axis=1, keepdims=True)
        np.exp(energy, out=energy)
        energy /= energy.sum(axis=1, keepdims=True)
        ratio = np.maximum(energy.mean(axis=0), 1e-12) / shares
        current += smoothing * np.log(ratio)
        if np.abs(ratio - 1).max() < 0.02:
            break
    return np.asarray(current - current.mean(), np.float32)


def _variance(rows: Rows) -> float:
    """Return the mean over columns of the variance, in one pass over blocks."""
    total, squares = np.zeros(rows.width), np.zeros(rows.width)
    origin = rows.block(0, 1)[0].astype(np.float64)  # keeps the squares small when the data is far from zero
    step = block_rows(rows.width, 1)
    for start in range(0, len(rows), step):
        block = rows.block(start, start + step) - origin.astype(np.float32)
        total += block.sum(axis=0, dtype=np.float64)
        squares += np.einsum("ij,ij->j", block, block)
    return float(np.maximum(squares / len(rows) - (total / len(rows)) ** 2, 0).mean())


def _refill(rows: Rows, centres: Floats, state: Assignment, forced: Labels | None, frozen: int) -> Floats:
    """Give each empty group the row that lies worst in its own, taken from a group that has others."""
    empty = np.flatnonzero(state.sizes == 0)
    empty = empty[empty >= frozen]
    if not len(empty):
        return centres
    reach = np.where(state.sizes[state.labels] > 1, state.upper, -1)
    if forced is not None:
        reach = np.where(forced >= 0, -1, reach)
    order = np.argsort(-reach, kind="stable")[: 4 * len(empty) + 16]
    centres = centres.copy()
    for group in empty:
        for row in order:
            old = state.labels[row]
            point = rows.take(np.array([row]))[0]
            if reach[row] > 0 and state.sizes[old] > 1 and (point != centres[old]).any():
                break
        else:
            continue  # fewer distinct rows than groups: this one stays empty
        reach[row] = -1
        state.sums[old] -= point
        state.sums[group] += point
        state.sizes[old] -= 1
        state.sizes[group] += 1
        state.labels[row] = group
        state.upper[row], state.lower[row] = 0, 0
        mean = state.sums[old] / state.sizes[old]
        if old >= frozen:
            centres[old] = unit(mean[None])[0] if rows.metric == "cosine" else mean
        centres[group] = point
    return centres
