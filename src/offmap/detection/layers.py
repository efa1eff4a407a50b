"""Scores that look at named inner layers of the network: Gram matrices and RankFeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.block import Block
from offmap.detection.logits import energy
from offmap.detection.registry import register
from offmap.detection.statistics import Extremes, Rows, Statistic
from offmap.errors import InputError
from offmap.requests import Edited, Layer, RemoveRank1, Request
from offmap.sampling import priorities

HELD_OUT = 0.1
SAMPLE = 1000
TINY = 1e-6  # keeps a bound of 0 from dividing, as in the authors' code


def deviation(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How far values lie outside their bounds, each relative to the bound, summed over columns (Sastry & Oore, eq. 3).

    Examples
    --------
    >>> bounds = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    >>> round(deviation(torch.tensor([[0.5, 3.0]]), *bounds).item(), 3)
    1.0
    """
    below = (low - values).clamp(min=0).double() / (low.abs() + TINY)
    above = (values - high).clamp(min=0).double() / (high.abs() + TINY)
    return (below + above).sum(dim=1)


def filled_bounds(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of every class, and in a last row the widest of all, which classes that were never predicted take too.

    Examples
    --------
    >>> low, high = filled_bounds(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [4.0]]))
    >>> low.tolist(), high.tolist()
    ([[1.0], [3.0], [1.0]], [[2.0], [4.0], [4.0]])
    """
    seen = torch.isfinite(low).all(dim=1, keepdim=True)
    lowest, highest = low.amin(dim=0, keepdim=True), high.amax(dim=0, keepdim=True)
    return (
        torch.cat([torch.where(seen, low, lowest), lowest]),
        torch.cat([torch.where(seen, high, highest), highest]),
    )


def class_deviation(values: Tensor, predicted: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`deviation` from the bounds of each row's predicted class, as `filled_bounds` gives them."""
    rows = predicted.clamp(max=len(low) - 1)
    return deviation(values, low[rows], high[rows])


def held_out(rows: Tensor, share: float, seed: int) -> Tensor:
    """Which rows to hold out, by a seeded hash of their content: the same ones however the data is cut."""
    chosen = priorities(rows.cpu().numpy(), seed) < np.uint64(share * 2**64)
    return torch.from_numpy(chosen).to(rows.device)


@register
class Gram(Score):
    """Minus how far the feature correlations of an input, layer by layer, leave the range seen for its predicted class.

    Parameters
    ----------
    layers
        Names of inner layers, as ``net.layers()`` lists them. Fitting and scoring need their Gram matrices: extract
        with ``needs=detector.needs``.
    powers
        Gram matrices of the powers 1 to this.
    seed
        Of the choice of held-out inputs.

    Notes
    -----
    The layers' deviations are each divided by their mean on known inputs that did not set the ranges. The paper takes
    validation data; here a tenth of the known inputs, chosen by a hash, is held out for it (at most 1,000 are kept), so
    that one reading of one set is enough. A layer on which none of them deviates counts as it is.
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
        """At least one layer, at least one power."""
        rule = f"list the layers to look at, as in {self.example}; net.layers() names them"
        self.require(len(self.layers) > 0, "layers", rule)
        self.number("powers", 1, float("inf"), "the highest power is at least 1")

    def requests(self, state: State | None, shape: Callable[[Block], Block]) -> tuple[Request, ...]:
        """The Gram matrices of the layers."""
        return tuple(self._requested)

    @property
    def _requested(self) -> list[Layer]:
        return [Layer(layer, "gram", self.powers) for layer in self.layers]

    def _sums(self, block: Block) -> list[Tensor]:
        return [block.extra(layer.key).flatten(1) for layer in self._requested]

    def statistics(self) -> Mapping[str, Statistic]:
        """Per layer: ranges per predicted class, and a sample of held-out inputs."""
        bounds = {f"bounds{place}": Extremes() for place in range(len(self.layers))}
        return {**bounds, **{f"held{place}": Rows(SAMPLE, seed=self.seed) for place in range(len(self.layers))}}

    def observe(self, statistics: Statistics, block: Block) -> None:
        """Widen the ranges, or keep a held-out input."""
        predicted = block.logits.argmax(dim=1)
        for place, sums in enumerate(self._sums(block)):
            apart = held_out(sums, HELD_OUT, self.seed + 1)
            statistics[f"bounds{place}"].update(sums[~apart], predicted[~apart])
            statistics[f"held{place}"].update(sums[apart], predicted=predicted[apart])

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Ranges for every class, and the mean deviation of each layer."""
        state: State = {}
        for place in range(len(self.layers)):
            bounds, held = statistics[f"bounds{place}"], statistics[f"held{place}"]
            if bounds.low.numel() == 0:
                raise InputError(f"{self}: too few known inputs to set ranges; fit on more")
            low, high = filled_bounds(bounds.low, bounds.high)
            mean = torch.zeros((), dtype=torch.float64)
            if len(held.rows):
                mean = class_deviation(held.rows, held.companion("predicted"), low, high).mean()
            state |= {f"low{place}": low, f"high{place}": high, f"mean{place}": torch.where(mean > 0, mean, 1.0)}
        return state

    def score(self, block: Block, ready: State) -> Tensor:
        """Minus the sum of the layers' deviations, each over its mean."""
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
    layer
        The name of the layer that gives the feature map, as ``net.layers()`` lists it; the paper takes the last stages
        of the network. Scoring needs a pass of its own: extract with ``needs=detector.needs``.
    temperature
        Of the energy.
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
        """A layer, a temperature."""
        rule = f"name the layer that gives the feature map, as in {self.example}; net.layers() lists them"
        self.require(self.layer != "", "layer", rule)
        self.number("temperature", 0, float("inf"), "the temperature must be above 0", open_low=True)

    @property
    def _edited(self) -> Edited:
        return Edited(self.layer, RemoveRank1())

    def requests(self, state: State | None, shape: Callable[[Block], Block]) -> tuple[Request, ...]:
        """The pass without the leading component."""
        return (self._edited,)

    @property
    def own_pass(self) -> bool:
        """Always."""
        return True

    def view(self, block: Block, state: State) -> Block:
        """That pass."""
        return block.seen_in(self._edited)

    def score(self, block: Block, ready: State) -> Tensor:
        """Energy."""
        return energy(block.logits, self.temperature)
