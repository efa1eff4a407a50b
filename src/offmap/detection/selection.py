"""Choosing parameters given as ``auto``, on validation data only: held-out known inputs against outliers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from offmap.activations import Activations
from offmap.detection.base import AUTO, Component
from offmap.errors import InputError
from offmap.metrics.detection import auroc, fpr_at_tpr
from offmap.typing import Array


def choose(
    components: tuple[Component, ...],
    known: Activations,
    val: Activations,
    outliers: Activations,
    device: str | torch.device = "cpu",
) -> tuple[tuple[Component, ...], list[dict[str, Any]]]:
    """The candidate with the lowest FPR95 between `val` and `outliers` (thesis, appendix A.2.2), and all that was
    tried.

    Easy outliers often tie at 0: then AUROC decides, then how many standard deviations lie between the means.
    """
    from offmap.detection.detectors import Detector

    if len(val) == 0 or len(outliers) == 0:
        raise InputError("auto needs at least one validation input and one outlier")
    trials: list[dict[str, Any]] = []
    best: tuple[tuple[float, float, float], tuple[Component, ...]] | None = None
    for candidate in candidates(components, len(known)):
        detector = Detector(candidate).fit(known, device=device)
        inside, outside = detector.score(val, device), detector.score(outliers, device)
        fpr95, area = fpr_at_tpr(inside, outside), auroc(inside, outside)
        trials.append({"spec": repr(detector), "fpr95": fpr95, "auroc": area})
        rank = (fpr95, -area, -gap(inside, outside))
        if best is None or rank < best[0]:
            best = rank, candidate
    assert best is not None
    return best[1], trials


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
