"""Keras' ResNet-50 of ImageNet as a PyTorch module, from an ONNX file that holds its weights.

ONNX Runtime only runs forward. The module gives the same numbers, and gradients, layers, BatchNorm with other
statistics and perturbed inputs besides.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offmap.errors import DependencyError, InputError
from offmap.models.resnet import ResNet

if TYPE_CHECKING:
    from torch import Tensor, nn

STAGES = {2: (1, "abc"), 3: (2, "abcd"), 4: (3, "abcdef"), 5: (4, "abc")}  # Keras' stage: ours, its blocks
BRANCHES = {"branch2a": "1", "branch2b": "2", "branch2c": "3"}
EPSILON = 1e-3  # of Keras' batch normalisation


def load_keras_resnet50(file: str | os.PathLike[str], channels: Literal["bgr", "rgb"] = "bgr") -> ResNet:
    """Load Keras' ResNet-50 from an ONNX file as a `ResNet`, in evaluation mode.

    The first 1×1 convolution of a block takes the stride, as in the paper and in Keras' first version; biases before a
    batch normalisation go into its mean, which changes nothing.

    Parameters
    ----------
    file : str or path
        An ONNX file whose initializers keep Keras' names (``conv1_w``, ``bn2a_branch2a_g``, ``fc1000_w`` …).
    channels : {"bgr", "rgb"}, default="bgr"
        The order of the channels of its inputs. The network was trained on blue, green, red from 0 to 255 less
        (103.939, 116.779, 123.68); ``"rgb"`` turns the first convolution round, for pictures as they are usually read.

    Returns
    -------
    ResNet
        With as many classes and channels as the file has.

    Raises
    ------
    InputError
        If the file is not there, or does not hold these weights.

    Examples
    --------
    >>> load_keras_resnet50("resnet50.onnx")
    Traceback (most recent call last):
    offmap.errors.InputError: resnet50.onnx: there is no such file
    """
    import torch

    if channels not in ("bgr", "rgb"):
        raise InputError(f"channels={channels!r}: 'bgr' or 'rgb'")
    path = Path(file)
    weights = _Initializers(path)
    head = weights.take("fc1000_w")
    first = weights.take("conv1_w")
    model = ResNet(head.shape[1], 50, "imagenet", width=len(first))
    with torch.no_grad():
        model.conv1.weight.copy_(first.flip(1) if channels == "rgb" else first)
        weights.fill_norm(model.bn1, "bn_conv1", "conv1_b")
        for stage, (ours, blocks) in STAGES.items():
            for place, letter in enumerate(blocks):
                weights.fill_block(getattr(model, f"layer{ours}")[place], f"{stage}{letter}")
        model.fc.weight.copy_(head.T)
        model.fc.bias.copy_(weights.take("fc1000_b"))
    return model.eval()


class _Initializers:
    """The named tensors of an ONNX file."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file")
        try:
            import onnx
        except ImportError as error:
            raise DependencyError("reading ONNX files needs onnx: pip install 'offmap[onnx]'") from error
        self.path = path
        try:
            graph = onnx.load(path).graph
        except Exception as error:  # a damaged file makes protobuf raise almost anything
            raise InputError(f"{path}: not readable as ONNX ({str(error).partition(chr(10))[0]})") from error
        self.arrays: dict[str, Any] = {made.name: onnx.numpy_helper.to_array(made) for made in graph.initializer}

    def take(self, name: str) -> Tensor:
        import torch

        if name not in self.arrays:
            raise InputError(f"{self.path}: not Keras' ResNet-50: there is no {name} among its weights")
        return torch.from_numpy(self.arrays[name].copy())

    def fill_norm(self, norm: nn.BatchNorm2d, name: str, bias: str) -> None:
        """Fill a batch normalisation; the bias of the convolution before it is taken off its mean."""
        norm.eps = EPSILON
        for letter, to in zip("gbmv", (norm.weight, norm.bias, norm.running_mean, norm.running_var), strict=True):
            assert to is not None
            to.copy_(self.take(f"{name}_{letter}"))
        assert norm.running_mean is not None
        norm.running_mean -= self.take(bias)

    def fill_block(self, block: Any, name: str) -> None:
        """Fill a block of three convolutions and, where its shape changes, the one beside them."""
        for branch, number in BRANCHES.items():
            getattr(block, f"conv{number}").weight.copy_(self.take(f"res{name}_{branch}_w"))
            self.fill_norm(getattr(block, f"bn{number}"), f"bn{name}_{branch}", f"res{name}_{branch}_b")
        if block.downsample is not None:
            block.downsample[0].weight.copy_(self.take(f"res{name}_branch1_w"))
            self.fill_norm(block.downsample[1], f"bn{name}_branch1", f"res{name}_branch1_b")
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
