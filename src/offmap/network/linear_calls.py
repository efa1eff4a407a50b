"""Heads other than an `nn.Linear` at the end: tied weights, cosines, 1×1 convolutions, a softmax afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}
_FITTED_FROM = 3  # inputs from which a factor and a shift can be told from chance
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class LinearCall:
    """One product with a matrix: what went in, the matrix (classes × features) and its bias."""

    given: Tensor
    weight: Tensor
    bias: Tensor | None

    def rows(self) -> Tensor:
        """Give one row per input of what went in: of a picture the means over positions."""
        return self.given.mean(dim=(2, 3)) if self.given.ndim == 4 else self.given

    def answers(self) -> Tensor:
        """Compute the product of the rows anew, for what came out may have been changed in place since."""
        made = self.rows().double() @ self.weight.double().T
        return made if self.bias is None else made + self.bias.double()


class LinearCalls(TorchFunctionMode):
    """A context that notes every product of rows with a matrix, however the model writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LinearCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and note it if it is such a product."""
        answered = func(*args, **(kwargs or {}))
        found = _read_call(func, args, kwargs or {})
        if found is not None and isinstance(answered, Tensor) and answered.ndim in (2, 4):
            self.calls.append(LinearCall(*found))
        return answered


@dataclass(frozen=True)
class FunctionalHead:
    """Which product gives the logits: its place among all products of a pass, and what is done to it afterwards.

    Parameters
    ----------
    place : int
        Counted from the last product, which is -1.
    scale : float
        By which its output is multiplied.
    shift : Tensor of shape (c,)
        What is added then.
    """

    place: int
    scale: float
    shift: Tensor

    def read(self, calls: Sequence[LinearCall]) -> tuple[Tensor, Tensor, Tensor]:
        """Give features, weight and bias of this pass."""
        call = calls[self.place]
        bias = self.shift if call.bias is None else self.scale * call.bias + self.shift
        return call.rows(), self.scale * call.weight, bias


def find_functional_head(calls: Sequence[LinearCall], logits: Tensor) -> FunctionalHead | None:
    """Find the last product that becomes the logits, as it is or after a factor and a shift.

    Parameters
    ----------
    calls : sequence of LinearCall
        Of one pass, in order.
    logits : Tensor of shape (n, c)
        What the model answered.

    Returns
    -------
    FunctionalHead or None
        `None` if no product does.

    Examples
    --------
    >>> rows, weight = torch.eye(4)[:3], torch.arange(8.0).reshape(2, 4)
    >>> with LinearCalls() as noted:
    ...     logits = 16 * functional.linear(rows, weight)
    >>> round(find_functional_head(noted.calls, logits).scale, 3)
    16.0
    """
    for place in range(-1, -len(calls) - 1, -1):
        if (len(calls[place].given), len(calls[place].weight)) != logits.shape:
            continue
        answered = calls[place].answers()
        scale, shift = _fit(answered, logits.double())
        size = logits.double().abs().amax().clamp_min(1e-12)
        if (scale * answered + shift - logits.double()).abs().amax() <= _TOLERANCE * size:
            return FunctionalHead(place, float(scale), shift.to(logits.dtype))
    return None


def is_softmax_of(answered: Tensor, output: Tensor) -> bool:
    """Tell whether the output is the softmax or log-softmax of a layer's answer.

    Examples
    --------
    >>> is_softmax_of(torch.eye(3), torch.eye(3).log_softmax(1)), is_softmax_of(torch.eye(3), torch.eye(3))
    (True, False)
    """
    if answered.shape != output.shape or output.ndim != 2 or output.shape[1] < 2:
        return False
    wide = answered.double()
    made = (wide.softmax(1), wide.log_softmax(1))
    return any(bool(torch.allclose(output.double(), one, rtol=1e-3, atol=1e-4)) for one in made)


def two_sided(logits: Tensor) -> Tensor:
    """Write one logit z for two classes as -z/2 and z/2, whose softmax is the sigmoid of z.

    Examples
    --------
    >>> two_sided(torch.tensor([[2.0]]))
    tensor([[-1.,  1.]])
    """
    return torch.cat([-logits / 2, logits / 2], dim=1) if logits.shape[1] == 1 else logits


def _fit(answered: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The factor and shift with the smallest squared error; none where there are too few inputs to tell."""
    none = torch.zeros(logits.shape[1], dtype=logits.dtype, device=logits.device)
    if len(logits) < _FITTED_FROM:
        return torch.ones((), dtype=logits.dtype), none
    centred, wanted = answered - answered.mean(0), logits - logits.mean(0)
    scale = (centred * wanted).sum() / centred.square().sum().clamp_min(1e-30)
    shift = logits.mean(0) - scale * answered.mean(0)
    small = shift.abs().amax() <= 1e-5 * logits.abs().amax()
    return scale, none if small else shift


def _read_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return what goes in, matrix and bias; `None` for other functions."""
    values = [*args, *kwargs.values()]
    if func is functional.linear:
        named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        return _if_rows(named["input"], named["weight"], named.get("bias"))
    if func in (functional.conv2d, torch.conv2d):
        named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        weight = named["weight"]
        if weight.ndim == 4 and weight.shape[2:].numel() == 1 and weight.shape[1] == named["input"].shape[1]:
            return named["input"], weight.flatten(1), named.get("bias")
        return None
    if func is torch.addmm:
        named = dict(zip(("input", "mat1", "mat2"), args, strict=False)) | kwargs
        return _if_rows(named["mat1"], named["mat2"].T, named["input"])
    if func in _PRODUCTS and len(values) >= 2 and getattr(values[1], "ndim", 0) == 2:
        return _if_rows(values[0], values[1].T, None)
    return None


def _if_rows(given: Any, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
    return (given, weight, bias) if isinstance(given, Tensor) and given.ndim == 2 else None
