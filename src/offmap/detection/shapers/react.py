"""Rectified activations: ReAct and its two-sided relative VRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from offmap.detection.base import Context, Shaper, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.quantiles import Quantile
from offmap.detection.registry import register
from offmap.detection.statistics import Statistic
from offmap.errors import InputError
from offmap.extra_passes import Clamp, Edited, Layer, Request


def rectify(features: Tensor, c: Tensor | float) -> Tensor:
    """Compute min(h, c), element by element (thesis, chapter 3, section 3.2, eq. 3.2).

    Parameters
    ----------
    features : Tensor
        h.
    c : Tensor or float
        The threshold.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> rectify(torch.tensor([0.5, 3.0]), 1.0)
    tensor([0.5000, 1.0000])
    """
    return features.clamp(max=float(c))


def vra(features: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Set activations below `low` to 0 and cut those above `high` to it (Xu et al. 2023, eq. 10).

    Parameters
    ----------
    features : Tensor
        The activations.
    low, high : Tensor or float
        The thresholds.

    Returns
    -------
    Tensor
        The result, of the same shape.

    Examples
    --------
    >>> vra(torch.tensor([0.2, 0.5, 3.0]), 0.4, 1.0)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.where(features < float(low), torch.zeros_like(features), features.clamp(max=float(high)))


@register
class ReAct(Shaper):
    """Cuts activations above c, the percentile of the activations of known inputs, over all units.

    Parameters
    ----------
    percentile : float or "auto", default=90
        Which percentile; exact in `fit`, to a relative 6e-5 when data streams by once. No one value fits all networks:
        ``auto`` chooses by validation.
    c : float, optional
        The threshold itself, instead of a percentile.
    layer : str, optional
        A named inner layer to cut at, instead of the penultimate features. Then scoring needs a pass of its own:
        extract with ``requirements=detector.requirements``.
    """

    name = "react"
    paper = (
        "Sun, Guo & Li, ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021; "
        "thesis, chapter 3"
    )
    reads = ("features", "head")
    shown = ("percentile",)
    grid = {"percentile": (10, 65, 80, 85, 90, 95, 99)}  # thesis, section 3.3.1, table 3.2
    shapes = "features"

    percentile: float | Literal["auto"] = 90
    c: float | None = None
    layer: str | None = None

    @property
    def fits(self) -> tuple[str, ...]:  # type: ignore[override]  # a given threshold needs no data
        """Features, unless the threshold is given."""
        return () if self.c is not None else ("features",)

    def check(self) -> None:
        """Check the bounds of the percentile, which a given threshold takes the place of."""
        if self.c is not None and self.percentile != type(self).percentile:
            raise InputError(f"react({self.percentile}, c={self.c}): give a percentile or a threshold, not both")
        self.number("percentile", 0, 100, "the percentile must be between 0 and 100")

    def text_arguments(self) -> dict[str, Any]:
        """Return the printed parameters; a given threshold takes the percentile's place."""
        shown = super().text_arguments()
        if self.c is not None:
            shown.pop("percentile")
        return shown

    def statistics(self) -> Mapping[str, Statistic]:
        """Return the percentile of all activations."""
        if self.c is not None or self.percentile == "auto":
            return {}
        return {"activations": Quantile((self.percentile,))}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Count activations."""
        values = block.features if self.layer is None else block.extra(self._sketch.key)
        statistics["activations"].update(values)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the threshold."""
        c = self.c if self.c is not None else statistics["activations"].values()[0]
        return {"c": torch.tensor(c, dtype=torch.float64)}

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """Cut; an inner layer was cut in the pass that `view` takes."""
        return block if self.layer is not None else block.with_features(rectify(block.features, ready["c"]))

    @property
    def _sketch(self) -> Layer:
        assert self.layer is not None
        return Layer(self.layer, "sketch")

    def _edited(self, state: State) -> Edited:
        assert self.layer is not None
        return Edited(self.layer, Clamp(float(state["c"])))

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return, for an inner layer, its activations to fit on, then a pass cut at the threshold."""
        if self.layer is None:
            return ()
        if state:
            return (self._edited(state),)
        return (self._sketch,) if self.c is None else (Edited(self.layer, Clamp(float(self.c))),)

    @property
    def own_pass(self) -> bool:
        """Only for an inner layer."""
        return self.layer is not None

    def view(self, block: ActivationBatch, state: State) -> ActivationBatch:
        """Return the pass cut at the inner layer."""
        return block if self.layer is None else block.seen_in(self._edited(state))


@register
class VRA(Shaper):
    """Suppresses weak activations to 0 and cuts strong ones, at two percentiles of the activations of known inputs.

    Parameters
    ----------
    low, high : float, default=60 and 95
        The percentiles.
    """

    name = "vra"
    paper = "Xu et al., VRA: Variational Rectified Activation for Out-of-distribution Detection, NeurIPS 2023"
    reads = ("features", "head")
    fits = ("features",)
    shown = ("low", "high")
    shapes = "features"

    low: float = 60
    high: float = 95

    def check(self) -> None:
        """Check the bounds of the percentiles."""
        self.number("low", 0, 100, "the percentile must be between 0 and 100")
        self.number("high", self.low, 100, "the percentile must be between the low one and 100")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return both percentiles of all activations."""
        return {"activations": Quantile((self.low, self.high))}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Count activations."""
        statistics["activations"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return both thresholds."""
        return {"bounds": torch.tensor(statistics["activations"].values(), dtype=torch.float64)}

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """Suppress and cut."""
        low, high = ready["bounds"].tolist()
        return block.with_features(vra(block.features, low, high))
