"""DenseNet-BC for small pictures, the network of the thesis' CIFAR experiments (section 4.3.1)."""

from __future__ import annotations

import os
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.errors import InputError


class DenseNet(nn.Module):
    """Three dense blocks, the channels halved between them, an average over positions, one linear layer.

    Huang et al., Densely Connected Convolutional Networks, CVPR 2017. The defaults are DenseNet-BC-100-12;
    parameters are named as in the checkpoints that the authors of DICE published, so that those load as they are.

    Parameters
    ----------
    n_classes : int, default=10
        Outputs.
    layers : int, default=16
        Layers in each block: 16 make a network of depth 100.
    growth : int, default=12
        Channels that each layer adds.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> DenseNet(10, layers=2)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n_classes: int = 10, layers: int = 16, growth: int = 12, seed: int = 0) -> None:
        super().__init__()
        if n_classes < 1 or layers < 1 or growth < 1:
            raise InputError(f"DenseNet({n_classes}, {layers}, {growth}): classes, layers and growth are at least 1")
        added = layers * growth
        first = 2 * growth
        second = (first + added) // 2
        third = (second + added) // 2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv1 = nn.Conv2d(3, first, 3, padding=1, bias=False)
            self.block1 = _Block(first, layers, growth)
            self.trans1 = _Transition(first + added, second)
            self.block2 = _Block(second, layers, growth)
            self.trans2 = _Transition(second + added, third)
            self.block3 = _Block(third, layers, growth)
            self.bn1 = nn.BatchNorm2d(third + added)
            self.fc = nn.Linear(third + added, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """Compute what goes into the linear layer: none of it is negative, an average of what a ReLU lets through."""
        x = self.trans1(self.block1(self.conv1(x)))
        x = self.trans2(self.block2(x))
        return functional.relu(self.bn1(self.block3(x))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch of pictures."""
        logits: Tensor = self.fc(self.features(x))
        return logits

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Self:
        """Load a trained network from a ``.safetensors`` file, in evaluation mode; the weights tell its shape."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(file)
            n_classes = len(state["fc.weight"])
            growth = len(state["block1.layer.0.conv2.weight"])
            layers = sum(name.startswith("block1.") and name.endswith(".conv2.weight") for name in state)
            model = cls(n_classes, layers, growth)
            model.load_state_dict(state)
        except (SafetensorError, OSError, KeyError, RuntimeError) as error:
            first = str(error).partition("\n")[0]
            raise InputError(f"{os.fspath(file)}: not the weights of a DenseNet ({first})") from error
        return model.eval()


class _Layer(nn.Module):
    """A 1×1 convolution to four times the growth, then a 3×3 one; what it makes is put beside what it was given."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(functional.relu(self.bn1(x)))
        new = self.conv2(functional.relu(self.bn2(new)))
        return torch.cat([x, new], dim=1)


class _Block(nn.Module):
    """Layers that each see what all earlier ones made."""

    def __init__(self, channels: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(*(_Layer(channels + i * growth, growth) for i in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class _Transition(nn.Module):
    """Fewer channels, half the width and height."""

    def __init__(self, channels: int, kept: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, kept, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv1(functional.relu(self.bn1(x))), 2)
