"""Outlier detectors of scikit-learn on penultimate features: isolation forest, LOF, one-class SVM.

Each is fitted on a sample of known inputs, chosen by a seeded hash so that blocks and shards give the same sample. What
is saved is tensors: the sample itself, from which an estimator is made again to the same bits, or the numbers that
scoring needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.formulas import (
    expected_length,
    forest_tables,
    local_densities,
    outlier_factor,
    path_lengths,
)
from offmap.detection.registry import register
from offmap.detection.statistics import RowSample, Statistic
from offmap.errors import InputError

CHUNK = 1024  # rows scored at once against all support vectors


class FromSample(Score):
    """Base of scores that are fitted on a sample of known features, shaped when it is solved."""

    reads = ("features",)
    fits = ("features",)
    keeps_rows = True

    rows: int
    seed: int

    def check(self) -> None:
        """Require a sample of at least one input."""
        self.number("rows", 1, math.inf, "the sample must hold at least one input")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return the sample."""
        return {"sample": RowSample(size=self.rows, seed=self.seed)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["sample"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the tensors that scoring needs, from the shaped sample."""
        return self.solve_sample(context.shape(ActivationBatch(statistics["sample"].rows, head=context.head)).features)

    def solve_sample(self, rows: Tensor) -> State:
        """Return the tensors that scoring needs; by default the sample itself."""
        return {"rows": rows}

    def require_more_than(self, count: int, rows: Tensor, what: str) -> None:
        """Raise an `InputError` for a sample that is too small.

        Parameters
        ----------
        count : int
            The sample must hold more inputs than this.
        rows : Tensor
            The sample.
        what : str
            What needs them, for the message.
        """
        if len(rows) <= count:
            raise InputError(f"{self}: {what} need more than {count} known inputs, got {len(rows)}; fit on more")


@register
class IForest(FromSample):
    """The isolation forest of scikit-learn: how few random cuts isolate an input (thesis, appendix A.3.2).

    Parameters
    ----------
    trees : int, default=100
        Number of trees.
    samples : int, default=256
        How many known inputs each tree is grown on, at most as many as there are.
    features : int, default=512
        How many features each tree sees, at most as many as there are.
    rows : int, default=10000
        How many known inputs are kept to draw from.
    seed : int, default=0
        Seed of the sample and of the trees.
    """

    name = "iforest"
    paper = "Liu, Ting & Zhou, Isolation Forest, ICDM 2008"

    trees: int = 100
    samples: int = 256
    features: int = 512
    rows: int = 10_000
    seed: int = 0

    def check(self) -> None:
        """Require at least one of each."""
        super().check()
        for field in ("trees", "samples", "features"):
            self.number(field, 1, math.inf, "at least 1 is needed")

    def prepare(self, state: State) -> Any:
        """Return the forest, grown to the same bits from the same sample."""
        from sklearn.ensemble import IsolationForest

        rows = state["rows"].cpu().numpy()
        forest = IsolationForest(
            n_estimators=self.trees,
            max_samples=min(self.samples, len(rows)),
            max_features=min(self.features, rows.shape[1]),
            random_state=self.seed,
        )
        return forest.fit(rows)

    def score(self, block: ActivationBatch, ready: Any) -> Tensor:
        """Return minus the anomaly score of the forest."""
        return torch.from_numpy(ready.score_samples(block.features.cpu().numpy()))

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return the same by walking all trees at once (Liu et al. 2008, eq. 2)."""
        forest = self.prepare(state)
        tables, usual = forest_tables(forest), expected_length(forest.max_samples_)
        if usual == 0:  # trees of one input: scikit-learn calls everything usual
            return lambda block: torch.full_like(block.features[:, 0], -0.5)
        return lambda block: -torch.exp2(-path_lengths(block.features, tables) / usual)


@register
class LOF(FromSample):
    """Minus the local outlier factor: the density around the nearest known inputs over that around the input itself.

    Parameters
    ----------
    k : int, default=50
        How many neighbours; the thesis takes 50 (appendix A.3.2).
    rows : int, default=10000
        How many known inputs are kept to compare with.
    seed : int, default=0
        Seed of the sample.
    """

    name = "lof"
    paper = "Breunig et al., LOF: Identifying Density-Based Local Outliers, SIGMOD 2000"
    shown = ("k",)

    k: int = 50
    rows: int = 10_000
    seed: int = 0

    def check(self) -> None:
        """Require at least one neighbour."""
        super().check()
        self.number("k", 1, math.inf, "k must be a whole number from 1")

    def solve_sample(self, rows: Tensor) -> State:
        """Return the sample, if it has enough neighbours."""
        self.require_more_than(self.k, rows, f"{self.k} neighbours")
        return {"rows": rows}

    def prepare(self, state: State) -> Any:
        """Return the densities of the sample."""
        from sklearn.neighbors import LocalOutlierFactor

        return LocalOutlierFactor(n_neighbors=self.k, novelty=True).fit(state["rows"].cpu().double().numpy())

    def score(self, block: ActivationBatch, ready: Any) -> Tensor:
        """Return minus the factor."""
        return torch.from_numpy(ready.score_samples(block.features.cpu().double().numpy()))

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return the same by comparing with the whole sample."""
        rows = state["rows"].double()
        reach, density = local_densities(rows, self.k)
        return lambda block: -outlier_factor(block.features.double(), rows, reach, density, self.k)


def log_kernel_sum(features: Tensor, support: Tensor, log_weights: Tensor, gamma: float) -> Tensor:
    """Compute log Σ αᵢ exp(-γ‖x - sᵢ‖²).

    It orders inputs as the one-class SVM does, and still orders inputs so far away that the sum itself is 0.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        x.
    support : Tensor of shape (m, d)
        s.
    log_weights : Tensor of shape (m,)
        log α.
    gamma : float
        γ.

    Returns
    -------
    Tensor of shape (n,)
        The logarithms.

    Examples
    --------
    >>> far = torch.tensor([[0.0], [1e3]], dtype=torch.float64)
    >>> log_kernel_sum(far, torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), 0.5)
    tensor([     0., -500000.], dtype=torch.float64)
    """
    norms = features.square().sum(dim=1, keepdim=True) + support.square().sum(dim=1)
    squared = torch.addmm(norms, features, support.T, alpha=-2).clamp(min=0)
    return torch.logsumexp(log_weights - gamma * squared, dim=1)


@register
class OCSVM(FromSample):
    """The logarithm of the decision function of a one-class SVM with the Gaussian kernel, less its constant.

    Parameters
    ----------
    gamma : float, default=1 / 512
        γ of the kernel exp(-γ‖x - y‖²); the thesis takes 1/512 (appendix A.3.2).
    nu : float, default=0.5
        Upper bound on the share of known inputs outside the learnt region.
    rows : int, default=5000
        How many known inputs it is fitted on; the work grows with the square.
    seed : int, default=0
        Seed of the sample.
    """

    name = "ocsvm"
    paper = "Schölkopf et al., Estimating the Support of a High-Dimensional Distribution, Neural Computation 2001"

    gamma: float = 1 / 512
    nu: float = 0.5
    rows: int = 5_000
    seed: int = 0

    def check(self) -> None:
        """Check the bounds of γ and ν."""
        super().check()
        self.number("gamma", 0, math.inf, "the kernel needs a positive factor", open_low=True)
        self.number("nu", 0, 1, "the share must be above 0 and at most 1", open_low=True)

    def solve_sample(self, rows: Tensor) -> State:
        """Return the support vectors and their weights."""
        from sklearn.svm import OneClassSVM

        fitted = OneClassSVM(kernel="rbf", gamma=self.gamma, nu=self.nu).fit(rows.double().numpy())
        weights = torch.from_numpy(fitted.dual_coef_[0].copy()).double()
        return {"support": rows[torch.from_numpy(fitted.support_).long()], "log_weights": weights.log()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the logarithm of the weighted sum of kernels."""
        support = ready["support"].double()
        parts = torch.split(block.features.double(), CHUNK)
        return torch.cat([log_kernel_sum(part, support, ready["log_weights"], self.gamma) for part in parts])
