"""MobileNetV2: inverted residuals with linear bottlenecks, a network for small machines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offmap.errors import InputError

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_SMALL_STRIDES = (1, 1, 1, 2, 2, 1, 2, 1)  # the stem, then the stages: 32 pixels end as 4×4


class MobileNetV2(nn.Module):
    """Seventeen inverted residual blocks, an average over positions, dropout, one linear layer.

    Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018. Parameters are named as
    torchvision names them (``features.0.0``, ``features.2.conv.1.0``, ``classifier.1``), so its checkpoints load.

    Parameters
    ----------
    n_classes : int, default=1000
        Outputs.
    small : bool, default=False
        Strides for pictures of about 32 pixels in place of 224; the weights have the same shapes.
    channels : int, default=3
        Channels of the input.
    width : float, default=1.0
        A factor on the channels of every layer, rounded to multiples of eight.
    dropout : float, default=0.2
        Before the linear layer.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> model = MobileNetV2(10, small=True, width=0.25)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        n_classes: int = 1000,
        small: bool = False,
        channels: int = 3,
        width: float = 1.0,
        dropout: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if n_classes < 1 or channels < 1 or width <= 0:
            raise InputError(
                f"MobileNetV2({n_classes}, {channels=}, {width=}): at least one class and channel, a width above 0"
            )
        strides = _SMALL_STRIDES if small else (2, *(stage[3] for stage in _STAGES))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inputs = _rounded(32 * width)
            layers: list[nn.Module] = [_convolution(channels, inputs, 3, strides[0])]
            for (factor, base, count, _), stride in zip(_STAGES, strides[1:], strict=True):
                outputs = _rounded(base * width)
                for place in range(count):
                    layers.append(_Inverted(inputs, outputs, stride if place == 0 else 1, factor))
                    inputs = outputs
            last = _rounded(1280 * max(1.0, width))
            layers.append(_convolution(inputs, last, 1))
            self.features = nn.Sequential(*layers)
            self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, n_classes))
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch of pictures."""
        logits: Tensor = self.classifier(self.features(x).mean(dim=(2, 3)))
        return logits


class _Inverted(nn.Module):
    """More channels, a 3×3 convolution on each alone, few channels again; added to the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = inputs * factor
        layers: list[nn.Module] = [] if factor == 1 else [_convolution(inputs, inner, 1)]
        layers += [
            _convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def _rounded(channels: float) -> int:
    """Return the multiple of eight nearest, at least eight, never less than nine tenths of what was asked."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
