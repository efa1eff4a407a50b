"""Encoders by name: a network of ours without its last layer, fitted to the shape of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from offmap.errors import InputError
from offmap.models.cnn import CNN
from offmap.models.densenet import DenseNet
from offmap.models.heads import Adapter
from offmap.models.mobilenet import MobileNetV2
from offmap.models.resnet import ResNet
from offmap.models.vit import ViT

Plan = tuple[Callable[..., nn.Module], dict[str, Any]]  # a class and its settings

_LARGE = 64  # pictures above this many pixels get the strides of ImageNet's networks


def remove_last_layer(model: nn.Module) -> tuple[nn.Module, int]:
    """Remove the last linear layer of a network.

    Parameters
    ----------
    model : nn.Module
        Changed in place: `nn.Identity` stands where the layer was, so other parameters keep their names.

    Returns
    -------
    tuple of nn.Module and int
        The network, which now gives its penultimate features, and how many they are.

    Examples
    --------
    >>> remove_last_layer(nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)))[1]
    5
    """
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise InputError(
            f"remove_last_layer({type(model).__name__}): there is no last linear layer inside it to take off"
        )
    name, layer = linear[-1]
    parent, _, place = name.rpartition(".")
    setattr(model.get_submodule(parent), place, nn.Identity())
    return model, layer.in_features


def make_encoder(name: str, shape: Sequence[int], seed: int = 0, **settings: Any) -> tuple[nn.Module, int]:
    """Make an encoder for inputs of a shape.

    Parameters
    ----------
    name : str
        For pictures: ``"cnn"``, ``"resnet18"``, ``"resnet50"``, ``"densenet"``, ``"mobilenetv2"``, ``"vit"``. For rows
        of numbers: ``"linear"``, ``"mlp"`` (both start as the identity), ``"identity"``.
    shape : sequence of int
        Shape of one input: channels × height × width, or the width of a row.
    seed : int, default=0
        Seed of the initial weights.
    **settings : Any
        Settings of the network's class, such as ``width=32``.

    Returns
    -------
    tuple of nn.Module and int
        The encoder, and the number of features it gives.

    Examples
    --------
    >>> import torch
    >>> encoder, width = make_encoder("resnet18", (3, 32, 32), width=8)
    >>> encoder(torch.zeros(2, 3, 32, 32)).shape, width
    (torch.Size([2, 64]), 64)
    >>> make_encoder("mlp", (384,))[1]
    384
    """
    if name not in ENCODERS:
        raise InputError(f"encoder {name!r}: the encoders are {', '.join(ENCODERS)}")
    pictures = name in _PICTURES
    if len(shape) != (3 if pictures else 1) or min(shape) < 1:
        wanted = "pictures, channels × height × width" if pictures else "rows of numbers"
        raise InputError(f"encoder {name!r} for inputs of shape {tuple(shape)}: it takes {wanted}")
    if pictures:
        make, own = _PICTURES[name](*shape)
        return remove_last_layer(make(**{"n_classes": 1, "seed": seed, **own, **settings}))
    if name == "identity":
        return nn.Identity(), shape[0]
    hidden = {"mlp": 2 * shape[0], "linear": 0}[name]
    adapter = Adapter(shape[0], **{"hidden": hidden, "seed": seed, **settings})
    return adapter, adapter.linear.out_features


def _cnn(channels: int, height: int, width: int) -> Plan:
    return CNN, {"channels": channels}


def _densenet(channels: int, height: int, width: int) -> Plan:
    if channels != 3:
        raise InputError(f"encoder 'densenet' for {channels} channels: it takes 3; repeat a grey one, or use 'cnn'")
    return DenseNet, {}


def _mobilenet(channels: int, height: int, width: int) -> Plan:
    return MobileNetV2, {"channels": channels, "small": max(height, width) <= _LARGE, "dropout": 0.0}


def _resnet(depth: int) -> Callable[[int, int, int], Plan]:
    def plan(channels: int, height: int, width: int) -> Plan:
        stem = "imagenet" if max(height, width) > _LARGE else "cifar"
        return ResNet, {"channels": channels, "depth": depth, "stem": stem}

    return plan


def _vit(channels: int, height: int, width: int) -> Plan:
    if height != width:
        raise InputError(f"encoder 'vit' for {height}×{width} pixels: it takes square pictures; crop them")
    return ViT, {"channels": channels, "size": height, "patch": 16 if height > _LARGE else 4}


_PICTURES: dict[str, Callable[[int, int, int], Plan]] = {
    "cnn": _cnn,
    "densenet": _densenet,
    "mobilenetv2": _mobilenet,
    "resnet18": _resnet(18),
    "resnet50": _resnet(50),
    "vit": _vit,
}
ENCODERS = (*_PICTURES, "linear", "mlp", "identity")
