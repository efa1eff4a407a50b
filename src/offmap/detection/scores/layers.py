"""Scores that look at named inner layers of the network: Gram matrices and RankFeat."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.logits import energy
from offmap.detection.statistics import ClassMoments, Extremes, RowSample, Statistic
from offmap.errors import OffmapWarning
from offmap.extra_passes import Edited, Layer, RemoveRank1, Request
from offmap.sampling import priorities

SAMPLE = 1000
ENOUGH = 10  # inputs that set the range of a class
TINY = 1e-6  # keeps a bound of 0 from dividing, as in the authors' code


def deviation(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Sum over columns how far values lie outside their bounds, relative to the bound (Sastry & Oore 2020, eq. 3).

    Parameters
    ----------
    values : Tensor of shape (n, d)
        One row per input.
    low, high : Tensor of shape (n, d)
        The bounds of each.

    Returns
    -------
    Tensor of shape (n,)
        0 where all values are inside.

    Examples
    --------
    >>> bounds = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    >>> round(deviation(torch.tensor([[0.5, 3.0]]), *bounds).item(), 3)
    1.0
    """
    below = (low - values).clamp(min=0).double() / (low.abs() + TINY)
    above = (values - high).clamp(min=0).double() / (high.abs() + TINY)
    return (below + above).sum(dim=1)


def fill_bounds(low: Tensor, high: Tensor, few: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Fill in bounds for classes that were never or hardly predicted, and add a last row: the widest of all.

    Parameters
    ----------
    low, high : Tensor of shape (c, d)
        The bounds of each class; infinite for one without inputs.
    few : Tensor of bool of shape (m,), optional
        Classes whose own bounds are not used, since few inputs set them; those from m on have their own.

    Returns
    -------
    tuple of 2 Tensor of shape (c + 1, d)
        Finite bounds.

    Examples
    --------
    >>> low, high = fill_bounds(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [4.0]]))
    >>> low.tolist(), high.tolist()
    ([[1.0], [3.0], [1.0]], [[2.0], [4.0], [4.0]])
    """
    seen = torch.isfinite(low).all(dim=1, keepdim=True)
    if few is not None:
        seen[: len(few)] &= ~few[: len(low), None]
    lowest, highest = low.amin(dim=0, keepdim=True), high.amax(dim=0, keepdim=True)
    return (
        torch.cat([torch.where(seen, low, lowest), lowest]),
        torch.cat([torch.where(seen, high, highest), highest]),
    )


def class_deviation(values: Tensor, predicted: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute the `deviation` from the bounds of each row's predicted class.

    Parameters
    ----------
    values : Tensor of shape (n, d)
        One row per input.
    predicted : Tensor of shape (n,)
        Classes.
    low, high : Tensor of shape (c + 1, d)
        What `fill_bounds` gave.

    Returns
    -------
    Tensor of shape (n,)
        The deviations.
    """
    rows = predicted.clamp(max=len(low) - 1)
    return deviation(values, low[rows], high[rows])


def halves(rows: Tensor, seed: int) -> Tensor:
    """Assign each row to half 0 or 1 by a seeded hash of its content, however the data is cut.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        The rows.
    seed : int
        Seed of the hash.

    Returns
    -------
    Tensor of shape (n,)
        0 or 1.
    """
    return torch.from_numpy((priorities(rows.cpu().numpy(), seed) >> np.uint64(63)).astype(np.int64))


def mean_deviation(rows: Tensor, predicted: Tensor, half: Tensor, bounds: list[Extremes], few: Tensor) -> Tensor:
    """Compute the mean deviation of rows from the bounds of the half that they are not in.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        A sample.
    predicted : Tensor of shape (n,)
        Classes.
    half : Tensor of shape (n,)
        What `halves` gave.
    bounds : list of Extremes
        Bounds of either half.
    few : Tensor of bool of shape (c,)
        Classes whose own bounds are not used.

    Returns
    -------
    Tensor
        A number above 0; 1 when none deviates.
    """
    found = [torch.zeros(0, dtype=torch.float64)]
    for mine, other in enumerate(reversed(bounds)):
        if other.low.numel():
            chosen = half == mine
            found.append(class_deviation(rows[chosen], predicted[chosen], *fill_bounds(other.low, other.high, few)))
    mean = torch.cat(found).sum() / max(len(rows), 1)
    return torch.where(mean > 0, mean, 1.0)


