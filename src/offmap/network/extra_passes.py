"""The passes some methods ask for beyond the plain one, on a PyTorch model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from offmap.errors import InputError
from offmap.extra_passes import BatchStatistics, Edited, Members, Passes, Perturbed, Request
from offmap.network.preserve import attributes, preserve_rng, unique
from offmap.network.reductions import apply_edit, signed_step

if TYPE_CHECKING:
    from offmap.network.model_outputs import Inputs
    from offmap.network.torch_backend import TorchBackend

_SEED_STEP = 0x9E3779B97F4A7C15  # spreads neighbouring seeds apart (the odd constant of SplitMix64)


def run_extra_pass(backend: TorchBackend, request: Request, inputs: Inputs, start: int) -> dict[str, torch.Tensor]:
    """Run the pass that a request asks for on one batch.

    Parameters
    ----------
    backend : TorchBackend
        The network.
    request : Request
        The extra pass.
    inputs : Tensor or mapping of str to Tensor
        One batch.
    start : int
        Place of the first input in the data.

    Returns
    -------
    dict of str to Tensor
        The outputs by name.
    """
    if isinstance(request, Edited):
        return _edited(backend, request, inputs)
    if isinstance(request, Perturbed):
        return _perturbed(backend, request, inputs)
    if isinstance(request, Passes):
        return _stochastic(backend, request, inputs, start)
    if isinstance(request, Members):
        return _members(backend, request, inputs)
    if isinstance(request, BatchStatistics):
        return _batch_statistics(backend, request, inputs)
    raise InputError(f"{request!r}: a network does not know this request")


def _edited(backend: TorchBackend, request: Edited, inputs: Inputs) -> dict[str, torch.Tensor]:
    if request.layer == backend.tap and backend.has_head:
        raise InputError(f"{request.key}: {request.layer!r} is the head itself; name a layer before it")
    ran = []

    def edit(output: Any) -> Any:
        ran.append(True)
        if isinstance(output, tuple | list) and output:
            return (apply_edit(output[0], request.edit), *output[1:])
        return apply_edit(output, request.edit)

    both = backend.forward(inputs, [(request.layer, edit)])
    if not ran:
        raise InputError(f"{request.key}: the layer {request.layer!r} did not run on these inputs")
    return dict(zip(request.outputs, both, strict=True))


def _perturbed(backend: TorchBackend, request: Perturbed, inputs: Inputs) -> dict[str, torch.Tensor]:
    name, original = _differentiable(inputs, request)
    with torch.inference_mode(False), torch.enable_grad():
        leaf = original.detach().clone().requires_grad_()
        objective = request.objective(*backend.forward(_with(inputs, name, leaf)))
        if not objective.requires_grad:
            raise InputError(f"{request.key}: the objective does not depend on the input, so it has no gradient")
        (gradient,) = torch.autograd.grad(objective.sum(), leaf)
    with torch.no_grad():
        moved = signed_step(original, gradient, request.epsilon, request.sign_zero, request.scale, request.share)
        kept: dict[str, torch.Tensor] = {}
        hooks = [backend.keep_layer(layer, kept) for layer in request.layers]
        features, logits = backend.forward(_with(inputs, name, moved), hooks)
    for layer in request.layers:
        if layer.key not in kept:
            raise InputError(f"{request.key}: the layer {layer.name!r} did not run on these inputs")
    inner = (kept[layer.key] for layer in request.layers)
    return dict(zip(request.outputs, (features, logits, *inner), strict=True))


def _stochastic(backend: TorchBackend, request: Passes, inputs: Inputs, start: int) -> dict[str, torch.Tensor]:
    dropouts = _of_kind(backend.model, _DropoutNd)
    if not dropouts:
        raise InputError(
            f"{request.key}: {type(backend.model).__name__} has no dropout layers, so its passes are all "
            "equal; choose a method that needs no stochastic passes, or a network with nn.Dropout"
        )
    seed = (request.seed * _SEED_STEP + start) % 2**63
    with preserve_rng(seed=seed), attributes(dropouts, training=True):
        passes = [backend.forward(inputs)[1] for _ in range(request.n)]
    return {request.outputs[0]: torch.stack(passes, 1)}


def _members(backend: TorchBackend, request: Members, inputs: Inputs) -> dict[str, torch.Tensor]:
    if not backend.ensemble:
        raise InputError("members: this network stands alone; give the others by Network(model, ensemble=[...])")
    answers = [backend.logits(member, inputs) for member in backend.models]
    if len({tuple(answer.shape) for answer in answers}) > 1:
        shapes = ", ".join(str(answer.shape[1]) for answer in answers)
        raise InputError(f"members: the networks answer {shapes} classes; an ensemble shares its classes")
    return {request.outputs[0]: torch.stack(answers, 1)}


def _batch_statistics(backend: TorchBackend, request: BatchStatistics, inputs: Inputs) -> dict[str, torch.Tensor]:
    norms = _of_kind(backend.model, _BatchNorm)
    if not norms:
        raise InputError(f"{request.key}: {type(backend.model).__name__} has no BatchNorm layers")
    values = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    if any(isinstance(value, torch.Tensor) and value.ndim and len(value) < 2 for value in values):
        raise InputError(
            f"{request.key}: a batch of one input has no statistics; "
            "choose a batch size that leaves no single input at the end"
        )
    with attributes(norms, training=True, track_running_stats=False):
        both = backend.forward(inputs)
    return dict(zip(request.outputs, both, strict=True))


def _of_kind(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return unique(module for module in model.modules() if isinstance(module, kind))


def _differentiable(inputs: Inputs, request: Perturbed) -> tuple[str | None, torch.Tensor]:
    """Return the one floating-point tensor among the inputs, and its name when they are a mapping."""
    named: dict[str | None, Any] = {None: inputs}
    if isinstance(inputs, Mapping):
        named = {name: value for name, value in inputs.items()}  # noqa: C416 - the keys widen to optional
    floating = [
        (name, value) for name, value in named.items() if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    if len(floating) != 1:
        raise InputError(
            f"{request.key}: a gradient step needs one floating-point input, but there are {len(floating)}; "
            "inputs such as token numbers cannot be moved, choose a method without input perturbation"
        )
    return floating[0]


def _with(inputs: Inputs, name: str | None, value: torch.Tensor) -> Inputs:
    return {**inputs, name: value} if isinstance(inputs, Mapping) and name is not None else value
