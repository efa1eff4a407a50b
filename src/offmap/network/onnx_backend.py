"""Running an ONNX classifier: the input of its last Gemm or MatMul is tapped, the head read off the file."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offmap.activations import Head, as_array
from offmap.errors import InputError
from offmap.extra_passes import Layer, Request
from offmap.network.backend import Backend
from offmap.network.linear_calls import two_sided
from offmap.network.onnx_graph import OnnxGraph, Tap, import_onnx
from offmap.network.reductions import pool_positions, reduce_output
from offmap.typing import Array


class OnnxBackend(Backend):
    """An ONNX file and the tensor to tap, see `offmap.Network.onnx`."""

    def __init__(self, path: str | os.PathLike[str], layer: str | None, output: str | None = None) -> None:
        self.path, self.layer, self.output = Path(path), layer, output
        self._model: Any = None
        self._tap: Tap | None = None
        self._device: str | None = None
        self._home: str | None = None
        self._sessions: dict[tuple[str | None, tuple[str, ...]], Any] = {}

    def __repr__(self) -> str:
        layer = "" if self.layer is None else f", layer={self.layer!r}"
        return f"Network.onnx({str(self.path)!r}{layer})"

    @property
    def tap(self) -> str | None:
        """The tensor taken as features; `None` before the first inputs."""
        return None if self._tap is None else self._tap.features

    @property
    def where(self) -> Tap | None:
        """The tensors tapped and the head between them; `None` before the first inputs."""
        return self._tap

    def head(self) -> Head | None:
        """Return the head read off the file's weights."""
        return None if self._tap is None else self._tap.head

    def layers(self) -> dict[str, str]:
        """Return every tensor that a node computes, and the kind of node."""
        return {name: node.op_type for node in self.model.graph.node for name in node.output if name}

    def fingerprint(self) -> str:
        """Return a checksum of the graph and its weights."""
        return hashlib.blake2b(self._bytes(self.model), digest_size=16).hexdigest()

    def session(self, device: str | None) -> AbstractContextManager[None]:
        """Choose where to run; nothing has to be put back, for the file is only read."""
        self._device = self._home if device is None else device
        return nullcontext()

    def to(self, device: str) -> None:
        """Run there where a session names no other device."""
        self._home = device

    def run(self, inputs: Any, requests: Sequence[Request], start: int) -> dict[str, Array]:
        """Run one batch and return features, logits and asked layers, by the names of arrays in a saved folder.

        Parameters
        ----------
        inputs : array or mapping of str to array
            One batch.
        requests : sequence of Request
            Layers.
        start : int
            Place of the first input in the data.

        Returns
        -------
        dict of str to ndarray
            The arrays by name, as float32.
        """
        del start  # nothing in here draws random numbers
        layers = {request.key: self._layer(request) for request in requests}
        tap = self._tap or self._find()
        tensors = {key: self._tensor_named(request.name) for key, request in layers.items()}
        named = [tap.features] if tap.logits is None else [tap.features, tap.logits]
        values = self.evaluate(inputs, [*named, *tensors.values()])
        features = _rows(values[tap.features], tap)
        logits = _logits(values[tap.logits]) if tap.logits is not None else _by_head(tap, features)
        if self._tap is None:
            _check_linear(features, logits, tap)
            self._tap = tap
        found = {"features": features, "logits": logits}
        for key, request in layers.items():
            output = torch.from_numpy(np.asarray(values[tensors[key]], np.float32))
            found[f"extra.{key}"] = reduce_output(output, request).numpy()
        return {name: np.array(value, dtype=np.float32) for name, value in found.items()}

    @property
    def model(self) -> Any:
        """The parsed file, weights included."""
        if self._model is None:
            onnx, _ = import_onnx()
            if not self.path.is_file():
                raise InputError(f"Network.onnx({str(self.path)!r}): there is no such file")
            try:
                self._model = onnx.load(self.path)
                onnx.checker.check_model(self._model)
            except Exception as error:  # protobuf and the checker raise kinds of their own
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise InputError(f"Network.onnx({str(self.path)!r}): not a readable ONNX model ({reason})") from error
        return self._model

    def _layer(self, request: Request) -> Layer:
        if not isinstance(request, Layer):
            raise InputError(
                f"{request.key}: ONNX Runtime only runs the network forward, without gradients, dropout "
                "or edited layers; load the model in PyTorch and use Network(model)"
            )
        return request

    def _tensor_named(self, name: str) -> str:
        """Return a tensor by its own name, or the first output of the node of that name."""
        tensors = self.layers()
        if name in tensors:
            return name
        for node in self.model.graph.node:
            if node.name == name:
                return str(node.output[0])
        near = difflib.get_close_matches(name, tensors, n=4, cutoff=0.3) or list(tensors)[-4:]
        raise InputError(
            f"layer={name!r}: the graph has no such node or tensor; close are {', '.join(map(repr, near))}, "
            "and net.layers() lists all"
        )

    def _find(self) -> Tap:
        graph = OnnxGraph(self.model)
        logits = graph.logits(self.output)
        if self.layer is None:
            found = graph.linear_behind(logits)
            if found is None:
                raise InputError(self._not_linear(graph, logits))
            return found
        name = self._tensor_named(self.layer)
        found = graph.linear_behind(name)
        if found is not None and found.head is not None and found.head.n_classes == graph.width(logits, found):
            return Tap(found.features, name, found.head)
        return Tap(name, logits, None)

    def _not_linear(self, graph: OnnxGraph, logits: str) -> str:
        last = [node for node in self.model.graph.node if node.op_type != "Constant"][-4:]
        names = ", ".join(f"{node.output[0]!r} ({node.op_type})" for node in last)
        linear = [name for name in self.layers() if graph.linear_behind(name) is not None]
        way = f"If {linear[-1]!r} holds the logits, pass layer={linear[-1]!r}. Otherwise pass" if linear else "Pass"
        return (
            f"Network.onnx({str(self.path)!r}): {logits!r} is not the output of a Gemm or MatMul with fixed "
            f"weights. The last tensors are {names}. {way} the name of a tensor in net.layers() as "
            "layer: it becomes the features, the logits stay the model's output, and there is no head"
        )

    def evaluate(self, inputs: Any, tensors: list[str]) -> dict[str, Array]:
        """Compute some tensors for one batch, as they are in the graph.

        Parameters
        ----------
        inputs : array or mapping of str to array
            One batch.
        tensors : list of str
            Their names in the graph.

        Returns
        -------
        dict of str to ndarray
            By name.
        """
        names = list(dict.fromkeys(tensors))
        try:
            return dict(zip(names, evaluate(self._session_for(tuple(names)), names, inputs), strict=True))
        except RuntimeError as error:
            raise InputError(f"Network.onnx({str(self.path)!r}): {error}") from error

    def _session_for(self, names: tuple[str, ...]) -> Any:
        """Return a session with these tensors among its outputs, kept for the next batch."""
        key = (self._device, names)
        if key not in self._sessions:
            onnx, runtime = import_onnx()
            model = onnx.ModelProto()
            model.CopyFrom(self.model)
            there = {output.name for output in model.graph.output}
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
            providers = _providers(runtime, self._device)
            try:
                session = runtime.InferenceSession(self._bytes(model), providers=providers)
            except InputError:
                raise
            except Exception as error:  # ONNX Runtime raises kinds of its own
                reason = str(error).strip().partition("\n")[0]
                raise InputError(
                    f"Network.onnx({str(self.path)!r}): ONNX Runtime cannot run this model ({reason}); operators that "
                    "are not of ONNX itself must be replaced, or the model run in PyTorch with Network(model)"
                ) from error
            self._sessions = {key: session}
        return self._sessions[key]

    def _bytes(self, model: Any) -> bytes:
        try:
            return bytes(model.SerializeToString(deterministic=True))
        except ValueError as error:
            raise InputError(
                f"Network.onnx({str(self.path)!r}): models beyond 2 GB cannot be tapped ({error})"
            ) from error


