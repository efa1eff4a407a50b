"""The one loop under every k-means here: rows to their nearest centre, in blocks, on all cores, in bounded memory.

Rows are read block by block from an array or a memory map; a block's distances to all centres are one matrix
product that stays in cache. Hamerly's bounds (2010) name the rows whose centre cannot have changed; those are not
read again. Work is cut into a fixed number of lanes, so the result does not depend on how many cores there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from offmap.errors import InputError
from offmap.neighbors.cores import in_threads, one_core_products
from offmap.neighbors.vectors import unit

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Metric = Literal["euclidean", "cosine"]

BLOCK_BYTES = 3 * 2**20
LANES = 8
FEW = 0.7  # of the centres moved: comparing with those alone pays
LARGEST = np.float64(1e18)  # its square is the largest that float32 holds
GATHER = 0.6  # a larger share of a block is cheaper to multiply whole than to pick out


class Rows:
    """Rows of an array or memory map as float32, of length 1 when the metric is the cosine.

    Examples
    --------
    >>> Rows(np.array([[3.0, 4.0]]), "cosine").block(0, 1)
    array([[0.6, 0.8]], dtype=float32)
    """

    def __init__(self, source: npt.NDArray[Any], metric: Metric = "euclidean") -> None:
        self.source = source
        self.metric = metric

    def __len__(self) -> int:
        return len(self.source)

    @property
    def width(self) -> int:
        """How many columns a row has."""
        return int(self.source.shape[1])

    def block(self, start: int, stop: int) -> Floats:
        """Rows `start` to `stop`."""
        return self._ready(self.source[start:stop])

    def take(self, index: npt.NDArray[Any]) -> Floats:
        """Return these rows."""
        return self._ready(self.source[index])

    def _ready(self, rows: npt.NDArray[Any]) -> Floats:
        ready = np.asarray(rows, dtype=np.float32)
        return unit(ready) if self.metric == "cosine" else ready


@dataclass
class Assignment:
    """The state of one run: each row's centre and its bounds, each centre's sum and size."""

    labels: Labels
    upper: Floats  # at least the distance to the row's own centre
    lower: Floats  # at most the distance to any other centre
    sums: Doubles
    sizes: Labels
    shift: Floats  # how far each centre went since the last sweep

    @classmethod
    def empty(cls, n: int, k: int, width: int) -> Assignment:
        """Nothing assigned yet; every row must be looked at."""
        return cls(
            np.full(n, -1, np.int64),
            np.full(n, np.inf, np.float32),
            np.zeros(n, np.float32),
            np.zeros((k, width)),
            np.zeros(k, np.int64),
            np.zeros(k, np.float32),
        )

    def centres(self, old: Floats, metric: Metric, frozen: int = 0) -> Floats:
        """Return the means of the groups; an empty group keeps its centre, the first `frozen` are left alone."""
        filled = self.sizes > 0
        filled[:frozen] = False
        new = old.copy()
        mean = self.sums[filled] / self.sizes[filled, None]
        new[filled] = unit(mean) if metric == "cosine" else mean
        return new

    def move(self, old: Floats, new: Floats) -> None:
        """Note how far each centre went; the next sweep loosens the bounds by it, block by block."""
        self.shift = np.sqrt(((new.astype(np.float64) - old) ** 2).sum(axis=1)).astype(np.float32)


def sweep(
    rows: Rows, centres: Floats, state: Assignment, forced: Labels | None = None, offsets: Floats | None = None
) -> int:
    """Send every row to its nearest centre and update sums and sizes; returns how many rows changed.

    A row that Hamerly's test leaves open, and whose own centre stood still, is compared with the centres that
    moved and no others: its last sweep has settled the rest.

    Parameters
    ----------
    rows, centres : Rows and ndarray of float32
        What is assigned to what.
    state : Assignment
        Changed in place.
    forced : ndarray of int64 or None, default=None
        The centre a row must have, -1 where it is free.
    offsets : ndarray of float32 or None, default=None
        Added to each centre's squared distance (how the balanced variant steers sizes); bounds are not used then.
    """
    n, k = len(rows), len(centres)
    size = block_rows(rows.width, k)
    starts = range(0, n, size)
    found: list[tuple[Doubles, Labels, int]] = [(np.zeros((0, 0)), np.zeros(0, np.int64), 0)] * LANES
    squares = np.einsum("ij,ij->i", centres, centres)
    penalty = squares if offsets is None else squares + offsets
    half, drop = _half_gaps(centres), _largest_other(state.shift)
    moved = np.flatnonzero(state.shift > 0)
    few = offsets is None and 0 < len(moved) <= FEW * k
    # Rounding of the expanded square: bounds closer than this to each other prove nothing.
    slack = np.float32(1e-4 * np.sqrt(max(float(squares.max(initial=0)), 1e-30)))

    def lane(number: int) -> None:
        sums, sizes, changed = np.zeros((k, rows.width)), np.zeros(k, np.int64), 0
        for start in starts[number::LANES]:
            part = slice(start, min(start + size, n))
            labels, upper, lower = state.labels[part], state.upper[part], state.lower[part]
            held = None if forced is None else forced[part]
            loose_upper, loose_lower = upper + state.shift[labels], lower - drop[labels]
            is_open = (labels < 0) | (loose_upper + slack >= np.maximum(loose_lower, half[labels]))
            if offsets is not None:
                is_open[:] = True
            if held is not None:
                is_open &= (held < 0) | (labels < 0)
            still = is_open & few & (labels >= 0) & (state.shift[labels] == 0)
            upper[~still], lower[~still] = loose_upper[~still], loose_lower[~still]
            changes = []
            index = np.flatnonzero(is_open & ~still)
            if len(index):
                if len(index) > GATHER * len(labels) and not still.any():
                    index = np.arange(len(labels))
                    block = rows.block(part.start, part.stop)
                else:
                    block = rows.take(start + index)
                new, upper[index], lower[index] = nearest_two(block, centres, penalty)
                if held is not None:
                    new = np.where(held[index] >= 0, held[index], new)
                changes.append((index, block, new))
            index = np.flatnonzero(still)
            if len(index):
                block = rows.take(start + index)
                new, upper[index], lower[index] = _against_moved(
                    block, centres, penalty, labels[index], moved, lower[index]
                )
                changes.append((index, block, new))
            for index, block, new in changes:
                other = np.flatnonzero(new != labels[index])
                if len(other):
                    picked = block if len(other) == len(block) else block[other]
                    _shift(sums, sizes, picked, labels[index[other]], new[other])
                    labels[index[other]] = new[other]
                    changed += len(other)
        found[number] = (sums, sizes, changed)

    _run(lane)
    for sums, sizes, _ in found:
        state.sums += sums
        state.sizes += sizes
    state.shift = np.zeros(k, np.float32)
    return sum(changed for _, _, changed in found)


def _against_moved(
    block: Floats, centres: Floats, penalty: Floats, own: Labels, moved: Labels, lower: Floats
) -> tuple[Labels, Floats, Floats]:
    """As `nearest_two`, for rows whose own centre stood still: only the moved centres can be nearer now."""
    square = np.einsum("ij,ij->i", block, block)
    kept = np.sqrt(np.maximum(square + penalty[own] - 2 * np.einsum("ij,ij->i", block, centres[own]), 0))
    at, near, after = nearest_two(block, centres[moved], penalty[moved])
    change = near < kept
    bound = np.minimum(lower, np.where(change, np.minimum(kept, after), near))
    return np.where(change, moved[at], own), np.where(change, near, kept), bound


def nearest_two(block: Floats, centres: Floats, penalty: Floats) -> tuple[Labels, Floats, Floats]:
    """Each row's nearest centre, the distance to it and to the second nearest."""
    scores = block @ centres.T
    scores *= -2
    scores += penalty
    at = np.arange(len(block))
    new = scores.argmin(axis=1)
    best = scores[at, new]
    scores[at, new] = np.inf
    second = scores.min(axis=1)
    square = np.einsum("ij,ij->i", block, block)
    return new, np.sqrt(np.maximum(best + square, 0)), np.sqrt(np.maximum(second + square, 0))


