"""Convolutions over maps of one to four places as one matrix product, for ResNets that see pictures of 32 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LARGEST = 16  # pairs of an output and an input place; above, most of the matrix would be zeros


class SmallMapConv2d(nn.Conv2d):
    """The convolution `nn.Conv2d` computes, up to rounding.

    In the last stage of a ResNet-18 with the stem of ImageNet's networks a picture of 32 pixels is one place, and
    eight ninths of a 3 × 3 kernel meet nothing but padding. Backward passes over such maps take half of a training
    step on a CPU; as a matrix product over the pairs of places that meet they take a few per cent.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve."""
        places = [self._places(size, axis) for axis, size in enumerate(inputs.shape[2:])]
        (high, wide), (tall, broad) = inputs.shape[2:], places
        plain = self.groups == 1 and self.dilation == (1, 1) and self.bias is None and self.padding_mode == "zeros"
        if not plain or high * wide * tall * broad > _LARGEST:
            return super().forward(inputs)
        blocks = [
            torch.cat([self._meeting(y, x, row, column) for row in range(high) for column in range(wide)], dim=1)
            for y in range(tall)
            for x in range(broad)
        ]
        rows = inputs.permute(0, 2, 3, 1).reshape(len(inputs), -1)
        return (rows @ torch.cat(blocks).T).reshape(len(inputs), tall, broad, -1).permute(0, 3, 1, 2)

    def _places(self, size: int, axis: int) -> int:
        return (size + 2 * int(self.padding[axis]) - self.kernel_size[axis]) // self.stride[axis] + 1

    def _meeting(self, y: int, x: int, row: int, column: int) -> Tensor:
        """What of the kernel ties an input place to an output place; zeros where it does not reach."""
        down = row - y * self.stride[0] + int(self.padding[0])
        right = column - x * self.stride[1] + int(self.padding[1])
        if 0 <= down < self.kernel_size[0] and 0 <= right < self.kernel_size[1]:
            return self.weight[:, :, down, right]
        return self.weight.new_zeros(self.weight.shape[:2])


def speed_up(network: nn.Module) -> nn.Module:
    """Make a network's convolutions fast on small pictures; its parameters keep their names and values.

    Examples
    --------
    >>> type(speed_up(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False)))[0]).__name__
    'SmallMapConv2d'
    """
    for part in network.modules():
        if type(part) is nn.Conv2d:
            part.__class__ = SmallMapConv2d
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs
