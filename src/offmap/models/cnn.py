"""A small convolutional network for small pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offmap.errors import InputError


class CNN(nn.Module):
    """Three convolutions with batch normalisation and ReLU, an average over positions, one linear layer.

    Small enough to train in seconds on a CPU, yet built as larger ones are: its penultimate features are
    averages of what a ReLU lets through, so none is negative.

    Parameters
    ----------
    n_classes : int
        Outputs.
    channels : int, default=1
        Channels of the input: 1 for grey, 3 for colour.
    width : int, default=24
        Channels of the first convolution; the last has four times as many, which is the number of features.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> CNN(6)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 6])
    """

    def __init__(self, n_classes: int, channels: int = 1, width: int = 24, seed: int = 0) -> None:
        super().__init__()
        if n_classes < 1 or channels < 1 or width < 1:
            raise InputError(f"CNN({n_classes}, {channels}, {width}): classes, channels and width are at least 1")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.features = nn.Sequential(
                *_block(channels, width),
                *_block(width, 2 * width, stride=2),
                *_block(2 * width, 4 * width),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
            self.head = nn.Linear(4 * width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch of pictures."""
        logits: Tensor = self.head(self.features(x))
        return logits


def _block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]