def distances(rows: Rows, centres: Floats, labels: Labels) -> Floats:
    """Each row's squared distance to its own centre, from the difference: exact for tight groups far away."""
    out = np.empty(len(rows), np.float32)
    size = block_rows(rows.width, 1)

    def lane(number: int) -> None:
        for start in range(number * size, len(rows), LANES * size):
            stop = min(start + size, len(rows))
            difference = rows.block(start, stop) - centres[labels[start:stop]]
            out[start:stop] = np.einsum("ij,ij->i", difference, difference)

    _run(lane)
    return out


def margins(rows: Rows, centres: Floats) -> tuple[Labels, Floats, Labels, Floats]:
    """Each row's nearest and second nearest centre, with the distances."""
    n, k = len(rows), len(centres)
    first, second = np.zeros(n, np.int64), np.zeros(n, np.int64)
    near, next_near = np.zeros(n, np.float32), np.full(n, np.inf, np.float32)
    squares = np.einsum("ij,ij->i", centres, centres)
    size = block_rows(rows.width, k)

    def lane(number: int) -> None:
        for start in range(number * size, n, LANES * size):
            part = slice(start, min(start + size, n))
            block = rows.block(part.start, part.stop)
            scores = squares - 2 * (block @ centres.T)
            square = np.einsum("ij,ij->i", block, block)
            at = np.arange(len(block))
            first[part] = scores.argmin(axis=1)
            near[part] = np.sqrt(np.maximum(scores[at, first[part]] + square, 0))
            if k > 1:
                scores[at, first[part]] = np.inf
                second[part] = scores.argmin(axis=1)
                next_near[part] = np.sqrt(np.maximum(scores[at, second[part]] + square, 0))

    _run(lane)
    return first, near, second, next_near


