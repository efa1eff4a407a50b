"""A detector in one safe file: its text form, its states or statistics, its threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from offmap import store
from offmap.activations import Head
from offmap.detection.base import State
from offmap.detection.calibration import Calibration
from offmap.detection.fitting import Fitting
from offmap.detection.terms import Plan
from offmap.typing import Array


def fitting_tensors(fitting: Fitting) -> dict[str, Array]:
    """List states, statistics and head as arrays.

    Parameters
    ----------
    fitting : Fitting
        What a detector has seen and solved.

    Returns
    -------
    dict of str to ndarray
        By their names in the file.
    """
    tensors: dict[str, Array] = {}
    for place, (state, statistics) in enumerate(zip(fitting.states, fitting.statistics, strict=True)):
        for name, tensor in (state or {}).items():
            tensors[f"{place}/state/{name}"] = tensor.detach().cpu().numpy()
        for name, statistic in statistics.items():
            for part, array in statistic.state().items():
                tensors[f"{place}/statistic/{name}/{part}"] = array
    if fitting.held_out is not None:
        tensors |= {f"held_out/{name}": array for name, array in fitting.held_out.state().items()}
    for name, tensor in (fitting.combination or {}).items():
        tensors[f"combination/{name}"] = tensor.cpu().numpy()
    if fitting.head is not None:
        tensors |= {"head/weight": fitting.head.weight, "head/bias": fitting.head.bias}
    return tensors


def fitting_config(fitting: Fitting) -> dict[str, Any]:
    """Describe the rest of a fitting as JSON.

    Parameters
    ----------
    fitting : Fitting
        What a detector has seen and solved.

    Returns
    -------
    dict of str to Any
        Plain values.
    """
    return {
        "solved": [state is not None for state in fitting.states],
        "read_through": sorted(fitting.read_through),
        "refining": sorted(fitting.refining),
        "shown": fitting.shown,
        "width": fitting.width,
        "n_classes": fitting.n_classes,
    }


def restore_fitting(plan: Plan, stored: store.Stored) -> Fitting:
    """Make the fitting that was saved.

    Parameters
    ----------
    plan : Plan
        The plan that the detector's text form describes.
    stored : Stored
        What was read from the file.

    Returns
    -------
    Fitting
        As it was saved.
    """
    config, tensors = stored.config["fitting"], stored.tensors
    head = Head(tensors["head/weight"], tensors["head/bias"]) if "head/weight" in tensors else None
    held_out, combination = _below("held_out/", tensors), _below("combination/", tensors)
    fitting = Fitting(plan, head, config["width"], config["n_classes"], hold_out=bool(held_out))
    fitting.refining = {(place, name) for place, name in config.get("refining", [])}  # absent in the first files
    if fitting.held_out is not None:
        fitting.held_out.restore(held_out)
    fitting.combination = _tensors(combination) if combination else None
    fitting.read_through, fitting.shown = set(config["read_through"]), config["shown"]
    if len(config["solved"]) != len(plan.components):
        raise KeyError("solved")
    for place, solved in enumerate(config["solved"]):
        if solved:
            fitting.states[place] = _tensors(_below(f"{place}/state/", tensors))
    fitting.forget_statistics()
    for place, statistics in enumerate(fitting.statistics):
        for name, statistic in statistics.items():
            statistic.restore(_below(f"{place}/statistic/{name}/", tensors))
    return fitting


def calibration_tensors(calibration: Calibration | None) -> dict[str, Array]:
    """List the calibration scores as arrays.

    Parameters
    ----------
    calibration : Calibration or None
        Calibration of the detector, if it has one.

    Returns
    -------
    dict of str to ndarray
        By their names in the file.
    """
    return {} if calibration is None else {f"calibration/{k}": array for k, array in calibration.arrays().items()}


def restore_calibration(tpr: float | None, stored: store.Stored) -> Calibration | None:
    """Make the calibration that was saved.

    Parameters
    ----------
    tpr : float or None
        As saved; `None` for a detector that was not calibrated.
    stored : Stored
        What was read from the file.

    Returns
    -------
    Calibration or None
        As it was saved.
    """
    return None if tpr is None else Calibration(tpr=tpr, **_below("calibration/", stored.tensors))


def _tensors(arrays: dict[str, Array]) -> State:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _below(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
