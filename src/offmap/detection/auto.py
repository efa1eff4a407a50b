"""``auto``: the detector that is chosen from known activations, without one unknown input.

Half of the sum is fixed: a core of methods that between them notice inputs far from all known ones. The other half is
chosen: the best method of each of four families, by how well it tells known inputs from pseudo-unknown ones (see
`offmap.detection.pseudo_unknowns`), which say much about unknown inputs that are near and little about far ones. Where
no method can tell the network's own classes from each other once some are left out, its answers mean little for unknown
inputs either, and methods that measure distances in its features take the place of both halves.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from offmap.activations import Activations
from offmap.detection.base import Score
from offmap.detection.candidates import (
    Budget,
    components_of,
    has_wide_features,
    list_candidates,
    list_core,
    list_distances,
)
from offmap.detection.evidence import FEWEST, Evidence, fit_and_score, gather_evidence, split_known
from offmap.detection.terms import Plan, Term
from offmap.errors import InputError, OffmapError, OffmapWarning
from offmap.extra_passes import Requirements

COMBINE = "root"
BEST = 4  # families whose best candidate is added to the core
TOLD = 0.85  # best AUROC on classes left out, from which on the network's answers count in full
UNTOLD = 0.75  # below, distances alone count
BEST_IN_WIDE, FAVOURED = "mahalanobis_pp", 4.0  # and its further weight in wide features
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

    budget: Budget = "full"
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

    Raises
    ------
    InputError
        If an input holds a number that is not finite, or no method can be fitted.

    Warns
    -----
    OffmapWarning
        One sentence, where families had to be left out or nothing could be compared.
    """
    fit, held_out = split_known(known, val, auto.seed)
    for part in (fit, held_out):
        values = part.features if part.has_features else part.logits
        if not np.isfinite(values).all():
            raise InputError(f"{auto}: the inputs to choose on hold NaN or infinity; remove or mend these inputs")
    judged = gather_evidence(list_candidates(auto.budget, known), fit, held_out, auto.seed, device)
    compared = any(each.left_out is not None or each.crossed is not None for each in judged)
    chosen = weigh_evidence(judged, known, auto.budget)
    if not any(each.weight for each in chosen):
        chosen = _plain_sum(judged, fit, device)
    if auto.passes:
        chosen += _further_passes(known, chosen)
    _warn(chosen, known, compared)
    return combine_chosen(chosen), Trials(asdict(each) for each in chosen)


def weigh_evidence(judged: Sequence[Evidence], known: Activations, budget: Budget) -> list[Evidence]:
    """Weigh candidates by the evidence on them and by what is known of these activations.

    Parameters
    ----------
    judged : sequence of Evidence
        All candidates of the budget.
    known : Activations
        Known inputs.
    budget : {"full", "fast"}
        What the core is made of.

    Returns
    -------
    list of Evidence
        The same with weights and reasons.
    """
    # clusters stand in for classes where there are none; they are too unlike them to choose on
    weighed = weigh(judged, list_core(budget, known), known.has_logits or known.labels is not None)
    weighed = favour_directions(weighed, has_wide_features(known))
    return doubt_answers(weighed, list_distances(budget, known))


def combine_chosen(evidence: Sequence[Evidence]) -> Plan:
    """Make the sum of all candidates that have a weight."""
    terms = tuple(Term(components_of(each.spec), each.weight) for each in evidence if each.weight)
    if not terms:
        raise InputError(f"auto: no method can be fitted ({evidence[0].why}); give more inputs, or name a method")
    return Plan(terms, COMBINE)


def weigh(judged: Sequence[Evidence], core: Sequence[str], compare: bool = True) -> list[Evidence]:
    """Give half of the weight to the core, and half to the best candidate of each of the four best families.

    Finer weights were tried and do not carry over from one network to the next.

    Parameters
    ----------
    judged : sequence of Evidence
        All candidates.
    core : sequence of str
        Those that are added up whatever the evidence.
    compare : bool, default=True
        Whether the evidence counts; if not, the core has all the weight.

    Returns
    -------
    list of Evidence
        The same with weights and reasons; without any weight where nothing speaks for any candidate.

    Examples
    --------
    >>> near, far = Evidence("msp", "logits", 0.9, 0.9), Evidence("knn(1)", "neighbours", 0.8, 0.8)
    >>> other = Evidence("energy", "logits", 0.7, 0.7)
    >>> [(each.spec, each.weight) for each in weigh([near, other, far], core=["knn(1)"])]
    [('msp', 0.5), ('energy', 0.0), ('knn(1)', 1.5)]
    """
    usable = [each for each in judged if not each.why]
    if not any(each.separation for each in usable):
        return list(judged)
    always = [each.spec for each in usable if each.spec in core]
    best: dict[str, Evidence] = {}
    # by area: separation ends at an AUROC of 0.999, where the first of the list would win
    for each in sorted(usable, key=lambda each: -each.area):
        best.setdefault(each.family, each)
    chosen = {each.spec for each in list(best.values())[:BEST] if each.separation} if compare or not always else set()
    share = round(max(len(always), 1) / max(len(chosen), 1), 2)
    found = []
    for each in judged:
        weight = (each.spec in always) + share * (each.spec in chosen)
        found.append(each if each.why else replace(each, weight=weight, why=_reason(each, always, chosen, best)))
    return found


