"""Scores that read logits: MSP, MaxLogit, energy, entropy, GEN.

Probabilities are worked with as logarithms in float64, so that confident inputs keep their order where a plain float32
softmax would call them all 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.detection.base import Score
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register


def log_probabilities(logits: Tensor) -> Tensor:
    """Compute the log-softmax in float64, exact also where a probability is almost 1.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.

    Returns
    -------
    Tensor of shape (n, c)
        Logarithms of probabilities.

    Examples
    --------
    >>> f"{log_probabilities(torch.tensor([[50.0, 0.0]]))[0, 0]:.6e}"
    '-1.928750e-22'
    """
    shifted = logits.double() - logits.double().amax(dim=1, keepdim=True)
    top = shifted.argmax(dim=1, keepdim=True)
    rest = shifted.exp().scatter(1, top, 0.0).sum(dim=1, keepdim=True)
    return shifted - torch.log1p(rest)


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute T·log Σ exp(f/T), the negative free energy (thesis, chapter 4, section 4.2, eq. 4.4).

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        f.
    temperature : float, default=1.0
        T.

    Returns
    -------
    Tensor of shape (n,)
        In float64.

    Examples
    --------
    >>> energy(torch.tensor([[0.0, 0.0]])).item()
    0.6931471805599453
    """
    return temperature * torch.logsumexp(logits.double() / temperature, dim=1)


def negative_entropy(logits: Tensor) -> Tensor:
    """Compute Σ p log p of the softmax probabilities.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.

    Returns
    -------
    Tensor of shape (n,)
        From -log c to 0.

    Examples
    --------
    >>> round(negative_entropy(torch.tensor([[0.0, 0.0]])).item(), 6)
    -0.693147
    """
    log_p = log_probabilities(logits)
    return (log_p.exp() * log_p).sum(dim=1)


def generalized_entropy(logits: Tensor, gamma: float, m: int) -> Tensor:
    """Compute -Σ (p(1-p))^γ over the m largest probabilities (Liu et al. 2023, eq. 4).

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.
    gamma : float
        γ.
    m : int
        How many probabilities count; all when there are fewer.

    Returns
    -------
    Tensor of shape (n,)
        Negative numbers; higher means more confident.

    Examples
    --------
    >>> generalized_entropy(torch.tensor([[0.0, 0.0]]), 0.5, 2).item()
    -1.0
    """
    log_p = log_probabilities(logits).topk(min(m, logits.shape[1]), dim=1).values
    log_rest = torch.log(-torch.expm1(log_p))  # log(1 - p) without cancellation
    return -(gamma * (log_p + log_rest)).exp().sum(dim=1)


@register
class MSP(Score):
    """The largest softmax probability, as its logarithm: the same order, without ties at 1."""

    name = "msp"
    paper = "Hendrycks & Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, ICLR 2017"
    reads = ("logits",)
    invariant_to_shift = True

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the logarithm of the largest probability."""
        return log_probabilities(block.logits).amax(dim=1)


@register
class MaxLogit(Score):
    """The largest logit."""

    name = "maxlogit"
    paper = "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"
    reads = ("logits",)
    invariant_to_shift = False

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the largest logit."""
        return block.logits.amax(dim=1)


@register
class Energy(Score):
    """The negative free energy, log-sum-exp of the logits.

    Parameters
    ----------
    temperature : float, default=1.0
        T; the thesis uses 1.
    """

    name = "energy"
    paper = "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020; thesis, section 4.2, eq. 4.4"
    reads = ("logits",)
    invariant_to_shift = False

    temperature: float = 1.0

    def check(self) -> None:
        """Require a positive temperature."""
        self.number("temperature", 0, float("inf"), "the temperature must be above 0", open_low=True)

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the negative free energy."""
        return energy(block.logits, self.temperature)


@register
class Entropy(Score):
    """The negative entropy of the softmax probabilities."""

    name = "entropy"
    paper = "Shannon entropy of the prediction; e.g. Ren et al., Likelihood Ratios for OOD Detection, NeurIPS 2019"
    reads = ("logits",)
    invariant_to_shift = True

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the negative entropy."""
        return negative_entropy(block.logits)


@register
class GEN(Score):
    """Negative generalised entropy of the largest probabilities.

    Parameters
    ----------
    gamma : float, default=0.1
        The exponent; small values weigh small probabilities up.
    m : int, default=100
        How many of the largest probabilities count.
    """

    name = "gen"
    paper = "Liu, Lochman & Zach, GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023"
    reads = ("logits",)
    invariant_to_shift = True

    gamma: float = 0.1
    m: int = 100

    def check(self) -> None:
        """Check the bounds of both."""
        self.number("gamma", 0, 1, "the exponent must lie between 0 and 1", open_low=True)
        self.require(isinstance(self.m, int) and self.m >= 1, "m", "at least one probability must count")

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the negative generalised entropy."""
        return generalized_entropy(block.logits, self.gamma, self.m)
