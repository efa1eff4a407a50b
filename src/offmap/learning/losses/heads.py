"""Losses of classifiers over known and novel classes: cross-entropy, ORCA, UNO, AutoNovel, and GODIN's logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from offmap.errors import InputError
from offmap.learning.losses.numbers import check_temperature, check_views, in_full_precision, nothing
from offmap.neighbors.vectors import unit

__all__ = [
    "autonovel_pairs",
    "cross_entropy",
    "deconf_logits",
    "group_softmax",
    "logitnorm",
    "mean_entropy",
    "nearest_partners",
    "orca_margin",
    "orca_pairs",
    "rank_statistics",
    "sinkhorn",
    "uno",
]


@in_full_precision
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy over the rows that have a label; 0 when none has.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        One row per input.
    labels : Tensor of shape (n,)
        Classes, -1 where unlabelled.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> round(float(cross_entropy(torch.zeros(2, 4), torch.tensor([1, -1]))), 4)
    1.3863
    """
    known = labels >= 0
    return functional.cross_entropy(logits[known], labels[known]) if bool(known.any()) else nothing(logits)


@in_full_precision
def orca_margin(cosines: Tensor, labels: Tensor, uncertainty: float, scale: float = 10.0) -> Tensor:
    """Compute cross-entropy in which the uncertainty helps the true class (adaptive margin of ORCA, Cao et al. 2022).

    ``−log e^{s(c_y + u)} / (e^{s(c_y + u)} + Σ_{j≠y} e^{s c_j})``: while unlabelled rows are predicted unsurely,
    known classes are learned more slowly, so that novel ones can follow.

    Parameters
    ----------
    cosines, labels : Tensor
        Rows × classes; the class of each row, -1 where unlabelled.
    uncertainty : float
        u: 1 − the mean largest probability on unlabelled rows, at most .5.
    scale : float, default=10.0
        s, the factor of cosines.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> round(float(orca_margin(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0.0)), 4)
    0.6931
    >>> round(float(orca_margin(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0.5)), 4)
    0.0067
    """
    helped = functional.one_hot(labels.clamp(min=0), cosines.shape[1]).to(cosines.dtype) * uncertainty
    return cross_entropy(scale * (cosines + helped), labels)


def nearest_partners(features: Tensor, labels: Tensor) -> Tensor:
    """Find the row that each row should agree with: one of its class if labelled, else its nearest (ORCA).

    A labelled row takes the next row of its class in the batch, itself when it is alone; an unlabelled row the most
    similar other row.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        One row per input.
    labels : Tensor of shape (n,)
        Classes, -1 where unlabelled.

    Returns
    -------
    Tensor of shape (n,)
        Row numbers.

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.9, 0.0]])
    >>> nearest_partners(rows, torch.tensor([0, 0, -1, -1])).tolist()
    [1, 0, 0, 0]
    """
    n = len(labels)
    if n < 2:
        return torch.arange(n, device=labels.device)
    directions = unit(features.detach())
    similar = (directions @ directions.T).fill_diagonal_(-torch.inf)
    nearest = similar.argmax(dim=1)
    step = (torch.arange(n, device=labels.device) - torch.arange(n, device=labels.device)[:, None] - 1) % n
    same = (labels[:, None] == labels) & (labels >= 0)
    following = step.masked_fill(~same, n).argmin(dim=1)
    return torch.where(labels >= 0, following, nearest)


@in_full_precision
def orca_pairs(probabilities: Tensor, other_probabilities: Tensor, partners: Tensor) -> Tensor:
    """Compute ``−mean log(p_i · p'_j)`` over rows i and their partners j in the other view.

    Parameters
    ----------
    probabilities, other_probabilities : Tensor of shape (n, c)
        Predictions of both views.
    partners : Tensor of shape (n,)
        Row numbers.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> p = torch.full((2, 2), 0.5)
    >>> round(float(orca_pairs(p, p, torch.tensor([1, 0]))), 4)
    0.6931
    """
    if not len(probabilities):
        return nothing(probabilities)
    agreement = (probabilities * other_probabilities[partners]).sum(dim=1)
    return -agreement.clamp(1e-7, 1.0).log().mean()


