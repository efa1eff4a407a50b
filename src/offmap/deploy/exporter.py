"""`export`: a model and its guard in one ONNX file, written only if it answers as both do in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import offmap
from offmap import store
from offmap.activations import Head
from offmap.deploy.graphs import add_metadata, join_graphs, write_graph
from offmap.deploy.guards import check_exportable, trace_guard
from offmap.deploy.probes import BATCH, as_inputs, make_declared_inputs, make_noise, make_probes, take_rows
from offmap.deploy.taps import tap_network
from offmap.deploy.tracing import import_packages
from offmap.deploy.verify import Agreement, check_agreement, collect_references
from offmap.detection import Detector
from offmap.errors import InputError, OffmapError, StoreError
from offmap.network import Network
from offmap.network.batches import is_array
from offmap.network.onnx_backend import OnnxBackend
from offmap.openworld.deployment import KIND as DEPLOYMENT
from offmap.openworld.deployment import Deployment
from offmap.openworld.extended_network import ExtendedNetwork, linear_module
from offmap.wording import format_count


@dataclass(frozen=True)
class Exported:
    """The files of an export, and how well they agree with Python.

    Parameters
    ----------
    path, data : Path
        The graph, and the file of weights beside it where there is one.
    method : str
        The guard's text form.
    tpr, threshold : float
        What was calibrated; no single threshold where it is by class.
    checked : int
        How many inputs were compared.
    difference : float
        The largest difference between scores, in units of their size.
    """

    path: Path
    data: Path | None
    method: str
    tpr: float
    threshold: float | None
    checked: int
    difference: float

    def __str__(self) -> str:
        beside = "" if self.data is None else f" with its weights in {self.data.name}"
        return (
            f"{self.path}{beside}: {self.method} behind the model, accepting {self.tpr:.0%} of known inputs; scores of "
            f"{format_count(self.checked, 'input')} agree with Python's to {self.difference:.1e} of their size"
        )


def export(
    model: Any,
    guard: Detector | str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] = "guarded.onnx",
    example: Any = None,
    *,
    shape: Sequence[int] | None = None,
    weights: str | os.PathLike[str] | None = None,
    layer: str | None = None,
    classes: Sequence[str] | None = None,
    tolerance: float = 1e-4,
    external_data: bool = False,
    seed: int = 0,
) -> Exported:
    """Write one ONNX graph that takes the model's input and returns logits, score, p_value and known.

    The graph runs in ONNX Runtime with nothing of offmap installed. Before it is written, it is compared with the
    Python path on your inputs and on noise; if they differ, nothing is written and the error says what does.

    Parameters
    ----------
    model : nn.Module, Network, OpenWorldModel, Deployment, str or path
        An ``nn.Module``, a `Network`, an ``.onnx`` file, ``"package.module:factory"``, or a model that `offmap.learn`
        made, as an object or as its file. Or a `Deployment` or its file, which brings its own guard and class names.
    guard : Detector, str or path, optional
        Left out for a deployment. Else a detector, fitted and calibrated, or its file; or the file of a deployment,
        whose weights then go into the `model`, such as one that offmap cannot make by itself. Methods whose score is a
        formula of features and logits can be exported; others are refused with the reason.
    path : str or path, default="guarded.onnx"
        The file to write, such as ``guarded.onnx``.
    example : array, mapping or loader, optional
        Inputs as the model takes them: an array, a tensor, a mapping of its arguments, or a loader of such batches.
        They give the shape, and real ones make the comparison worth more.
    shape : sequence of int, optional
        Shape of one input, instead of an example. An ONNX file that declares the shape of its inputs needs neither.
    weights : str or path, optional
        For an import path: the file of weights to load.
    layer : str, optional
        The layer to tap, as for `Network`; give what the guard was fitted with.
    classes : sequence of str, optional
        Names of the classes, kept in the file.
    tolerance : float, default=1e-4
        How far scores may lie apart, relative to their size.
    external_data : bool, default=False
        Keep the weights in a file of their own beside the graph, as happens by itself beyond 2 GB.
    seed : int, default=0
        Seed of the noise.

    Returns
    -------
    Exported
        Where it is and how well it agrees.

    Examples
    --------
    >>> import tempfile, torch, offmap
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x, net = torch.randn(200, 4), offmap.Network(model)
    >>> guard = offmap.detector("energy").fit(net(x[:100])).calibrate(net(x[100:]), tpr=0.9)
    >>> exported = offmap.export(model, guard, tempfile.mkdtemp() + "/guarded.onnx", example=x[:8])
    >>> exported.method, exported.tpr
    ('energy', 0.9)
    """
    import_packages()
    file = Path(path)
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance={tolerance}: give a small share of the size of scores, such as 1e-4")
    if not file.parent.is_dir():
        raise StoreError(f"{file}: the folder {file.parent} does not exist")
    deployment = _deployment(model, guard, weights, layer)
    if deployment is not None:
        checked, own_classes = deployment.detector, deployment.class_names
        check_exportable(checked)
        net, own_shape = _deployed_network(deployment, example)
    elif guard is None:
        raise InputError("export: give the guard to put behind the model, or a deployment, which holds both")
    else:
        checked = guard if isinstance(guard, Detector) else Detector.restore(store.load(guard, "detector"))
        check_exportable(checked)
        net, own_classes, own_shape = _network(model, weights, layer)
    inputs = _inputs(net, example, shape or own_shape, seed)
    few = take_rows(inputs, slice(0, 2))
    _check_classes(classes, _classes(net, few))
    _same_head(checked, net)
    expected = collect_references(net, checked, make_probes(inputs, seed))
    graph = tap_network(net, few)
    traced = trace_guard(checked, graph.seen_features, graph.seen_logits, graph.from_head, graph.opset)
    whole = join_graphs(graph, traced)
    add_metadata(whole, checked, str(net.backend.tap), classes or own_classes, offmap.__version__)
    found: list[Agreement] = []
    data = write_graph(
        whole, file, external_data, lambda trial: found.append(check_agreement(trial, checked, expected, tolerance))
    )
    calibration = checked.calibration
    assert calibration is not None
    threshold = None if calibration.classes is not None else calibration.threshold
    return Exported(file, data, checked.chosen, calibration.tpr, threshold, found[0].inputs, found[0].difference)


def _deployment(model: Any, guard: Any, weights: str | os.PathLike[str] | None, layer: str | None) -> Deployment | None:
    """Return the deployment that was given, as an object or as its file; `None` for anything else.

    As the guard, its file brings the weights for a model that offmap cannot make by itself.
    """
    found = model if isinstance(model, Deployment) else None
    if isinstance(model, str | os.PathLike) and os.fspath(model).endswith(".offmap"):
        stored = store.load(model)
        found = Deployment.restore(stored) if stored.kind == DEPLOYMENT else None
    if found is not None and guard is not None:
        raise InputError("a deployment has a guard of its own; leave out the other one")
    if isinstance(guard, str | os.PathLike):
        stored = store.load(guard)
        return None if stored.kind != DEPLOYMENT else Deployment.restore(stored, _network(model, weights, layer)[0])
    return found


def _deployed_network(deployment: Deployment, example: Any) -> tuple[Network, tuple[int, ...] | None]:
    """Return a network that can be traced as a graph, and the shape of its inputs where it is known."""
    network = deployment.network
    if isinstance(network, ExtendedNetwork):
        return network.merge(None if example is None else take_rows(as_inputs(example), slice(0, 2))), None
    if network is not None:
        declared = isinstance(network.backend, OnnxBackend)  # an ONNX file says it itself
        return network, None if declared or deployment.pictures is None else deployment.pictures.shape
    head = deployment.head
    if head is None:
        raise InputError(f"{deployment}: it has neither a network nor a head, so there is nothing to draw as a graph")
    return Network(linear_module(head)), (head.weight.shape[1],)


def _network(
    model: Any, weights: str | os.PathLike[str] | None, layer: str | None
) -> tuple[Network, tuple[str, ...] | None, tuple[int, ...] | None]:
    """Return the network, with the names of its classes and the shape of its inputs where the model knows them."""
    if isinstance(model, Network):
        if layer is not None and layer != model.layer:
            raise InputError(f"layer={layer!r}: the network is tapped at {model.layer!r}; make it with that layer")
        return model, None, None
    if isinstance(model, str | os.PathLike) and not os.fspath(model).endswith(".offmap"):
        from offmap.models import load_network

        return load_network(os.fspath(model), weights, layer), None, None
    if weights is not None:
        raise InputError(f"weights={os.fspath(weights)!r}: only a model given as package.module:factory takes a file")
    if hasattr(model, "named_modules"):
        return Network(model, layer), None, None
    from offmap.learning.model import KIND, OpenWorldModel

    learned = OpenWorldModel.restore(store.load(model, KIND)) if isinstance(model, str | os.PathLike) else model
    if not isinstance(learned, OpenWorldModel):
        raise InputError(
            f"export({type(model).__name__}): give an nn.Module, a Network, an .onnx file, package.module:factory, "
            "or a model of offmap.learn"
        )
    config = learned.net.encoder.config
    shape = config.get("shape") or ([config["width"]] if "width" in config else None)
    return Network(learned.net, layer), learned.class_names, None if shape is None else tuple(shape)


def _inputs(net: Network, example: Any, shape: Sequence[int] | None, seed: int) -> Any:
    if example is not None:
        return as_inputs(example)
    if shape is None:
        return make_declared_inputs(net, seed)
    if min(shape, default=0) < 1:
        raise InputError(f"shape={tuple(shape)}: give the sizes of one input, such as (3, 32, 32)")
    return make_noise(np.empty((1, *shape), np.float32), BATCH, seed)


def _classes(net: Network, inputs: Any) -> int:
    """How many classes the network knows, from a first run that also finds its head."""
    try:
        return net(inputs).n_classes
    except OffmapError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # whatever the user's model raises
        arrays = inputs if isinstance(inputs, Mapping) else {"": inputs}
        shapes = ", ".join(str(tuple(value.shape[1:])) for value in arrays.values() if is_array(value))
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model does not take inputs of the shape {shapes}: {reason}") from error


def _same_head(guard: Detector, net: Network) -> None:
    """Refuse a guard that was fitted on what another network says."""
    mine, theirs = guard.head, net.head
    if mine is None or (theirs is not None and _close(mine, theirs)):
        return
    if theirs is None:
        raise InputError(
            f"{guard} was fitted on what goes into a linear head, but the model is tapped at {net.layer!r}, where "
            "there is none; leave out layer, or fit the guard on this tap"
        )
    raise InputError(
        f"{guard} was fitted on another network: the model's head {theirs} does not have the weights of the guard's "
        f"{mine}; fit the guard on this model's activations, or give the weights it was fitted with"
    )


def _close(one: Head, other: Head) -> bool:
    if one.weight.shape != other.weight.shape:
        return False
    size = float(np.abs(one.weight).max())
    return np.allclose(one.weight, other.weight, rtol=1e-4, atol=1e-5 * size) and np.allclose(
        one.bias, other.bias, rtol=1e-4, atol=1e-5 * max(size, float(np.abs(one.bias).max()))
    )


def _check_classes(classes: Sequence[str] | None, count: int) -> None:
    if classes is not None and len(classes) != count:
        raise InputError(f"classes: {len(classes)} names for {count} logits; give one per logit, in their order")
