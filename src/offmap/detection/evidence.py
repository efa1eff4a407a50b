"""Evidence on candidates from known inputs alone: how well each tells them from pseudo-unknown ones.

``auto`` (`offmap.detection.auto`) chooses by it among the candidates of `offmap.detection.candidates`. How the
pseudo-unknown inputs are made: `offmap.detection.pseudo_unknowns`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import ndtri

from offmap.activations import Activations
from offmap.detection.pseudo_unknowns import CROSSED, LEFT_OUT, Trial, make_trials
from offmap.errors import OffmapError, OffmapWarning
from offmap.metrics.detection import auroc
from offmap.progress import show_progress
from offmap.typing import Array

ROWS = 4000  # known inputs that the choice is made on
HELD_OUT, MOST_HELD_OUT = 0.2, 1000
FEWEST = 40  # below, no candidate can be told from another
FEW = 500  # with fewer inputs than this, classes are left out five times: single trials are noisy
WIDE = 1024  # with more features than this, classes are left out once: decompositions cost their cube
TRUST = 0.75  # in classes left out, against crossed inputs
CERTAIN = 1e-3  # an AUROC nearer to 0 or 1 cannot be told from this


@dataclass(frozen=True)
class Evidence:
    """Evidence about one candidate.

    Attributes
    ----------
    spec, family : str
        Its text form, and the family that it stands for.
    left_out, crossed : float or None
        AUROC of held-out known inputs against inputs of classes left out, and against crossed ones.
    weight : float
        In the sum; 0 when it was not chosen.
    why : str
        One sentence on why it is in the sum or not.
    """

    spec: str
    family: str
    left_out: float | None = None
    crossed: float | None = None
    weight: float = 0.0
    why: str = ""

    @property
    def area(self) -> float:
        """AUROC against pseudo-unknown inputs of both kinds, those of classes left out counting more; 0 without any."""
        found = [(TRUST, self.left_out), (1 - TRUST, self.crossed)]
        told = [(trust, area) for trust, area in found if area is not None]
        return sum(trust * area for trust, area in told) / sum(trust for trust, _ in told) if told else 0.0

    @property
    def separation(self) -> float:
        """How many standard deviations lie between known and pseudo-unknown inputs, were both normal."""
        return max(0.0, math.sqrt(2) * float(ndtri(np.clip(self.area, CERTAIN, 1 - CERTAIN))))


def split_known(known: Activations, val: Activations | None, seed: int) -> tuple[Activations, Activations]:
    """Draw the inputs that the choice is made on: some to fit on, others held out."""
    order = np.random.default_rng([seed, 3]).permutation(len(known))[:ROWS]
    if val is not None and len(val):
        drawn = np.random.default_rng([seed, 4]).permutation(len(val))[:MOST_HELD_OUT]
        return known[np.sort(order)], val[np.sort(drawn)]
    if len(order) == 1:
        return known, known
    count = min(MOST_HELD_OUT, max(1, round(len(order) * HELD_OUT)))
    return known[np.sort(order[count:])], known[np.sort(order[:count])]


def gather_evidence(
    candidates: Sequence[Evidence],
    fit: Activations,
    held_out: Activations,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> list[Evidence]:
    """Try candidates on pseudo-unknown inputs.

    Parameters
    ----------
    candidates : sequence of Evidence
        What to try; one with a reason why not is left as it is.
    fit, held_out : Activations
        Known inputs to fit on, and others.
    seed : int, default=0
        Seed of the pseudo-unknown inputs.
    device : str or torch.device, default="cpu"
        Where to compute.

    Returns
    -------
    list of Evidence
        The same with AUROCs; without any where there are too few inputs to compare on.
    """
    enough = len(fit) + len(held_out) >= FEWEST
    rounds = 1 if fit.has_features and fit.features.shape[1] > WIDE else 5 if len(fit) < FEW else 2
    judged = []
    with np.errstate(over="ignore", invalid="ignore"):  # numbers too large for float32: no method can score them
        trials = _list_trials(fit, held_out, rounds, seed) if enough else []
        with show_progress("choosing a detector, candidate", len(candidates)) as advance:
            for candidate in candidates:
                judged.append(judge(candidate, trials, device))
                advance(note=candidate.spec)
    return judged


def _list_trials(fit: Activations, held_out: Activations, rounds: int, seed: int) -> list[Trial]:
    """All trials that can be made; none where the numbers allow no head."""
    try:
        return list(make_trials(fit, held_out, rounds, seed))
    except OffmapError:
        return []


def judge(candidate: Evidence, trials: Sequence[Trial], device: str | torch.device) -> Evidence:
    """Measure how well a candidate tells known from pseudo-unknown inputs, on average over the trials of each kind."""
    if candidate.why:
        return candidate
    areas: dict[str, list[float]] = {LEFT_OUT: [], CROSSED: []}
    for trial in trials:
        try:
            inside, outside = fit_and_score(candidate.spec, trial.fit, (trial.known, trial.unknown), device)
        except OffmapError as error:
            return replace(candidate, why=f"cannot be fitted: {error}")
        areas[trial.kind].append(float(auroc(inside, outside)))
    left_out, crossed = (float(np.mean(found)) if found else None for found in areas.values())
    return replace(candidate, left_out=left_out, crossed=crossed)


def fit_and_score(
    spec: str, fit: Activations, sets: Iterable[Activations], device: str | torch.device = "cpu"
) -> list[Array]:
    """Fit one candidate and score sets of inputs with it, without a word on what the data cost it.

    Parameters
    ----------
    spec : str
        The candidate.
    fit : Activations
        Known inputs to fit on.
    sets : iterable of Activations
        What to score.
    device : str or torch.device, default="cpu"
        Where to compute.

    Returns
    -------
    list of ndarray of float64
        The scores of each set.

    Raises
    ------
    OffmapError
        If it cannot be fitted on these inputs, or gives no number for one of them.

    Examples
    --------
    >>> known = Activations(np.eye(3))
    >>> [scores.shape for scores in fit_and_score("knn(1)", known, [known, known[:2]])]
    [(3,), (2,)]
    """
    from offmap.detection.detectors import detector

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffmapWarning)  # such as a singular covariance: the score tells what it costs
        made = detector(spec).fit(fit, device=device)
        return [made.score(acts, device) for acts in sets]