@in_full_precision
def mean_entropy(probabilities: Tensor) -> Tensor:
    """Compute the entropy of the mean prediction; ORCA maximises it so that no class takes all.

    Parameters
    ----------
    probabilities : Tensor of shape (n, c)
        One row per input.

    Returns
    -------
    Tensor
        The entropy.

    Examples
    --------
    >>> round(float(mean_entropy(torch.eye(2))), 4)
    0.6931
    """
    if not len(probabilities):
        return nothing(probabilities)
    mean = probabilities.mean(dim=0)
    return -(mean * mean.clamp(min=1e-12).log()).sum()  # entr() has an infinite slope at 0


@torch.no_grad()
@in_full_precision
def sinkhorn(logits: Tensor, epsilon: float = 0.05, iterations: int = 3, prior: Tensor | None = None) -> Tensor:
    """Soft assignments of rows to classes whose total follows a prior (Asano et al. 2020; UNO), in logarithms.

    Parameters
    ----------
    logits : Tensor
        Rows × classes; for cosines ε = .05 is usual.
    epsilon, iterations : float and int, default=0.05 and 3
        How sharp; how often columns and rows are rescaled.
    prior : Tensor or None, default=None
        The share of each class, even when absent.

    Returns
    -------
    Tensor
        Rows × classes, every row summing to 1; no gradient.

    Examples
    --------
    >>> sinkhorn(torch.tensor([[1.0, 0.0], [0.9, 0.0]]), epsilon=0.05).argmax(dim=1)
    tensor([0, 1])
    """
    if not epsilon > 0 or iterations < 1:
        raise InputError(f"sinkhorn(epsilon={epsilon}, iterations={iterations}): both must be above 0")
    plan = logits / epsilon
    if not len(plan):
        return plan
    shares = torch.full_like(plan[0], 1 / plan.shape[1]) if prior is None else prior.to(plan.dtype)
    for _ in range(iterations):
        plan = plan - torch.logsumexp(plan, dim=0) + shares.clamp(min=1e-12).log()
        plan = plan - torch.logsumexp(plan, dim=1, keepdim=True)
    return plan.exp()


