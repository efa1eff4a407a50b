"""GROOD: the gradient that an input sends to a prototype of unknown inputs, compared with those of known inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.formulas import half_norms, kth_distance
from offmap.detection.registry import register
from offmap.detection.statistics import ClassMoments, RowSample, Statistic
from offmap.errors import OffmapWarning
from offmap.neighbors import Bank
from offmap.neighbors.vectors import unit

BANK = 50_000
FEW = 10  # inputs of each of two classes below which the point between their means says little


def prototype_gradients(features: Tensor, prototypes: Tensor, outside: Tensor) -> Tensor:
    """Return the gradient of the nearest-prototype cross-entropy with respect to the unknown prototype, closed form.

    With scores -‖h - m_c‖ over the class prototypes and the unknown one o, the gradient of the cross-entropy of a known
    class with respect to o is p_o · (h - o) / ‖h - o‖, p_o the softmax probability of o.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        h.
    prototypes : Tensor of shape (c, d)
        m, one per class.
    outside : Tensor of shape (d,)
        o, the unknown prototype.

    Returns
    -------
    Tensor of shape (n, d)
        The gradients.

    Examples
    --------
    >>> prototype_gradients(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 9.0]]), torch.zeros(2))
    tensor([[0.3000, 0.4000]])
    """
    everyone = torch.cat([prototypes, outside[None]])
    squared = features.square().sum(dim=1, keepdim=True) + everyone.square().sum(dim=1) - 2 * features @ everyone.T
    probability = torch.softmax(-squared.clamp(min=0).sqrt(), dim=1)[:, -1:]
    return probability * unit(features - outside)


@register
class GROOD(Score):
    """Minus the distance from an input's prototype gradient to the nearest one of known inputs.

    Notes
    -----
    The unknown prototype is the mean of the class means, one of the authors' choices and the one that needs no pictures
    made for the purpose. At most 50,000 known inputs, chosen by a seeded hash, are kept.
    """

    name = "grood"
    paper = "ElAraby et al., GROOD: GRadient-Aware Out-of-Distribution Detection, TMLR 2025"
    reads = ("features",)
    fits = ("features", "labels")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return empty class means and an empty sample of features."""
        return {"means": ClassMoments(scatter=False), "sample": RowSample(size=BANK)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features of labelled inputs."""
        statistics["means"].update(block.features, block.labels)
        statistics["sample"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the prototypes and the gradients of known inputs."""
        moments = statistics["means"]
        prototypes = moments.means[moments.present].float().cpu()
        outside = prototypes.mean(dim=0)
        count = float(moments.counts.sum())
        if len(prototypes) <= 2 and count < FEW * len(prototypes):
            warnings.warn(
                f"{self}: with {count:.0f} inputs of {len(prototypes)} classes the unknown prototype "
                f"means little, and unknown inputs may count as known; give {FEW} inputs of each, or take knn",
                OffmapWarning,
                stacklevel=2,
            )
        return {
            "prototypes": prototypes,
            "outside": outside,
            "gradients": prototype_gradients(statistics["sample"].rows, prototypes, outside),
        }

    def prepare(self, state: State) -> tuple[Bank, State]:
        """Return the bank of gradients beside the prototypes."""
        return Bank.of(state["gradients"].cpu().numpy(), normalize=False), state

    def score(self, block: ActivationBatch, ready: tuple[Bank, State]) -> Tensor:
        """Return minus the distance."""
        bank, state = ready
        gradients = prototype_gradients(block.features, state["prototypes"], state["outside"])
        return -torch.from_numpy(bank.kth_distance(gradients.cpu().numpy(), 1))

    def formula(self, state: State) -> Callable[[ActivationBatch], Tensor]:
        """Return the same by one product with all gradients."""
        rows: Any = state["gradients"]
        norms = half_norms(rows, 1)
        return lambda block: (
            -kth_distance(prototype_gradients(block.features, state["prototypes"], state["outside"]), rows, norms, 1)
        )
