"""Small running statistics that detectors are made of: each has `update`, `merge` and a state of plain arrays.

Everything accumulates in float64, whatever the activations are stored in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offmap.errors import InputError
from offmap.sampling import Reservoir, Sample

Arrays = dict[str, npt.NDArray[Any]]

MAX_CLASSES = 1_000_000
FEW = 2**19  # below, sorting numbers is quicker than going over all four million bins


class Statistic(ABC):
    """What is remembered of data that went by."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take in what another one has seen, as if it had come by here."""

    @abstractmethod
    def state(self) -> Arrays:
        """Everything remembered, as plain arrays."""

    @abstractmethod
    def restore(self, state: Arrays) -> None:
        """Remember again what `state` gave."""

    def begin_second_pass(self) -> bool:
        """Ask for a second reading of the same data, where that makes the answer exact."""
        return False


class NullStatistic:
    """Stands in for a statistic that has seen all the data while others look a second time."""

    def update(self, *values: Any, **companions: Any) -> None:
        """Take no notice."""


class Mean(Statistic):
    """The mean of rows.

    Examples
    --------
    >>> mean = Mean()
    >>> mean.update(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> mean.value
    tensor([2., 3.], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = torch.zeros(0, dtype=torch.float64)

    def update(self, rows: Tensor) -> None:
        """Add rows."""
        part = rows.sum(dim=0, dtype=torch.float64)
        self.total = part if self.count == 0 else self.total + part
        self.count += len(rows)

    def merge(self, other: Mean) -> None:
        """Add another's rows."""
        if other.count:
            self.total = other.total.clone() if self.count == 0 else self.total + other.total
            self.count += other.count

    @property
    def value(self) -> Tensor:
        """The mean so far."""
        return self.total / max(self.count, 1)

    def state(self) -> Arrays:
        """Count and total."""
        return {"count": np.array(self.count), "total": self.total.cpu().numpy()}

    def restore(self, state: Arrays) -> None:
        """Count and total."""
        self.count, self.total = int(state["count"]), torch.from_numpy(state["total"].copy())


