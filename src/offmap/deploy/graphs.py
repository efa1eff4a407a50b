"""Join the model's graph and the guard's, add what the file says of itself, and write it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from offmap import store
from offmap.deploy.guards import OUTPUTS
from offmap.deploy.taps import TappedModel
from offmap.deploy.tracing import import_packages
from offmap.detection import Detector
from offmap.errors import InputError, StoreError

LOGITS = "logits"
ALL_OUTPUTS = (LOGITS, *OUTPUTS)
LARGEST = 2**31 - 2**26  # bytes of weights; a protobuf file ends at 2 GB, and nodes take some of it


def join_graphs(tapped: TappedModel, guard: Any) -> Any:
    """Append the guard's graph to the model's, with four outputs; both graphs are used up.

    Parameters
    ----------
    tapped : TappedModel
        The model with its features and logits.
    guard : onnx_ir.Model
        What `trace_guard` made.

    Returns
    -------
    onnx_ir.Model
        The joined graph.
    """
    _, ir, _ = import_packages()
    model = tapped.model
    _free_names(model, tapped.logits)
    for value, own in zip(guard.graph.inputs, (tapped.features, tapped.logits), strict=True):
        ir.convenience.replace_all_uses_with(value, own)
    for value in list(guard.graph.initializers.values()):
        guard.graph.initializers.pop(value.name)
        value.name = f"offmap.{value.name}"
        model.graph.register_initializer(value)
    made = list(guard.graph.outputs)
    nodes = list(guard.graph)
    guard.graph.outputs.clear()
    guard.graph.remove(nodes)
    for node in nodes:
        node.name = f"offmap.{node.name}"
        for value in node.outputs:
            value.name = f"offmap.{value.name}"
    model.graph.extend(nodes)
    for value, name in zip((tapped.logits, *made), ALL_OUTPUTS, strict=True):
        value.name = name
    model.graph.outputs.clear()
    model.graph.outputs.extend([tapped.logits, *made])
    model.ir_version = max(model.ir_version, guard.ir_version)
    return model


def _free_names(model: Any, logits: Any) -> None:
    """Give the model's own values that bear the name of an output another one."""
    graph = model.graph
    for value in graph.inputs:
        if value.name in ALL_OUTPUTS:
            raise InputError(
                f"the model has an input called {value.name!r}, which is the name of an output of the guarded graph; "
                "rename the input"
            )
    for value in list(graph.initializers.values()):
        if value.name in ALL_OUTPUTS:
            graph.initializers.pop(value.name)
            value.name = f"{value.name}.model"
            graph.register_initializer(value)
    for node in graph:
        for value in node.outputs:
            if value.name in ALL_OUTPUTS and value is not logits:
                value.name = f"{value.name}.model"


def add_metadata(model: Any, guard: Detector, tap: str, classes: Sequence[str] | None, version: str) -> None:
    """Write a description into the graph: any runtime can read these texts without offmap.

    Parameters
    ----------
    model : onnx_ir.Model
        Changed in place.
    guard : Detector
        The guard.
    tap : str
        Where the features are taken.
    classes : sequence of str or None
        Class names.
    version : str
        Version of offmap.
    """
    calibration = guard.calibration
    assert calibration is not None
    by_class = calibration.classes is not None
    facts = {
        "offmap.version": version,
        "offmap.method": guard.chosen,
        "offmap.tpr": repr(float(calibration.tpr)),
        "offmap.threshold": "" if by_class else repr(calibration.threshold),
        "offmap.thresholds": json.dumps(calibration.thresholds()) if by_class else "",
        "offmap.calibration_inputs": str(len(calibration.scores)),
        "offmap.features": tap,
        "offmap.classes": "" if classes is None else json.dumps(list(classes), ensure_ascii=False),
    }
    model.metadata_props.update({name: text for name, text in facts.items() if text})


def write_graph(model: Any, path: Path, external_data: bool, verify: Callable[[Path], None]) -> Path | None:
    """Write the graph, whole or not at all, once `verify` has found nothing wrong with it.

    Weights go to a second file beside it when asked, or when one file cannot hold them. Its name holds a checksum, so
    that a crash between the two renames leaves the old pair or the new one.

    Parameters
    ----------
    model : onnx_ir.Model
        The whole graph.
    path : Path
        The file to write.
    external_data : bool
        Whether weights go to a second file.
    verify : callable
        Takes a trial file and raises if something is wrong with it.

    Returns
    -------
    Path or None
        The second file, if there is one.
    """
    _, ir, _ = import_packages()
    if not path.parent.is_dir():
        raise StoreError(f"{path}: the folder {path.parent} does not exist")
    apart = external_data or count_weight_bytes(model) > LARGEST
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        trial = Path(folder) / path.name
        name = f"{path.stem}-{_checksum(model)}.data" if apart else None
        try:
            ir.save(model, trial, external_data=name, size_threshold_bytes=1024)
        except OSError as error:
            raise StoreError(f"{path}: could not be written ({error.strerror}); nothing was changed") from error
        verify(trial)
        if name is None:
            store.write_atomically(path, trial.read_bytes())
            return None
        data = path.parent / name
        there = data.exists()
        _move(Path(folder) / name, data)
        try:
            store.write_atomically(path, trial.read_bytes())
        except BaseException:
            if not there:
                data.unlink()
            raise
        return data


def count_weight_bytes(model: Any) -> int:
    """Count the bytes that the weights of a graph take.

    Parameters
    ----------
    model : onnx_ir.Model
        A graph.

    Returns
    -------
    int
        Bytes.
    """
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)


def _checksum(model: Any) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name, value in model.graph.initializers.items():
        digest.update(name.encode())
        if value.const_value is not None:
            digest.update(memoryview(value.const_value.tobytes()))
    return digest.hexdigest()[:12]


def _move(source: Path, target: Path) -> None:
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(source, target)
