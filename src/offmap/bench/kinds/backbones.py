"""Networks of `offmap.models` with weights of one's own, such as torchvision's: ResNet, MobileNetV2 and ViT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offmap.bench.networks import KINDS, Made
from offmap.bench.sets import LoadedSet, locate
from offmap.errors import InputError

if TYPE_CHECKING:
    from torch import nn


@KINDS.register("backbone")
def _backbone(options: dict[str, Any], train: LoadedSet | None, data: Path | None, kept: Path) -> Made:
    """Load a network by its `name` from a file of `weights`; other options are those of its class."""
    from offmap.models.weights import load_weights
    from offmap.network import Network

    rest = dict(options)
    name, weights = rest.pop("name", None), rest.pop("weights", None)
    if name not in BACKBONES or weights is None:
        raise InputError(f"name = {name!r}, weights = {weights!r}: name one of {', '.join(BACKBONES)} and its weights")
    file = locate(weights, data)
    model = BACKBONES[name](**rest)
    load_weights(model, file)
    return Network(model.eval()), file


def _resnet(depth: int) -> Callable[..., nn.Module]:
    def make(**settings: Any) -> nn.Module:
        from offmap.models.resnet import ResNet

        return ResNet(**{"n_classes": 1000, "depth": depth, "stem": "imagenet", **settings})

    return make


def _mobilenet(**settings: Any) -> nn.Module:
    from offmap.models.mobilenet import MobileNetV2

    return MobileNetV2(**settings)


def _vit(**settings: Any) -> nn.Module:
    from offmap.models.vit import ViT

    base = {"n_classes": 1000, "size": 224, "patch": 16, "width": 768, "depth": 12, "n_heads": 12}
    return ViT(**{**base, **settings})


BACKBONES: dict[str, Callable[..., Any]] = {
    "resnet18": _resnet(18),
    "resnet50": _resnet(50),
    "mobilenetv2": _mobilenet,
    "vit-b16": _vit,
}
