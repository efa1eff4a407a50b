"""How the scores of several terms become one: what is learnt from held-out known inputs, and how it is applied.

Scores of different methods have different units. ``sum`` brings each to a common scale by the median and the
interquartile range of its values on held-out known inputs, and adds. The other combinations replace a score by its
p-value among those held-out values and combine the p-values.

None of them carries a guarantee of its own that matters for verdicts: the combined score is calibrated by one conformal
p-value (`Detector.calibrate`) as any score is, and that p-value is valid whatever the combination, the weights and the
dependence between the terms.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offmap.detection.formulas import count_at_most, fill_rows
from offmap.errors import InputError, OffmapWarning
from offmap.typing import Array

LIMIT = 1e12  # a standardised score beyond it counts as it, so that infinities of two signs do not make NaN
NORMAL_IQR = 1.3489795003921634  # the interquartile range of a standard normal variable
ROUNDING = 4 * float(np.finfo(np.float32).eps)  # relative; a spread below it is rounding


@dataclass(frozen=True)
class Combination:
    """One way to combine terms.

    Attributes
    ----------
    transform : callable or None
        From p-values to what is added up, higher = known; `None` where standardised scores are added themselves.
    finish : callable
        From the weighted total and the weights to the combined score.
    meaning : str
        One sentence on what it computes and what it does not guarantee.
    tailed : bool
        Whether p goes on falling, exponentially, beyond the lowest held-out score.
    bend : callable or None
        Applied to log p, where p is tailed.
    """

    transform: Callable[[Tensor], Tensor] | None
    finish: Callable[[Tensor, Tensor], Tensor]
    meaning: str
    tailed: bool = False
    bend: Callable[[Tensor], Tensor] | None = None


def _log(p: Tensor) -> Tensor:
    return p.log()


def _probit(p: Tensor) -> Tensor:
    return torch.special.ndtri(p)


def _tangent(p: Tensor) -> Tensor:
    return torch.tan((p - 0.5) * math.pi)


def _negative_inverse(p: Tensor) -> Tensor:
    return -1 / p


def _root(log_p: Tensor) -> Tensor:
    return -(-log_p).clamp(min=0).sqrt()


TAIL = 0.1  # the share of held-out scores that the tail is fitted to
LOWEST = -15.0  # log p is cut here, so that one term that is beyond all measure does not hide the others


COMBINATIONS: dict[str, Combination] = {
    "sum": Combination(
        None,
        lambda total, weights: total,
        "The weighted sum of the standardised scores. Not a p-value; a term with heavy tails can dominate it.",
    ),
    "fisher": Combination(
        _log,
        lambda total, weights: total,
        "The weighted sum of log p (Fisher 1925). Strong when one term is sure. Its chi-squared law needs independent "
        "terms, which scores of one network are not, so it is no p-value before calibration.",
    ),
    "tail": Combination(
        _log,
        lambda total, weights: total,
        "The weighted sum of log p, as Fisher's, where p goes on falling exponentially below the lowest tenth of the "
        "held-out scores and is cut at exp(-15): far inputs are still ordered, and no term outvotes all others. No "
        "p-value before calibration.",
        tailed=True,
    ),
    "root": Combination(
        _log,
        lambda total, weights: total,
        "The weighted sum of -sqrt(-log p), p as in tail: close to adding normal deviates, so that many terms that "
        "doubt a little count more than in tail, and one that is sure less. No p-value before calibration.",
        tailed=True,
        bend=_root,
    ),
    "stouffer": Combination(
        _probit,
        lambda total, weights: total / weights.square().sum().sqrt(),
        "The weighted sum of normal quantiles of p (Stouffer 1949). Strong when many terms agree a little. Its normal "
        "law needs independent terms, so it is no p-value before calibration.",
    ),
    "cauchy": Combination(
        _tangent,
        lambda total, weights: total / weights.sum(),
        "The weighted mean of Cauchy quantiles of p (Liu & Xie 2020). Its tail holds approximately under dependence "
        "for small p-values only; a p-value near 1 in one term can hide a small one in another.",
    ),
    "harmonic": Combination(
        _negative_inverse,
        lambda total, weights: -weights.sum() / total,
        "The weighted harmonic mean of p (Wilson 2019). Near to valid under many dependences for small values; as a "
        "p-value it would need a correction that grows with the logarithm of the number of terms.",
    ),
}


def location_and_scale(scores: Array) -> tuple[float, float]:
    """Compute a robust location and scale of one term's scores on held-out known inputs.

    The median, and the interquartile range in units of a normal standard deviation; where more than half of the scores
    are equal, the standard deviation instead. Scores that are infinite are left out.

    Parameters
    ----------
    scores : array of shape (n,)
        At least one.

    Returns
    -------
    location, scale : float
        The scale is 0 where all scores are equal up to the rounding of float32: such a term says nothing.

    Examples
    --------
    >>> location, scale = location_and_scale(np.array([1.0, 2.0, 3.0, 4.0, 1000.0]))
    >>> location, round(scale, 3)
    (3.0, 1.483)
    >>> location_and_scale(np.array([7.0, 7.0, 7.0]))
    (7.0, 0.0)
    """
    finite = np.asarray(scores, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if len(finite) == 0:
        return 0.0, 0.0
    low, middle, high = np.percentile(finite, (25, 50, 75))
    if float(finite.max() - finite.min()) <= ROUNDING * float(np.abs(finite).max()):
        return float(middle), 0.0
    spread = float(high - low)
    varies = spread > ROUNDING * max(abs(float(low)), abs(float(high)))
    return float(middle), spread / NORMAL_IQR if varies else float(finite.std())


def fit_combination(scores: Sequence[Array], combine: str) -> dict[str, Tensor]:
    """Learn from the terms' scores on held-out known inputs what a `Combiner` needs.

    Parameters
    ----------
    scores : sequence of arrays of shape (n,)
        One array per term.
    combine : str
        A name in `COMBINATIONS`.

    Returns
    -------
    dict of Tensor
        ``location`` and ``scale`` per term, a scale of 0 for one that is constant; for combinations of p-values also
        ``scores``, terms × n, sorted.
    """
    pairs = torch.tensor([location_and_scale(each) for each in scores], dtype=torch.float64).reshape(-1, 2)
    state = {"location": pairs[:, 0].contiguous(), "scale": pairs[:, 1].contiguous()}
    if COMBINATIONS[combine].transform is not None:
        ordered = np.sort(np.stack([np.asarray(each, np.float64) for each in scores]), axis=1)
        state["scores"] = torch.from_numpy(ordered)
        if COMBINATIONS[combine].tailed:
            state["tail"] = torch.tensor([exponential_tail(each) for each in ordered], dtype=torch.float64)
    return state


def standardize_terms(scores: Sequence[Array], chains: Sequence[str], combine: str, plan: str) -> dict[str, Tensor]:
    """Learn how to combine the terms of a plan, and check that their scores can be combined.

    Parameters
    ----------
    scores : sequence of arrays of shape (n,)
        One array per term, on held-out known inputs.
    chains : sequence of str
        The text form of each term, for messages.
    combine : str
        A name in `COMBINATIONS`.
    plan : str
        The text form of the whole, for messages.

    Returns
    -------
    dict of Tensor
        As from `fit_combination`.

    Raises
    ------
    InputError
        If a term gives no number for some inputs, or no term varies.

    Warns
    -----
    OffmapWarning
        If some terms do not vary; they are left out of the combination.
    """
    for chain, found in zip(chains, scores, strict=True):
        if np.isnan(found).any():
            raise InputError(f"{chain} gives no number for some held-out inputs; leave it out of the sum")
    state = fit_combination(scores, combine)
    constant = [chain for chain, scale in zip(chains, state["scale"].tolist(), strict=True) if scale == 0]
    if len(constant) == len(chains):
        raise InputError(
            f"{plan}: none of its scores varies over the {len(scores[0])} held-out known inputs, so that they "
            "have no scale to be added on; fit on more inputs, or give held-out ones with fit(known, val=...)"
        )
    if constant:
        warnings.warn(
            f"{', '.join(constant)}: the same for all held-out known inputs, so there is no scale to add it on; "
            f"left out of {plan}",
            OffmapWarning,
            stacklevel=3,
        )
    return state


def exponential_tail(ordered: Array) -> tuple[float, float]:
    """Fit an exponential law to the lowest tenth of sorted scores, five at least.

    Parameters
    ----------
    ordered : array of shape (n,)
        Scores, the lowest first.

    Returns
    -------
    threshold, scale : float
        Where the tail begins, and the mean distance below it; a scale of 0 where there is no tail.

    Examples
    --------
    >>> exponential_tail(np.arange(100.0))
    (9.0, 4.5)
    """
    finite = ordered[np.isfinite(ordered)]
    count = min(max(int(len(finite) * TAIL), 5), len(finite))
    if count == 0:
        return 0.0, 0.0
    return float(finite[count - 1]), float((finite[count - 1] - finite[:count]).mean())


class Combiner:
    """Combines the scores of terms into one, higher = known.

    Parameters
    ----------
    state : dict of Tensor
        What `fit_combination` gave.
    weights : sequence of float
        One per term.
    combine : str
        A name in `COMBINATIONS`.

    Attributes
    ----------
    live : tuple of int
        The numbers of the terms that are combined: those with a scale.

    Examples
    --------
    >>> state = fit_combination([np.arange(5.0), 10 * np.arange(5.0)], "sum")
    >>> both = {0: torch.tensor([2.0, 0.0]), 1: torch.tensor([20.0, 0.0])}
    >>> Combiner(state, (1.0, 1.0), "sum")(both)
    tensor([ 0.0000, -2.6980], dtype=torch.float64)
    """

    def __init__(self, state: Mapping[str, Tensor], weights: Sequence[float], combine: str) -> None:
        self.combine = combine
        self.live = tuple(number for number, scale in enumerate(state["scale"].tolist()) if scale > 0)
        device = state["scale"].device
        self.weights = torch.tensor([weights[number] for number in self.live], dtype=torch.float64, device=device)
        transform, bend = COMBINATIONS[combine].transform, COMBINATIONS[combine].bend
        self._standard: list[Callable[[Tensor], Tensor]] = [
            _Standardized(state["location"][number].clone(), state["scale"][number].clone())
            if transform is None
            else _Transformed(
                state["scores"][number].contiguous(),
                transform,
                state["tail"][number] if "tail" in state else None,
                bend,
            )
            for number in self.live
        ]

    def __call__(self, scores: Mapping[int, Tensor]) -> Tensor:
        """Combine scores, given by the number of the term; NaN where a live term's score is NaN."""
        parts = [bring(scores[number].double()) for number, bring in zip(self.live, self._standard, strict=True)]
        total = (torch.stack(parts, dim=1) * self.weights).sum(dim=1)
        return COMBINATIONS[self.combine].finish(total, self.weights)


