"""Percentiles of data that goes by, from counts that add up: exact in a second reading, close in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from offmap import store
from offmap.detection.statistics import Arrays, Statistic
from offmap.errors import InputError, StoreError

FEW = 2**19  # below, sorting numbers is quicker than going over all four million bins


class Quantile(Statistic):
    """Percentiles of all numbers that went by, from a histogram over the bits of their float32 form.

    The order of float32 numbers is the order of their (sign-adjusted) bits, so counting the upper 22 bits finds any
    percentile to a relative 6e-5 in one reading, and counting the lower 10 bits inside the bins found makes it exact
    in a second. Counts add up, so shards merge to the same bits.

    Examples
    --------
    >>> import torch
    >>> quantile = Quantile((50,))
    >>> quantile.update(torch.tensor([1.0, 2.0, 4.0]))
    >>> quantile.begin_second_pass()
    True
    >>> quantile.update(torch.tensor([1.0, 2.0, 4.0]))
    >>> quantile.values()
    [2.0]
    """

    COARSE = 22
    FINE = 10

    def __init__(self, percentiles: tuple[float, ...]) -> None:
        self.percentiles = percentiles
        self.count = 0
        self.coarse = np.zeros(0, dtype=np.int64)
        self.fine: dict[int, npt.NDArray[np.int64]] = {}

    def update(self, values: Tensor) -> None:
        """Count numbers: coarsely in the first reading, finely in the second."""
        keys = _ordered_bits(values.detach().cpu().numpy())
        upper = keys >> np.uint32(self.FINE)
        if not self.fine:
            if upper.size < FEW:
                bins, few = np.unique(upper, return_counts=True)
                counts = np.zeros(1 << self.COARSE, dtype=np.int64) if self.count == 0 else self.coarse
                counts[bins] += few
                self.coarse, self.count = counts, self.count + upper.size
            else:
                self._add(np.bincount(upper, minlength=1 << self.COARSE))
            return
        for bin_, counts in self.fine.items():
            inside = keys[upper == bin_] & np.uint32((1 << self.FINE) - 1)
            counts += np.bincount(inside, minlength=1 << self.FINE)

    def merge(self, other: Quantile) -> None:
        """Add another's counts; both must be in the same reading."""
        if self.fine.keys() != other.fine.keys():
            raise InputError("quantiles of different readings cannot be merged; narrow both after merging the first")
        if not self.fine and other.count:
            self._add(other.coarse.copy())
        for bin_ in self.fine:
            self.fine[bin_] = self.fine[bin_] + other.fine[bin_]

    def begin_second_pass(self) -> bool:
        """After the first reading, look finely into the bins that hold the percentiles."""
        if self.fine or self.count == 0:
            return False
        bins, below = self._occupied()
        ranks = [rank for p in self.percentiles for rank in _ranks(p, self.count)[:2]]
        places = np.searchsorted(below, ranks, side="right") - 1
        self.fine = {int(bins[place]): np.zeros(1 << self.FINE, dtype=np.int64) for place in places}
        return True

    def _add(self, counts: npt.NDArray[np.int64]) -> None:
        if self.count == 0:
            self.coarse = counts
        else:
            self.coarse += counts
        self.count += int(counts.sum())

    def _occupied(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the bins that hold any number, and how many numbers lie below each."""
        bins = np.flatnonzero(self.coarse)
        return bins, np.concatenate([[0], np.cumsum(self.coarse[bins])])

    def values(self) -> list[float]:
        """Return the percentiles, interpolated linearly between order statistics as NumPy does."""
        if self.count == 0:
            raise InputError("no activations were seen; fit on at least one input")
        occupied = self._occupied()
        found = []
        for percentile in self.percentiles:
            low, high, share = _ranks(percentile, self.count)
            a, b = self._value(low, *occupied), self._value(high, *occupied)
            found.append(a + (b - a) * share)
        return found

    def _value(self, rank: int, bins: npt.NDArray[np.int64], below: npt.NDArray[np.int64]) -> float:
        place = int(np.searchsorted(below, rank, side="right")) - 1
        bin_ = int(bins[place])
        fine = self.fine.get(bin_)
        if fine is None or fine.sum() == 0:
            middle = 0 if _holds_zero(bin_, self.FINE) else 1 << (self.FINE - 1)
            return _number((bin_ << self.FINE) + middle)
        offset = int(np.searchsorted(np.cumsum(fine), rank - below[place], side="right"))
        return _number((bin_ << self.FINE) + offset)

    def state(self) -> Arrays:
        """Return the bins that are not empty."""
        bins = np.flatnonzero(self.coarse)
        fine = sorted(self.fine)
        return {
            "bins": bins,
            "counts": self.coarse[bins] if len(bins) else np.zeros(0, np.int64),
            "fine_bins": np.array(fine, dtype=np.int64),
            "fine": np.stack([self.fine[b] for b in fine]) if fine else np.zeros((0, 1 << self.FINE), np.int64),
        }

    def restore(self, state: Arrays) -> None:
        """Restore the bins that are not empty."""
        kinds = {"bins": ("iu", 1), "counts": ("iu", 1), "fine_bins": ("iu", 1), "fine": ("iu", 2)}
        store.check_arrays("histogram", state, kinds, ("bins", "counts"))
        if any((state[name] < 0).any() for name in kinds) or state["fine"].shape[1] != 1 << self.FINE:
            raise StoreError("not a whole histogram of this version of offmap (counts below 0, or of other bins)")
        self.coarse = np.zeros(1 << self.COARSE, dtype=np.int64)
        self.coarse[state["bins"]] = state["counts"]
        self.count = int(state["counts"].sum())
        self.fine = {int(b): row.copy() for b, row in zip(state["fine_bins"], state["fine"], strict=True)}


def _ordered_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the bits of float32 numbers, flipped so that they order as the numbers do; -0.0 counts as 0.0."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1) + np.float32(0)
    bits = flat.view(np.uint32)
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))


def _number(key: int) -> float:
    bits = np.uint32(key)
    plain = bits & np.uint32(0x7FFFFFFF) if bits >> np.uint32(31) else ~bits
    return float(np.array([plain], dtype=np.uint32).view(np.float32)[0])


def _holds_zero(bin_: int, fine: int) -> bool:
    """Return whether the bin starts at 0.0: rectified features have many exact zeros, which must stay exact."""
    return (bin_ << fine) == 0x80000000


def _ranks(percentile: float, count: int) -> tuple[int, int, float]:
    position = percentile / 100 * (count - 1)
    low = int(np.floor(position))
    return low, min(low + 1, count - 1), position - low
