"""Residual networks of 18 and 50 layers, for small pictures and for large ones."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.errors import InputError

_BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


class ResNet(nn.Module):
    """Four stages of residual blocks, an average over positions, one linear layer.

    He et al., Deep Residual Learning for Image Recognition, CVPR 2016. Parameters are named as torchvision names them
    (``conv1``, ``layer1.0.bn2``, ``layer2.0.downsample.0``, ``fc``), so its checkpoints load as they are. In ResNet-50
    the 3×3 convolution takes the stride, as there.

    Parameters
    ----------
    n_classes : int, default=10
        Outputs.
    depth : int, default=18
        18 or 50.
    stem : {"cifar", "imagenet"}, default="cifar"
        ``"cifar"``: a 3×3 convolution, nothing else, for pictures of about 32 pixels, the network of the thesis'
        CIFAR experiments (section 8.4). ``"imagenet"``: 7×7 with stride 2, then pooling, for about 224.
    channels : int, default=3
        Channels of the input.
    width : int, default=64
        Channels of the first stage; the last has eight times as many, and 50 layers four times those.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> model = ResNet(10, width=8)
    >>> model(torch.zeros(2, 3, 32, 32)).shape, model.features(torch.zeros(2, 3, 32, 32)).shape
    (torch.Size([2, 10]), torch.Size([2, 64]))
    """

    def __init__(
        self,
        n_classes: int = 10,
        depth: int = 18,
        stem: Literal["cifar", "imagenet"] = "cifar",
        channels: int = 3,
        width: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if n_classes < 1 or channels < 1 or width < 1:
            raise InputError(f"ResNet({n_classes}, {channels=}, {width=}): classes, channels, width are at least 1")
        if depth not in _BLOCKS or stem not in ("cifar", "imagenet"):
            raise InputError(f"ResNet({depth=}, {stem=}): the depth is 18 or 50, the stem 'cifar' or 'imagenet'")
        block = _Basic if depth == 18 else _Bottleneck
        small = stem == "cifar"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
            self.conv1 = nn.Conv2d(channels, width, size, stride, padding, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
            stages, inputs = [], width
            for stage, count in enumerate(_BLOCKS[depth]):
                inner = width * 2**stage
                blocks = []
                for place in range(count):
                    blocks.append(block(inputs, inner, stride=2 if stage > 0 and place == 0 else 1))
                    inputs = inner * block.expansion
                stages.append(nn.Sequential(*blocks))
            self.layer1, self.layer2, self.layer3, self.layer4 = stages
            self.fc = nn.Linear(inputs, n_classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):  # as in the paper that trained them: variance kept going backward
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Compute what goes into the linear layer: none of it is negative, an average of what a ReLU lets through."""
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch of pictures."""
        logits: Tensor = self.fc(self.features(x))
        return logits


class _Block(nn.Module):
    """A block whose output is added to its input; a 1×1 convolution makes the shapes agree where needed."""

    expansion = 1

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = inner * self.expansion
        self._layers(inputs, inner, stride)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def _layers(self, inputs: int, inner: int, stride: int) -> None:
        raise NotImplementedError

    def _change(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        return functional.relu(self._change(x) + kept)


class _Basic(_Block):
    """Two 3×3 convolutions."""

    def _layers(self, inputs: int, inner: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)

    def _change(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return out


class _Bottleneck(_Block):
    """A 1×1 convolution to few channels, a 3×3 one, a 1×1 one to four times as many."""

    expansion = 4

    def _layers(self, inputs: int, inner: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, inner * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(inner * self.expansion)

    def _change(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)))
        out: Tensor = self.bn3(self.conv3(x))
        return out
