"""Scores by Gaussian distance: Mahalanobis, with one covariance for all classes, and its relatives RMDS and SSD."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics, digest
from offmap.detection.batch import ActivationBatch
from offmap.detection.layered import LayeredGaussians
from offmap.detection.registry import register
from offmap.detection.scores.few_inputs import background_covariance, class_covariances, is_few, tied_covariance
from offmap.detection.scores.gaussians import (
    CUTOFF,
    FLOAT32_CONDITION,
    gaussian_state,
    nearest_squared_distance,
    whitening,
)
from offmap.detection.statistics import ClassMoments, ClassScatters, Statistic
from offmap.errors import InputError, OffmapWarning
from offmap.extra_passes import Perturbed, Request
from offmap.neighbors.vectors import unit


class ClassGaussians(Score):
    """A score from the class means of features and their scatter."""

    reads = ("features",)
    fits = ("features", "labels")

    @property
    def layered(self) -> LayeredGaussians | None:
        """The Gaussians of several layers, where the method reads them; `None` for the features alone."""
        return None

    def statistics(self) -> Mapping[str, Statistic]:
        """Start class means and one scatter, of each layer where there are any."""
        return {"moments": ClassMoments()} if self.layered is None else self.layered.statistics()

    def statistics_key(self) -> Hashable:
        """Return the same for the whole family, or with layers all parameters."""
        return "class moments" if self.layered is None else self

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features of labelled inputs, or their layers."""
        if self.layered is None:
            statistics["moments"].update(block.features, block.labels)
        else:
            self.layered.observe(statistics, block)


@register
class Mahalanobis(ClassGaussians):
    """Minus the squared Mahalanobis distance to the nearest class mean, with one covariance tied over the classes.

    Parameters
    ----------
    shrinkage : float or None, default=None
        Share of a multiple of the identity mixed into the covariance. `None`: nothing with enough inputs; with few, the
        share that `offmap.detection.scores.few_inputs.optimal_shrinkage` estimates, with a warning.
    epsilon : float, default=0.0
        Length of a gradient step on the input towards the nearest class before scoring; 0 for none. With it, scoring
        needs a pass of its own: extract with ``requirements=detector.requirements`` once the detector is fitted.
    layers : tuple of str, default=()
        Add up the distances at these inner layers and at the features, weighed by a logistic regression that tells
        known inputs from attacked copies of them, as in the paper (thesis, section 3.3.1). ``net.layers()`` names them.
        Fitting needs an attacked pass and scoring the layers: extract with ``requirements=detector.requirements``.
    attack : float, default=0.05
        Only with `layers`: length of the signed step up the loss of the predicted class that makes attacked copies, in
        units of the network's input.
    scale : tuple of float or None, default=None
        Only with `layers`: one standard deviation per channel by which the attack's step is divided.
    """

    name = "mahalanobis"
    paper = "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples, NeurIPS 2018"
    reads = ("features",)
    fits = ("features", "labels")

    shrinkage: float | None = None
    epsilon: float = 0.0
    layers: tuple[str, ...] = ()
    attack: float = 0.05
    scale: tuple[float, ...] | None = None

    def check(self) -> None:
        """Check the bounds."""
        check_shrinkage(self)
        self.number("epsilon", 0, float("inf"), "the length of the step must not be negative")
        self.number("attack", 0, float("inf"), "the length of the attack's step must be above 0", open_low=True)
        either = not self.layers or self.epsilon == 0
        self.require(either, "epsilon", "with layers there is no input step; give one of the two")

    @property
    def layered(self) -> LayeredGaussians | None:
        """The Gaussians of the named layers; `None` without layers."""
        return LayeredGaussians(self.layers, self.attack, self.scale) if self.layers else None

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return whitened means, and with layers their weights."""
        if self.layered is not None:
            return self.layered.solve(statistics, self._solve_one, nearest_squared_distance)
        return self._solve_one(statistics["moments"])

    def _solve_one(self, moments: ClassMoments) -> State:
        return gaussian_state(moments, tied_covariance(moments, self.shrinkage, repr(self)))

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the squared distance, or the weighed sum over layers."""
        if self.layered is not None:
            return self.layered.score(block, ready, nearest_squared_distance)
        return -nearest_squared_distance(block.features, ready)

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the layers, and the attacked pass to fit on; or the pass with an input step, once there are means."""
        if self.layered is not None:
            return self.layered.requests(fitted=state is not None)
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
        """Return the perturbed pass."""
        if self.epsilon == 0:
            return block
        return block.seen_in(Perturbed(self.epsilon, lambda f, _: f, self._pass_name(state)))

    def _pass_name(self, state: State) -> str:
        return f"mahalanobis-{digest(state)}"


@register
class RMDS(ClassGaussians):
    """Mahalanobis distance relative to that from one Gaussian for all classes together.

    Where no class has two inputs, or two classes have few, the Gaussians cannot be told apart, and it is the plain
    distance: between two means, a single direction that few inputs give would decide.

    Parameters
    ----------
    shrinkage : float or None, default=None
        Share of a multiple of the identity mixed into both covariances; see `Mahalanobis`.
    """

    name = "rmds"
    paper = "Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021"
    reads = ("features",)
    fits = ("features", "labels")

    shrinkage: float | None = None

    def check(self) -> None:
        """Refuse a share outside 0 to 1."""
        check_shrinkage(self)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return whitened means, and the whitening of all inputs."""
        return relative_state(statistics["moments"], self.shrinkage, repr(self))

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the background's squared distance less the nearest class's, in float64: the two are nearly equal."""
        centred = block.features.double() - ready["centre"]
        background = (centred @ ready["background"]).square().sum(dim=1)
        return background - nearest_squared_distance(block.features, ready)


def relative_state(moments: ClassMoments, shrinkage: float | None, method: str) -> State:
    """Solve what a relative distance needs: `gaussian_state`, and the whitening of all inputs, in float64.

    Parameters
    ----------
    moments : ClassMoments
        Moments of known features, with their classes.
    shrinkage : float or None
        As `tied_covariance` takes it.
    method : str
        Text form of the method, for warnings.

    Returns
    -------
    dict of str to Tensor
        What `gaussian_state` gives, and ``background``.
    """
    tied = tied_covariance(moments, shrinkage, method)
    state = gaussian_state(moments, tied)
    count, classes, width = float(moments.counts.sum()), len(moments.present), moments.means.shape[1]
    told_apart = classes > 2 or not is_few(count - classes, width)
    if classes < count and told_apart:
        state["background"] = whitening(background_covariance(moments, tied))
    else:  # how classes spread is not known, so the distance is relative to nothing
        state["background"] = torch.zeros(width, 1)
    return {name: tensor.double() for name, tensor in state.items()}


def check_shrinkage(method: Score) -> None:
    """Refuse a share outside 0 to 1.

    Parameters
    ----------
    method : Score
        With a parameter ``shrinkage``, a number or `None`.
    """
    if getattr(method, "shrinkage", None) is not None:
        method.number("shrinkage", 0, 1, "the share of the identity must be between 0 and 1")


@register
class SSD(Score):
    """Mahalanobis distance to the nearest class on normalised features, each class with its own covariance (SSD+).

    The thesis uses it on contrastively trained networks, "a multivariate Gaussian distribution for each class". Without
    labels all known inputs are one Gaussian. A class with few inputs borrows from the covariance of all classes, with a
    warning.

    Parameters
    ----------
    tied : bool, default=False
        Use one covariance for all classes, which takes far less memory and fewer inputs per class.
    shrinkage : float or None, default=None
        Share of a multiple of the identity mixed into each covariance, in place of borrowing; with 0, directions
        without variance in a class do not count.

    See Also
    --------
    offmap.detection.scores.normalized.MahalanobisPP : the tied form for labelled inputs, under its later name.
    """

    name = "ssd"
    paper = (
        "Sehwag, Chiang & Mittal, SSD: Self-Supervised Outlier Detection, ICLR 2021; thesis, section 5.3.1, table 5.1"
    )
    reads = ("features",)
    fits = ("features",)

    tied: bool = False
    shrinkage: float | None = None

    def check(self) -> None:
        """Refuse a share outside 0 to 1."""
        check_shrinkage(self)

    def statistics(self) -> Mapping[str, Statistic]:
        """Start class means, and one scatter or one for each class."""
        return {"moments": ClassMoments() if self.tied else ClassScatters()}

    def statistics_key(self) -> bool:
        """Return what the statistics depend on."""
        return self.tied

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add normalised features."""
        try:
            statistics["moments"].update(unit(block.features), block.labels)
        except InputError as error:
            raise InputError(f"{self}: {error}" + (", ssd(tied=true)" if "covariance" in str(error) else "")) from error

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Whiten the class means."""
        moments = statistics["moments"]
        if self.tied:
            return gaussian_state(moments, tied_covariance(moments, self.shrinkage, repr(self)))
        return class_gaussians_state(moments, class_covariances(moments, self.shrinkage, repr(self)))

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Compute minus the squared distance."""
        directions = unit(block.features)
        if "roots" not in ready:  # tied, as files written before the option are too
            return -nearest_squared_distance(directions, ready)
        return -nearest_class_distance(directions, ready)


