"""A small bank instead of a large one: k-centre selection, the alternative to a random share.

`offmap.sampling.Sample` draws a random share, which keeps the density of the data (the thesis finds 1 % of a bank
as good as all of it, with k scaled). A coreset keeps its outline instead: no row is far from a chosen one.
"""

from __future__ import annotations

import numpy as np

from offmap.errors import InputError
from offmap.neighbors.vectors import as_rows, blocks
from offmap.sampling import priorities
from offmap.typing import Array, Float32Array, FloatArray

POOL = 256


def k_center(rows: Array, size: int, seed: int = 0) -> tuple[Array, float]:
    """Greedy k-centre: start at one row, then always take the row farthest from those taken.

    The radius it reaches is at most twice the best possible (Gonzalez 1985). Besides the rows it holds one number
    per row, and 256 rows at a time.

    Parameters
    ----------
    rows : ndarray
        The bank, in memory or mapped.
    size : int
        How many rows to take.
    seed : int, default=0
        Chooses the first row, by content: the order of the rows does not matter.

    Returns
    -------
    chosen
        Row numbers, in the order they were taken; fewer than `size` when the rest are copies of these.
    radius
        The largest distance of any row to its nearest chosen one.

    Examples
    --------
    >>> import numpy as np
    >>> line = np.array([[0.0], [1.0], [9.0], [10.0]], dtype=np.float32)
    >>> chosen, radius = k_center(line, 2)
    >>> len(chosen), radius
    (2, 1.0)
    """
    values = as_rows(rows, "k_center")
    if not 1 <= size <= len(values):
        raise InputError(f"k_center(size={size}): there are {len(values)} rows, take from 1 to {len(values)}")
    chosen = [int(np.argmin(np.concatenate([priorities(values[block], seed) for block in blocks(values)])))]
    nearest: FloatArray = np.full(len(values), np.inf)
    _update(nearest, values, values[chosen])
    while len(chosen) < size and nearest.max() > 0:
        taken = _next(values, nearest, size - len(chosen))
        _update(nearest, values, values[taken])
        nearest[taken] = 0
        chosen.extend(taken)
    return np.array(chosen), float(np.sqrt(nearest.max()))


def _next(values: Float32Array, nearest: FloatArray, count: int) -> list[int]:
    """Return the next rows that the greedy rule takes, as many as can be told without looking at all rows again.

    Distances to the chosen rows only fall. So the farthest row is in the pool of the farthest ones as long as
    some row of the pool is at least as far as all outside it were; until then only the pool needs updating.
    """
    size = min(POOL, len(values))
    pool = np.sort(np.argpartition(nearest, len(nearest) - size)[len(nearest) - size :])
    outside = nearest[pool].min() if size < len(values) else 0.0
    near, rows = nearest[pool].copy(), values[pool]
    taken: list[int] = []
    while len(taken) < count:
        place = int(np.argmax(near))
        if near[place] == 0 or (taken and near[place] < outside):
            break
        taken.append(int(pool[place]))
        _update(near, rows, rows[place : place + 1])
        near[place] = 0
    return taken


def _update(nearest: FloatArray, rows: Float32Array, centers: Float32Array) -> None:
    """Lower each row's squared distance to the nearest centre."""
    wide = centers.astype(np.float64)
    for block in blocks(rows):
        here = rows[block].astype(np.float64)
        squared = np.square(here).sum(axis=1)[:, None] + np.square(wide).sum(axis=1) - 2 * here @ wide.T
        nearest[block] = np.minimum(nearest[block], np.maximum(squared.min(axis=1), 0))
