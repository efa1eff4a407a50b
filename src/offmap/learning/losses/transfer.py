"""Losses of methods that carry over what known classes taught: FixMatch, DTC, KCL, Joint and ComEx."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from offmap.errors import InputError
from offmap.learning.losses.heads import sinkhorn
from offmap.learning.losses.numbers import check_temperature, check_views, in_full_precision, nothing
from offmap.neighbors.vectors import unit

__all__ = ["comex", "fixmatch", "kcl_pairs", "neighbour_targets", "sharpen_assignments", "student_t", "winners_agree"]


@in_full_precision
def fixmatch(weak: Tensor, strong: Tensor, threshold: float = 0.95) -> Tensor:
    """Compute cross-entropy of one view on the other's confident predictions (Sohn et al. 2020, eq. 4).

    Parameters
    ----------
    weak, strong : Tensor of shape (n, c)
        Logits of unlabelled rows in two views; those of the first say what the second should be.
    threshold : float, default=0.95
        Rows whose largest probability is below it count as 0.

    Returns
    -------
    Tensor
        The mean over all rows.

    Examples
    --------
    >>> logits = torch.tensor([[9.0, 0.0], [0.1, 0.0]])
    >>> round(float(fixmatch(logits, torch.zeros(2, 2))), 4)  # half of log 2: the second row is not sure
    0.3466
    """
    if not len(weak):
        return nothing(weak, strong)
    sure, target = torch.softmax(weak.detach(), dim=1).max(dim=1)
    return (functional.cross_entropy(strong, target, reduction="none") * (sure >= threshold)).mean()


@in_full_precision
def student_t(features: Tensor, centres: Tensor) -> Tensor:
    """Compute soft assignments to centres by Student's t-kernel with one degree of freedom (DTC, eq. 1).

    Parameters
    ----------
    features, centres : Tensor
        Rows × d and classes × d.

    Returns
    -------
    Tensor of shape (n, c)
        Rows sum to 1.

    Examples
    --------
    >>> student_t(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]]))  # 1 and 1/2, over their sum
    tensor([[0.6667, 0.3333]])
    """
    squares = features.square().sum(dim=1, keepdim=True) + centres.square().sum(dim=1) - 2 * features @ centres.T
    weights = 1 / (1 + squares.clamp(min=0))
    return weights / weights.sum(dim=1, keepdim=True)


@torch.no_grad()
@in_full_precision
def sharpen_assignments(assignments: Tensor) -> Tensor:
    """Square assignments and divide by the size of each class: sure ones count, and no class takes all (DTC, eq. 2).

    Parameters
    ----------
    assignments : Tensor of shape (n, c)
        Rows sum to 1.

    Returns
    -------
    Tensor of shape (n, c)
        Rows sum to 1; no gradient.

    Examples
    --------
    >>> sharpen_assignments(torch.tensor([[0.8, 0.2], [0.2, 0.8]]))
    tensor([[0.9412, 0.0588],
            [0.0588, 0.9412]])
    """
    weighed = assignments.square() / assignments.sum(dim=0).clamp(min=1e-12)
    return weighed / weighed.sum(dim=1, keepdim=True).clamp(min=1e-12)


@in_full_precision
def kcl_pairs(probabilities: Tensor, other_probabilities: Tensor, same: Tensor, margin: float = 2.0) -> Tensor:
    """Compute KCL's loss of pairs (Hsu et al. 2018, eq. 3): divergence where alike, a hinge on it where not.

    Parameters
    ----------
    probabilities, other_probabilities : Tensor of shape (n, c)
        Predictions of both views.
    same : Tensor of bool of shape (n, n)
        Whether two rows are taken for one class.
    margin : float, default=2.0
        Divergence from which on two rows are apart enough.

    Returns
    -------
    Tensor
        The mean over pairs and both directions.

    Examples
    --------
    >>> p = torch.eye(2)
    >>> float(kcl_pairs(p, p, torch.eye(2, dtype=torch.bool)))  # alike where they should be, far apart elsewhere
    0.0
    """
    if not len(probabilities):
        return nothing(probabilities, other_probabilities)
    logs, other_logs = (part.clamp(min=1e-7).log() for part in (probabilities, other_probabilities))
    forth = (probabilities * logs).sum(dim=1, keepdim=True) - probabilities @ other_logs.T
    back = (other_probabilities * other_logs).sum(dim=1) - logs @ other_probabilities.T
    ways = [torch.where(same, way, (margin - way).clamp(min=0)).mean() for way in (forth, back)]
    return torch.stack(ways).mean()


@torch.no_grad()
def winners_agree(features: Tensor, orders: Tensor, window: int = 4, share: float = 0.5) -> Tensor:
    """Tell whether two rows have the same winners in a share of random windows of their features (WTA hash, Joint).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        One row per input.
    orders : Tensor of int of shape (h, d)
        Random orders of the columns; of each, the first `window` columns compete.
    window : int, default=4
        Columns that compete.
    share : float, default=0.5
        Of the orders, in which the winner must be the same.

    Returns
    -------
    Tensor of bool of shape (n, n)
        Whether two rows agree.

    Examples
    --------
    >>> rows = torch.tensor([[5.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 5.0, 1.0]])
    >>> winners_agree(rows, torch.tensor([[0, 1, 2], [2, 1, 0]]), window=2).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    if not 2 <= window <= features.shape[1]:
        raise InputError(f"winners_agree(window={window}): with {features.shape[1]} features, 2 to {features.shape[1]}")
    agree = torch.zeros(len(features), len(features), device=features.device)
    for order in orders:
        winner = features[:, order[:window]].argmax(dim=1)
        agree += winner[:, None] == winner
    return agree > share * len(orders)


