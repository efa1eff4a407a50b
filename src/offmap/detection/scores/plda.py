"""Probabilistic linear discriminant analysis: is an input likelier of a known class than of one never seen?"""

from __future__ import annotations

import torch
from torch import Tensor

from offmap.detection.base import Context, State, Statistics
from offmap.detection.batch import ActivationBatch
from offmap.detection.registry import register
from offmap.detection.scores.distances import ClassGaussians, check_shrinkage
from offmap.detection.scores.few_inputs import tied_covariance
from offmap.detection.scores.gaussians import whitening
from offmap.detection.statistics import ClassMoments

ROUNDING = 1e-9
ANYWHERE = 1e6  # variance between classes, in units of that within, where nothing is known about it


@register
class PLDA(ClassGaussians):
    """The log-likelihood ratio of being of some known class against being of a class that was never seen.

    Inputs of a class are normal about its mean, and the means of classes, known and unknown ones alike, are normal
    about a common one. So an input is judged by how well a known class explains it, given how many inputs that class
    was seen with, against how well another class would, given how classes differ. In directions in which classes do
    not differ both explain it alike. With one class nothing says how classes differ, and the score is a distance.

    Parameters
    ----------
    isotropic : float, default=0.5
        Share of the variance between classes that is taken to be alike in all directions: known classes, being few,
        differ in few directions, and other classes may differ in others.
    shrinkage : float or None, default=None
        Share of a multiple of the identity mixed into the covariance within classes; `None` as for `Mahalanobis`.

    See Also
    --------
    offmap.detection.scores.distances.RMDS : the difference of two distances, without regard to numbers of inputs.

    Examples
    --------
    >>> import numpy as np, offmap
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(400) % 8
    >>> means = 5 * rng.normal(size=(8, 4))
    >>> known = offmap.Activations(rng.normal(size=(400, 4)) + means[labels], labels=labels)
    >>> ratio = offmap.detector("plda").fit(known).score(offmap.Activations(means))
    >>> bool((ratio > 0).all())  # at its mean, each class is likelier than a new one
    True
    """

    name = "plda"
    paper = "Ioffe, Probabilistic Linear Discriminant Analysis, ECCV 2006; against an unseen class: offmap's own use"

    isotropic: float = 0.5
    shrinkage: float | None = None

    def check(self) -> None:
        """Refuse shares outside 0 to 1."""
        check_shrinkage(self)
        self.number("isotropic", 0, 1, "the share must be between 0 and 1")

    def solve(self, statistics: Statistics, context: Context) -> State:
        """Diagonalise the variance between classes where that within is 1, and solve the classes' posteriors."""
        moments = statistics["moments"]
        root = whitening(tied_covariance(moments, self.shrinkage, repr(self))).double()
        return discriminant_state(moments, root, self.isotropic)

    def score(self, block: ActivationBatch, ready: State) -> Tensor:
        """Return the log-likelihood ratio, in float64."""
        return log_likelihood_ratio(block.features, ready)


def discriminant_state(moments: ClassMoments, root: Tensor, isotropic: float) -> State:
    """Solve what the likelihood ratio needs.

    With W the identity after whitening and B diagonal with entries b, the mean of a class of n inputs with mean x̄ has
    the posterior N(μ, s), s = b / (1 + n b), μ = n s x̄ about the common mean (Ioffe 2006, section 4).

    Parameters
    ----------
    moments : ClassMoments
        Moments of known features, with their classes.
    root : Tensor of shape (d, r)
        Whitens features within classes.
    isotropic : float
        Share of the variance between classes that is alike in all directions.

    Returns
    -------
    dict of str to Tensor
        ``root``, ``centre``; ``axes``, the directions in which classes differ; per class ``precision``, ``pull`` (the
        posterior mean times the precision) and ``offset``; ``new``, what the variances of a new class divide by
        along the axes; ``beside``, how squares off the axes count; ``level``, a constant.
    """
    present = moments.present.cpu()
    counts = moments.counts.cpu()[present][:, None]
    centre = moments.mean.cpu()
    means = (moments.means.cpu()[present] - centre) @ root
    width = root.shape[1]
    _, lengths, axes = torch.linalg.svd(means, full_matrices=False)
    spans = lengths > ROUNDING * lengths[:1].clamp(min=ROUNDING)  # C means about a common one span C - 1 directions
    lengths, axes = lengths[spans], axes[spans]
    found = lengths.square() / max(1, len(means) - 1) - (1 / counts).mean()  # class means differ by chance, too
    between = found.clamp(min=0)
    total = float(between.sum()) / max(1, width)
    if len(means) < 2 or total <= 0:
        between, other = torch.full_like(between, ANYWHERE), ANYWHERE
    else:
        between, other = (1 - isotropic) * between + isotropic * total, isotropic * total
    posterior = between / (1 + counts * between)
    precision = 1 / (1 + posterior)
    mean = counts * posterior * (means @ axes.T)
    typical = float(counts.mean())
    seen = 1 / (1 + other / (1 + typical * other))  # off the axes, where all class means are 0
    return {
        "root": root,
        "centre": centre,
        "axes": axes.T.contiguous(),
        "precision": precision,
        "pull": mean * precision,
        "offset": -(mean.square() * precision).sum(dim=1) / 2 - posterior.log1p().sum(dim=1) / 2,
        "new": 1 / (1 + between),
        "beside": torch.tensor(1 / (1 + other) - seen, dtype=torch.float64),
        "level": between.log1p().sum() / 2,
    }


def log_likelihood_ratio(features: Tensor, state: State) -> Tensor:
    """Compute log Σ_c p(x | class c) less log p(x | a new class), up to a constant.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        The inputs.
    state : dict of str to Tensor
        What `discriminant_state` gave.

    Returns
    -------
    Tensor of shape (n,)
        In float64.
    """
    whitened = (features.double() - state["centre"]) @ state["root"]
    along = whitened @ state["axes"]
    squares = along.square()
    beside = (whitened.square().sum(dim=1) - squares.sum(dim=1)).clamp(min=0)
    classes = along @ state["pull"].T - squares @ state["precision"].T / 2 + state["offset"]
    new = -(squares @ state["new"]) / 2 - state["level"]
    return classes.logsumexp(dim=1) - new + beside * state["beside"] / 2
