"""Contrastive losses: one template (thesis, section 8.2.1, eq. 8.1), and SimCLR, SupCon and GCD as choices of positives
and negatives.

Every function takes raw embeddings and scales them to length 1 itself. Memory is O(batch²).
"""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.learning.losses.numbers import check_temperature, check_views, in_full_precision, mean_where
from offmap.neighbors.vectors import unit

__all__ = ["contrastive", "gcd", "simclr", "supcon"]


@in_full_precision
def contrastive(
    embeddings: Tensor,
    positives: Tensor,
    negatives: Tensor,
    temperature: float = 0.1,
    others: Tensor | None = None,
) -> Tensor:
    """Compute the generalised contrastive loss of each anchor (thesis, chapter 8, section 8.2.1, eq. 8.1).

    ``−1/|P| Σ_{z⁺∈P} log(e^{z·z⁺/τ} / Σ_{z⁻∈N} e^{z·z⁻/τ})``. An anchor without a positive, or without a
    negative, has loss 0.

    Parameters
    ----------
    embeddings : Tensor
        The anchors, one per row.
    positives, negatives : Tensor
        Anchors × candidates, true where a candidate is in P(x), in N(x). The usual N(x) holds the positives too.
    temperature : float, default=0.1
        τ.
    others : Tensor or None, default=None
        The candidates; the anchors themselves when absent.

    Returns
    -------
    Tensor
        One loss per anchor.

    Examples
    --------
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> others = ~torch.eye(3, dtype=torch.bool)
    >>> same = torch.tensor([[False, True, False], [True, False, False], [False, False, False]])
    >>> contrastive(z, same, others, temperature=1.0)
    tensor([0.3133, 0.3133, 0.0000])
    """
    check_temperature(temperature)
    anchors = unit(embeddings)
    candidates = anchors if others is None else unit(others)
    similar = anchors @ candidates.T / temperature
    usable = positives.any(dim=1) & negatives.any(dim=1)
    kept = negatives | ~usable[:, None]  # an unusable row still needs a finite sum, or its gradient is NaN
    total = torch.logsumexp(similar.masked_fill(~kept, -torch.inf), dim=1)
    inside = (similar * positives).sum(dim=1) / positives.sum(dim=1).clamp(min=1)
    return torch.where(usable, total - inside, torch.zeros_like(total))


@in_full_precision
def simclr(first: Tensor, second: Tensor, temperature: float = 0.5) -> Tensor:
    """Compute InfoNCE over two views (Chen et al. 2020; L_u of OpenCon).

    The other view is the positive, all others are negatives.

    Parameters
    ----------
    first, second : Tensor
        Embeddings of two views; row i of both is the same sample.
    temperature : float, default=0.5
        τ.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> z = torch.eye(2)
    >>> round(float(simclr(z, z, temperature=1.0)), 4)  # −log(e / (e + 1 + 1))
    0.5514
    """
    check_views(first, second)
    n = len(first)
    itself = torch.eye(2 * n, dtype=torch.bool, device=first.device)
    return _mean(torch.cat([first, second]), itself.roll(n, dims=1), ~itself, temperature)


@in_full_precision
def supcon(first: Tensor, second: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Compute the supervised contrastive loss (Khosla et al. 2020, "out"; L_l and, with pseudo-labels, L_n of OpenCon).

    Positives of a view are all views with its label but itself, negatives all views but itself. Rows labelled -1
    take no part.

    Parameters
    ----------
    first, second : Tensor of shape (n, width)
        Embeddings of two views; row i of both is the same sample.
    labels : Tensor of shape (n,) or (2, n)
        The class of each sample, or of each view of it where a prediction may differ between views; -1 for none.
    temperature : float, default 0.1
        τ.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> z = torch.eye(2)
    >>> round(float(supcon(z, z, torch.tensor([0, 1]), temperature=1.0)), 4)
    0.5514
    >>> float(supcon(z, z, torch.tensor([-1, -1])))
    0.0
    """
    by_view = labels if labels.ndim == 2 else torch.stack([labels, labels])
    check_views(first, second, by_view[0])
    named = by_view.flatten()
    member = named >= 0
    apart = ~torch.eye(len(named), dtype=torch.bool, device=first.device)
    negatives = apart & member[:, None] & member
    positives = negatives & (named[:, None] == named)
    return _mean(torch.cat([first, second]), positives, negatives, temperature)


@in_full_precision
def gcd(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    *,
    balance: float = 0.35,
    temperature: float = 1.0,
    temperature_labelled: float = 0.07,
) -> Tensor:
    """Mix ``(1−b)·InfoNCE over all + b·SupCon over the labelled`` (generalised category discovery, Vaze et al. 2022).

    Parameters
    ----------
    first, second : Tensor of shape (n, d)
        Embeddings of two views.
    labels : Tensor of shape (n,)
        The known class of each row, -1 where unlabelled.
    balance : float, default=0.35
        b.
    temperature : float, default=1.0
        Temperature of InfoNCE.
    temperature_labelled : float, default=0.07
        Temperature of SupCon.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> z = torch.eye(2)
    >>> labels = torch.tensor([-1, -1])
    >>> round(float(gcd(z, z, labels)), 4)  # .65 of SimCLR's
    0.3584
    """
    free = simclr(first, second, temperature)
    return (1 - balance) * free + balance * supcon(first, second, labels, temperature_labelled)


def _mean(embeddings: Tensor, positives: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    losses = contrastive(embeddings, positives, negatives, temperature)
    return mean_where(losses, positives.any(dim=1))