def favour_directions(weighed: Sequence[Evidence], wide: bool) -> list[Evidence]:
    """Give ``mahalanobis_pp`` more weight in wide features, if it tells classes left out from those that stayed.

    Most of the thousands of columns of a network that was trained for other classes hold noise here. Distances add it
    up; directions under a covariance that is shrunk do not.

    Parameters
    ----------
    weighed : sequence of Evidence
        All candidates with their weights.
    wide : bool
        Whether features are wide, with enough inputs per class; if not, nothing changes.

    Returns
    -------
    list of Evidence
        The same, with 4 added to the weight if its AUROC on classes left out is at least 0.85.

    Examples
    --------
    >>> [each.weight for each in favour_directions([Evidence("mahalanobis_pp", "gaussians", 0.9, weight=1.0)], True)]
    [5.0]
    """
    found = []
    for each in weighed:
        if wide and each.spec == BEST_IN_WIDE and each.weight and (each.left_out or 0) >= TOLD:
            each = replace(each, weight=each.weight + FAVOURED, why=f"{each.why}; features are wide, so it counts more")
        found.append(each)
    return found


def doubt_answers(weighed: Sequence[Evidence], distances: Sequence[str]) -> list[Evidence]:
    """Move weight to distances where no candidate can tell classes left out from those that stayed.

    Parameters
    ----------
    weighed : sequence of Evidence
        All candidates with their weights.
    distances : sequence of str
        Those that get the weight, in equal parts; none where the data cannot say that the network is weak.

    Returns
    -------
    list of Evidence
        The same where the best AUROC on classes left out is at least 0.85; below 0.75 distances have all the weight,
        and in between a share of it.

    Examples
    --------
    >>> near, far = Evidence("msp", "logits", 0.6, 0.9, weight=1.0), Evidence("pca", "subspaces", 0.5, 0.8)
    >>> [(each.spec, each.weight) for each in doubt_answers([near, far], ["pca"])]
    [('msp', 0.0), ('pca', 1.0)]
    """
    told = max((each.left_out for each in weighed if each.left_out is not None), default=1.0)
    taking = [each.spec for each in weighed if each.spec in distances and each.left_out is not None]
    doubt = float(np.clip((TOLD - told) / (TOLD - UNTOLD), 0, 1))
    if not doubt or not taking:
        return list(weighed)
    part = doubt * sum(each.weight for each in weighed) / len(taking)
    why = f"classes left out are hardly told from the others (AUROC {told:.2f}), so distances count"
    found = []
    for each in weighed:
        weight = round((1 - doubt) * each.weight + part * (each.spec in taking), 2)
        found.append(replace(each, weight=weight, why=why) if weight or each.weight else each)
    return found


def _reason(each: Evidence, always: Sequence[str], chosen: set[str], best: dict[str, Evidence]) -> str:
    """Say in one sentence why a candidate is in the sum or not."""
    if each.spec in always:
        return "always in the sum" + (", and the best of its family" if each.spec in chosen else "")
    if each.spec in chosen:
        return "the best of its family"
    if not chosen:
        return "clusters are no classes, so that nothing is chosen on them"
    top = best[each.family]
    return "its family is behind four others" if top is each else f"{top.spec} is better in its family"


def _plain_sum(judged: Sequence[Evidence], fit: Activations, device: str | torch.device) -> list[Evidence]:
    """Add up a few robust methods with equal weights: those of `PLAIN` that can be fitted."""
    found = []
    for each in judged:
        if each.why or each.spec not in PLAIN or (each.spec == "msp" and fit.has_features):
            found.append(each if each.why else replace(each, why="nothing could be compared"))
            continue
        try:
            fit_and_score(each.spec, fit, (fit,), device)
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
    if not compared and len(known) < FEWEST:
        words.append(f"candidates are compared on {FEWEST} inputs or more, and there are {len(known)}")
    elif not compared and known.has_features:
        words.append(f"{len(known)} inputs of one class leave nothing to compare candidates on")
    absent = [each.spec for each in chosen if each.family == "passes" and not each.weight]
    if absent:
        words.append(
            f"{' and '.join(absent)} were asked for, but their passes are not there: extract with "
            "requirements=detector.requirements"
        )
    if words:
        taken = " + ".join(each.spec for each in chosen if each.weight)
        warnings.warn(f"auto: {'; '.join(words)}; chosen: {taken or 'nothing'}", OffmapWarning, stacklevel=4)
