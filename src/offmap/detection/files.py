"""A detector in one safe file: its text form, its states or statistics, its threshold.

A checksum says that a file was not damaged, not that its parts belong together. So every part is checked when it is
read, and a restored detector scores a few made-up rows before it is given out.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations, Head
from offmap.detection.base import State
from offmap.detection.batch import ActivationBatch
from offmap.detection.calibration import Calibration
from offmap.detection.drift_columns import DriftReference
from offmap.detection.fitting import Fitting
from offmap.detection.shift import CovariateShift, Weigh
from offmap.detection.terms import Plan
from offmap.errors import InputError, OffmapError, StoreError
from offmap.typing import Array

FIELDS = {"spec": str, "chosen": str, "trials": list, "fitting": dict | None, "tpr": float | None}
_FITTING = {
    "solved": list, "read_through": list, "shown": int, "width": int | None, "n_classes": int | None,
}  # fmt: skip
_PROBE_CLASSES = 64
_TRIED = 64 * 2**20  # bytes of statistics up to which they are tried on a copy


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
        "extras": {name: list(shape) for name, shape in sorted(fitting.extra_shapes.items())},
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
    store.check_fields("detector", config, _FITTING)
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
    fitting.extra_shapes = {name: tuple(shape) for name, shape in config.get("extras", {}).items()}
    if head is not None and (head.width, head.n_classes) != (fitting.width or head.width, fitting.n_classes):
        raise StoreError(f"not a whole detector: {head} beside {fitting.width} features and {fitting.n_classes} logits")
    if fitting.is_done:
        _check_scores(fitting)
    elif sum(array.nbytes for array in tensors.values()) <= _TRIED:
        _check_statistics(fitting)
    return fitting


def _check_scores(fitting: Fitting) -> None:
    """Score made-up rows, so that states that do not belong together are refused here and not when first used."""
    extras = [name for request in fitting.requests() for name in request.outputs]
    if any(name not in fitting.extra_shapes for name in extras):  # what the network gives is not known
        for place in range(len(fitting.states)):
            fitting.prepare(place, ActivationBatch())
        return
    for predicted in (False, True):
        batch = _made_up(fitting, extras, predicted)
        try:
            with torch.no_grad():
                scores = fitting.score(batch)
        except StoreError:
            raise
        except OffmapError:
            continue  # about the made-up rows
        if scores.shape != (len(batch),):
            raise StoreError(f"not a whole detector: scores of shape {tuple(scores.shape)} for {len(batch)} inputs")


def _check_statistics(fitting: Fitting) -> None:
    """Show made-up rows to a copy, so that statistics of another width are refused here."""
    batch = _made_up(fitting, list(fitting.extra_shapes), predicted=fitting.head is None)
    rows = [None if part is None else part.numpy() for part in (batch.given_features, batch.given_logits)]
    labels = np.arange(len(batch)) % (fitting.n_classes or 1)
    extras = {name: value.numpy() for name, value in batch.extras.items()}
    acts = Activations(rows[0], fitting.head, rows[1], labels, extras)
    with contextlib.suppress(OffmapError):  # about the made-up rows
        copy.deepcopy(fitting).show(acts)


def _made_up(fitting: Fitting, extras: list[str], predicted: bool) -> ActivationBatch:
    """Random rows of the right shapes; with logits of which every class is the largest once, or a part of them."""
    rng = np.random.default_rng(0)
    n_classes = fitting.n_classes
    labels = np.unique(np.linspace(0, (n_classes or 1) - 1, _PROBE_CLASSES).astype(int))
    labels = np.concatenate([labels, labels[-1:].repeat(3)])  # not as many rows as classes: shapes must not fit by luck

    def rows(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.random((len(labels), *shape), np.float32))

    logits = None
    if n_classes is not None and (predicted or fitting.head is None):
        logits = rows(n_classes)
        logits[torch.arange(len(labels)), torch.from_numpy(labels)] += 9
    return ActivationBatch(
        None if fitting.width is None else rows(fitting.width),
        logits,
        fitting.tensor_head("cpu"),
        extras={name: rows(*fitting.extra_shapes[name]) for name in extras},
    )


def calibration_tensors(calibration: Calibration | None, reference: DriftReference | None) -> dict[str, Array]:
    """Give the calibration scores and what their inputs were like, by name."""
    found = {} if calibration is None else {f"calibration/{k}": array for k, array in calibration.arrays().items()}
    return found | ({} if reference is None else {f"reference/{k}": array for k, array in reference.arrays().items()})


def restore_reference(fitting: Fitting | None, stored: store.Stored) -> DriftReference | None:
    """Make the reference that gave these tensors; absent in the first files."""
    arrays = _below("reference/", stored.tensors)
    if not arrays:
        return None
    found = DriftReference.of_arrays(arrays)
    if fitting is not None and len(found.feature_counts) not in (0, fitting.width):
        raise StoreError(f"not a whole detector: a reference of {len(found.feature_counts)} features")
    return found


def restore_calibration(config: dict[str, Any], stored: store.Stored) -> Calibration | None:
    """Make the calibration that gave these tensors."""
    if config["tpr"] is None:
        return None
    arrays = _below("calibration/", stored.tensors)
    store.check_fields("calibration", {"confidence": None} | config, {"confidence": float | None})
    return Calibration(tpr=config["tpr"], confidence=config.get("confidence"), **arrays).check()


def shift_tensors(shift: Weigh | None) -> dict[str, Array]:
    """Give an estimated shift, by name; a function cannot be saved."""
    if shift is None:
        return {}
    if not isinstance(shift, CovariateShift):
        raise InputError("calibrated with a function for the shift, which no file can hold; give recent inputs instead")
    return {f"shift/{name}": array for name, array in shift.arrays().items()}


def restore_shift(fitting: Fitting | None, stored: store.Stored) -> CovariateShift | None:
    """Make the shift that gave these tensors."""
    arrays = _below("shift/", stored.tensors)
    if not arrays:
        return None
    shift = CovariateShift.of_arrays(arrays)
    if fitting is None or fitting.width != len(shift.coefficients):
        raise StoreError(f"not a whole detector: a shift of {len(shift.coefficients)} features")
    return shift


def _tensors(arrays: dict[str, Array]) -> State:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _below(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def restore_columns(config: dict[str, Any]) -> tuple[str, ...] | None:
    """Take the names of the columns that the detector was fitted on; `None` where it was fitted on arrays."""
    names = config.get("columns")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("columns")
    return tuple(names)
