"""Outlier scores from projections of penultimate features: LODA on random ones, PCA on those of least variance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.few_inputs import optimal_shrinkage, shrink
from offmap.detection.scores.outliers import FromSample
from offmap.detection.statistics import ClassMoments, Statistic
from offmap.errors import OffmapWarning

FLAT = 1e-10  # variance below this share of the largest is rounding in float32 features
EDGE = 1e-9


def sparse_projections(width: int, count: int, seed: int) -> Tensor:
    """Draw columns with √width Gaussian entries each, the others 0 (Pevný 2016, sec. 3).

    Parameters
    ----------
    width : int
        Number of rows.
    count : int
        Number of columns.
    seed : int
        Seed of the draws.

    Returns
    -------
    Tensor of shape (width, count)
        The projections.

    Examples
    --------
    >>> (sparse_projections(16, 3, seed=0) != 0).sum(dim=0)
    tensor([4, 4, 4])
    """
    generator = np.random.default_rng(seed)
    kept = max(1, round(math.sqrt(width)))
    projections = np.zeros((width, count))
    for column in projections.T:
        column[generator.choice(width, kept, replace=False)] = generator.standard_normal(kept)
    return torch.from_numpy(projections)


def histograms(values: Tensor, bins: int) -> State:
    """Count the values of each column in equal bins.

    A bin outside is added on either side, and half a count to every bin (Krichevsky & Trofimov 1981), so that no
    density is 0.

    Parameters
    ----------
    values : Tensor of shape (n, k)
        One histogram per column.
    bins : int
        Bins per histogram.

    Returns
    -------
    dict of str to Tensor
        ``low``, where the bins of each column begin, their ``width``, and ``log_density``.

    Examples
    --------
    >>> found = histograms(torch.tensor([[0.0], [1.0], [1.0], [2.0]], dtype=torch.float64), bins=2)
    >>> found["low"], found["width"], found["log_density"].exp()
    (tensor([0.], dtype=torch.float64), tensor([1.], dtype=torch.float64),
     tensor([[0.0833, 0.2500, 0.5833, 0.0833]], dtype=torch.float64))
    """
    low, high = values.amin(dim=0), values.amax(dim=0)
    flat = high == low
    low, width = torch.where(flat, low - 0.5, low), torch.where(flat, 1.0, high - low) / bins
    counts = torch.zeros(values.shape[1], bins + 2, dtype=torch.float64)
    places = torch.floor((values - low) / width).long().clamp(0, bins - 1) + 1  # the largest value is in the last bin
    counts.scatter_add_(1, places.T, torch.ones_like(values.T))
    density = (counts + 0.5) / (len(values) + 0.5 * (bins + 2)) / width[:, None]
    return {"low": low, "width": width, "log_density": density.log()}


def mean_log_density(values: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Compute the mean over columns of the log density where each value falls (Pevný 2016, eq. 3).

    Parameters
    ----------
    values : Tensor of shape (n, k)
        The values.
    state : mapping of str to Tensor
        What `histograms` gave.

    Returns
    -------
    Tensor of shape (n,)
        The means.
    """
    table = state["log_density"]
    bins = table.shape[1] - 2
    steps = (values - state["low"]) / state["width"]
    places = steps.floor().clamp(0, bins - 1) + 1
    # The smallest and largest value seen lie on the edges: rounding must not push them out.
    places = torch.where(steps < -EDGE * bins, 0, torch.where(steps > bins + EDGE * bins, bins + 1, places))
    return table.gather(1, places.long().T).mean(dim=0)