@register
class Gram(Score):
    """Minus how far the feature correlations of an input, layer by layer, leave the range seen for its predicted class.

    Parameters
    ----------
    layers : tuple of str, default=()
        Names of inner layers, as ``net.layers()`` lists them. Fitting and scoring need their Gram matrices: extract
        with ``requirements=detector.requirements``.
    powers : int, default=10
        Gram matrices of the powers 1 to this.
    seed : int, default=0
        Seed of the halves and of the sample.

    Notes
    -----
    The layers' deviations are each divided by their mean on known inputs that did not set the ranges. The paper takes
    validation data for it. Here known inputs are halved by a hash, and a sample of 1,000 is compared with the ranges of
    the half that each is not in: one reading of one set is enough, and all of it sets the ranges used for scoring.

    A range over few inputs is far too narrow. Classes that were predicted for fewer than 10 known inputs take the
    widest range of all classes, with a warning.
    """

    name = "gram"
    paper = "Sastry & Oore, Detecting Out-of-Distribution Examples with Gram Matrices, ICML 2020"
    reads = ("logits",)
    fits = ("logits",)
    shown = ("layers",)
    example = "gram(['features.5', 'features.8'])"
    invariant_to_shift = True

    layers: tuple[str, ...] = ()
    powers: int = 10
    seed: int = 0

    def check(self) -> None:
        """Require at least one layer, at least one power."""
        rule = f"list the layers to look at, as in {self.example}; net.layers() names them"
        self.require(len(self.layers) > 0, "layers", rule)
        self.number("powers", 1, float("inf"), "the highest power is at least 1")

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the Gram matrices of the layers."""
        return tuple(self._requested)

    @property
    def _requested(self) -> list[Layer]:
        return [Layer(layer, "gram", self.powers) for layer in self.layers]

    def _sums(self, block: ActivationBatch) -> list[Tensor]:
        return [block.extra(layer.key).flatten(1) for layer in self._requested]

    def statistics(self) -> Mapping[str, Statistic]:
        """Return, for each layer, ranges per predicted class in either half and a sample."""
        made: dict[str, Statistic] = {}
        for place in range(len(self.layers)):
            made |= {f"bounds{place}-{half}": Extremes() for half in (0, 1)}
            made[f"sample{place}"] = RowSample(SAMPLE, seed=self.seed)
        return made | {"counts": ClassMoments(scatter=False)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Widen the ranges of each input's half."""
        predicted = block.logits.argmax(dim=1)
        statistics["counts"].update(torch.ones(len(block), 1), predicted.cpu())
        for place, sums in enumerate(self._sums(block)):
            half = halves(sums, self.seed + 1).to(sums.device)
            for mine in (0, 1):
                statistics[f"bounds{place}-{mine}"].update(sums[half == mine], predicted[half == mine])
            statistics[f"sample{place}"].update(sums, predicted=predicted)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return ranges for every class, and the mean deviation of each layer."""
        state: State = {}
        few = self._find_few(statistics["counts"].counts)
        for place in range(len(self.layers)):
            bounds = [statistics[f"bounds{place}-{half}"] for half in (0, 1)]
            rows, predicted = statistics[f"sample{place}"].rows, statistics[f"sample{place}"].companion("predicted")
            state[f"mean{place}"] = mean_deviation(rows, predicted, halves(rows, self.seed + 1), bounds, few)
            both = Extremes()
            for part in bounds:
                both.merge(part)
            state[f"low{place}"], state[f"high{place}"] = fill_bounds(both.low, both.high, few)
        return state

    def _find_few(self, counts: Tensor) -> Tensor:
        """Find the classes that were predicted for too few inputs, and say so."""
        few = counts < ENOUGH
        if bool(few.any()):
            warnings.warn(
                f"{self}: {int(few.sum())} of {len(few)} classes were predicted for fewer than {ENOUGH} known inputs; "
                "the widest range of all classes stands in for theirs",
                OffmapWarning,
                stacklevel=2,
            )
        return few

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the sum of the layers' deviations, each over its mean."""
        predicted = block.logits.argmax(dim=1)
        total = torch.zeros(len(block), dtype=torch.float64, device=block.device)
        for place, sums in enumerate(self._sums(block)):
            away = class_deviation(sums, predicted, ready[f"low{place}"], ready[f"high{place}"])
            total -= away / ready[f"mean{place}"]
        return total


@register
class RankFeat(Score):
    """Energy of the pass in which the leading singular component of a feature map is taken away.

    Parameters
    ----------
    layer : str, default=""
        The name of the layer that gives the feature map, as ``net.layers()`` lists it; the paper takes the last stages
        of the network. Scoring needs a pass of its own: extract with ``requirements=detector.requirements``.
    temperature : float, default=1.0
        Temperature of the energy.
    """

    name = "rankfeat"
    paper = "Song, Sebe & Wang, RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection, NeurIPS 2022"
    reads = ("logits",)
    shown = ("layer",)
    example = "rankfeat('features.8')"
    invariant_to_shift = False

    layer: str = ""
    temperature: float = 1.0

    def check(self) -> None:
        """Require a layer and a positive temperature."""
        rule = f"name the layer that gives the feature map, as in {self.example}; net.layers() lists them"
        self.require(self.layer != "", "layer", rule)
        self.number("temperature", 0, float("inf"), "the temperature must be above 0", open_low=True)

    @property
    def _edited(self) -> Edited:
        return Edited(self.layer, RemoveRank1())

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the pass without the leading component."""
        return (self._edited,)

    @property
    def own_pass(self) -> bool:
        """Always."""
        return True

    def view(self, block: ActivationBatch, state: State) -> ActivationBatch:
        """Return the pass without the leading component."""
        return block.seen_in(self._edited)

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the energy."""
        return energy(block.logits, self.temperature)