class ClassMoments(Statistic):
    """Counts and means per class, and one scatter of all rows about the mean of their class.

    Blocks are centred before they are multiplied and joined by the update of Chan, Golub and LeVeque (1979), so that
    means far from the origin cost no digits.

    Examples
    --------
    >>> moments = ClassMoments()
    >>> moments.update(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
    >>> moments.counts.tolist(), moments.means.tolist(), moments.scatter.tolist()
    ([2.0, 1.0], [[1.0], [9.0]], [[2.0]])
    """

    def __init__(self, scatter: bool = True) -> None:
        self.with_scatter = scatter
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.means = torch.zeros(0, 0, dtype=torch.float64)
        self.scatter = torch.zeros(0, 0, dtype=torch.float64)

    def update(self, rows: Tensor, labels: Tensor | None = None) -> None:
        """Add rows with their classes; without labels all are of class 0."""
        if len(rows) == 0:
            return
        x = rows.double()
        y = torch.zeros(len(x), dtype=torch.int64, device=x.device) if labels is None else labels
        if int(y.min()) < 0:
            raise InputError("labels hold negative numbers; fit on labelled inputs only: acts[acts.labels >= 0]")
        if int(y.max()) >= MAX_CLASSES:
            raise InputError(f"label {int(y.max())}: class indices run from 0 to the number of classes - 1")
        part = ClassMoments(self.with_scatter)
        part.counts = torch.bincount(y).double()
        sums = torch.zeros(len(part.counts), x.shape[1], dtype=torch.float64, device=x.device)
        sums.index_add_(0, y, x)
        part.means = sums / part.counts.clamp(min=1)[:, None]
        if self.with_scatter:
            centred = x - part.means[y]
            part.scatter = centred.T @ centred
        self.merge(part)

    def merge(self, other: ClassMoments) -> None:
        """Add another's rows."""
        if len(other.counts) == 0:
            return
        if len(self.counts) == 0:
            self.counts, self.means, self.scatter = other.counts, other.means, other.scatter
            return
        if self.means.shape[1] != other.means.shape[1]:
            raise InputError(f"{other.means.shape[1]} features per input, but earlier ones had {self.means.shape[1]}")
        classes = max(len(self.counts), len(other.counts))
        a, b = _padded(self.counts, classes), _padded(other.counts, classes)
        mean_a, mean_b = _padded(self.means, classes), _padded(other.means, classes)
        total = a + b
        step = mean_b - mean_a
        if self.with_scatter:
            shared = (a > 0) & (b > 0)
            weight = (a * b / total.clamp(min=1))[shared, None]
            self.scatter = self.scatter + other.scatter + step[shared].T @ (weight * step[shared])
        self.means = mean_a + step * (b / total.clamp(min=1))[:, None]
        self.counts = total

    @property
    def present(self) -> Tensor:
        """Indices of the classes that had any row."""
        return torch.nonzero(self.counts > 0).reshape(-1)

    @property
    def mean(self) -> Tensor:
        """The mean of all rows."""
        weights = self.counts / self.counts.sum()
        return weights @ self.means

    def tied_covariance(self) -> Tensor:
        """Covariance about the class means, divided by the number of rows."""
        return self.scatter / self.counts.sum()

    def covariance(self) -> Tensor:
        """Covariance about the mean of all rows, divided by the number of rows."""
        spread = self.means - self.mean
        return self.tied_covariance() + spread.T @ (spread * (self.counts / self.counts.sum())[:, None])

    def second_moment(self) -> Tensor:
        """The mean of x xᵀ, about the origin."""
        mean = self.mean
        return self.covariance() + torch.outer(mean, mean)

    def state(self) -> Arrays:
        """Counts, means and scatter."""
        return {name: getattr(self, name).cpu().numpy() for name in ("counts", "means", "scatter")}

    def restore(self, state: Arrays) -> None:
        """Counts, means and scatter."""
        for name in ("counts", "means", "scatter"):
            setattr(self, name, torch.from_numpy(state[name].copy()))


def _padded(values: Tensor, length: int) -> Tensor:
    if len(values) == length:
        return values
    zeros = torch.zeros(length - len(values), *values.shape[1:], dtype=values.dtype, device=values.device)
    return torch.cat([values, zeros])


