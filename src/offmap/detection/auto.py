"""``auto``: the detector that is chosen from known activations, without one unknown input.

From each family of methods the two candidates are taken that best tell known inputs from pseudo-unknown ones (see
`offmap.detection.pseudo_unknowns`). What is far behind the best of all is left out; the others are added up.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import ndtri

from offmap.activations import Activations
from offmap.detection.base import Score
from offmap.detection.checks import missing_input
from offmap.detection.pseudo_unknowns import CROSSED, LEFT_OUT, Trial, make_trials
from offmap.detection.terms import Plan, Term
from offmap.errors import InputError, OffmapError, OffmapWarning
from offmap.extra_passes import Requirements
from offmap.metrics.detection import auroc
from offmap.typing import Array

COMBINE = "tail"
ROWS = 4000  # known inputs that the choice is made on
HELD_OUT, MOST_HELD_OUT = 0.2, 1000
FEWEST = 40  # below, no candidate can be told from another
WIDE = 1024  # with more features than this, classes are left out once: decompositions cost their cube
FEW = 500  # with fewer inputs than this, classes are left out five times: single trials are noisy
TRUST = 0.75  # in classes left out, against crossed inputs
DOUBT = 0.5  # added to every separation: small ones are not told apart
PER_FAMILY = 2  # candidates of a family that are added up
LEAST = 0.5  # of the best separation; what reaches less is left out
CERTAIN = 1e-3  # an AUROC nearer to 0 or 1 cannot be told from this

FAMILIES: dict[str, tuple[str, ...]] = {
    "logits": (
        "msp", "energy", "gen", "react(95)|energy", "react(99)|energy", "lts(95)|energy", "ash_s(90)|energy",
        "scale(85)|energy", "dice(0.7)|energy",
    ),
    "gaussians": ("mahalanobis", "mahalanobis(0.1)", "mahalanobis_pp", "rmds", "rmds_pp", "ssd", "gmm(1)"),
    "neighbours": (
        "knn(1)", "knn(10)", "knn(50)", "knn(1, normalize=false)", "knn(10, normalize=false)",
        "knn(10, normalize=false, standardize=true)", "nnguide(10, alpha=1.0)",
    ),
    "subspaces": ("vim", "residual", "pca", "pnml", "neco"),
    "geometry": ("she", "fdbd", "nci"),
}  # fmt: skip
WITHOUT_LABELS = ("ssd", "gmm(1)")  # one Gaussian; with labels the others say more
SEARCHING = "neighbours"  # the family that auto(fast) does without
DIRECTIONS = ("knn(1)", "knn(10)", "knn(50)", "ssd", "mahalanobis_pp", "rmds_pp")  # blind to the lengths of rows
COSTLY = ("mahalanobis", "rmds", "residual", "pnml")  # where features are wide, a relative of each is enough
FURTHER_PASSES = ("odin", "mc_dropout")
PLAIN = ("energy", "knn(1, normalize=false)", "mahalanobis(0.1)", "gmm(1)", "msp")  # where nothing can be compared


@dataclass(frozen=True, repr=False)
class Auto(Score):
    """The sum of methods that tell known inputs best from pseudo-unknown ones; chosen when fitted.

    Not a method of the registry: it stands for the sum until this is chosen.

    Parameters
    ----------
    budget : {"full", "fast"}, default="full"
        ``fast`` leaves out methods that search neighbours: scores in closed form only.
    passes : bool, default=False
        Whether methods that need further passes of the network (ODIN, MC-dropout) are added where the activations hold
        them: extract with ``requirements=detector.requirements``. They cannot be tried without the network, and get
        the weight of the logits' family.
    seed : int, default=0
        Seed of the inputs and classes that the choice is made on.
    """

    name = "auto"
    paper = "the choice is offmap's own; leaving classes out to choose a detector: arXiv 2602.05935"

    budget: Literal["full", "fast"] = "full"
    passes: bool = False
    seed: int = 0

    def __repr__(self) -> str:
        words: list[str] = ["fast"] if self.budget == "fast" else []
        words += ["passes=true"] if self.passes else []
        words += [f"seed={self.seed}"] if self.seed else []
        return f"{self.name}({', '.join(words)})" if words else self.name

    @property
    def requirements(self) -> Requirements:
        """The passes it asks of a network: features, logits, and with `passes` those of the methods that take some."""
        from offmap.detection.detectors import detector

        wanted = Requirements()
        for spec in FURTHER_PASSES if self.passes else ():
            wanted |= detector(spec).requirements
        return wanted

    def score(self, batch: Any, ready: Any) -> torch.Tensor:
        """Refuse: what scores is the sum that was chosen."""
        raise InputError(f"{self}: chosen when it is fitted on known inputs; call fit(known)")


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
    def separation(self) -> float:
        """How many standard deviations lie between known and pseudo-unknown inputs, were both normal."""
        found = [(TRUST, self.left_out), (1 - TRUST, self.crossed)]
        told = [(trust, area) for trust, area in found if area is not None]
        if not told:
            return 0.0
        area = sum(trust * area for trust, area in told) / sum(trust for trust, _ in told)
        return max(0.0, math.sqrt(2) * float(ndtri(np.clip(area, CERTAIN, 1 - CERTAIN))))


class Trials(list[dict[str, Any]]):
    """The candidates that were tried, one dictionary each; prints as a table."""

    def __repr__(self) -> str:
        if not self:
            return "[]"
        names = list(dict.fromkeys(name for trial in self for name in trial))
        rows = [names, *([_cell(trial.get(name)) for name in names] for trial in self)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(names))]
        return "\n".join(
            "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    __str__ = __repr__


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def choose_sum(
    auto: Auto, known: Activations, val: Activations | None = None, device: str | torch.device = "cpu"
) -> tuple[Plan, Trials]:
    """Choose what to add up, and with which weights.

    Parameters
    ----------
    auto : Auto
        The budget and the seed.
    known : Activations
        Known inputs; at most 4000 of them are looked at.
    val : Activations, optional
        Held-out known inputs; a fifth of those looked at when absent.
    device : str or torch.device, default="cpu"
        Where to compute.

    Returns
    -------
    plan : Plan
        The sum.
    trials : Trials
        Every candidate with its evidence, its weight and the reason.

    Warns
    -----
    OffmapWarning
        One sentence, where families had to be left out or nothing could be compared.
    """
    fit, held_out = split_known(known, val, auto.seed)
    candidates = list_candidates(auto, known)
    enough = len(fit) + len(held_out) >= FEWEST
    rounds = 1 if fit.has_features and fit.features.shape[1] > WIDE else 5 if len(fit) < FEW else 2
    with np.errstate(over="ignore", invalid="ignore"):  # numbers too large for float32: no method can score them
        trials = _list_trials(fit, held_out, rounds, auto.seed) if enough else []
        judged = [judge(candidate, trials, device) for candidate in candidates]
    chosen = weigh(judged)
    if not any(each.weight for each in chosen):
        chosen = _plain_sum(judged, fit, device)
    if auto.passes:
        chosen += _further_passes(known, chosen)
    _warn(chosen, known, bool(trials))
    return combine_chosen(chosen), Trials(asdict(each) for each in chosen)


def _list_trials(fit: Activations, held_out: Activations, rounds: int, seed: int) -> list[Trial]:
    """All trials that can be made; none where the numbers allow no head."""
    try:
        return list(make_trials(fit, held_out, rounds, seed))
    except OffmapError:
        return []


def combine_chosen(evidence: Sequence[Evidence]) -> Plan:
    """Make the sum of all candidates that have a weight."""
    terms = tuple(Term(_components(each.spec), each.weight) for each in evidence if each.weight)
    if not terms:
        raise InputError(f"auto: no method can be fitted ({evidence[0].why}); give more inputs, or name a method")
    return Plan(terms, COMBINE)


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


def list_candidates(auto: Auto, known: Activations) -> list[Evidence]:
    """List all candidates of the budget; those that cannot read these activations say what they lack."""
    wide = known.has_features and known.features.shape[1] > WIDE
    found = []
    for family, specs in FAMILIES.items():
        if family == SEARCHING and auto.budget == "fast":
            continue
        for spec in specs:
            if spec in WITHOUT_LABELS and known.labels is not None:
                continue
            why = ""
            if lacks := missing_input([_components(spec)], known, fitting=True):
                why = f"needs {lacks}, which is not there"
            elif spec in DIRECTIONS and not known.has_logits:
                why = "without a network, the lengths of rows count too"
            elif spec in COSTLY and wide:
                why = f"with more than {WIDE} features a relative that costs less is tried"
            found.append(Evidence(spec, family, why=why))
    return found


def judge(candidate: Evidence, trials: Sequence[Trial], device: str | torch.device) -> Evidence:
    """Measure how well a candidate tells known from pseudo-unknown inputs, on average over the trials of each kind."""
    if candidate.why:
        return candidate
    areas: dict[str, list[float]] = {LEFT_OUT: [], CROSSED: []}
    for trial in trials:
        try:
            inside, outside = _fit_and_score(candidate.spec, trial.fit, (trial.known, trial.unknown), device)
        except OffmapError as error:
            return replace(candidate, why=f"cannot be fitted: {error}")
        areas[trial.kind].append(float(auroc(inside, outside)))
    left_out, crossed = (float(np.mean(found)) if found else None for found in areas.values())
    return replace(candidate, left_out=left_out, crossed=crossed)


def _fit_and_score(spec: str, fit: Activations, sets: Iterable[Activations], device: str | torch.device) -> list[Array]:
    from offmap.detection.detectors import Detector

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffmapWarning)  # such as a singular covariance: the score tells what it costs
        made = Detector(_components(spec)).fit(fit, device=device)
        return [made.score(acts, device) for acts in sets]


def weigh(judged: Sequence[Evidence]) -> list[Evidence]:
    """Take the two best candidates of each family with equal weights, unless they are far behind the best of all.

    Far behind is one whose separation d gives (d + 1/2) / (D + 1/2) < 1/2, D the best one's. Finer weights were tried
    and do not carry over from one network to the next; two of a family lose less than one where they disagree.

    Examples
    --------
    >>> strong, weak = Evidence("knn(10)", "neighbours", 0.98, 0.98), Evidence("msp", "logits", 0.6, 0.6)
    >>> [(each.spec, each.weight) for each in weigh([strong, weak])]
    [('knn(10)', 1.0), ('msp', 0.0)]
    """
    top = max((each.separation for each in judged), default=0.0)
    if top == 0:
        return list(judged)
    families: dict[str, list[Evidence]] = {}
    for each in sorted((each for each in judged if not each.why), key=lambda each: -each.separation):
        families.setdefault(each.family, []).append(each)
    return [each if each.why else _weighed(each, families[each.family][:PER_FAMILY], top) for each in judged]


def _weighed(each: Evidence, best: Sequence[Evidence], top: float) -> Evidence:
    if not any(each is one for one in best):
        return replace(each, why=f"{' and '.join(one.spec for one in best)} are better in its family")
    if each.separation == 0 or (each.separation + DOUBT) / (top + DOUBT) < LEAST:
        return replace(each, why="far behind the best of all")
    return replace(each, weight=1.0, why="among the two best of its family")


def _plain_sum(judged: Sequence[Evidence], fit: Activations, device: str | torch.device) -> list[Evidence]:
    """Add up a few robust methods with equal weights: those of `PLAIN` that can be fitted."""
    found = []
    for each in judged:
        if each.why or each.spec not in PLAIN or (each.spec == "msp" and fit.has_features):
            found.append(each if each.why else replace(each, why="nothing could be compared"))
            continue
        try:
            _fit_and_score(each.spec, fit, (fit,), device)
        except OffmapError as error:
            found.append(replace(each, why=f"cannot be fitted: {error}"))
        else:
            found.append(replace(each, weight=1.0, why="nothing could be compared; a robust default"))
    return found


def _further_passes(known: Activations, chosen: Sequence[Evidence]) -> list[Evidence]:
    """Methods with passes of their own, where the activations hold these."""
    weights = [each.weight for each in chosen if each.family == "logits" and each.weight]
    weight = weights[0] if weights else 0.5
    found = []
    for spec in FURTHER_PASSES:
        from offmap.detection.detectors import detector

        names = [name for request in detector(spec).requirements.extras for name in request.outputs]
        if all(name in known.extras for name in names):
            why = "asked for; it cannot be tried without the network"
            found.append(Evidence(spec, "passes", weight=weight, why=why))
        else:
            found.append(
                Evidence(spec, "passes", why="its pass is not there; extract with requirements=detector.requirements")
            )
    return found


def _warn(chosen: Sequence[Evidence], known: Activations, compared: bool) -> None:
    """Say in one sentence what odd data left out."""
    lacking = [
        word
        for word, there in (
            ("features", known.has_features),
            ("logits", known.has_logits),
            ("labels", known.labels is not None or not known.has_features),
        )
        if not there
    ]
    words = []
    if lacking:
        without = sorted(
            {each.family for each in chosen} - {each.family for each in chosen if not each.why.startswith("needs")}
        )
        methods = f" (no method of the families {', '.join(without)})" if without else ""
        words.append(f"without {' and '.join(lacking)} some methods cannot be tried{methods}")
    if not compared:
        words.append(f"{len(known)} inputs of one kind or fewer than {FEWEST} leave nothing to compare candidates on")
    if words:
        taken = " + ".join(each.spec for each in chosen if each.weight)
        warnings.warn(f"auto: {'; '.join(words)}; chosen: {taken or 'nothing'}", OffmapWarning, stacklevel=4)


def _components(spec: str) -> Any:
    from offmap.detection.spec import parse

    return parse(spec).chains[0]
