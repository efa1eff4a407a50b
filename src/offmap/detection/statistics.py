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

from offmap import store
from offmap.errors import InputError, StoreError
from offmap.sampling import Reservoir, Sample

Arrays = dict[str, npt.NDArray[Any]]

MAX_CLASSES = 1_000_000


class Statistic(ABC):
    """A summary of data that is updated batch by batch and can be merged."""

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
        store.check_arrays("mean", state, {"count": ("iu", 0), "total": ("f", 1)})
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
        """Add rows with their classes; without labels all are of class 0.

        Parameters
        ----------
        rows : Tensor of shape (n, d)
            The rows.
        labels : Tensor of shape (n,) or None, default=None
            Their classes.
        """
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
        """Return the mean of x xᵀ, about the origin."""
        mean = self.mean
        return self.covariance() + torch.outer(mean, mean)

    def state(self) -> Arrays:
        """Return counts, means and scatter."""
        return {name: getattr(self, name).cpu().numpy() for name in ("counts", "means", "scatter")}

    def restore(self, state: Arrays) -> None:
        """Restore counts, means and scatter."""
        kinds = {"counts": ("f", 1), "means": ("f", 2), "scatter": ("f", 2)}
        store.check_arrays("set of class means", state, kinds, ("counts", "means"))
        side = state["means"].shape[1] if self.with_scatter else 0
        if state["scatter"].shape != (side, side):
            raise StoreError(f"not a whole set of class means: a scatter of shape {state['scatter'].shape}")
        for name in kinds:
            setattr(self, name, torch.from_numpy(state[name].copy()))


def _padded(values: Tensor, length: int) -> Tensor:
    if len(values) == length:
        return values
    zeros = torch.zeros(length - len(values), *values.shape[1:], dtype=values.dtype, device=values.device)
    return torch.cat([values, zeros])


class ClassScatters(Statistic):
    """Counts, means and scatters per class: one covariance for each.

    Parameters
    ----------
    limit : int, default=2**31
        The most bytes that the scatters may take; beyond, `update` raises.

    Examples
    --------
    >>> scatters = ClassScatters()
    >>> scatters.update(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
    >>> scatters.counts.tolist(), scatters.means.tolist(), scatters.scatters.tolist()
    ([2.0, 1.0], [[1.0], [9.0]], [[[2.0]], [[0.0]]])
    """

    def __init__(self, limit: int = 2**31) -> None:
        self.limit = limit
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.means = torch.zeros(0, 0, dtype=torch.float64)
        self.scatters = torch.zeros(0, 0, 0, dtype=torch.float64)

    def update(self, rows: Tensor, labels: Tensor | None = None) -> None:
        """Add rows with their classes; without labels all are of class 0.

        Parameters
        ----------
        rows : Tensor of shape (n, d)
            The rows.
        labels : Tensor of shape (n,) or None, default=None
            Their classes.
        """
        if len(rows) == 0:
            return
        x = rows.double().cpu()
        y = torch.zeros(len(x), dtype=torch.int64) if labels is None else labels.cpu()
        if int(y.min()) < 0:
            raise InputError("labels hold negative numbers; fit on labelled inputs only: acts[acts.labels >= 0]")
        classes, width = int(y.max()) + 1, x.shape[1]
        if 8 * classes * width**2 > self.limit:
            raise InputError(
                f"one covariance for each of {classes} classes of {width} features takes "
                f"{8 * classes * width**2 / 1e9:.1f} GB; use one for all classes"
            )
        part = ClassScatters(self.limit)
        part.counts = torch.bincount(y).double()
        part.means = torch.zeros(classes, width, dtype=torch.float64)
        part.scatters = torch.zeros(classes, width, width, dtype=torch.float64)
        for label in torch.nonzero(part.counts).reshape(-1).tolist():
            own = x[y == label]
            part.means[label] = own.mean(dim=0)
            centred = own - part.means[label]
            part.scatters[label] = centred.T @ centred
        self.merge(part)

    def merge(self, other: ClassScatters) -> None:
        """Add another's rows."""
        if len(other.counts) == 0:
            return
        if len(self.counts) == 0:
            self.counts, self.means, self.scatters = other.counts, other.means, other.scatters
            return
        if self.means.shape[1] != other.means.shape[1]:
            raise InputError(f"{other.means.shape[1]} features per input, but earlier ones had {self.means.shape[1]}")
        classes = max(len(self.counts), len(other.counts))
        a, b = _padded(self.counts, classes), _padded(other.counts, classes)
        means = _padded(self.means, classes)
        step = _padded(other.means, classes) - means
        total = a + b
        scatters = _padded(self.scatters, classes) + _padded(other.scatters, classes)
        for label in torch.nonzero((a > 0) & (b > 0)).reshape(-1).tolist():
            scatters[label] += torch.outer(step[label], step[label]) * (a[label] * b[label] / total[label])
        self.counts, self.scatters = total, scatters
        self.means = means + step * (b / total.clamp(min=1))[:, None]

    @property
    def present(self) -> Tensor:
        """Indices of the classes that had any row."""
        return torch.nonzero(self.counts > 0).reshape(-1)

    def state(self) -> Arrays:
        """Return counts, means and scatters."""
        return {name: getattr(self, name).numpy() for name in ("counts", "means", "scatters")}

    def restore(self, state: Arrays) -> None:
        """Restore counts, means and scatters."""
        kinds = {"counts": ("f", 1), "means": ("f", 2), "scatters": ("f", 3)}
        store.check_arrays("set of class covariances", state, kinds, tuple(kinds))
        if state["scatters"].shape[1:] != (state["means"].shape[1],) * 2:
            raise StoreError(f"not a whole set of class covariances: scatters of shape {state['scatters'].shape}")
        for name in kinds:
            setattr(self, name, torch.from_numpy(state[name].copy()))


