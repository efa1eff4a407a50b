"""Gaussian distances at several layers, weighed on known inputs and attacked copies of them (Lee et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offmap.detection.base import State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.statistics import ClassMoments, RowSample, Statistic
from offmap.errors import InputError
from offmap.extra_passes import Layer, Perturbed, Request
from offmap.sampling import priorities

SAMPLE = 1000
HELD_OUT = 0.2  # of known inputs; distances of inputs that set the means would be too short
FEWEST = 10

Distance = Callable[[Tensor, State], Tensor]


def predicted_loss(features: Tensor, logits: Tensor) -> Tensor:
    """Compute the cross-entropy of the predicted class, what the attack climbs.

    Parameters
    ----------
    features : Tensor
        Not read.
    logits : Tensor of shape (n, c)
        Logits.

    Returns
    -------
    Tensor of shape (n,)
        One number per input.

    Examples
    --------
    >>> round(predicted_loss(torch.zeros(1, 1), torch.zeros(1, 2)).item(), 4)
    0.6931
    """
    return torch.logsumexp(logits, dim=1) - logits.amax(dim=1)


def fit_weights(known: Tensor, attacked: Tensor) -> Tensor:
    """Fit a logistic regression that tells known inputs from attacked ones by their distances.

    Parameters
    ----------
    known, attacked : Tensor of shape (n, layers)
        Minus the squared distance at each layer.

    Returns
    -------
    Tensor of shape (layers,)
        What each distance is multiplied by; a known input has the larger sum.

    Examples
    --------
    >>> near, far = -torch.rand(50, 2), torch.stack([-torch.rand(50), -5 - torch.rand(50)], dim=1)
    >>> weights = fit_weights(near, far)
    >>> bool(weights[1] > weights[0].abs())
    True
    """
    from sklearn.linear_model import LogisticRegression

    scale = known.abs().mean(dim=0).clamp(min=1e-12)
    rows = (torch.cat([known, attacked]) / scale).double().numpy()
    truth = np.repeat([1, 0], [len(known), len(attacked)])
    fitted = LogisticRegression(max_iter=1000).fit(rows, truth)
    return torch.from_numpy(fitted.coef_[0]) / scale.double()


@dataclass(frozen=True)
class LayeredGaussians:
    """Gaussians at several layers and the weights of their distances.

    Parameters
    ----------
    layers : tuple of str
        Inner layers; the features are looked at as well, last.
    attack : float
        Length of the attack's step.
    scale : tuple of float or None
        Standard deviations per channel by which it is divided.
    """

    layers: tuple[str, ...]
    attack: float
    scale: tuple[float, ...] | None

    @property
    def _requested(self) -> tuple[Layer, ...]:
        return tuple(map(Layer, self.layers))

    @property
    def _attacked(self) -> Perturbed:
        scale = None if self.scale is None else tuple(map(float, self.scale))
        name = f"attack-{'+'.join(self.layers)}"
        return Perturbed(self.attack, predicted_loss, name, sign_zero=0, scale=scale, layers=self._requested)

    def requests(self, fitted: bool) -> tuple[Request, ...]:
        """Return the layers, and before fitting the attacked pass."""
        return self._requested if fitted else (*self._requested, self._attacked)

    def statistics(self) -> Mapping[str, Statistic]:
        """Return moments of every layer and of the features, and a sample of inputs that are in none of them."""
        return {name: ClassMoments() for name in self._names} | {"sample": RowSample(SAMPLE)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Send a fifth of the inputs, by a hash of their features, to the sample, the others to the moments."""
        columns = self._columns(block)
        order = priorities(block.features.cpu().numpy(), 1)
        held_out = torch.from_numpy(order < np.uint64(HELD_OUT * 2.0**64)).to(block.device)
        for name, values in zip(self._names, columns, strict=True):
            labels = None if block.labels is None else block.labels[~held_out]
            statistics[name].update(values[~held_out], labels)
        if bool(held_out.any()):
            request = self._attacked
            inner = [block.extra(request.layer_output(layer)).flatten(1) for layer in self._requested]
            struck = torch.cat([*inner, block.extra(request.outputs[0])], dim=1)
            statistics["sample"].update(torch.cat(columns, dim=1)[held_out], attacked=struck[held_out])

    def solve(self, statistics: Statistics, solve_one: Callable[[ClassMoments], State], distance: Distance) -> State:
        """Return the Gaussians of every layer and the weights of their distances."""
        state: State = {}
        for place, name in enumerate(self._names):
            state |= {f"{key}-{place}": value for key, value in solve_one(statistics[name]).items()}
        known = statistics["sample"].rows
        if len(known) < FEWEST:
            raise InputError(
                f"mahalanobis(layers={list(self.layers)}): a fifth of the known inputs weighs the layers, which is "
                f"{len(known)}; {FEWEST} are needed, so fit on about {int(FEWEST / HELD_OUT) + 20} or more"
            )
        attacked = statistics["sample"].companion("attacked")
        widths = [len(statistics[name].mean) for name in self._names]
        both = [
            torch.stack(
                [-distance(part, _of_layer(state, place)) for place, part in enumerate(rows.split(widths, dim=1))],
                dim=1,
            )
            for rows in (known, attacked)
        ]
        return state | {"weights": fit_weights(*both)}

    def score(self, block: ActivationBatch, ready: State, distance: Distance) -> Tensor:
        """Return the weighed sum of minus the distances."""
        total = torch.zeros(len(block), dtype=torch.float64, device=block.device)
        for place, values in enumerate(self._columns(block)):
            total -= ready["weights"][place] * distance(values, _of_layer(ready, place)).double()
        return total

    @property
    def _names(self) -> list[str]:
        return [*(f"moments{place}" for place in range(len(self.layers))), "moments"]

    def _columns(self, block: ActivationBatch) -> list[Tensor]:
        return [*(block.extra(layer.key).flatten(1) for layer in self._requested), block.features]


def _of_layer(state: State, place: int) -> State:
    return {key.removesuffix(f"-{place}"): value for key, value in state.items() if key.endswith(f"-{place}")}
