"""OpenMax: the probability of a class that the network was never taught, by extreme value theory on its logits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import ClassMoments, RowSample, Statistic
from offmap.errors import InputError, OffmapWarning
from offmap.wording import format_count

SAMPLE = 20_000
FEW = 10  # rightly classified inputs below which a class has no distribution of its own
STEEPEST = 1e4  # the shape given to distances that are all equal
TINY = 1e-12


def fit_weibull(distances: npt.NDArray[Any]) -> tuple[float, float]:
    """Fit shape and scale of the Weibull distribution of largest likelihood, with location 0.

    Both follow from one equation in one unknown, Σ xᵏ log x / Σ xᵏ - 1/k = mean log x, which has one root.

    Parameters
    ----------
    distances : ndarray of shape (n,)
        Not negative, at least one.

    Returns
    -------
    tuple of 2 float
        Shape and scale.

    Examples
    --------
    >>> shape, scale = fit_weibull(np.array([1.0, 2.0, 3.0]))
    >>> round(shape, 3), round(scale, 3)
    (2.739, 2.259)
    """
    from scipy.optimize import brentq

    largest = float(distances.max())
    if largest <= 0:
        return STEEPEST, TINY
    x = np.maximum(np.asarray(distances, dtype=np.float64) / largest, TINY)
    logs = np.log(x)

    def equation(k: float) -> float:
        powers = x**k
        return float(powers @ logs / powers.sum() - 1 / k - logs.mean())

    shape = STEEPEST if equation(STEEPEST) <= 0 else float(brentq(equation, 1e-3, STEEPEST, xtol=1e-10))
    return shape, largest * float(np.mean(x**shape)) ** (1 / shape)


def openmax(logits: Tensor, means: Tensor, shape: Tensor, scale: Tensor, top: int) -> Tensor:
    """Compute the log-odds of being known, log (1 - P₀)/P₀ (Bendale & Boult 2016, alg. 2).

    P₀ is the probability of the unknown. The logit of the class of rank r = 1 … top is multiplied by w = 1 - (top - r +
    1)/top · F(‖v - μ‖), F the Weibull distribution of that class; what is taken away is the unknown's logit. The odds
    order inputs as P₀ does, but do not end at 0 and 1.

    Parameters
    ----------
    logits : Tensor
        Inputs × classes.
    means : Tensor
        Mean logits of each class, classes × classes.
    shape, scale : Tensor
        Shape and scale of each class's Weibull distribution; an infinite scale leaves a class as it is.
    top : int
        How many of the largest logits are revised.

    Returns
    -------
    Tensor of shape (n,)
        The log-odds.
    """
    v = logits.double()
    ranked = v.topk(top, dim=1).indices
    ranks = torch.arange(top, dtype=torch.float64, device=v.device)
    distances = torch.stack([(v - means[column]).norm(dim=1) for column in ranked.T], dim=1)
    outside = -torch.expm1(-((distances / scale[ranked]) ** shape[ranked]))
    taken = v.gather(1, ranked) * outside * (top - ranks) / top
    revised = v.scatter_add(1, ranked, -taken)
    return torch.logsumexp(revised, dim=1) - taken.sum(dim=1)


@register
class OpenMax(Score):
    """The log-odds against a class that was never taught, from logits revised by extreme value theory.

    Parameters
    ----------
    tail : int, default=20
        How many of the largest distances from the mean of a class its Weibull distribution is fitted to.
    top : int, default=10
        How many of the largest logits are revised.

    Notes
    -----
    Distances are Euclidean, taken over rightly classified known inputs, at most 20,000 of them, chosen by a hash. A
    class of which none was classified rightly is left as it is. Classes with fewer than 10 share one Weibull
    distribution of the distances in all of them, with a warning: two inputs are equally far from their mean.
    """

    name = "openmax"
    paper = "Bendale & Boult, Towards Open Set Deep Networks, CVPR 2016"
    reads = ("logits",)
    fits = ("logits", "labels")
    invariant_to_shift = False

    tail: int = 20
    top: int = 10

    def check(self) -> None:
        """Require at least one of each."""
        self.number("tail", 1, float("inf"), "at least one distance is needed")
        self.number("top", 1, float("inf"), "at least one logit is revised")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return mean logits per class, and a sample of logits."""
        return {"means": ClassMoments(scatter=False), "sample": RowSample(size=SAMPLE)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add the logits of rightly classified inputs."""
        assert block.labels is not None
        right = block.logits.argmax(dim=1) == block.labels
        logits, labels = block.logits[right], block.labels[right]
        statistics["means"].update(logits, labels)
        statistics["sample"].update(logits, labels=labels)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return means and Weibull distributions per class."""
        moments, sample = statistics["means"], statistics["sample"]
        if len(moments.counts) == 0:
            raise InputError(f"{self}: no known input was classified rightly; check that the labels are the network's")
        rows, labels = sample.rows.double(), sample.companion("labels")
        classes = rows.shape[1]
        means = torch.zeros(classes, classes, dtype=torch.float64)
        means[: len(moments.means)] = moments.means.cpu()
        shape, scale = torch.ones(classes).double(), torch.full((classes,), torch.inf).double()
        few: dict[int, Tensor] = {}
        many: list[Tensor] = []
        for c in labels.unique().tolist():
            distances = (rows[labels == c] - means[c]).norm(dim=1)
            if len(distances) < FEW:
                few[c] = distances
                continue
            farthest = distances.topk(min(self.tail, len(distances))).values
            many.append(farthest)
            shape[c], scale[c] = fit_weibull(farthest.numpy())
        if few:
            chosen = torch.tensor(list(few))
            shape[chosen], scale[chosen] = (torch.tensor(value).double() for value in self._pool(few, many))
        return {"means": means, "shape": shape, "scale": scale}

    def _pool(self, few: Mapping[int, Tensor], many: list[Tensor]) -> tuple[float, float]:
        """One distribution for classes with few inputs, of distances as a new input would have them.

        Where each of them has a single input, the far ends of the other classes have to do. Fewer than ten distances
        give none: then nothing is taken from the logits of these classes, as in a softmax.
        """
        # about a mean of n inputs, one of them is nearer than a new input by √((n - 1)/(n + 1))
        new = [own * ((len(own) + 1) / (len(own) - 1)) ** 0.5 for own in few.values() if len(own) > 1] or many
        if not new:
            raise InputError(f"{self}: no class has two rightly classified inputs, so their distances are not known")
        known = torch.cat(new)
        enough = len(known) >= FEW
        warnings.warn(
            f"{self}: {format_count(len(few), 'class', 'classes')} with fewer than {FEW} rightly classified inputs; "
            "such classes share one distribution of distances"
            + ("" if enough else f", and of {len(known)} distances there is none: it is a softmax there"),
            OffmapWarning,
            stacklevel=2,
        )
        return fit_weibull(known.numpy()) if enough else (1.0, math.inf)

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the log-odds of being known."""
        top = min(self.top, block.logits.shape[1])
        return openmax(block.logits, ready["means"], ready["shape"], ready["scale"], top)
