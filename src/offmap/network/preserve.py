"""Borrowing a user's model: whatever a pass needs to change is put back, also after an exception."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

T = TypeVar("T")


@contextmanager
def preserve_state(models: Sequence[nn.Module], device: torch.device | None = None) -> Iterator[None]:
    """Put models in evaluation mode on the asked device for a while; afterwards all is as it was.

    Parameters
    ----------
    models : sequence of nn.Module
        The models.
    device : torch.device or None, default=None
        Where to put them; where they are when `None`.
    """
    modules = unique(module for model in models for module in model.modules())
    with ExitStack() as stack:
        stack.enter_context(_buffers_kept(modules))
        if device is not None:
            stack.enter_context(_moved(modules, device))
        stack.enter_context(attributes(modules, training=False))
        yield


@contextmanager
def attributes(modules: Sequence[nn.Module], **values: Any) -> Iterator[None]:
    """Set plain attributes on some modules for a while.

    Modes are set by their flag, module by module: `train()` would forget which parts the user had frozen, and
    some models override it to do more.

    Parameters
    ----------
    modules : sequence of nn.Module
        The modules.
    **values : Any
        Attributes by name.
    """
    before = [(module, {name: getattr(module, name) for name in values}) for module in modules]
    try:
        for module in modules:
            for name, value in values.items():
                setattr(module, name, value)
        yield
    finally:
        for module, old in before:
            for name, value in old.items():
                setattr(module, name, value)


@contextmanager
def preserve_rng(seed: int | None = None) -> Iterator[None]:
    """Restore the global random states afterwards; inside, torch's start from a seed when given.

    Parameters
    ----------
    seed : int or None, default=None
        The seed.
    """
    state, python = torch.get_rng_state(), random.getstate()
    legacy = np.random.get_state()  # noqa: NPY002 - the user's global state, kept for them
    # asking a GPU that nobody uses would start it, and break loaders that fork afterwards
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch left it untyped
    cuda = torch.cuda.get_rng_state_all() if started else []
    try:
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            if cuda:
                torch.cuda.manual_seed_all(seed)
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(legacy)  # noqa: NPY002 - as above
        random.setstate(python)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def _buffers_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Return some layers write to their buffers even in evaluation mode (counters, caches): undo it."""
    before = [(module, dict(module._buffers)) for module in modules]
    tensors = unique(buffer for _, buffers in before for buffer in buffers.values() if buffer is not None)
    copies = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for module, buffers in before:
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                if not torch.equal(tensor, copy):
                    tensor.copy_(copy)


@contextmanager
def _moved(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Run elsewhere, then hand the very same storages back; `_buffers_kept` does so for the buffers."""
    slots = [parameter for module in modules for parameter in module._parameters.values()]
    before = [(parameter, parameter.data) for parameter in unique(slot for slot in slots if slot is not None)]
    try:
        for parameter, data in before:
            parameter.data = data.to(device)
        for module in modules:
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def unique(items: Iterable[T]) -> list[T]:
    """Keep each object once, in order: modules and tensors may be shared.

    Parameters
    ----------
    items : iterable
        Any objects.

    Returns
    -------
    list
        Without repetitions.
    """
    return list({id(item): item for item in items}.values())