def _providers(runtime: Any, device: str | None) -> list[str]:
    kind = (device or "cpu").split(":")[0]
    wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(kind, kind)
    if wanted not in runtime.get_available_providers():
        raise InputError(
            f"device={device!r}: this ONNX Runtime offers {', '.join(runtime.get_available_providers())}; "
            "pass device='cpu', or install onnxruntime-gpu for 'cuda'"
        )
    return [wanted]


def evaluate(session: Any, names: Sequence[str], inputs: Any) -> list[Array]:
    """Compute some tensors of a session for one batch of any size.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        A session of the graph.
    names : sequence of str
        The tensors.
    inputs : array or mapping of str to array
        One batch.

    Returns
    -------
    list of ndarray
        In the order of the names.

    Raises
    ------
    RuntimeError
        With what went wrong.
    """
    specs = session.get_inputs()
    feed = {spec.name: _fed(inputs, spec, len(specs)) for spec in specs}
    size = len(next(iter(feed.values())))
    fixed = [spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], int)]
    step = min(fixed, default=size)
    parts = []
    for first in range(0, size, step):
        cut = feed
        if step != size:  # a fixed batch size must be filled
            rows = np.minimum(np.arange(first, first + step), size - 1)
            cut = {name: value[rows] for name, value in feed.items()}
        try:
            parts.append(session.run(names, cut))
        except Exception as error:  # the runtime has one kind of exception per failure
            misfits = [said for spec in specs if (said := _misfit(spec, feed[spec.name]))]
            raise RuntimeError("; ".join(misfits) or str(error).strip().splitlines()[0]) from error
    return [(found[0] if len(found) == 1 else np.concatenate(found))[:size] for found in zip(*parts, strict=True)]


