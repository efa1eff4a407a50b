"""Embeddings or pictures as people have them, turned into one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.learning.objectives.base import Kind
from offmap.models.tokenizer import Tokenizer

CHANNELS = (1, 3)
VALUES = 2**22  # of the inputs worked on at once: a network of large pictures needs many times their size


@dataclass(frozen=True)
class Inputs:
    """All inputs: rows × columns, N × channels × height × width, or the token numbers of texts, N × tokens."""

    tensor: Tensor
    kind: Kind

    def __len__(self) -> int:
        return len(self.tensor)


def as_tokens(values: Any, tokenizer: Tokenizer | None) -> Inputs:
    """Read texts by their tokenizer, or token numbers as they are."""
    numbers = isinstance(values, np.ndarray | Tensor) and values.ndim == 2
    if not numbers and tokenizer is None:
        raise InputError("texts: the encoder has no tokenizer; give token numbers, texts × tokens, or use load_bert")
    ids = as_inputs(values if numbers or tokenizer is None else tokenizer(values))
    return Inputs(ids.tensor, "texts")


def as_inputs(values: Any) -> Inputs:
    """Read embeddings (2-D) or pictures (3-D, or 4-D with channels first or last).

    Examples
    --------
    >>> as_inputs(np.zeros((5, 8, 8, 3), np.uint8)).tensor.shape
    torch.Size([5, 3, 8, 8])
    >>> as_inputs(np.zeros((5, 4))).kind
    'embeddings'
    """
    array = as_array(values, "inputs")
    if array.dtype.kind not in "fiu":
        raise InputError(f"inputs of type {array.dtype}: numbers are needed; embed texts, or read pictures first")
    if array.ndim not in (2, 3, 4) or 0 in array.shape[1:]:
        raise InputError(
            f"inputs of shape {array.shape}: embeddings are rows × columns, pictures N × height × width (× channels)"
        )
    if array.dtype.kind == "f" and len(array):
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if bad.any():
            raise InputError(
                f"inputs: row {int(np.argmax(bad))} holds NaN or infinity; leave such rows out or fill them"
            )
    if array.ndim == 2:
        return Inputs(torch.from_numpy(np.require(array, np.float32, ["C", "W"])), "embeddings")
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in CHANNELS:
        if array.shape[3] not in CHANNELS:
            raise InputError(f"pictures of shape {array.shape}: 1 or 3 channels are needed, first or last")
        array = np.moveaxis(array, 3, 1)
    scale = 255.0 if array.dtype == np.uint8 else 1.0
    return Inputs(torch.from_numpy(np.ascontiguousarray(array, np.float32) / np.float32(scale)), "images")


def split_rows(inputs: Tensor, most: int) -> Iterator[Tensor]:
    """Yield the inputs in parts of at most `most` rows, and of fewer where rows are large.

    Examples
    --------
    >>> [len(part) for part in split_rows(torch.zeros(5, 3), 4)]
    [4, 1]
    >>> [len(part) for part in split_rows(torch.zeros(100, 3, 160, 160), 2048)]
    [54, 46]
    """
    rows = min(most, max(VALUES // max(inputs[:1].numel(), 1), 1))
    for start in range(0, len(inputs), rows):
        yield inputs[start : start + rows]
