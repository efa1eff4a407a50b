"""Scores by Gaussian distance: Mahalanobis, with one covariance for all classes, and its relatives RMDS and SSD."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics, digest
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import ClassMoments, Statistic
from offmap.errors import OffmapWarning
from offmap.extra_passes import Perturbed, Request
from offmap.neighbors.vectors import unit

CUTOFF = 1e-15  # NumPy's cut for the pseudo-inverse, relative to the largest eigenvalue
FLOAT32_CONDITION = 1e8  # up to here whitened coordinates keep four digits in float32


def whitening(covariance: Tensor) -> Tensor:
    """R with R Rᵀ the pseudo-inverse of a covariance: a Mahalanobis distance is the length of (x - μ) R.

    Directions whose variance is below NumPy's cut-off are left out, as the pseudo-inverse does, with a warning that
    says how many: an unknown input that differs from known ones only there goes unnoticed. The result is
    float32, which is what scoring multiplies in, unless the covariance is so ill-conditioned that it must be float64.

    Examples
    --------
    >>> whitening(torch.diag(torch.tensor([4.0, 16.0], dtype=torch.float64))).abs()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > CUTOFF * values.abs().max()
    if not bool(kept.all()):
        warnings.warn(
            f"the covariance is singular: {int((~kept).sum())} of {len(kept)} directions have no variance among the "
            "known inputs and are left out; give more inputs, or a shrinkage above 0 to keep them",
            OffmapWarning,
            stacklevel=2,
        )
    root = vectors[:, kept] / values[kept].sqrt()
    condition = values[kept].max() / values[kept].min() if bool(kept.any()) else torch.tensor(1.0)
    return root.float() if condition <= FLOAT32_CONDITION else root


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """(1 - s)·Σ + s·(trace Σ / D)·I."""
    width = len(covariance)
    scale = torch.trace(covariance) / width
    return (1 - shrinkage) * covariance + shrinkage * scale * torch.eye(width, dtype=covariance.dtype)


def _whitened(features: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    root = state["root"]
    return torch.addmm(-state["centre"] @ root, features.to(root.dtype), root)


def nearest_squared_distance(features: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """The squared distance to the nearest class mean.

    Distances are taken about the mean of all inputs, so that float32 keeps its digits where features are far from 0.
    """
    whitened = _whitened(features, state)
    # addmm: one product with the norms already in place, then a maximum that reads it once
    half = torch.addmm(state["half_norms"], whitened, state["whitened_means"].T)
    return (whitened.square().sum(dim=1) - 2 * half.amax(dim=1)).clamp(min=0)


def gaussian_state(moments: ClassMoments, covariance: Tensor) -> State:
    """What scoring needs: the whitening, and the class means whitened by it."""
    root = whitening(covariance.cpu())
    centre = moments.mean.cpu()
    means = (moments.means[moments.present].cpu() - centre) @ root.double()
    return {
        "root": root,
        "centre": centre.to(root.dtype),
        "whitened_means": means.to(root.dtype),
        "half_norms": (-means.square().sum(dim=1) / 2).to(root.dtype),
    }


class _ClassGaussians(Score):
    """A score from the class means of features and their scatter."""

    reads = ("features",)
    fits = ("features", "labels")

    def statistics(self) -> Mapping[str, Statistic]:
        """Start class means and one scatter."""
        return {"moments": ClassMoments()}

    def statistics_key(self) -> str:
        """Return the same for the whole family."""
        return "class moments"

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features of labelled inputs."""
        statistics["moments"].update(block.features, block.labels)


@register
class Mahalanobis(_ClassGaussians):
    """Minus the squared Mahalanobis distance to the nearest class mean, with one covariance tied over the classes.

    Parameters
    ----------
    shrinkage
        Share of a multiple of the identity mixed into the covariance.
    epsilon
        Length of a gradient step on the input towards the nearest class before scoring; 0 for none. With it, scoring
        needs a pass of its own: extract with ``requirements=detector.requirements`` once the detector is fitted.
    """

    name = "mahalanobis"
    paper = "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples, NeurIPS 2018"
    reads = ("features",)
    fits = ("features", "labels")

    shrinkage: float = 0.0
    epsilon: float = 0.0

    def check(self) -> None:
        """Bounds of both."""
        self.number("shrinkage", 0, 1, "the share of the identity must be between 0 and 1")
        self.number("epsilon", 0, float("inf"), "the length of the step must not be negative")

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Whitened means."""
        moments = statistics["moments"]
        return gaussian_state(moments, shrunk(moments.tied_covariance().cpu(), self.shrinkage))

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Minus the squared distance."""
        return -nearest_squared_distance(block.features, ready)

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """The perturbed pass, once there are class means to step towards."""
        if self.epsilon == 0 or not state:
            return ()

        def closeness(features: Tensor, logits: Tensor) -> Tensor:
            on_device = {name: tensor.to(features.device) for name, tensor in state.items()}
            return -nearest_squared_distance(shape(ActivationBatch(features, logits)).features, on_device)

        return (Perturbed(self.epsilon, closeness, self._pass_name(state)),)

    @property
    def own_pass(self) -> bool:
        """Only with a step."""
        return self.epsilon > 0

    def view(self, block: ActivationBatch, state: State) -> ActivationBatch:
        """The perturbed pass."""
        if self.epsilon == 0:
            return block
        return block.seen_in(Perturbed(self.epsilon, lambda f, _: f, self._pass_name(state)))

    def _pass_name(self, state: State) -> str:
        return f"mahalanobis-{digest(state)}"


@register
class RMDS(_ClassGaussians):
    """Mahalanobis distance relative to that from one Gaussian for all classes together."""

    name = "rmds"
    paper = "Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021"
    reads = ("features",)
    fits = ("features", "labels")

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Whitened means, and the whitening of all inputs."""
        moments = statistics["moments"]
        state = gaussian_state(moments, moments.tied_covariance()) | {
            "background": whitening(moments.covariance().cpu())
        }
        return {name: tensor.double() for name, tensor in state.items()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """The background's squared distance less the nearest class's, in float64: the two are nearly equal."""
        centred = block.features.double() - ready["centre"]
        background = (centred @ ready["background"]).square().sum(dim=1)
        return background - nearest_squared_distance(block.features, ready)


@register
class SSD(Score):
    """Mahalanobis distance on normalised features, as used on contrastively trained networks (SSD+ in the thesis).

    Without labels all known inputs are one Gaussian.
    """

    name = "ssd"
    paper = (
        "Sehwag, Chiang & Mittal, SSD: Self-Supervised Outlier Detection, ICLR 2021; thesis, section 5.3.1, table 5.1"
    )
    reads = ("features",)
    fits = ("features",)

    def statistics(self) -> Mapping[str, Statistic]:
        """Class means and one scatter."""
        return {"moments": ClassMoments()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add normalised features."""
        statistics["moments"].update(unit(block.features), block.labels)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Whitened means."""
        moments = statistics["moments"]
        return gaussian_state(moments, moments.tied_covariance())

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Minus the squared distance."""
        return -nearest_squared_distance(unit(block.features), ready)
