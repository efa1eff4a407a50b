"""The likelihood of penultimate features under a Gaussian mixture."""

from __future__ import annotations

import math
import warnings
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offmap.detection.base import State
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.outliers import FromSample
from offmap.errors import InputError, OffmapWarning

STEPS = 300  # of expectation and maximisation, at most
TOLERANCE = 1e-3  # they end when the mean log-likelihood changes by less, scikit-learn's default


def log_mixture(features: Tensor, log_weights: Tensor, means: Tensor, roots: Tensor) -> Tensor:
    """Compute log Σ wₖ N(x; μₖ, Σₖ) with Σₖ⁻¹ = Rₖ Rₖᵀ, R upper triangular.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        x.
    log_weights : Tensor of shape (k,)
        log w.
    means : Tensor of shape (k, d)
        μ.
    roots : Tensor of shape (1 or k, d, d)
        R, one for all components or one each.

    Returns
    -------
    Tensor of shape (n,)
        Log-likelihoods.

    Examples
    --------
    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> zero = torch.zeros(1, 1, dtype=torch.float64)
    >>> round(log_mixture(zero, zero[0], zero, one).item() + math.log(2 * math.pi) / 2, 12)
    0.0
    """
    volumes = torch.diagonal(roots, dim1=1, dim2=2).log().sum(dim=1) - features.shape[1] / 2 * math.log(2 * math.pi)
    if len(roots) == 1:  # one product with the root for all components
        centre = means.mean(dim=0)
        whitened, centres = (features - centre) @ roots[0], (means - centre) @ roots[0]
        lengths = [(whitened - row).square().sum(dim=1) for row in centres]
    else:
        lengths = [((features - row) @ root).square().sum(dim=1) for row, root in zip(means, roots, strict=True)]
    return torch.logsumexp(volumes - torch.stack(lengths, dim=1) / 2 + log_weights, dim=1)


def fit_tied_mixture(rows: Tensor, components: int, ridge: float, seed: int) -> State:
    """Fit a Gaussian mixture with one covariance by expectation and maximisation, as scikit-learn does.

    The start (k-means), every step and the rule to stop are scikit-learn's, so the result is too, up to rounding. But
    xᵀ Σ⁻¹ x is the same for all components and drops out of their shares, so that a step costs one factorisation of the
    covariance, not a product of all rows with its root for each component.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        Inputs, float64.
    components : int
        How many Gaussians.
    ridge : float
        Added to every variance.
    seed : int
        Seed of the start.

    Returns
    -------
    dict of str to Tensor
        ``log_weights``, ``means`` and ``roots``, as in `log_mixture`.
    """
    from sklearn.cluster import KMeans

    start = KMeans(components, n_init=1, random_state=np.random.RandomState(seed)).fit(rows.numpy()).labels_
    share = torch.nn.functional.one_hot(torch.from_numpy(start).long(), components).double()
    centre = rows.mean(dim=0)
    centred = rows - centre
    second = centred.T @ centred / len(rows) + ridge * torch.eye(rows.shape[1], dtype=torch.float64)
    fitted = _maximise(share, centred, second)
    likelihood = -math.inf
    for _ in range(STEPS):
        before = likelihood
        share, likelihood = _expect(fitted, centred, ridge)
        fitted = _maximise(share, centred, second)
        if abs(likelihood - before) < TOLERANCE:
            break
    else:
        warnings.warn(
            f"gmm: the likelihood still changes after {STEPS} steps; choose fewer components", OffmapWarning, 2
        )
    weights, means, root = fitted
    return {"log_weights": weights.log(), "means": means + centre, "roots": root[None]}


def _maximise(share: Tensor, rows: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and the root of the precision that are the likeliest for these shares of the rows."""
    counts = share.sum(dim=0) + 10 * torch.finfo(torch.float64).eps
    means, weights = share.T @ rows / counts[:, None], counts / counts.sum()
    factor, failed = torch.linalg.cholesky_ex(second - means.T @ (weights[:, None] * means))
    if bool(failed):
        raise InputError("gmm: the covariance cannot be inverted; leave out features that others add up to")
    identity = torch.eye(len(factor), dtype=torch.float64)
    return weights, means, torch.linalg.solve_triangular(factor, identity, upper=False).T


def _expect(fitted: tuple[Tensor, Tensor, Tensor], rows: Tensor, ridge: float) -> tuple[Tensor, float]:
    """Return the share that each component has of each row, and the mean log-likelihood of the rows."""
    weights, means, root = fitted
    width = len(root)
    directions = root @ (means @ root).T
    lengths = (means * directions.T).sum(dim=1)
    logits = weights.log() + rows @ directions - lengths / 2
    volume = torch.diagonal(root).log().sum() - width / 2 * math.log(2 * math.pi)
    spread = width + weights @ lengths - ridge * root.square().sum()  # the mean of xᵀ Σ⁻¹ x, by what Σ is made of
    return torch.softmax(logits, dim=1), float(torch.logsumexp(logits, dim=1).mean() + volume - spread / 2)


@register
class GMM(FromSample):
    """The log-likelihood of features under a Gaussian mixture that needs no labels.

    Parameters
    ----------
    components : int, default=10
        How many Gaussians.
    covariance : {"tied", "full"}, default="tied"
        ``tied`` for one covariance of all components, as in Mahalanobis, which a few thousand inputs are enough for;
        ``full`` for one each.
    rows : int, default=10000
        How many known inputs it is fitted on.
    seed : int, default=0
        Seed of the sample and of the start.

    Notes
    -----
    A millionth of the mean variance of a feature is added to every variance, so that unused features do no harm.
    """

    name = "gmm"
    paper = "Bishop, Pattern Recognition and Machine Learning, 2006, sec. 9.2"
    shown = ("components",)

    components: int = 10
    covariance: Literal["tied", "full"] = "tied"
    rows: int = 10_000
    seed: int = 0

    def check(self) -> None:
        """Require at least one component."""
        super().check()
        self.number("components", 1, math.inf, "at least one Gaussian is needed")

    def solve_sample(self, rows: Tensor) -> State:
        """Return weights, means and the roots of the precisions."""
        from sklearn.mixture import GaussianMixture

        self.require_more_than(self.components, rows, f"{self.components} Gaussians")
        sample = rows.double().cpu()
        ridge = max(1e-6 * float(sample.var(dim=0, correction=0).mean()), 1e-12)
        if self.covariance == "tied":
            return fit_tied_mixture(sample, self.components, ridge, self.seed)
        mixture = GaussianMixture(
            self.components, covariance_type="full", reg_covar=ridge, max_iter=STEPS, random_state=self.seed
        ).fit(sample.numpy())
        return {
            "log_weights": torch.from_numpy(mixture.weights_).log(),
            "means": torch.from_numpy(mixture.means_),
            "roots": torch.from_numpy(mixture.precisions_cholesky_),
        }

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the log-likelihood."""
        return log_mixture(block.features.double(), ready["log_weights"], ready["means"], ready["roots"])