class Quantile(Statistic):
    """Percentiles of all numbers that went by, from a histogram over the bits of their float32 form.

    The order of float32 numbers is the order of their (sign-adjusted) bits, so counting the upper 22 bits finds any
    percentile to a relative 6e-5 in one reading, and counting the lower 10 bits inside the bins found makes it exact
    in a second. Counts add up, so shards merge to the same bits.

    Examples
    --------
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
        """The bins that hold any number, and how many numbers lie below each."""
        bins = np.flatnonzero(self.coarse)
        return bins, np.concatenate([[0], np.cumsum(self.coarse[bins])])

    def values(self) -> list[float]:
        """The percentiles, interpolated linearly between order statistics as NumPy does."""
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
        """The bins that are not empty."""
        bins = np.flatnonzero(self.coarse)
        fine = sorted(self.fine)
        return {
            "bins": bins,
            "counts": self.coarse[bins] if len(bins) else np.zeros(0, np.int64),
            "fine_bins": np.array(fine, dtype=np.int64),
            "fine": np.stack([self.fine[b] for b in fine]) if fine else np.zeros((0, 1 << self.FINE), np.int64),
        }

    def restore(self, state: Arrays) -> None:
        """The bins that are not empty."""
        self.coarse = np.zeros(1 << self.COARSE, dtype=np.int64)
        self.coarse[state["bins"]] = state["counts"]
        self.count = int(state["counts"].sum())
        self.fine = {int(b): row.copy() for b, row in zip(state["fine_bins"], state["fine"], strict=True)}


def _ordered_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The bits of float32 numbers, flipped so that they order as the numbers do; -0.0 counts as 0.0."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1) + np.float32(0)
    bits = flat.view(np.uint32)
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))


def _number(key: int) -> float:
    bits = np.uint32(key)
    plain = bits & np.uint32(0x7FFFFFFF) if bits >> np.uint32(31) else ~bits
    return float(np.array([plain], dtype=np.uint32).view(np.float32)[0])


def _holds_zero(bin_: int, fine: int) -> bool:
    """Whether the bin starts at 0.0: rectified features have many exact zeros, which must stay exact."""
    return (bin_ << fine) == 0x80000000


def _ranks(percentile: float, count: int) -> tuple[int, int, float]:
    position = percentile / 100 * (count - 1)
    low = int(np.floor(position))
    return low, min(low + 1, count - 1), position - low


class Rows(Statistic):
    """Rows kept as they are: all of them, a fixed number, or a share, chosen by a seeded hash of their content.

    Parameters
    ----------
    size
        Keep at most this many.
    alpha
        Or keep this share.
    seed
        Of the hash.
    """

    def __init__(self, size: int | None = None, alpha: float = 1.0, seed: int = 0) -> None:
        self.kept: Reservoir | Sample = Reservoir(size, seed) if size is not None else Sample(alpha, seed)

    def update(self, rows: Tensor, **companions: Tensor) -> None:
        """Add rows, with arrays that stand beside them."""
        self.kept.update(rows.cpu().numpy(), **{name: value.cpu().numpy() for name, value in companions.items()})

    def merge(self, other: Rows) -> None:
        """Add another's rows."""
        self.kept.merge(other.kept)  # type: ignore[arg-type]  # both are made by the same component

    @property
    def rows(self) -> Tensor:
        """The rows kept."""
        return torch.from_numpy(np.array(self.kept.rows, dtype=np.float32))

    def companion(self, name: str) -> Tensor:
        """What stood beside them."""
        return torch.from_numpy(np.array(self.kept.companions[name]))

    def state(self) -> Arrays:
        """The rows and their companions."""
        return self.kept.state()

    def restore(self, state: Arrays) -> None:
        """The rows and their companions."""
        self.kept = type(self.kept).from_state(state)


class Extremes(Statistic):
    """The smallest and largest value per class and column.

    Examples
    --------
    >>> extremes = Extremes()
    >>> extremes.update(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    >>> extremes.low.tolist(), extremes.high.tolist()
    ([[1.0]], [[3.0]])
    """

    def __init__(self) -> None:
        self.low = torch.zeros(0, 0)
        self.high = torch.zeros(0, 0)

    def update(self, rows: Tensor, classes: Tensor) -> None:
        """Add rows of the given classes."""
        part = Extremes()
        shape = (int(classes.max()) + 1 if len(classes) else 0, rows.shape[1])
        index = classes[:, None].expand(-1, rows.shape[1])
        part.low = torch.full(shape, torch.inf).scatter_reduce(0, index.cpu(), rows.cpu(), "amin")
        part.high = torch.full(shape, -torch.inf).scatter_reduce(0, index.cpu(), rows.cpu(), "amax")
        self.merge(part)

    def merge(self, other: Extremes) -> None:
        """Add another's rows."""
        classes = max(len(self.low), len(other.low))
        width = max(self.low.shape[1], other.low.shape[1])
        low = torch.full((classes, width), torch.inf)
        high = torch.full((classes, width), -torch.inf)
        for part in (self, other):
            if part.low.numel():
                low[: len(part.low)] = torch.minimum(low[: len(part.low)], part.low)
                high[: len(part.high)] = torch.maximum(high[: len(part.high)], part.high)
        self.low, self.high = low, high

    def state(self) -> Arrays:
        """Both bounds."""
        return {"low": self.low.numpy(), "high": self.high.numpy()}

    def restore(self, state: Arrays) -> None:
        """Both bounds."""
        self.low, self.high = torch.from_numpy(state["low"].copy()), torch.from_numpy(state["high"].copy())
