"""Calling a PyTorch model, and finding the logits and the head's input in what it returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from offmap.errors import InputError
from offmap.typing import Array

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)

_SIZES = re.compile(
    r"size of tensor|shapes cannot be multiplied|channels|expected input|Kernel size|output size|for input of size"
)

Inputs = torch.Tensor | Mapping[str, Any]
Output = str | int | Callable[[Any], torch.Tensor] | None


def unwrap_model(model: nn.Module) -> nn.Module:
    """Find the module whose layers can be tapped: without compilation and parallel wrappers.

    Parameters
    ----------
    model : nn.Module
        As the user gave it.

    Returns
    -------
    nn.Module
        The inner module.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "Network(ScriptModule): the layers of TorchScript cannot be tapped; pass the original nn.Module, "
            "or export it to ONNX and use Network.onnx(path)"
        )
    inner = model.module if isinstance(model, _WRAPPERS) else getattr(model, "_orig_mod", model)
    return inner if inner is model else unwrap_model(inner)


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Call the model; a mapping is passed as keyword arguments.

    Parameters
    ----------
    model : nn.Module
        The model.
    inputs : Tensor or mapping of str to Tensor
        One batch.

    Returns
    -------
    Any
        What the model returned.
    """
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


@contextmanager
def explain_wrong_shape(network: object, inputs: Inputs) -> Iterator[None]:
    """Turn a model's complaint about sizes into an `InputError` that names the shape it was given."""
    try:
        yield
    except RuntimeError as error:
        words = " ".join(str(error).split())
        if isinstance(inputs, Mapping) or not _SIZES.search(words):
            raise
        raise InputError(
            f"{network}: it does not take inputs of shape {tuple(inputs.shape[1:])} ({words[:200]}); give the size and "
            "channels that it was trained on, for pictures on the command line with --image-size and --gray"
        ) from error


def find_logits(output: Any, choice: Output = None) -> torch.Tensor:
    """Find the logits in what a model returned: a tensor, ``.logits``, ``["logits"]`` or the first of a tuple.

    Parameters
    ----------
    output : Any
        What a model returned.
    choice : str, int, callable or None, default=None
        Where the logits are when the rule above does not find them: a key or attribute, a place in a tuple, or a
        function of the output.

    Returns
    -------
    Tensor of shape (n, c)
        The logits.

    Examples
    --------
    >>> find_logits((torch.zeros(2, 3), torch.zeros(2, 5)), 1).shape
    torch.Size([2, 5])
    >>> find_logits({"logits": torch.zeros(2, 3), "loss": None}).shape
    torch.Size([2, 3])
    """
    found = output
    if choice is not None:
        found = _choose_output(output, choice)
    elif isinstance(output, Mapping) and "logits" in output:
        found = output["logits"]
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, torch.Tensor):
        raise InputError(
            f"the model returns {type(output).__name__}; logits are looked for in a tensor, in .logits or "
            "['logits'], or first in a tuple: say where they are with Network(model, output=...), a key, a place or a "
            "function of what the model returns"
        )
    if found.ndim > 2 and found.shape[2:].numel() == 1:
        found = found.flatten(1)
    if found.ndim != 2:
        raise InputError(
            f"the model returns logits of shape {tuple(found.shape)}; one row of logits per input is needed"
        )
    return found


def _choose_output(output: Any, choice: str | int | Callable[[Any], torch.Tensor]) -> Any:
    if callable(choice):
        return choice(output)
    try:
        if isinstance(choice, str) and not isinstance(output, Mapping):
            return getattr(output, choice)
        return output[choice]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        if isinstance(output, Mapping):
            there = f"there are {', '.join(map(repr, output))}"
        elif isinstance(output, tuple | list):
            there = f"there are places 0 to {len(output) - 1}"
        else:
            there = "it is one value"
        raise InputError(
            f"output={choice!r}: not in what the model returns, {type(output).__name__}; {there}"
        ) from error


def find_input_rows(given: Any, answered: Any, logits: torch.Tensor) -> torch.Tensor | None:
    """Find the rows of a linear layer's input that became the logits.

    A head may answer for every token and the model then pick one: the picked row is found by its answer.

    Parameters
    ----------
    given : Any
        Input of the layer.
    answered : Any
        Its output.
    logits : Tensor of shape (n, c)
        Logits of the model.

    Returns
    -------
    Tensor of shape (n, d) or None
        The rows; `None` when its output did not become the logits.

    Examples
    --------
    >>> tokens, answers = torch.arange(6.0).reshape(1, 3, 2), torch.tensor([[[0.0], [5.0], [9.0]]])
    >>> find_input_rows(tokens, answers, torch.tensor([[5.0]]))
    tensor([[2., 3.]])
    """
    if not (isinstance(given, torch.Tensor) and isinstance(answered, torch.Tensor)):
        return None
    count, classes = logits.shape
    if answered.shape[0] != count or answered.shape[-1] != classes or answered.ndim < 2:
        return None
    answers = answered.reshape(count, -1, classes)
    inputs = given.reshape(count, -1, given.shape[-1])
    same = torch.isclose(answers.to(logits.dtype), logits[:, None], rtol=1e-5, atol=1e-6, equal_nan=True).all(2)
    if not same.any(1).all():
        return None
    picked = same.to(torch.uint8).argmax(1)
    return inputs[torch.arange(count, device=inputs.device), picked]


def is_linear_head(features: torch.Tensor, logits: torch.Tensor, linear: Any) -> bool:
    """Check that features @ W.T + b really is the output, within what the precision allows.

    Parameters
    ----------
    features : Tensor of shape (n, d)
        Input of the layer.
    logits : Tensor of shape (n, c)
        Logits of the model.
    linear : nn.Linear
        The layer.

    Returns
    -------
    bool
        Whether the layer is the head.
    """
    weight, rows = linear.weight.double(), features.double()
    bias = torch.zeros(len(weight), device=weight.device) if linear.bias is None else linear.bias.double()
    if len(weight) == 1 and logits.shape[1] == 2:  # one logit for two classes, written as two
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    error = (rows @ weight.T + bias - logits.double()).abs().amax()
    size = (rows.abs() @ weight.abs().T + bias.abs()).amax()
    return bool(error <= size * (1e-3 if features.dtype in (torch.float32, torch.float64) else 2e-2))


def copy_to_numpy(value: torch.Tensor) -> Array:
    """Copy a tensor to float32 numbers that share no memory with the model or the user's inputs."""
    return np.array(value.detach().float().cpu().numpy(), dtype=np.float32, copy=True)
