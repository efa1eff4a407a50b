"""Losses of DualRank: words for the parts of pictures, and agreement of two branches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from offmap.errors import InputError
from offmap.learning.losses.numbers import check_temperature, check_views, in_full_precision, nothing
from offmap.neighbors.vectors import unit

__all__ = ["mutual_divergence", "word_shares"]


@in_full_precision
def word_shares(parts: Tensor, words: Tensor, sharpness: float = 15.0) -> Tensor:
    """Compute how much each word says of a picture: the mean over its parts of a softmax of squared distances.

    Parameters
    ----------
    parts : Tensor of shape (p, n, d)
        Features of p parts of each of n pictures.
    words : Tensor of shape (w, d)
        Features of parts that stand for words.
    sharpness : float, default=15.0
        Distances are multiplied by it and divided by the mean distance to the nearest word.

    Returns
    -------
    Tensor of shape (n, w)
        Rows sum to 1.

    Examples
    --------
    >>> words = torch.eye(2)
    >>> word_shares(torch.tensor([[[1.0, 0.2]], [[1.0, 0.0]]]), words).round(decimals=2)
    tensor([[1., 0.]])
    """
    if sharpness <= 0:
        raise InputError(f"word_shares(sharpness={sharpness}): it must be above 0")
    squares = torch.cdist(parts.flatten(0, 1), words).square()
    nearest = squares.amin(dim=1).mean().clamp(min=1e-6)
    soft = torch.softmax(-sharpness * squares / nearest, dim=1)
    return soft.reshape(*parts.shape[:2], len(words)).mean(dim=0)


@in_full_precision
def mutual_divergence(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], temperature: float = 0.1) -> Tensor:
    """Compute the symmetric divergence between what two branches say of which rows are alike.

    Each branch compares the rows of one view with those of the other; a softmax over the compared rows is its opinion.

    Parameters
    ----------
    first, second : tuple of 2 Tensor
        Of each branch: features of both views.
    temperature : float, default=0.1
        Cosines are divided by it.

    Returns
    -------
    Tensor
        The mean over rows of KL(p‖q) + KL(q‖p).

    Examples
    --------
    >>> rows = torch.eye(3)
    >>> float(mutual_divergence((rows, rows), (rows, rows)))
    0.0
    """
    check_temperature(temperature)
    check_views(*first)
    check_views(*second)
    if not len(first[0]):
        return nothing(*first, *second)
    one, two = (torch.log_softmax(unit(left) @ unit(right).T / temperature, dim=1) for left, right in (first, second))
    there = functional.kl_div(one, two, reduction="batchmean", log_target=True)
    return there + functional.kl_div(two, one, reduction="batchmean", log_target=True)