def block_rows(width: int, k: int) -> int:
    """How many rows make a block that stays in cache with its distances."""
    return int(np.clip(BLOCK_BYTES // (4 * (width + k)), 64, 8192))


def check_rows(features: Any, name: str = "features") -> npt.NDArray[Any]:
    """Return the features as rows × columns of finite numbers, not copied, or an error that says which row is bad."""
    from offmap.activations import as_array

    array = as_array(features, name)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name} of shape {array.shape}: rows × columns are needed, at least one of each")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} of type {array.dtype}: numbers are needed; embed texts or images first")
    size = block_rows(array.shape[1], 1)
    for start in range(0, len(array), size):
        fine = (np.abs(array[start : start + size]) < LARGEST).all(axis=1)  # NaN is not below anything
        if not fine.all():
            row = start + int(np.argmin(fine))
            raise InputError(
                f"{name}: row {row} holds NaN, infinity or a number above {LARGEST:g}; leave it out or scale it"
            )
    return array


def _half_gaps(centres: Floats) -> Floats:
    """Half the distance from each centre to the next: a row within it cannot have another centre."""
    if len(centres) == 1:
        return np.full(1, np.inf, np.float32)
    squares = np.einsum("ij,ij->i", centres, centres)
    gaps = squares[:, None] + squares - 2 * (centres @ centres.T)
    np.fill_diagonal(gaps, np.inf)
    half: Floats = 0.5 * np.sqrt(np.maximum(gaps.min(axis=1), 0))
    return half


def _largest_other(shift: Floats) -> Floats:
    """For each centre, the longest way that another centre went."""
    if len(shift) == 1:
        return np.zeros(1, np.float32)
    first = int(np.argmax(shift))
    most = np.full(len(shift), shift[first], np.float32)
    most[first] = np.delete(shift, first).max()
    return most


def _shift(sums: Doubles, sizes: Labels, block: Floats, old: Labels, new: Labels) -> None:
    """Move rows from their old centre's sum to the new one's; ``old = -1`` came from nowhere."""
    k, n = len(sizes), len(block)
    came = sparse.csr_array((np.ones(n, np.float32), (new, np.arange(n))), shape=(k, n))
    gone = np.flatnonzero(old >= 0)
    if len(gone):
        came = came - sparse.csr_array((np.ones(len(gone), np.float32), (old[gone], gone)), shape=(k, n))
    sums += came @ block
    sizes += np.bincount(new, minlength=k)
    sizes -= np.bincount(old[gone], minlength=k)


def _run(lane: Any) -> None:
    """Run all lanes, as many at a time as BLAS may use cores."""
    with one_core_products() as cores:
        threads = min(cores, LANES)

        def work(thread: int) -> None:
            for number in range(thread, LANES, threads):
                lane(number)

        in_threads(work, threads)
