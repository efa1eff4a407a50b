"""Gaussian distances between directions: Mahalanobis++ and its relative form, on features scaled to length 1."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.distances import RMDS, check_shrinkage, relative_state
from offmap.detection.scores.few_inputs import tied_covariance
from offmap.detection.scores.gaussians import gaussian_state, nearest_squared_distance
from offmap.detection.statistics import ClassMoments, Statistic
from offmap.neighbors.vectors import unit


class _ClassDirections(Score):
    """A score from the class means of features scaled to length 1 and their scatter."""

    reads = ("features",)
    fits = ("features", "labels")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return class means and one scatter, both empty."""
        return {"moments": ClassMoments()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features of labelled inputs, scaled to length 1."""
        statistics["moments"].update(unit(block.features), block.labels)


@register
class MahalanobisPP(_ClassDirections):
    """Minus the squared Mahalanobis distance to the nearest class mean, between features scaled to length 1.

    The norm of a feature vector differs between networks and classes more than one covariance can express; leaving it
    out makes the distance robust.

    Parameters
    ----------
    shrinkage : float or None, default None
        Share of a multiple of the identity mixed into the covariance; `None` as for `Mahalanobis`.

    See Also
    --------
    offmap.detection.scores.distances.Mahalanobis : the same without scaling.

    Examples
    --------
    >>> import offmap
    >>> offmap.detector("mahalanobis_pp")
    mahalanobis_pp
    """

    name = "mahalanobis_pp"
    paper = "Müller & Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025"

    shrinkage: float | None = None

    def check(self) -> None:
        """Refuse a share outside 0 to 1."""
        check_shrinkage(self)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the whitened class means."""
        moments = statistics["moments"]
        return gaussian_state(moments, tied_covariance(moments, self.shrinkage, repr(self)))

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the squared distance."""
        return -nearest_squared_distance(unit(block.features), ready)


@register
class RMDSPP(_ClassDirections):
    """Mahalanobis++ distance relative to that from one Gaussian for all classes together.

    Parameters
    ----------
    shrinkage : float or None, default None
        Share of a multiple of the identity mixed into both covariances; `None` as for `Mahalanobis`.

    See Also
    --------
    offmap.detection.scores.distances.RMDS : the same without scaling features to length 1.
    """

    name = "rmds_pp"
    paper = MahalanobisPP.paper

    shrinkage: float | None = None

    def check(self) -> None:
        """Refuse a share outside 0 to 1."""
        check_shrinkage(self)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the whitened class means and the whitening of all inputs."""
        return relative_state(statistics["moments"], self.shrinkage, repr(self))

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the squared distance from all inputs less that from the nearest class."""
        return RMDS().score(block.with_features(unit(block.features)), ready)
