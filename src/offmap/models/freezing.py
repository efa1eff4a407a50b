"""Training only part of a network: which parameters stay as they are, chosen by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from offmap.errors import InputError

Module = TypeVar("Module", bound=nn.Module)


def freeze(model: nn.Module, keep: str | Iterable[str] = ()) -> tuple[str, ...]:
    """Freeze a network but for some of its parts; OpenCon and SORL train ``"layer4"`` of a ResNet (thesis, section
    8.4).

    Parameters
    ----------
    model : nn.Module
        Changed in place; what was frozen before thaws where it is kept.
    keep : str or iterable of str, default=()
        Names of modules or parameters that train, with all that is inside them. None freezes everything.

    Returns
    -------
    tuple of str
        The parameters that train.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> freeze(net, keep="2")
    ('2.weight', '2.bias')
    """
    wanted = [keep] if isinstance(keep, str) else list(keep)
    names = [name for name, _ in model.named_parameters()]
    for part in wanted:
        if not any(_inside(name, part) for name in names):
            tops = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise InputError(f"freeze(keep={part!r}): no parameter has that name; the network is made of {tops}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(_inside(name, part) for part in wanted))
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def train_mode(model: Module) -> Module:
    """Put a network in training mode, but keep the running statistics of frozen batch normalisation as they are.

    ``model.train()`` alone would let a frozen network drift: its means and variances follow the batches.

    Parameters
    ----------
    model : Module
        Changed in place.

    Returns
    -------
    nn.Module
        The same.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    >>> _ = freeze(net, keep="2")
    >>> [part.training for part in train_mode(net)]
    [True, False, True]
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        if isinstance(module, _BatchNorm) and parameters and not any(p.requires_grad for p in parameters):
            module.eval()
    return model


def _inside(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")