@in_full_precision
def uno(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Tensor:
    """Compute UNO's loss (Fini et al. 2021): each view predicts the other's balanced assignment, or the label.

    UNO assigns unlabelled rows to novel classes only, for it knows that all are novel. Here they may be of any
    class, so they are balanced over all.

    Parameters
    ----------
    first, second : Tensor
        Cosines of two views with all class vectors, rows × classes.
    labels : Tensor
        The known class of each row, -1 where unlabelled.
    temperature : float, default=0.1
        Temperature of the predictions.
    epsilon, iterations : float and int, default=0.05 and 3
        Parameters of `sinkhorn`.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> cosines = torch.eye(2)
    >>> round(float(uno(cosines, cosines, torch.tensor([0, 1]), temperature=1.0)), 4)
    0.3133
    """
    check_views(first, second, labels)
    check_temperature(temperature)
    free = labels < 0
    total = nothing(first, second)
    for view, other in ((first, second), (second, first)):
        target = functional.one_hot(labels.clamp(min=0), view.shape[1]).to(view.dtype)
        target[free] = sinkhorn(other[free], epsilon, iterations)
        total = total - (target * functional.log_softmax(view / temperature, dim=1)).sum(dim=1).sum()
    return total / max(2 * len(labels), 1)


def rank_statistics(features: Tensor, top: int = 5) -> Tensor:
    """Tell whether two rows have the same `top` largest features, in any order (AutoNovel, Han et al. 2020).

    Parameters
    ----------
    features : Tensor of shape (n, d)
        One row per input.
    top : int, default=5
        How many features are compared.

    Returns
    -------
    Tensor of bool of shape (n, n)
        Whether two rows agree.

    Examples
    --------
    >>> rows = torch.tensor([[5.0, 4.0, 0.0], [4.0, 5.0, 1.0], [0.0, 1.0, 9.0]])
    >>> rank_statistics(rows, top=2).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    if not 1 <= top <= features.shape[1]:
        raise InputError(f"rank_statistics(top={top}): with {features.shape[1]} features, 1 to {features.shape[1]}")
    largest = features.detach().topk(top, dim=1).indices
    marks = torch.zeros(features.shape, device=features.device).scatter_(1, largest, 1.0)
    return marks @ marks.T >= top - 0.5


@in_full_precision
def autonovel_pairs(probabilities: Tensor, other_probabilities: Tensor, same: Tensor) -> Tensor:
    """Compute the binary cross-entropy of ``p_i · p'_j`` against whether rows i and j are taken for one class.

    Parameters
    ----------
    probabilities, other_probabilities : Tensor of shape (n, c)
        Predictions of both views.
    same : Tensor of bool of shape (n, n)
        Whether two rows are taken for one class.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> p = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    >>> round(float(autonovel_pairs(p, p, torch.eye(2, dtype=torch.bool))), 4)
    0.6931
    """
    if not len(probabilities):
        return nothing(probabilities, other_probabilities)
    agreement = (probabilities @ other_probabilities.T).clamp(1e-7, 1 - 1e-7)
    return functional.binary_cross_entropy(agreement, same.to(agreement.dtype))


@in_full_precision
def deconf_logits(features: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
    """Divide cosines with class vectors by a learned ``g(x)`` in (0, 1) (DeConf-C of GODIN, Hsu et al. 2020).

    Training is plain cross-entropy on these logits; at test time ``max_i h_i`` or ``g`` alone tells known from
    unknown.

    Parameters
    ----------
    features, weight : Tensor
        Rows × d and classes × d.
    gate : Tensor
        One number per row, after batch normalisation, before the sigmoid.

    Returns
    -------
    Tensor of shape (n, c)
        The logits.

    Examples
    --------
    >>> deconf_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([0.0]))
    tensor([[2., 0.]])
    """
    if gate.reshape(-1).shape != (len(features),):
        raise InputError(f"deconf_logits: a gate of shape {tuple(gate.shape)} for {len(features)} rows; one per row")
    return unit(features) @ unit(weight).T / torch.sigmoid(gate.reshape(-1, 1)).clamp(min=1e-6)


@in_full_precision
def logitnorm(logits: Tensor, labels: Tensor, temperature: float = 0.04) -> Tensor:
    """Compute cross-entropy of ``f / (τ‖f‖)``: the length of the logits cannot grow (Wei et al. 2022, eq. 4).

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        f.
    labels : Tensor of shape (n,)
        Classes, -1 where unlabelled.
    temperature : float, default=0.04
        τ.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> one, ten = torch.tensor([[1.0, 0.0]]), torch.tensor([[10.0, 0.0]])
    >>> bool(logitnorm(one, torch.tensor([0])) == logitnorm(ten, torch.tensor([0])))
    True
    """
    check_temperature(temperature)
    return cross_entropy(unit(logits) / temperature, labels)


@in_full_precision
def group_softmax(classes: Tensor, others: Tensor, norms: Tensor, groups: Tensor, labels: Tensor) -> Tensor:
    """Compute the sum over groups of their cross-entropies, the mean over rows (MOS, Huang & Li 2021, eq. 2).

    Parameters
    ----------
    classes, others, norms : Tensor
        Logits of classes, rows × classes; logits of "others" and logarithms of sums of exponentials, rows × groups.
    groups : Tensor of shape (c,)
        The group of each class.
    labels : Tensor of shape (n,)
        The class of each row; all are labelled.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> groups, norms = torch.tensor([0, 0, 1]), torch.tensor([[3.0, 2.0]]).log()
    >>> loss = group_softmax(torch.zeros(1, 3), torch.zeros(1, 2), norms, groups, torch.tensor([2]))
    >>> round(float(loss), 4)  # log 3, "others" of the first group, and log 2
    1.7918
    """
    own = groups[labels]
    chosen = others.scatter(1, own[:, None], classes.gather(1, labels[:, None]))
    return (norms - chosen).sum(dim=1).mean()
