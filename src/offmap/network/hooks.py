"""Watching what goes into a layer of a PyTorch model and what comes out, and replacing that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Hook = Callable[[Any], Any]


@contextmanager
def hooked(module: nn.Module, see: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Call `see(input, output)` whenever the module runs; what it returns, if anything, replaces the output.

    Parameters
    ----------
    module : nn.Module
        The layer.
    see : callable
        Gets the layer's first input and its output.

    Examples
    --------
    >>> import torch
    >>> layer = nn.Identity()
    >>> with hooked(layer, lambda given, output: 2 * output):
    ...     layer(torch.ones(1))
    tensor([2.])
    """

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return see(args[0] if args else next(iter(kwargs.values()), None), output)

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def replace_output(hook: Hook) -> Callable[[Any, Any], Any]:
    """Make what `hooked` calls from a function of the output alone."""
    return lambda _, output: hook(output)
