"""Steps that every loss begins with: full precision where half would overflow, rows of length 1, a graph-safe zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from offmap.errors import InputError

Loss = TypeVar("Loss", bound=Callable[..., Any])


def in_full_precision(loss: Loss) -> Loss:
    """Run a loss outside of autocast, with its half-precision tensors as float32.

    A similarity divided by a temperature of .01 is 100, its exponential past float16; float64 stays float64.

    Parameters
    ----------
    loss : callable
        A loss of tensors.

    Returns
    -------
    callable
        The same in float32 or wider.
    """

    @wraps(loss)
    def wrapped(*args: Any, **named: Any) -> Any:
        device = next((value.device.type for value in args if isinstance(value, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return loss(*(_full(value) for value in args), **{name: _full(value) for name, value in named.items()})

    return wrapped  # type: ignore[return-value]  # the wrapped function has the signature of the loss


def _full(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def nothing(*tensors: Tensor) -> Tensor:
    """Return a zero that depends on these tensors, so that a step without any pair can still be differentiated."""
    return torch.stack([tensor.sum() * 0 for tensor in tensors]).sum()


def mean_where(values: Tensor, kept: Tensor) -> Tensor:
    """Average the values that are kept; a differentiable 0 when none is.

    Parameters
    ----------
    values : Tensor
        The values.
    kept : Tensor of bool
        Which count.

    Returns
    -------
    Tensor
        The mean.

    Examples
    --------
    >>> mean_where(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([True, True, False]))
    tensor(3.)
    """
    return torch.where(kept, values, torch.zeros_like(values)).sum() / kept.sum().clamp(min=1)


def check_views(first: Tensor, second: Tensor, labels: Tensor | None = None) -> None:
    """Check that two views have the same shape, rows × columns, and as many rows as there are labels.

    Parameters
    ----------
    first, second : Tensor
        Embeddings of two views.
    labels : Tensor or None, default=None
        One per row.

    Raises
    ------
    InputError
        Otherwise.
    """
    if first.ndim != 2 or first.shape != second.shape:
        raise InputError(
            f"views of shape {tuple(first.shape)} and {tuple(second.shape)}: two equal matrices are needed"
        )
    if labels is not None and labels.shape != (len(first),):
        raise InputError(f"{tuple(labels.shape)} labels for {len(first)} rows; give one per row, -1 where unlabelled")


def check_temperature(temperature: float) -> None:
    """Check that a temperature is above 0: it divides similarities.

    Parameters
    ----------
    temperature : float
        The temperature.

    Raises
    ------
    InputError
        Otherwise.
    """
    if not temperature > 0:
        raise InputError(f"temperature={temperature}: it divides similarities and must be above 0")
