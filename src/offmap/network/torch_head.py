"""Finding the linear head of a PyTorch model by running a few inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from offmap.activations import Head
from offmap.errors import InputError
from offmap.network.hooks import hooked
from offmap.network.linear_calls import FunctionalHead, LinearCalls, find_functional_head, is_softmax_of, two_sided
from offmap.network.model_outputs import copy_to_numpy, find_input_rows, is_linear_head
from offmap.network.onnx_graph import make_head

FUNCTIONAL = "the last product with a matrix"  # what is tapped when no module of its own gives the logits


@dataclass(frozen=True)
class FoundHead:
    """The linear layer behind a model's output.

    Attributes
    ----------
    name : str
        Of the module, or words for a product with a matrix that no module makes.
    softmax_follows : bool
        Whether the model's output is a softmax of the module's.
    function : FunctionalHead or None
        Which product it is, where no module makes it.
    head : Head or None
        Weight and bias of that product in the first pass.
    """

    name: str
    softmax_follows: bool = False
    function: FunctionalHead | None = None
    head: Head | None = None


def find_head(model: nn.Module, answer: Callable[[], torch.Tensor]) -> FoundHead:
    """Find the linear layer behind the output: as a module, before a softmax, or as a product with a matrix.

    Parameters
    ----------
    model : nn.Module
        The model.
    answer : callable
        Runs it on a few inputs and returns its logits.

    Returns
    -------
    FoundHead
        The last layer that fits.

    Raises
    ------
    InputError
        If the output is not that of a linear layer; says which modules ran last and what to pass instead.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> find_head(model, lambda: model(torch.ones(2, 3))).name
    '2'
    """
    order: list[tuple[str, Any]] = []
    linear: list[tuple[str, Any, Any]] = []

    def record(name: str, given: Any, answered: Any) -> None:
        linear.append((name, given, answered))

    def count(name: str, _: Any, answered: Any) -> None:
        order.append((name, getattr(answered, "shape", ())))

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                stack.enter_context(hooked(module, partial(record, name)))
            if next(module.children(), None) is None:
                stack.enter_context(hooked(module, partial(count, name)))
        noted = stack.enter_context(LinearCalls())
        logits = answer()
    for candidate, given, answered in linear[::-1]:
        rows = find_input_rows(given, answered, logits)
        if rows is not None and is_linear_head(rows, two_sided(logits), model.get_submodule(candidate)):
            return FoundHead(candidate)
        if isinstance(answered, torch.Tensor) and answered.ndim == 2 and is_softmax_of(answered, logits):
            return FoundHead(candidate, softmax_follows=True)
    function = find_functional_head(noted.calls, logits)
    if function is None:
        raise InputError(_explain_no_head(model, order, [name for name, _, _ in linear], logits.shape[1]))
    _, weight, bias = function.read(noted.calls)
    return FoundHead(FUNCTIONAL, function=function, head=make_head(copy_to_numpy(weight), copy_to_numpy(bias)))


def _explain_no_head(model: nn.Module, order: list[tuple[str, Any]], linear: list[str], classes: int) -> str:
    """Say which modules ran last, and what to pass instead."""
    last = ", ".join(
        f"{name!r} ({type(model.get_submodule(name)).__name__} {'×'.join(map(str, shape[1:]))})"
        for name, shape in order[-4:]
    )
    heads = [name for name in linear if model.get_submodule(name).out_features == classes]
    way = "Pass"
    if heads:
        way = (
            f"If {heads[-1]!r} gives the logits and a softmax or a scale changes them afterwards, "
            f"pass layer={heads[-1]!r}. Otherwise pass"
        )
    return (
        f"Network({type(model).__name__}): the model's output is not the output of a linear layer. "
        f"The last modules to run were {last or 'none'}. {way} layer='<name>' with one of "
        "net.layers(): its output becomes the features, the logits stay the model's, and there is no head"
    )
