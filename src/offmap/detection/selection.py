"""Choosing parameters given as ``auto``: held-out known inputs against outliers or pseudo-unknown inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from offmap.activations import Activations
from offmap.detection.base import AUTO, Component
from offmap.detection.evidence import split_known
from offmap.detection.pseudo_unknowns import Trial, make_trials
from offmap.errors import InputError
from offmap.metrics.detection import auroc, fpr_at_tpr
from offmap.typing import Array

LARGEST_LOSS = 0.01  # of known accuracy that a choice may cost


def choose(
    components: tuple[Component, ...],
    known: Activations,
    val: Activations | None = None,
    outliers: Activations | None = None,
    device: str | torch.device = "cpu",
) -> tuple[tuple[Component, ...], list[dict[str, Any]]]:
    """Choose the values of parameters given as ``auto``: those with the lowest mean FPR95.

    Held-out known inputs are told from outliers where there are any (thesis, appendix A.2.2), else from
    pseudo-unknown inputs. Easy outliers often tie at 0: then AUROC decides, then how many standard deviations lie
    between the means. A candidate that costs more than one point of accuracy on known inputs is refused.

    Parameters
    ----------
    components : tuple of Component
        Shapers and a score, some parameters of which are ``auto``.
    known, val, outliers : Activations
        To fit on; held-out known inputs, a fifth of `known` when absent; outliers, such as noise.
    device : str or torch.device, default="cpu"
        Where to compute.

    Returns
    -------
    chosen : tuple of Component
        The same with every ``auto`` decided.
    trials : list of dict
        Every candidate with FPR95, AUROC and accuracy.

    Raises
    ------
    InputError
        When there is nothing to choose on, or every candidate costs too much accuracy.
    """
    trials: list[dict[str, Any]] = []
    best: tuple[tuple[float, float, float], tuple[Component, ...]] | None = None
    fit, held_out, experiments = _experiments(components, known, val, outliers)
    for candidate in candidates(components, len(known)):
        measured = np.array([_measure(candidate, trial, device) for trial in experiments]).mean(axis=0)
        lost = _lost_accuracy(candidate, fit, held_out, device)
        refused = lost is not None and lost > LARGEST_LOSS
        trials.append(
            {
                "spec": "|".join(map(repr, candidate)),
                "fpr95": float(measured[0]),
                "auroc": -float(measured[1]),
                "lost_accuracy": lost,
                "refused": refused,
            }
        )
        rank = (float(measured[0]), float(measured[1]), float(measured[2]))
        if not refused and (best is None or rank < best[0]):
            best = rank, candidate
    if best is None:
        least = min(trials, key=lambda trial: trial["lost_accuracy"])
        raise InputError(
            f"{'|'.join(map(repr, components))}: every value that auto tries costs more than {LARGEST_LOSS:.0%} of "
            f"known accuracy ({least['spec']} costs {least['lost_accuracy']:.1%}); name a value to accept that"
        )
    return best[1], trials


def _experiments(
    components: tuple[Component, ...], known: Activations, val: Activations | None, outliers: Activations | None
) -> tuple[Activations, Activations, list[Trial]]:
    """Return what to fit on, held-out known inputs, and the experiments that candidates are compared in."""
    if (val is not None and len(val) == 0) or (outliers is not None and len(outliers) == 0):
        raise InputError("auto needs at least one validation input and one outlier")
    if outliers is None:
        fit, held_out = split_known(known, val, seed=0)
        experiments = list(make_trials(fit, held_out))
        if not experiments:
            raise InputError(
                f"{'|'.join(map(repr, components))}: one class of known inputs leaves nothing to choose auto on; give "
                "outliers=..., such as net.noise(1000, shape), or a value"
            )
        return fit, held_out, experiments
    fit, held_out = (known, val) if val is not None else split_known(known, None, seed=0)
    return fit, held_out, [Trial("outliers", fit, held_out, outliers)]


def _measure(candidate: tuple[Component, ...], trial: Trial, device: str | torch.device) -> tuple[float, float, float]:
    """FPR95, minus AUROC and minus the gap of one candidate in one experiment: lower is better."""
    from offmap.detection.detectors import Detector

    made = Detector(candidate).fit(trial.fit, device=device)
    inside, outside = made.score(trial.known, device), made.score(trial.unknown, device)
    return fpr_at_tpr(inside, outside), -auroc(inside, outside), -gap(inside, outside)


def _lost_accuracy(
    candidate: tuple[Component, ...], fit: Activations, held_out: Activations, device: str | torch.device
) -> float | None:
    """The share of held-out known inputs that shaping makes the network answer wrongly; `None` without shapers."""
    from offmap.detection.detectors import Detector

    if len(candidate) == 1 or not held_out.has_logits:
        return None
    shaped = Detector(candidate).fit(fit, device=device).predict_classes(held_out, device)
    plain = held_out.predictions
    right = plain if held_out.labels is None else held_out.labels
    return float(np.mean(plain == right) - np.mean(shaped == right))


def candidates(components: tuple[Component, ...], n_known: int) -> Iterator[tuple[Component, ...]]:
    """Every way to fill in the autos from their grids.

    Examples
    --------
    >>> from offmap.detection.spec import parse
    >>> len(list(candidates(parse("react(auto)|energy").components, 100)))
    7
    """
    slots = [
        [(place, name, value) for value in component.choices(name, n_known)]
        for place, component in enumerate(components)
        for name, given in asdict(component).items()
        if given == AUTO
    ]
    for combination in itertools.product(*slots):
        filled = list(components)
        for place, name, value in combination:
            filled[place] = replace(filled[place], **{name: value})
        yield tuple(filled)


def gap(inside: Array, outside: Array) -> float:
    """The distance between two means in pooled standard deviations."""
    a, b = inside[np.isfinite(inside)], outside[np.isfinite(outside)]
    if len(a) == 0 or len(b) == 0:
        return np.inf
    spread = np.sqrt((a.var() + b.var()) / 2)
    return float((a.mean() - b.mean()) / spread) if spread > 0 else 0.0
