"""A classifier as an ONNX graph of which two values are known: the features that a guard reads, and the logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offmap.deploy.tracing import OPSET, import_packages, repeat_single_row, trace_module
from offmap.errors import InputError
from offmap.network import Network
from offmap.network.batches import is_array
from offmap.network.linear_calls import LinearCalls, two_sided
from offmap.network.model_outputs import call_model, find_input_rows, find_logits
from offmap.network.onnx_backend import OnnxBackend
from offmap.network.onnx_graph import Tap
from offmap.network.preserve import preserve_rng, preserve_state
from offmap.network.reductions import pool_positions
from offmap.network.torch_backend import TorchBackend

INPUT = "input"


@dataclass(frozen=True)
class TappedModel:
    """A graph (`onnx_ir.Model`), its two tapped values, and what they held for some inputs."""

    model: Any
    features: Any
    logits: Any
    seen_features: Tensor
    seen_logits: Tensor
    from_head: bool

    @property
    def opset(self) -> int:
        """The version of ONNX's operators."""
        return int(self.model.opset_imports[""])


def tap_network(net: Network, inputs: Any) -> TappedModel:
    """Turn a network into a graph, after it has run on these inputs once.

    Parameters
    ----------
    net : Network
        A network of torch or from an ONNX file.
    inputs : Any
        Examples of its inputs.

    Returns
    -------
    TappedModel
        The graph with features and logits as outputs.
    """
    backend = net.backend
    return _from_file(backend, inputs) if isinstance(backend, OnnxBackend) else _from_torch(backend, inputs)


def _from_torch(backend: Any, inputs: Any) -> TappedModel:
    assert isinstance(backend, TorchBackend)
    with preserve_state(backend.models, torch.device("cpu")), preserve_rng(seed=0), torch.no_grad():
        few = backend.prepare_inputs(inputs)
        given = dict(few) if isinstance(few, Mapping) else {INPUT: few}
        module = _Watched(backend, given, isinstance(few, Mapping))
        features, logits = module(*module.tensors.values())

        def failed(reason: str) -> str:
            return (
                f"{type(backend.model).__name__} cannot be drawn as a graph by torch.onnx ({reason}); export it to "
                "ONNX yourself and give that file as the model"
            )

        examples = {name: repeat_single_row(tensor) for name, tensor in module.tensors.items()}
        model = trace_module(module, examples, ("features", "logits"), None, failed)
    tapped_features, tapped_logits = model.graph.outputs
    return TappedModel(model, tapped_features, tapped_logits, features.detach(), logits.detach(), backend.has_head)


class _Watched(nn.Module):
    """The model with what the tap sees beside what it returns; which form that has is settled on the first inputs."""

    def __init__(self, backend: TorchBackend, given: Mapping[str, Any], by_name: bool) -> None:
        super().__init__()
        self.model, self.backend, self.function = backend.model, backend, backend.functional_head
        self.layer = None if self.function is not None else backend.module(backend.tap or "")
        self.from_head, self.by_name = backend.has_head, by_name
        self.tensors = {name: value for name, value in given.items() if is_array(value)}
        self.rest = {name: value for name, value in given.items() if name not in self.tensors}
        self.call, self.own_answer = -1, False
        if self.from_head and self.function is None:
            calls, logits = self._run(*self.tensors.values())
            made = [place for place, call in enumerate(calls) if find_input_rows(*call, logits) is not None]
            self.call, self.own_answer = (made[-1], False) if made else (-1, True)

    def _run(self, *tensors: Tensor) -> tuple[list[tuple[Any, Any]], Tensor]:
        calls: list[tuple[Any, Any]] = []

        def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            first = output[0] if isinstance(output, tuple | list) else output
            given = args[0] if args else next(iter(kwargs.values()))
            kept = given if self.backend.taps_input else first
            calls.append((given, first if self.from_head else pool_positions(kept)))  # at once: it may change in place

        assert self.layer is not None
        handle = self.layer.register_forward_hook(see, with_kwargs=True)
        try:
            logits = self._answer(*tensors)
        finally:
            handle.remove()
        return calls, logits

    def _answer(self, *tensors: Tensor) -> Tensor:
        named = dict(zip(self.tensors, tensors, strict=True))
        output = call_model(self.model, {**named, **self.rest} if self.by_name else tensors[0])
        return find_logits(output, self.backend.output)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits."""
        if self.function is not None:
            with LinearCalls() as noted:
                logits = self._answer(*tensors)
            return self.function.read(noted.calls)[0], two_sided(logits)
        calls, logits = self._run(*tensors)
        given, answered = calls[self.call]
        if not self.from_head:
            return answered, two_sided(logits)
        if self.own_answer:
            return given, two_sided(answered)  # a softmax or the like follows the head
        return (given if given.ndim == 2 else _picked(given, answered, logits)), two_sided(logits)


def _picked(given: Tensor, answered: Tensor, logits: Tensor) -> Tensor:
    """Return the row of a head's input whose answer became the logits, where the head answers for every token."""
    answers, rows = answered.flatten(1, -2), given.flatten(1, -2)
    same = (answers - logits[:, None]).abs().sum(dim=2)
    place = same.argmin(dim=1)[:, None, None].expand(-1, 1, rows.shape[2])
    return rows.gather(1, place)[:, 0]


def _from_file(backend: OnnxBackend, inputs: Any) -> TappedModel:
    _, ir, _ = import_packages()
    where = backend.where
    assert where is not None
    if where.logits is None or (where.head is not None and where.head.n_classes != _width(backend, where, inputs)):
        raise InputError(
            f"{backend.path}: its logits are not a tensor of the graph, two a row, so no guard can be drawn onto them; "
            "score with offmap itself (offmap score, offmap serve), or export a model with one logit per class"
        )
    values = backend.evaluate(inputs, [where.features, where.logits])
    model = ir.from_proto(_modern(backend))
    by_name = {value.name: value for node in model.graph for value in node.outputs}
    by_name |= {value.name: value for value in model.graph.inputs}
    for name in (where.features, where.logits):
        if name not in by_name:
            raise InputError(f"{backend.path}: {name!r} was lost when the graph was brought to opset {OPSET}")
    features, logits = (torch.from_numpy(np.array(values[name])) for name in (where.features, where.logits))
    return TappedModel(model, by_name[where.features], by_name[where.logits], features, logits, where.head is not None)


def _width(backend: OnnxBackend, where: Tap, inputs: Any) -> int:
    assert where.logits is not None
    return int(np.prod(backend.evaluate(inputs, [where.logits])[where.logits].shape[1:]))


def _modern(backend: OnnxBackend) -> Any:
    """Return the file's model in an opset that a guard can be drawn in."""
    onnx, _, _ = import_packages()
    model = backend.model
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if version >= OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # the converter raises whatever its C++ side does
        raise InputError(
            f"{backend.path}: the graph is in opset {version} and could not be brought to {OPSET} ({error}); "
            f"export it again with opset {OPSET} or later"
        ) from error