class RowSample(Statistic):
    """Rows kept as they are: all of them, a fixed number, or a share, chosen by a seeded hash of their content.

    Parameters
    ----------
    size : int or None, default=None
        Keep at most this many.
    alpha : float, default=1.0
        Or keep this share.
    seed : int, default=0
        Seed of the hash.
    """

    def __init__(self, size: int | None = None, alpha: float = 1.0, seed: int = 0) -> None:
        self.kept: Reservoir | Sample = Reservoir(size, seed) if size is not None else Sample(alpha, seed)

    def update(self, rows: Tensor, **companions: Tensor) -> None:
        """Add rows, with arrays that stand beside them."""
        self.kept.update(rows.cpu().numpy(), **{name: value.cpu().numpy() for name, value in companions.items()})

    def merge(self, other: RowSample) -> None:
        """Add another's rows."""
        self.kept.merge(other.kept)  # type: ignore[arg-type]  # both are made by the same component

    @property
    def rows(self) -> Tensor:
        """The rows kept."""
        return torch.from_numpy(np.array(self.kept.rows, dtype=np.float32))

    def companion(self, name: str) -> Tensor:
        """Return what stood beside them."""
        return torch.from_numpy(np.array(self.kept.companions[name]))

    def state(self) -> Arrays:
        """Return the rows and their companions."""
        return self.kept.state()

    def restore(self, state: Arrays) -> None:
        """Restore the rows and their companions."""
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
        """Add rows of the given classes.

        Parameters
        ----------
        rows : Tensor of shape (n, d)
            The rows.
        classes : Tensor of shape (n,)
            Their classes.
        """
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
        """Return both bounds."""
        return {"low": self.low.numpy(), "high": self.high.numpy()}

    def restore(self, state: Arrays) -> None:
        """Restore both bounds."""
        store.check_arrays("set of bounds", state, {"low": ("f", 2), "high": ("f", 2)}, ("low", "high"))
        self.low, self.high = torch.from_numpy(state["low"].copy()), torch.from_numpy(state["high"].copy())
