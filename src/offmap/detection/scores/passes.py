"""Scores that look at other passes of the network: ODIN, MC-dropout, ensembles, the BatchNorm oracle.

Each declares its pass as a request; extract with ``requirements=detector.requirements`` and score as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from offmap.detection.base import Context, Score, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.logits import energy, log_probabilities
from offmap.extra_passes import BatchStatistics, Members, Passes, Perturbed, Request


def odin_score(logits: Tensor, temperature: float) -> Tensor:
    """Compute log max softmax(f/T) in float64: at T = 1000 all probabilities are near 1/C (Liang et al. 2018, eq. 1).

    Parameters
    ----------
    logits : Tensor of shape (n, c)
        f.
    temperature : float
        T.

    Returns
    -------
    Tensor of shape (n,)
        The logarithms.

    Examples
    --------
    >>> round(odin_score(torch.tensor([[1.0, 0.0]]), 1000.0).item() + math.log(2), 9)
    0.000499875
    """
    return log_probabilities(logits.double() / temperature).amax(dim=1)


def mean_log_probabilities(logits: Tensor) -> Tensor:
    """Compute the logarithm of the mean over passes of the softmax probabilities.

    The largest is taken as 1 less the others, so that confident inputs keep their digits.

    Parameters
    ----------
    logits : Tensor of shape (n, passes, c)
        Logits of each pass.

    Returns
    -------
    Tensor of shape (n, c)
        Logarithms of probabilities.

    Examples
    --------
    >>> mean_log_probabilities(torch.tensor([[[0.0, 0.0], [0.0, 0.0]]])).exp()
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    inputs, passes, classes = logits.shape
    each = log_probabilities(logits.reshape(inputs * passes, classes)).reshape(inputs, passes, classes)
    mean = torch.logsumexp(each, dim=1) - math.log(passes)
    top = mean.argmax(dim=1, keepdim=True)
    others = mean.exp().scatter(1, top, 0.0).sum(dim=1, keepdim=True)
    return mean.scatter(1, top, torch.log1p(-others))


def negative_predictive_entropy(logits: Tensor) -> Tensor:
    """Compute Σ p̄ log p̄, p̄ the mean over passes of the softmax probabilities (Gal 2016, eq. 3.20).

    Parameters
    ----------
    logits : Tensor of shape (n, passes, c)
        Logits of each pass.

    Returns
    -------
    Tensor of shape (n,)
        From -log c to 0.

    Examples
    --------
    >>> two_that_disagree = torch.tensor([[[9.0, -9.0], [-9.0, 9.0]]])
    >>> round(negative_predictive_entropy(two_that_disagree).item(), 6)
    -0.693147
    """
    log_p = mean_log_probabilities(logits)
    return (log_p.exp() * log_p).sum(dim=1)


