"""Zero-shot scores for image and text embeddings of one space, such as CLIP's: MCM and NegLabel.

The features are embeddings of inputs; the rows of the head's weight are embeddings of class names. No network is
needed: ``Activations(image_embeddings, head=Head(name_embeddings))``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.detection.base import Score
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.errors import InputError
from offmap.neighbors.vectors import unit


def cosines(features: Tensor, names: Tensor) -> Tensor:
    """Return the cosine of the angle between every feature row and every name row.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        Features of the inputs.
    names : Tensor of shape (m, d)
        Text features of names.

    Returns
    -------
    Tensor of shape (n, m)
        From -1 to 1.

    Examples
    --------
    >>> cosines(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    tensor([[1., 0.]])
    """
    return unit(features) @ unit(names).T


def concept_matching(similarity: Tensor, temperature: float) -> Tensor:
    """Return the logarithm of the largest softmax probability of similarities / temperature (Ming et al. 2022, eq. 1).

    The logarithm keeps the order and does not round to ties at 1.

    Parameters
    ----------
    similarity : Tensor of shape (n, c)
        What `cosines` gave.
    temperature : float
        The divisor.

    Returns
    -------
    Tensor of shape (n,)
        The logarithms.

    Examples
    --------
    >>> concept_matching(torch.tensor([[0.0, 0.0]]), 1.0).exp()
    tensor([0.5000], dtype=torch.float64)
    """
    return torch.log_softmax(similarity.double() / temperature, dim=1).amax(dim=1)


def known_share(similarity: Tensor, n_known: int, temperature: float, groups: int) -> Tensor:
    """Return the mean, over groups of negative labels, of the softmax mass that the known labels get.

    Jiang et al. 2024, eq. 9: each group of negative labels competes with all known labels.

    Parameters
    ----------
    similarity : Tensor of shape (n, m)
        What `cosines` gave, known names first.
    n_known : int
        Number of known names.
    temperature : float
        The divisor of similarities.
    groups : int
        Number of groups of the other names.

    Returns
    -------
    Tensor of shape (n,)
        From 0 to 1.

    Examples
    --------
    >>> known_share(torch.zeros(1, 4), n_known=2, temperature=1.0, groups=1)
    tensor([0.5000], dtype=torch.float64)
    """
    scaled = similarity.double() / temperature
    known = torch.logsumexp(scaled[:, :n_known], dim=1)
    parts = [torch.logsumexp(part, dim=1) for part in scaled[:, n_known:].tensor_split(groups, dim=1)]
    return torch.stack([torch.sigmoid(known - negative) for negative in parts], dim=1).mean(dim=1)


@register
class MCM(Score):
    """Maximum concept matching: the largest softmax probability over cosines with class-name embeddings.

    Parameters
    ----------
    temperature : float, default 1
        What the cosines are divided by.
    """

    name = "mcm"
    paper = "Ming et al., Delving into Out-of-Distribution Detection with Vision-Language Representations, NeurIPS 2022"
    reads = ("features", "head")

    temperature: float = 1.0

    def check(self) -> None:
        """Refuse a temperature that is not positive."""
        self.number("temperature", 0, float("inf"), "the temperature must be above 0", open_low=True)

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the logarithm of the largest probability."""
        return concept_matching(cosines(block.features, block.require_head().weight), self.temperature)


@register
class NegLabel(Score):
    """The softmax mass of known class names against that of names far from all of them.

    Parameters
    ----------
    known : int, default 1
        How many of the head's first rows are known class names; the others are negative labels.
    temperature : float, default 0.01
        What the cosines are divided by.
    groups : int, default 1
        Groups of negative labels, in the order given, whose scores are averaged.

    Examples
    --------
    >>> import numpy as np, offmap
    >>> names, negatives = np.eye(4)[:2], np.eye(4)[2:]
    >>> acts = offmap.Activations(np.eye(4), head=offmap.Head(np.concatenate([names, negatives])))
    >>> offmap.detector("neglabel(2)").fit(acts).score(acts).round(2)
    array([1., 1., 0., 0.])
    """

    name = "neglabel"
    paper = "Jiang et al., Negative Label Guided OOD Detection with Pretrained Vision-Language Models, ICLR 2024"
    reads = ("features", "head")
    shown = ("known",)

    known: int = 1
    temperature: float = 0.01
    groups: int = 1

    def check(self) -> None:
        """Refuse parameters out of bounds."""
        self.number("known", 1, float("inf"), "at least one class name is known")
        self.number("temperature", 0, float("inf"), "the temperature must be above 0", open_low=True)
        self.number("groups", 1, float("inf"), "there is at least one group of negative labels")

    def score(self, block: ActivationBatch, ready: object) -> Tensor:
        """Return the mass of the known names."""
        names = block.require_head().weight
        if len(names) < self.known + self.groups:
            raise InputError(
                f"{self}: the head has {len(names)} rows; {self.known} known names and at least {self.groups} "
                "negative labels are needed"
            )
        return known_share(cosines(block.features, names), self.known, self.temperature, self.groups)
