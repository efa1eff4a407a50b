"""Scores of heads that were trained for detection: GODIN's h and g, and "others" of the group softmax of MOS.

``learn(…, objective="godin").known_network`` has such a head, and so may a network of your own: name the layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from offmap.detection.base import Score, State
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.extra_passes import Layer, Request


class _HeadLayer(Score):
    """A score of what one layer of the head says; extract with ``requirements=detector.requirements``."""

    layer: str = ""

    def check(self) -> None:
        """Require a layer."""
        self.require(self.layer != "", "layer", f"name the layer, as in {self.example}; net.layers() lists them")

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the layer."""
        return (Layer(self.layer, "flat"),)

    def _values(self, block: ActivationBatch) -> Tensor:
        return block.extra(Layer(self.layer, "flat").key).flatten(1)


@register
class GodinH(_HeadLayer):
    """The largest h of GODIN's head: the cosine with the nearest known class.

    Parameters
    ----------
    layer : str, default="known_head.h"
        The layer that gives h, as ``net.layers()`` lists it.
    """

    name = "godin_h"
    paper = (
        "Hsu et al., Generalized ODIN: Detecting Out-of-Distribution Image without Learning from OOD Data, CVPR 2020"
    )
    example = "godin_h(layer='features.8')"

    layer: str = "known_head.h"

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the largest."""
        return self._values(block).amax(dim=1)


@register
class GodinG(_HeadLayer):
    """The gate g of GODIN's head, the learned probability of being known.

    Parameters
    ----------
    layer : str, default="known_head.g"
        The layer that gives g, one number per input.
    """

    name = "godin_g"
    paper = (
        "Hsu et al., Generalized ODIN: Detecting Out-of-Distribution Image without Learning from OOD Data, CVPR 2020"
    )
    example = "godin_g(layer='features.8')"

    layer: str = "known_head.g"

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the gate; of several numbers their mean."""
        return self._values(block).mean(dim=1)


@register
class MinimumOthers(_HeadLayer):
    """Minus the smallest probability of "others" over the groups of a group softmax (minimum others score, MOS).

    Parameters
    ----------
    layer : str, default="known_head.others"
        The layer that gives the probability of "others" in each group.
    """

    name = "mos"
    paper = "Huang & Li, MOS: Towards Scaling Out-of-distribution Detection for Large Semantic Space, CVPR 2021"
    example = "mos(layer='features.8')"

    layer: str = "known_head.others"

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the smallest."""
        return -torch.amin(self._values(block), dim=1)