@register
class ODIN(Score):
    """The largest softmax probability at a high temperature, after a small step of the input towards confidence.

    With shapers before it (``react(90)|odin``, thesis, section 3.3.2, table 3.3), the step climbs what the shaped
    network answers.

    Parameters
    ----------
    temperature : float, default=1000.0
        T.
    epsilon : float, default=0.0014
        The length of the step, in units of the network's input; 0 for none, which needs no extra pass. The default is
        the paper's, for pictures in [0, 1]. The thesis' authors use .01 on CIFAR-10, .04 on CIFAR-100 and .005 on
        ImageNet, on standardised pictures.
    scale : tuple of float or None, default=None
        One standard deviation per channel by which the step is divided, as the paper's authors do for networks that
        are fed standardised pictures.
    """

    name = "odin"
    paper = "Liang, Li & Srikant, Enhancing The Reliability of Out-of-distribution Image Detection, ICLR 2018"
    reads = ("logits",)
    invariant_to_shift = True

    temperature: float = 1000.0
    epsilon: float = 0.0014
    scale: tuple[float, ...] | None = None

    def check(self) -> None:
        """Check the bounds of temperature and step."""
        self.number("temperature", 0, math.inf, "the temperature must be above 0", open_low=True)
        self.number("epsilon", 0, math.inf, "the length of the step must not be negative")
        positive = self.scale is None or (len(self.scale) > 0 and min(self.scale) > 0)
        self.require(positive, "scale", "give one positive standard deviation per channel, as in scale=[0.2, 0.2, 0.2]")

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Remember which shapers the step goes through: their passes differ."""
        return {"shapers": torch.tensor(list(context.shapers.encode()), dtype=torch.uint8)}

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the perturbed pass, once the shapers before it are fitted."""
        if self.epsilon == 0 or state is None:
            return ()

        def confidence(features: Tensor, logits: Tensor) -> Tensor:
            return odin_score(shape(ActivationBatch(features, logits)).logits, self.temperature)

        return (self._pass(state, confidence),)

    @property
    def own_pass(self) -> bool:
        """Only with a step."""
        return self.epsilon > 0

    def view(self, block: ActivationBatch, state: State) -> ActivationBatch:
        """Return the perturbed pass."""
        return block.seen_in(self._pass(state, lambda features, logits: logits)) if self.own_pass else block

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the logarithm of the largest probability."""
        return odin_score(block.logits, self.temperature)

    def _pass(self, state: State, objective: Callable[[Tensor, Tensor], Tensor]) -> Perturbed:
        shapers = bytes(state["shapers"].tolist()).decode() if "shapers" in state else ""
        name = f"odin({self.temperature!r})" + (f"-{shapers}" if shapers else "")
        scale = None if self.scale is None else tuple(map(float, self.scale))
        return Perturbed(self.epsilon, objective, name, scale=scale)


@register
class MCDropout(Score):
    """Minus the entropy of the mean prediction over passes in which dropout stays active.

    Parameters
    ----------
    n : int, default=20
        How many passes.
    seed : int, default=0
        Seed of the dropout masks.
    """

    name = "mc_dropout"
    paper = "Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016"
    invariant_to_shift = True

    n: int = 20
    seed: int = 0

    def check(self) -> None:
        """Require at least one pass."""
        self.number("n", 1, math.inf, "at least one pass is needed")

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the passes."""
        return (Passes(self.n, self.seed),)

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the entropy."""
        return negative_predictive_entropy(block.extra(*Passes(self.n, self.seed).outputs))


@register
class Ensemble(Score):
    """Minus the entropy of the mean prediction of networks trained apart: ``Network(model, ensemble=[...])``."""

    name = "ensemble"
    paper = "Lakshminarayanan, Pritzel & Blundell, Simple and Scalable Predictive Uncertainty Estimation, NeurIPS 2017"
    invariant_to_shift = True

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return every member's logits."""
        return (Members(),)

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return minus the entropy."""
        return negative_predictive_entropy(block.extra(*Members().outputs))


@register
class BatchNormOracle(Score):
    """Energy when BatchNorm uses the statistics of the batch itself: what a network would say of unknown inputs if it
    knew their statistics. A diagnostic, since it needs a whole batch from one source; not a detector to deploy.
    """

    name = "batchnorm_oracle"
    paper = "Sun, Guo & Li, ReAct: OOD Detection With Rectified Activations, NeurIPS 2021; thesis, appendix A.1.3"
    reads = ("logits",)
    invariant_to_shift = False

    def requests(self, state: State | None, shape: Callable[[ActivationBatch], ActivationBatch]) -> tuple[Request, ...]:
        """Return the pass with the batch's own statistics."""
        return (BatchStatistics(),)

    @property
    def own_pass(self) -> bool:
        """Always."""
        return True

    def view(self, block: ActivationBatch, state: State) -> ActivationBatch:
        """Return that pass."""
        return block.seen_in(BatchStatistics())

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return energy."""
        return energy(block.logits)