def _misfit(spec: Any, given: Array) -> str | None:
    """Say in which sizes a batch differs from what the graph declares; the first is the number of inputs."""
    wanted = list(spec.shape[1:])
    sizes = list(given.shape[1:])
    fits = len(wanted) == len(sizes) and all(
        not isinstance(size, int) or size == got for size, got in zip(wanted, sizes, strict=True)
    )
    if fits:
        return None
    shape = " × ".join("any" if not isinstance(size, int) else str(size) for size in wanted)
    return (
        f"an input of {spec.name!r} has the shape {shape} in the graph, but {' × '.join(map(str, sizes))} was given; "
        "bring pictures to its size with --image-size, or image_size in offmap.data.batches, and --gray to one channel"
    )


def _fed(inputs: Any, spec: Any, count: int) -> Array:
    """Return the array for one input of the graph, in the type it declares."""
    if isinstance(inputs, Mapping):
        if spec.name not in inputs:
            raise InputError(f"the ONNX graph reads {spec.name!r}, but the batch holds {', '.join(inputs)}")
        value = inputs[spec.name]
    elif count == 1:
        value = inputs
    else:
        raise InputError(f"the ONNX graph has {count} inputs; give batches as mappings from their names to arrays")
    array = as_array(value, spec.name)
    kinds = {
        "tensor(float)": np.float32,
        "tensor(float16)": np.float16,
        "tensor(double)": np.float64,
        "tensor(int64)": np.int64,
        "tensor(int32)": np.int32,
    }
    wanted = kinds.get(spec.type)
    if wanted is None or (np.dtype(wanted).kind == "f") != (array.dtype.kind == "f"):
        return array
    return array.astype(wanted, copy=False)


def _rows(value: Array, tap: Tap) -> Array:
    """Return what goes into the head as it is; of any other tensor the mean over positions."""
    if tap.head is not None:
        return value.reshape(len(value), -1)
    rows: Array = pool_positions(torch.from_numpy(np.asarray(value, np.float32))).numpy()
    return rows


def _check_linear(features: Array, logits: Array, tap: Tap) -> None:
    """Refuse a head that does not give the logits of the first inputs."""
    if tap.head is None:
        return
    error = np.abs(tap.head(features) - logits).max()
    size = (np.abs(features) @ np.abs(tap.head.weight).T + np.abs(tap.head.bias)).max()
    if not error <= 1e-3 * size:
        raise InputError(
            f"the weights behind {tap.logits!r} give logits that differ by {error:.3g} from the model's; "
            "pass the name of a tensor in net.layers() as layer"
        )


def _logits(value: Array) -> Array:
    rows = value.reshape(len(value), -1) if value.ndim > 2 and value[0].size == value.shape[1] else value
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise InputError(
            f"the model's output has the shape {value.shape} and holds {value.dtype}; one row of logits per input is "
            "needed: choose the output by name, Network.onnx(path, output=...)"
        )
    return two_sided(torch.from_numpy(np.asarray(rows, np.float32))).numpy()


def _by_head(tap: Tap, features: Array) -> Array:
    """The logits of a node that keeps them to itself, such as the linear classifier of scikit-learn's converter."""
    assert tap.head is not None
    return tap.head(features)