def class_gaussians_state(moments: ClassScatters, covariances: list[Tensor]) -> State:
    """Solve one whitening per class, and the class means whitened by it.

    Directions without variance in a class are left out of its distance, with one warning for all classes.

    Parameters
    ----------
    moments : ClassScatters
        Moments of known features, with their classes.
    covariances : list of Tensor of shape (d, d)
        One for each class that is present.

    Returns
    -------
    dict of str to Tensor
        ``roots`` and ``whitened_means``, one per class.
    """
    roots, whitened, missing, worst = [], [], 0, 1.0
    for label, covariance in zip(moments.present.tolist(), covariances, strict=True):
        values, vectors = torch.linalg.eigh(covariance)
        kept = values > CUTOFF * values.abs().max()
        missing += not bool(kept.all())
        root = torch.where(kept, vectors / values.clamp(min=1e-300).sqrt(), 0.0)
        if bool(kept.any()):
            worst = max(worst, float(values[kept].max() / values[kept].min()))
        roots.append(root)
        whitened.append(moments.means[label] @ root)
    if missing:
        warnings.warn(
            f"the covariance of {missing} of {len(roots)} classes is singular: directions without variance among their "
            "inputs are left out; give more inputs, a shrinkage above 0, or one covariance for all with tied=true",
            OffmapWarning,
            stacklevel=2,
        )
    dtype = torch.float32 if worst <= FLOAT32_CONDITION else torch.float64
    return {"roots": torch.stack(roots).to(dtype), "whitened_means": torch.stack(whitened).to(dtype)}


def nearest_class_distance(features: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Compute the squared Mahalanobis distance to the nearest class, one class after the other to bound memory.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    state : mapping of str to Tensor
        What `class_gaussians_state` gave.

    Returns
    -------
    Tensor of shape (n,)
        Squared distances.
    """
    roots, means = state["roots"], state["whitened_means"]
    rows = features.to(roots.dtype)
    nearest = torch.addmm(-means[0], rows, roots[0]).square().sum(dim=1)
    for label in range(1, len(roots)):
        nearest = torch.minimum(nearest, torch.addmm(-means[label], rows, roots[label]).square().sum(dim=1))
    return nearest
