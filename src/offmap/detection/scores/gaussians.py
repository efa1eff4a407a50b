"""Distances from Gaussians: whitening by one covariance for all classes, and the distance to the nearest class mean."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import State
from offmap.detection.statistics import ClassMoments
from offmap.errors import OffmapWarning

CUTOFF = 1e-15  # NumPy's cut for the pseudo-inverse, relative to the largest eigenvalue
FLOAT32_CONDITION = 1e8  # up to here whitened coordinates keep four digits in float32


def whitening(covariance: Tensor) -> Tensor:
    """Compute R with R Rᵀ the pseudo-inverse of a covariance: a Mahalanobis distance is the length of (x - μ) R.

    Directions whose variance is below NumPy's cut-off are left out, as the pseudo-inverse does, with a warning that
    says how many: an unknown input that differs from known ones only there goes unnoticed. The result is
    float32, which is what scoring multiplies in, unless the covariance is so ill-conditioned that it must be float64.

    Parameters
    ----------
    covariance : Tensor of shape (d, d)
        Symmetric.

    Returns
    -------
    Tensor of shape (d, d)
        R, in float32 or float64.

    Examples
    --------
    >>> whitening(torch.diag(torch.tensor([4.0, 16.0], dtype=torch.float64))).abs()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    if (root := _triangular_root(covariance)) is not None:
        return root.float()
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


def _triangular_root(covariance: Tensor) -> Tensor | None:
    """Invert the Cholesky factor, a tenth of the work of eigenvectors; `None` unless float32 surely suffices.

    The largest eigenvalue is at most the Frobenius norm, and one over the smallest at most the trace of the inverse, so
    that their product bounds the condition without any eigenvalue.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance.double())
    if bool(failed):
        return None
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)
    bound = torch.linalg.matrix_norm(covariance.double()) * inverse.square().sum()
    return inverse.T.contiguous() if bool(bound <= FLOAT32_CONDITION) else None


def _whitened(features: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    root = state["root"]
    return torch.addmm(-state["centre"] @ root, features.to(root.dtype), root)


def nearest_squared_distance(features: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Compute the squared distance to the nearest class mean.

    Distances are taken about the mean of all inputs, so that float32 keeps its digits where features are far from 0.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    state : mapping of str to Tensor
        What `gaussian_state` gave.

    Returns
    -------
    Tensor of shape (n,)
        Not below 0.
    """
    whitened = _whitened(features, state)
    # addmm: one product with the norms already in place, then a maximum that reads it once
    half = torch.addmm(state["half_norms"], whitened, state["whitened_means"].T)
    return (whitened.square().sum(dim=1) - 2 * half.amax(dim=1)).clamp(min=0)


def gaussian_state(moments: ClassMoments, covariance: Tensor) -> State:
    """Solve what scoring needs: the whitening, and the class means whitened by it.

    Parameters
    ----------
    moments : ClassMoments
        Moments of known features, with their classes.
    covariance : Tensor of shape (d, d)
        One for all classes.

    Returns
    -------
    dict of str to Tensor
        ``root``, ``centre``, ``whitened_means`` and ``half_norms``.
    """
    root = whitening(covariance.cpu())
    centre = moments.mean.cpu()
    means = (moments.means[moments.present].cpu() - centre) @ root.double()
    return {
        "root": root,
        "centre": centre.to(root.dtype),
        "whitened_means": means.to(root.dtype),
        "half_norms": (-means.square().sum(dim=1) / 2).to(root.dtype),
    }