@dataclass(frozen=True)
class _Standardized:
    location: Tensor
    scale: Tensor

    def __call__(self, score: Tensor) -> Tensor:
        return ((score - self.location) / self.scale).clamp(-LIMIT, LIMIT)


class _Transformed:
    """Transforms the conformal p-value of a score; each of the n + 1 possible p-values is transformed once."""

    def __init__(
        self,
        held_out: Tensor,
        transform: Callable[[Tensor], Tensor],
        tail: Tensor | None = None,
        bend: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        n = len(held_out)
        p = torch.arange(1, n + 2, dtype=torch.float64, device=held_out.device) / (n + 1)
        p[-1] = (n + 0.5) / (n + 1)  # at 1 the normal and the Cauchy quantile are infinite
        self.values = transform(p)
        self.rows = fill_rows(held_out)
        self.tail = None if tail is None else _Tail(held_out, self.values, tail)
        self.bend = bend

    def __call__(self, score: Tensor) -> Tensor:
        counts = count_at_most(self.rows, self.rows[:, 0], score)
        values = self.values[counts.clamp(max=len(self.values) - 1)] if self.tail is None else self.tail(score, counts)
        if self.bend is not None:
            values = self.bend(values)
        return torch.where(score == score, values, torch.nan)


class _Tail:
    """log p as a continuous function: straight lines between held-out scores, an exponential law below them.

    Steps would make the rounding of a score that equals a held-out one matter as much as the whole step.
    """

    def __init__(self, held_out: Tensor, values: Tensor, tail: Tensor) -> None:
        self.knots, self.values = held_out, values[:-1]
        self.last = len(held_out) - 1
        self.threshold = tail[0].clone()
        # where ties leave no tail, a score below them all is as unlikely as can be
        self.scale = torch.where(tail[1] > 0, tail[1], torch.finfo(torch.float64).tiny)
        below = int((held_out <= tail[0]).sum())
        self.top = self.values[min(max(below - 1, 0), self.last)].clone()

    def __call__(self, score: Tensor, counts: Tensor) -> Tensor:
        """Return log p of scores, given how many held-out ones are at most each."""
        left = (counts - 1).clamp(0, self.last)
        right = (left + 1).clamp(max=self.last)
        share = torch.nan_to_num((score - self.knots[left]) / (self.knots[right] - self.knots[left]), 0.0, 0.0, 0.0)
        line = self.values[left] + share.clamp(0, 1) * (self.values[right] - self.values[left])
        below = (self.top - (self.threshold - score) / self.scale).clamp(min=LOWEST)
        return torch.where(score < self.threshold, below, line)
