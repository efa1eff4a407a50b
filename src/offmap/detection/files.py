"""A detector in one safe file: its text form, its states or statistics, its threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from offmap import store
from offmap.activations import Array, Head
from offmap.detection.base import Component
from offmap.detection.calibration import Calibration
from offmap.detection.fitting import Fitting


def fitting_tensors(fitting: Fitting) -> dict[str, Array]:
    """States, statistics and head, by name."""
    tensors: dict[str, Array] = {}
    for place, (state, statistics) in enumerate(zip(fitting.states, fitting.statistics, strict=True)):
        for name, tensor in (state or {}).items():
            tensors[f"{place}/state/{name}"] = tensor.detach().cpu().numpy()
        for name, statistic in statistics.items():
            for part, array in statistic.state().items():
                tensors[f"{place}/statistic/{name}/{part}"] = array
    if fitting.head is not None:
        tensors |= {"head/weight": fitting.head.weight, "head/bias": fitting.head.bias}
    return tensors


def fitting_config(fitting: Fitting) -> dict[str, Any]:
    """The rest of it, as JSON."""
    return {
        "solved": [state is not None for state in fitting.states],
        "read_through": sorted(fitting.read_through),
        "shown": fitting.shown,
        "width": fitting.width,
        "n_classes": fitting.n_classes,
    }


def restored_fitting(plan: tuple[Component, ...], stored: store.Stored) -> Fitting:
    """The fitting that gave these tensors and this config."""
    config, tensors = stored.config["fitting"], stored.tensors
    head = Head(tensors["head/weight"], tensors["head/bias"]) if "head/weight" in tensors else None
    fitting = Fitting(plan, head, config["width"], config["n_classes"])
    fitting.read_through, fitting.shown = set(config["read_through"]), config["shown"]
    if len(config["solved"]) != len(plan):
        raise KeyError("solved")
    for place, solved in enumerate(config["solved"]):
        if solved:
            state = _below(f"{place}/state/", tensors)
            fitting.states[place] = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
            fitting.statistics[place] = {}
        for name, statistic in fitting.statistics[place].items():
            statistic.restore(_below(f"{place}/statistic/{name}/", tensors))
    return fitting


def calibration_tensors(calibration: Calibration | None) -> dict[str, Array]:
    """The calibration scores, by name."""
    return {} if calibration is None else {f"calibration/{k}": array for k, array in calibration.arrays().items()}


def restored_calibration(tpr: float | None, stored: store.Stored) -> Calibration | None:
    """The calibration that gave these tensors."""
    return None if tpr is None else Calibration(tpr=tpr, **_below("calibration/", stored.tensors))


def _below(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
