"""OpenCon's loss: three contrastive parts over different rows, and a divergence that keeps classes in use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from offmap.learning.losses.contrastive import simclr, supcon
from offmap.learning.losses.numbers import check_temperature, in_full_precision, nothing
from offmap.neighbors.vectors import unit

__all__ = ["OpenConParts", "opencon", "prior_divergence", "prototype_probabilities"]


class OpenConParts(NamedTuple):
    """L_n over rows taken for novel, L_l over labelled ones, L_u over unlabelled ones."""

    novel: Tensor
    labelled: Tensor
    unlabelled: Tensor


@in_full_precision
def opencon(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    pseudo: Tensor,
    *,
    temperatures: tuple[float, float, float] = (0.7, 0.1, 0.4),
    known_too: bool = False,
) -> OpenConParts:
    """Compute the three parts of OpenCon's loss (thesis, section 8.2.3, eq. 8.7), each averaged over its anchors.

    Parameters
    ----------
    first, second : Tensor of shape (n, width)
        Embeddings of two views; row i of both is the same sample.
    labels : Tensor of shape (n,)
        The known class of each row, -1 where unlabelled.
    pseudo : Tensor of shape (n,) or (2, n)
        For unlabelled rows that passed the gate as novel (D_n, section 8.2.2, eq. 8.2) their predicted class, -1
        elsewhere; one for each sample, or for each of its views. With `known_too`, a prediction for every unlabelled
        row taken for known is read from values ≤ -2: ``-2 - class``.
    temperatures : tuple of three floats, default (0.7, 0.1, 0.4)
        τ_n, τ_l, τ_u; the thesis' for CIFAR-100.
    known_too : bool, default False
        Use L_known (appendix B.3.4, eq. B.34) for L_l: unlabelled rows taken for known join the labelled ones.

    Returns
    -------
    OpenConParts
        L_n, L_l and L_u.

    Examples
    --------
    >>> z = torch.eye(4)
    >>> parts = opencon(z, z, torch.tensor([0, 0, -1, -1]), torch.tensor([-1, -1, -1, 3]))
    >>> [round(float(part), 3) for part in parts]
    [0.0, 6.667, 0.152]
    """
    tau_n, tau_l, tau_u = temperatures
    free = labels < 0
    given = torch.where(free & (pseudo <= -2), -2 - pseudo, labels) if known_too else labels
    return OpenConParts(
        supcon(first, second, torch.where(free & (pseudo >= 0), pseudo, torch.full_like(pseudo, -1)), tau_n),
        supcon(first, second, given, tau_l),
        simclr(first[free], second[free], tau_u) if bool(free.any()) else nothing(first, second),
    )


@in_full_precision
def prototype_probabilities(embeddings: Tensor, prototypes: Tensor, temperature: float = 0.1) -> Tensor:
    """Compute the softmax over the cosines with prototypes.

    Parameters
    ----------
    embeddings : Tensor of shape (n, d)
        Rows of any length.
    prototypes : Tensor of shape (c, d)
        One per class.
    temperature : float, default=0.1
        The divisor of cosines.

    Returns
    -------
    Tensor of shape (n, c)
        Probabilities.

    Examples
    --------
    >>> prototype_probabilities(torch.eye(2), torch.eye(2), temperature=1.0)[0]
    tensor([0.7311, 0.2689])
    """
    check_temperature(temperature)
    return torch.softmax(unit(embeddings) @ unit(prototypes).T / temperature, dim=1)


@in_full_precision
def prior_divergence(probabilities: Tensor, prior: Tensor) -> Tensor:
    """Compute ``KL(p̄ ‖ prior)``, how far the mean prediction of a batch is from the classes' shares.

    The authors take the shares from the true labels. Here the caller estimates them: labelled counts for known
    classes, an even split of the rest for novel ones.

    Parameters
    ----------
    probabilities : Tensor
        Rows × classes.
    prior : Tensor
        One share per class, summing to 1.

    Returns
    -------
    Tensor
        The divergence.

    Examples
    --------
    >>> even = torch.tensor([0.5, 0.5])
    >>> float(prior_divergence(torch.tensor([[0.5, 0.5]]), even))
    0.0
    >>> round(float(prior_divergence(torch.tensor([[1.0, 0.0]]), even)), 4)
    0.6931
    """
    if not len(probabilities):
        return nothing(probabilities)
    mean = probabilities.mean(dim=0)
    return torch.special.xlogy(mean, (mean / prior.clamp(min=1e-12)).clamp(min=1e-12)).sum()
