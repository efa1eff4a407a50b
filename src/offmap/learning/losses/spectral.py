"""Spectral contrastive losses: SCL, NSCL and SORL from one set of five terms.

In expectation over batches each equals ``‖Ȧ − F Fᵀ‖²`` up to a constant (thesis, section 6.3.2, eq. 6.3; section 7.3.2,
theorem 7.1), where Ȧ is the normalised augmentation graph. With the similarities ``S = Z₁ Z₂ᵀ`` of two views all terms
are sums over pairs of rows: memory is O(batch²).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from offmap.errors import InputError
from offmap.learning.losses.numbers import check_views, in_full_precision

__all__ = ["SpectralTerms", "clip_norm", "nscl", "scl", "sorl", "spectral_terms"]

Setting = Literal["sorl", "nscl"]
Estimator = Literal["unbiased", "authors"]


class SpectralTerms(NamedTuple):
    """The five expectations of NSCL's theorem (section 6.3.2, theorem 6.1), numbered as there: 1 and 3 labelled, 2 and
    5 unlabelled.
    """

    attract_labelled: Tensor
    attract_unlabelled: Tensor
    repel_labelled: Tensor
    repel_mixed: Tensor
    repel_unlabelled: Tensor


def clip_norm(embeddings: Tensor, largest: float = 1.0) -> Tensor:
    """Shorten rows longer than ``sqrt(largest)`` to it, as the authors' code does instead of normalising.

    Parameters
    ----------
    embeddings : Tensor of shape (n, d)
        Rows of any length.
    largest : float, default=1.0
        The largest squared length.

    Returns
    -------
    Tensor of shape (n, d)
        The clipped rows.

    Examples
    --------
    >>> clip_norm(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    length = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
    return embeddings * (largest**0.5 / length.clamp(min=1e-12)).clamp(max=1.0)


@in_full_precision
def spectral_terms(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    *,
    setting: Setting = "sorl",
    shares: Tensor | None = None,
    estimator: Estimator = "unbiased",
) -> SpectralTerms:
    """Estimate the five terms of the spectral losses from one batch of two views.

    Parameters
    ----------
    first, second : Tensor
        Embeddings of two views, not normalised; row i of both is the same sample.
    labels : Tensor
        The known class of each row, -1 where unlabelled.
    setting : Setting, default="sorl"
        In ``"sorl"`` (section 7.3.1, eq. 7.2) every row counts as unlabelled too, in ``"nscl"`` (section 6.3.1, eq.
        6.1) only those without label.
    shares : Tensor or None, default=None
        The share of each known class among the labelled samples of the whole set. With them every term is
        unbiased, whatever classes the batch happens to hold. Without, counts in the batch stand in, and a class
        with a single row attracts its two views.
    estimator : Estimator, default="unbiased"
        ``"authors"`` sums over pairs as the released code does: a row with itself counts in term 1, and is
        dropped without rescaling in term 3.

    Returns
    -------
    SpectralTerms
        L₁ to L₅.

    Examples
    --------
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> terms = spectral_terms(z, z, torch.tensor([0, -1]))
    >>> [float(term) for term in terms]
    [1.0, 1.0, 0.0, 0.0, 0.0]
    """
    check_views(first, second, labels)
    n = len(labels)
    similar = first @ second.T
    known = labels >= 0
    n_known = known.sum().to(similar.dtype)
    free = torch.ones_like(known) if setting == "sorl" else ~known
    b = free.to(similar.dtype) / free.sum().clamp(min=1)
    count = torch.bincount(labels[known], minlength=1).to(similar.dtype)
    if shares is None or not len(shares):
        shares, size = None, count
    else:
        if n and int(labels.max()) >= len(shares):
            raise InputError(f"shares of {len(shares)} classes, but a label {int(labels.max())}")
        size = shares.to(similar.dtype) * n_known
    a = torch.where(known, 1 / size[labels.clamp(min=0)].clamp(min=1e-12), torch.zeros_like(b))
    same = known[:, None] & (labels[:, None] == labels)
    apart = ~torch.eye(n, dtype=torch.bool, device=labels.device)
    pairs = a[:, None] * a
    if estimator == "authors":
        attract_pairs, repel_pairs = pairs * same, pairs * apart
    elif shares is None:
        # Within a class n_c(n_c − 1) pairs are independent, between classes all n_c n_c' are.
        others = count[labels.clamp(min=0)] - 1
        within = pairs * same * apart * torch.where(others > 0, (others + 1) / others.clamp(min=1), 0.0)
        alone = torch.diag(torch.where(known & (others == 0), torch.ones_like(b), torch.zeros_like(b)))
        attract_pairs, repel_pairs = within + alone, within + pairs * ~same
    else:
        pairs = pairs * apart * (n_known / (n_known - 1).clamp(min=1))
        attract_pairs, repel_pairs = pairs * same, pairs
    squares = similar.square()
    off = squares * apart
    spare = free.sum().to(similar.dtype)
    independent = spare / (spare - 1).clamp(min=1)  # rows that can be paired with others, not with themselves
    mixed = (a @ (off @ b) + b @ (off @ a)) / 2 * (independent if setting == "sorl" else 1.0)
    return SpectralTerms(
        (attract_pairs * similar).sum(),
        (b * similar.diagonal()).sum(),
        (repel_pairs * squares).sum(),
        mixed,
        b @ (off @ b) * independent,
    )


def scl(first: Tensor, second: Tensor) -> Tensor:
    """Compute the spectral contrastive loss without labels (HaoChen et al. 2021): ``−2 E[f·f⁺] + E[(f·f⁻)²]``.

    Parameters
    ----------
    first, second : Tensor of shape (n, d)
        Embeddings of two views, not normalised.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> z = torch.eye(2)
    >>> float(scl(z, z))
    -2.0
    """
    labels = torch.full((len(first),), -1, device=first.device)
    terms = spectral_terms(first, second, labels)
    return terms.repel_unlabelled - 2 * terms.attract_unlabelled


def nscl(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    shares: Tensor | None = None,
    estimator: Estimator = "unbiased",
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Tensor:
    """Compute NSCL's loss ``−2αL₁ − 2βL₂ + α²L₃ + 2αβL₄ + β²L₅`` (thesis, chapter 6, section 6.3.2, eq. 6.4).

    Parameters
    ----------
    first, second, labels, shares, estimator : Tensor, Tensor or None and Estimator
        As in `spectral_terms`.
    alpha, beta : float, default=1.0
        Weights of the labelled and of the unlabelled part.
    factors : tuple of 3 float, default=(1.0, 1.0, 1.0)
        Extra factors on L₃, L₄, L₅; the released code has (1, 2, 1), for it counts the mixed pairs twice.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> z = torch.eye(3)
    >>> float(nscl(z, z, torch.tensor([0, -1, -1])))
    -4.0
    """
    terms = spectral_terms(first, second, labels, setting="nscl", shares=shares, estimator=estimator)
    return _weighted(terms, alpha, beta, factors)


def sorl(
    first: Tensor,
    second: Tensor,
    labels: Tensor,
    *,
    eta_l: float = 0.5,
    eta_u: float = 1.0,
    shares: Tensor | None = None,
    estimator: Estimator = "unbiased",
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Tensor:
    """Compute SORL's loss (thesis, chapter 7, section 7.3.2, theorem 7.1).

    η_l stands on the labelled terms, as the definition (section 7.3.1, eq. 7.2) has it. The theorem prints η_u there;
    only this way the loss equals ``‖Ȧ − F Fᵀ‖²`` up to a constant.

    Parameters
    ----------
    first, second, labels, shares, estimator : Tensor, Tensor or None and Estimator
        As in `spectral_terms`.
    eta_l, eta_u : float, default=0.5 and 1.0
        Weights of the labelled and of the unlabelled part.
    factors : tuple of 3 float, default=(1.0, 1.0, 1.0)
        Extra factors on the three repelling terms; the released code has (3, 2, 2) for CIFAR-100.

    Returns
    -------
    Tensor
        The loss.

    Examples
    --------
    >>> z = torch.eye(3)
    >>> float(sorl(z, z, torch.tensor([0, -1, -1])))
    -3.0
    """
    terms = spectral_terms(first, second, labels, setting="sorl", shares=shares, estimator=estimator)
    return _weighted(terms, eta_l, eta_u, factors)


def _weighted(terms: SpectralTerms, labelled: float, unlabelled: float, factors: tuple[float, float, float]) -> Tensor:
    attract = labelled * terms.attract_labelled + unlabelled * terms.attract_unlabelled
    repel = (
        labelled**2 * factors[0] * terms.repel_labelled
        + 2 * labelled * unlabelled * factors[1] * terms.repel_mixed
        + unlabelled**2 * factors[2] * terms.repel_unlabelled
    )
    return repel - 2 * attract
