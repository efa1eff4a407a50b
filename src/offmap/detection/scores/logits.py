"""Scores that read logits: MSP, MaxLogit, energy, entropy, GEN, KL matching, and temperature scaling before them.

Probabilities are worked with as logarithms in float64, so that confident inputs keep their order where a plain float32
softmax would call them all 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, Shaper, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.statistics import ClassMoments, RowSample, Statistic
from offmap.errors import OffmapWarning

FEW = 10  # known inputs below which a class has no mean prediction of its own, and nothing a temperature
EPS = 1e-300  # a template that never gave a class any probability still has a logarithm


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


def no_temperature(logits: Tensor, labels: Tensor) -> str | None:
    """Say why no temperature fits best: the slope of the likelihood has one sign from 1/T = 0 to infinity.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of known inputs.
    labels : Tensor of shape (n,)
        Their classes.

    Returns
    -------
    str or None
        The reason in words, `None` where one temperature is best.

    Examples
    --------
    >>> right = torch.eye(2, dtype=torch.float64).repeat(10, 1)
    >>> no_temperature(right, torch.tensor([0, 1] * 10))
    'all 20 inputs are classified rightly, so the smaller the temperature the better'
    >>> no_temperature(right, torch.tensor([0, 1] * 9 + [0, 0]))
    """
    count = len(logits)
    if count < FEW:
        return f"{count} inputs are too few for a temperature (at least {FEW})"
    own = logits.gather(1, labels[:, None])[:, 0]
    if bool((own >= logits.amax(dim=1)).all()):
        return f"all {count} inputs are classified rightly, so the smaller the temperature the better"
    if float((own - logits.mean(dim=1)).mean()) <= 0:
        return "the logits say no more about the labels than chance, so the larger the temperature the better"
    return None


def kl_to_templates(logits: Tensor, log_templates: Tensor) -> Tensor:
    """Compute the KL divergence of each row's probabilities from each template's.

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        Logits of the inputs.
    log_templates : Tensor of shape (t, c)
        Logarithms of the templates' probabilities.

    Returns
    -------
    Tensor of shape (n, t)
        The divergences.
    """
    log_p = log_probabilities(logits)
    p = log_p.exp()
    return (p * log_p).sum(dim=1, keepdim=True) - p @ log_templates.T


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


def make_templates(means: Tensor, counts: Tensor) -> Tensor:
    """Make one template per class: its mean prediction, or over fewer than ten inputs one that is certain of the class.

    A template of few inputs that happen to be unsure would make every sure input look far. By the divergence from a
    certain one, inputs are ordered as by their largest probability.

    Parameters
    ----------
    means : Tensor of shape (t, c)
        Mean predictions of inputs that were predicted for the first t classes.
    counts : Tensor of shape (t,)
        Over how many inputs.

    Returns
    -------
    Tensor of shape (c, c)
        Rows that sum to 1.

    Examples
    --------
    >>> import torch
    >>> make_templates(torch.tensor([[0.8, 0.2, 0.0], [0.1, 0.9, 0.0]]), torch.tensor([1.0, 50.0]))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.1000, 0.9000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    made = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
    enough = counts >= FEW
    made[: len(means)][enough] = means[enough]
    return made


@register
class KLMatching(Score):
    """Minus the smallest KL divergence of the prediction from the mean prediction of any predicted class.

    In place of the mean over fewer than 10 known inputs stands a prediction that is certain of the class, with a
    warning: there the order is that of the largest probability.
    """

    name = "kl_matching"
    paper = MaxLogit.paper
    reads = ("logits",)
    fits = ("logits",)
    invariant_to_shift = True

    def statistics(self) -> Mapping[str, Statistic]:
        """Return mean probabilities per predicted class."""
        return {"templates": ClassMoments(scatter=False)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add predictions."""
        statistics["templates"].update(log_probabilities(block.logits).exp(), block.logits.argmax(dim=1))

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return logarithms of the templates."""
        means, counts = statistics["templates"].means, statistics["templates"].counts
        templates = make_templates(means, counts)
        if few := len(templates) - int((counts >= FEW).sum()):
            warnings.warn(
                f"{self}: {few} of {len(templates)} classes were predicted for fewer than {FEW} known inputs; there "
                "inputs are ordered by their largest probability",
                OffmapWarning,
                stacklevel=2,
            )
        return {"log_templates": templates.clamp(min=EPS).log()}

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the divergence from the nearest template."""
        return -kl_to_templates(block.logits, ready["log_templates"]).amin(dim=1)


@register
class TemperatureScaling(Shaper):
    """Divides the logits by the temperature that makes the probabilities of known inputs fit their labels best.

    There is no such temperature when every known input is classified rightly (the smaller, the better, until all
    probabilities are 1 and nothing is left to order inputs by) or when the logits say no more about the labels than
    chance, and none worth the name from fewer than 10 inputs. Then it is 1, with a warning.

    Parameters
    ----------
    rows : int, default=20000
        How many known inputs, chosen by a seeded hash, the temperature is fitted on at most.
    """

    name = "temperature_scaling"
    paper = "Guo et al., On Calibration of Modern Neural Networks, ICML 2017"
    reads = ("logits",)
    fits = ("logits", "labels")
    shapes = "logits"

    rows: int = 20_000

    def check(self) -> None:
        """Require at least one input."""
        self.require(self.rows >= 1, "rows", "the temperature is fitted on at least one input")

    def statistics(self) -> Mapping[str, Statistic]:
        """Return a sample of logits with labels."""
        return {"logits": RowSample(size=self.rows)}

    def observe(self, statistics: Statistics, block: ActivationBatch) -> None:
        """Add logits and labels."""
        statistics["logits"].update(block.logits, labels=block.labels)

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Return the temperature of the smallest negative log-likelihood, within e^±5; it is convex in 1/T."""
        from scipy.optimize import minimize_scalar

        logits = statistics["logits"].rows.double()
        labels = statistics["logits"].companion("labels")
        if reason := no_temperature(logits, labels):
            warnings.warn(
                f"temperature_scaling: {reason}; the logits are left as they are. Fit on labelled inputs that the "
                "network was not trained on",
                OffmapWarning,
                stacklevel=2,
            )
            return {"temperature": torch.ones((), dtype=torch.float64)}

        def loss(log_temperature: float) -> float:
            scaled = logits * torch.tensor(-log_temperature, dtype=torch.float64).exp()
            return float(torch.nn.functional.cross_entropy(scaled, labels))

        found = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-6})
        return {"temperature": torch.tensor(float(found.x), dtype=torch.float64).exp()}

    def shape(self, block: ActivationBatch, ready: State) -> ActivationBatch:
        """Divide the logits by the temperature."""
        return block.with_logits(block.logits / ready["temperature"].to(block.logits.dtype))
