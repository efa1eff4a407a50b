"""What class-wise scores do with few inputs per class: shrunk and pooled covariances, means that stand in.

With n inputs of C classes, n - C differences from a class mean are independent. Below two of them per feature, the
inverse of their covariance is mostly noise: directions without any variance, or with far too little, decide.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from offmap.detection.statistics import ClassMoments, ClassScatters
from offmap.errors import OffmapWarning

ENOUGH = 2  # independent differences per feature from which on a covariance is inverted as it is


def shrink(covariance: Tensor, shrinkage: float) -> Tensor:
    """Shrink a covariance towards a multiple of the identity: (1 - s)·Σ + s·(trace Σ / D)·I.

    Parameters
    ----------
    covariance : Tensor of shape (d, d)
        Σ.
    shrinkage : float
        s, from 0 to 1.

    Returns
    -------
    Tensor of shape (d, d)
        The shrunk covariance.
    """
    width = len(covariance)
    scale = torch.trace(covariance) / width
    return (1 - shrinkage) * covariance + shrinkage * scale * torch.eye(width, dtype=covariance.dtype)


def optimal_shrinkage(covariance: Tensor, freedom: float) -> float:
    """Estimate how much to shrink a covariance: oracle approximating shrinkage (Chen et al. 2010, eq. 23).

    Parameters
    ----------
    covariance : Tensor of shape (d, d)
        Σ, as estimated.
    freedom : float
        How many independent differences it was estimated from.

    Returns
    -------
    float
        From 0 to 1, for `shrink`; 1 where there is no variance at all.

    Examples
    --------
    >>> few = optimal_shrinkage(torch.diag(torch.tensor([4.0, 1.0, 0.0])), 10)
    >>> many = optimal_shrinkage(torch.diag(torch.tensor([4.0, 1.0, 0.0])), 3000)
    >>> round(few, 3), round(many, 5)
    (0.342, 0.00118)
    """
    width = len(covariance)
    square, trace = float(covariance.square().sum()), float(torch.trace(covariance))
    above = (1 - 2 / width) * square + trace**2
    below = (freedom + 1 - 2 / width) * (square - trace**2 / width)
    return 1.0 if below <= 0 else min(1.0, above / below)


def is_few(freedom: float, width: int) -> bool:
    """Return True if a covariance of so many features needs more independent differences.

    Parameters
    ----------
    freedom : float
        Independent differences.
    width : int
        Features.

    Returns
    -------
    bool
        Whether there are too few.
    """
    return freedom < ENOUGH * width


def tied_covariance(moments: ClassMoments, shrinkage: float | None, method: str) -> Tensor:
    """Compute one covariance for all classes; from few inputs it is shrunk, with a warning.

    Parameters
    ----------
    moments : ClassMoments
        Moments of known features, with their classes.
    shrinkage : float or None
        See `shrink`; `None` for none at all with enough inputs and the `optimal_shrinkage` with few.
    method : str
        Text form of the method, for the warning.

    Returns
    -------
    Tensor of shape (d, d)
        The covariance.
    """
    count, classes, width = float(moments.counts.sum()), len(moments.present), moments.means.shape[1]
    if shrinkage is not None or not is_few(count - classes, width):
        return shrink(moments.tied_covariance().cpu(), shrinkage or 0.0)
    covariance, share = _from_few(moments)
    warnings.warn(
        f"{method}: {count:.0f} inputs of {classes} classes are few for a covariance of {width} features; it is "
        f"shrunk by {share:.2f} towards a multiple of the identity"
        + (" and taken about the mean of all, since no class has two inputs" if count == classes else "")
        + f". Give {classes + ENOUGH * width} inputs or more, or choose the shrinkage",
        OffmapWarning,
        stacklevel=2,
    )
    return covariance


def _from_few(moments: ClassMoments) -> tuple[Tensor, float]:
    count, classes = float(moments.counts.sum()), len(moments.present)
    if count > classes:
        return _shrunk(moments.scatter.cpu() / (count - classes), count - classes)
    return _shrunk(moments.covariance().cpu() * (count / max(count - 1, 1)), count - 1)


def background_covariance(moments: ClassMoments, tied: Tensor) -> Tensor:
    """Compute the covariance of all inputs about their common mean: that about the class means, plus that of these.

    Built on the same estimate, it is larger in every direction, as the true one is. Two estimates that were shrunk
    apart would not be, and an input far away in such a direction would count as known.

    Parameters
    ----------
    moments : ClassMoments
        Moments of known features, with their classes.
    tied : Tensor of shape (d, d)
        What `tied_covariance` gave.

    Returns
    -------
    Tensor of shape (d, d)
        The covariance.
    """
    spread = (moments.means - moments.mean).cpu()
    return tied + spread.T @ (spread * (moments.counts / moments.counts.sum()).cpu()[:, None])


def _shrunk(covariance: Tensor, freedom: float) -> tuple[Tensor, float]:
    if float(torch.trace(covariance)) <= 0:  # one input, or all alike: the distance is Euclidean
        return torch.eye(len(covariance), dtype=covariance.dtype), 1.0
    share = optimal_shrinkage(covariance, freedom)
    return shrink(covariance, share), share


def class_covariances(moments: ClassScatters, shrinkage: float | None, method: str) -> list[Tensor]:
    """Compute one covariance per class; a class of few inputs borrows from the covariance of all classes.

    The covariance of a class of n_c inputs is mixed with that of all classes as if the latter stood for as many
    differences as there are features, the mean of the posterior under an inverse Wishart prior.

    Parameters
    ----------
    moments : ClassScatters
        Moments of known features, with their classes.
    shrinkage : float or None
        See `shrink`; `None` to borrow where inputs are few.
    method : str
        Text form of the method, for the warning.

    Returns
    -------
    list of Tensor
        One of shape (d, d) for each class that is present.
    """
    present, width = moments.present.tolist(), moments.means.shape[1]
    counts = [float(moments.counts[label]) for label in present]
    few = [is_few(count - 1, width) for count in counts]
    if shrinkage is not None or not any(few):
        pairs = zip(present, counts, strict=True)
        return [shrink(moments.scatters[label] / count, shrinkage or 0.0) for label, count in pairs]
    freedom = sum(counts) - len(counts)
    together = torch.zeros(width, width, dtype=torch.float64)
    for label in present:
        together += moments.scatters[label]
    if freedom == 0:
        spread = moments.means[present] - moments.means[present].mean(dim=0)
        together, freedom = spread.T @ spread, max(len(counts) - 1.0, 1.0)
    pooled = together / freedom
    pooled = _shrunk(pooled, freedom)[0] if is_few(freedom, width) else pooled
    warnings.warn(
        f"{method}: {sum(few)} of {len(few)} classes have few inputs for a covariance of {width} features of their "
        f"own; they borrow from that of all classes. Give {1 + ENOUGH * width} inputs a class or more, choose the "
        "shrinkage, or take one covariance for all with tied=true",
        OffmapWarning,
        stacklevel=2,
    )
    return [
        (moments.scatters[label] + width * pooled) / (count - 1 + width) if short else moments.scatters[label] / count
        for label, count, short in zip(present, counts, few, strict=True)
    ]


def fill_means(moments: ClassMoments, method: str, what: str) -> tuple[Tensor, Tensor]:
    """Return the class means, the mean of all in the place of classes without any input, and that mean by itself.

    Parameters
    ----------
    moments : ClassMoments
        Class means.
    method : str
        Text form of the method, for the warning.
    what : str
        What is missing, in words.

    Returns
    -------
    tuple of 2 Tensor
        Means of shape (c, d), and the mean over classes that have any, of shape (d,).

    Examples
    --------
    >>> moments = ClassMoments(scatter=False)
    >>> moments.update(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 2]))
    >>> with warnings.catch_warnings(action="ignore"):
    ...     fill_means(moments, "she", "rightly classified input")[0].tolist()
    [[2.0], [3.0], [4.0]]
    """
    there = moments.counts > 0
    pooled = moments.means[there].mean(dim=0)
    missing = int((~there).sum())
    if missing:
        warnings.warn(
            f"{method}: {missing} of {len(there)} classes have no {what}; the mean of the other classes stands in "
            "for theirs",
            OffmapWarning,
            stacklevel=2,
        )
    return torch.where(there[:, None], moments.means, pooled), pooled


def class_rows(means: Tensor, pooled: Tensor | None, predicted: Tensor) -> Tensor:
    """Return the mean of each input's predicted class, the pooled one for classes beyond those that were fitted.

    Parameters
    ----------
    means : Tensor of shape (c, d)
        Means of classes 0 to c - 1.
    pooled : Tensor of shape (d,) or None
        Stands in for classes from c on; zeros when `None`.
    predicted : Tensor of shape (n,)
        Class indices.

    Returns
    -------
    Tensor of shape (n, d)
        The rows.
    """
    other = torch.zeros_like(means[0]) if pooled is None else pooled
    return torch.where((predicted < len(means))[:, None], means[predicted.clamp(max=len(means) - 1)], other)