@register
class LODA(FromSample):
    """The mean log density of an input under histograms of random sparse projections.

    Parameters
    ----------
    bins : int, default=10
        Bins of each histogram; the thesis takes 10 (appendix A.3.2).
    projections : int, default=100
        How many histograms.
    rows : int, default=10000
        How many known inputs the histograms count.
    seed : int, default=0
        Seed of the sample and of the projections.
    """

    name = "loda"
    paper = "Pevný, Loda: Lightweight On-line Detector of Anomalies, Machine Learning 2016"

    bins: int = 10
    projections: int = 100
    rows: int = 10_000
    seed: int = 0

    def check(self) -> None:
        """Require at least one of each."""
        super().check()
        self.number("bins", 1, math.inf, "at least one bin is needed")
        self.number("projections", 1, math.inf, "at least one projection is needed")

    def solve_sample(self, rows: Tensor) -> State:
        """Return projections and histograms."""
        projections = sparse_projections(rows.shape[1], self.projections, self.seed)
        return {"projections": projections, **histograms(rows.double() @ projections, self.bins)}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the mean log density."""
        return mean_log_density(block.features.double() @ ready["projections"], ready)


def minor_components(covariance: Tensor, count: int, freedom: float = math.inf) -> tuple[Tensor, Tensor]:
    """Find the directions of least variance of standardised features, and R with yᵢ²/λᵢ the squares of z R.

    Features and directions without variance are left out: there is no scale to judge them by. But where there are fewer
    independent inputs than features, directions have none for lack of inputs, and what is left are those in
    which the known inputs differ most: then the correlations are shrunk, and all directions without variance count.

    Parameters
    ----------
    covariance : Tensor of shape (d, d)
        Covariance of the features.
    count : int
        How many directions, at most.
    freedom : float, default=inf
        How many independent differences the covariance was estimated from.

    Returns
    -------
    deviations
        By which features are divided; infinite for one without variance.
    root
        Columns vᵢ/√λᵢ for the `count` smallest eigenvalues λᵢ of the correlation matrix, or as many as there are.
    """
    variances = torch.diagonal(covariance).clamp(min=0)
    constant = variances <= FLAT * variances.max()
    deviations = torch.where(constant, torch.inf, variances.sqrt())
    correlation = covariance / deviations[:, None] / deviations[None, :]
    values, vectors = torch.linalg.eigh(correlation)
    if 0 < freedom < len(covariance):  # eigenvectors stay those of the correlations, also where all is shrunk
        values = torch.diagonal(shrink(torch.diag(values.clamp(min=0)), optimal_shrinkage(correlation, freedom)))
        count = max(count, len(covariance) - round(freedom))
    kept = torch.nonzero(values > FLAT * values.abs().max()).reshape(-1)[:count]
    return deviations, vectors[:, kept] / values[kept].sqrt()


@register
class PCA(Score):
    """Minus how far an input goes in the directions in which known features vary least: Σ yᵢ²/λᵢ.

    With fewer inputs than features the correlations are shrunk (Chen et al. 2010), with a warning, and directions that
    no known input takes count too.

    Parameters
    ----------
    components : int, default=50
        How many directions, at most as many as vary at all; the thesis takes 50 (appendix A.3.2).
    """

    name = "pca"
    paper = "Shyu et al., A Novel Anomaly Detection Scheme Based on Principal Component Classifier, ICDM Workshop 2003"
    reads = ("features",)
    fits = ("features",)
    shown = ("components",)

    components: int = 50

    def check(self) -> None:
        """Require at least one direction."""
        self.number("components", 1, math.inf, "at least one direction is needed")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return mean and scatter of features."""
        return {"moments": ClassMoments()}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add features."""
        statistics["moments"].update(block.features)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the mean and the directions, scaled by their deviations."""
        moments = statistics["moments"]
        freedom, width = float(moments.counts.sum()) - 1, moments.means.shape[1]
        if freedom < width:
            warnings.warn(
                f"{self}: {freedom + 1:.0f} inputs are few for the correlations of {width} features; they are shrunk "
                f"towards none, and directions that no known input takes count too. Give more than {width} inputs",
                OffmapWarning,
                stacklevel=2,
            )
        deviations, root = minor_components(moments.covariance().cpu(), self.components, freedom)
        return {"mean": moments.mean.cpu(), "root": root / deviations[:, None]}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the squared length."""
        return -((block.features.double() - ready["mean"]) @ ready["root"]).square().sum(dim=1)