@torch.no_grad()
@in_full_precision
def neighbour_targets(features: Tensor, targets: Tensor, temperature: float = 0.1) -> Tensor:
    """Average the targets of other rows, weighed by a softmax over their cosines (ComEx's local aggregation).

    Parameters
    ----------
    features, targets : Tensor
        Rows × d and rows × classes.
    temperature : float, default=0.1
        Temperature of the softmax.

    Returns
    -------
    Tensor of shape (n, c)
        One target per row; its own when it is alone.

    Examples
    --------
    >>> neighbour_targets(torch.eye(2), torch.eye(2))
    tensor([[0., 1.],
            [1., 0.]])
    """
    if len(features) < 2:
        return targets
    directions = unit(features)
    similar = (directions @ directions.T / temperature).fill_diagonal_(-torch.inf)
    return torch.softmax(similar, dim=1) @ targets


@in_full_precision
def comex(
    views: tuple[Tensor, Tensor],
    experts: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    labels: Tensor,
    *,
    temperature: float = 0.1,
    aggregation: float = 0.5,
    epsilon: float = 0.05,
) -> Tensor:
    """Compute ComEx' loss (Yang et al. 2022): two kinds of experts predict the other view's shared target.

    An unlabelled row's target is the mean of the balanced assignments by both experts (from global to local), mixed
    with those of its neighbours (local aggregation). ComEx assigns unlabelled rows to novel classes only and keeps a
    queue of neighbours; here they may be of any class, and neighbours are those of the batch.

    Parameters
    ----------
    views : tuple of 2 Tensor
        Embeddings of two views.
    experts : tuple of 2 tuples of 2 Tensor
        For each view its cosines with the class-wise and with the batch-wise expert's vectors, rows × classes.
    labels : Tensor of shape (n,)
        Known classes, -1 where unlabelled.
    temperature : float, default=0.1
        Temperature of predictions and neighbours.
    aggregation : float, default=0.5
        Share of the neighbours in a target.
    epsilon : float, default=0.05
        Sharpness of the balanced assignments, see `sinkhorn`.

    Returns
    -------
    Tensor
        The mean over rows, views and experts.

    Examples
    --------
    >>> row, cosines = torch.eye(2), torch.eye(2)
    >>> loss = comex((row, row), ((cosines, cosines), (cosines, cosines)), torch.tensor([0, 1]), temperature=1.0)
    >>> round(float(loss), 4)
    0.3133
    """
    check_views(*views, labels)
    check_temperature(temperature)
    free = labels < 0
    total = nothing(*views, *experts[0], *experts[1])
    for view, other in ((0, 1), (1, 0)):
        target = functional.one_hot(labels.clamp(min=0), experts[0][0].shape[1]).to(views[0].dtype)
        shared = torch.stack([sinkhorn(part[free], epsilon) for part in experts[other]]).mean(dim=0)
        near = neighbour_targets(views[other][free].detach(), shared, temperature)
        target[free] = (1 - aggregation) * shared + aggregation * near
        for cosines in experts[view]:
            total = total - (target * functional.log_softmax(cosines / temperature, dim=1)).sum()
    return total / max(4 * len(labels), 1)
