"""Modules on top of an encoder: adapters of embeddings and projection heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.errors import InputError


class Adapter(nn.Module):
    """Embeddings in, embeddings out: a linear map, or a two-layer network beside it.

    As it starts, it changes nothing, or only drops coordinates where it narrows: the map is the identity and the
    network's last layer is zero. What training finds is a correction of embeddings that were good already.

    Parameters
    ----------
    inputs : int
        Width of the embeddings.
    outputs : int or None, default=None
        Width of what is made; `None` for the same.
    hidden : int, default=0
        Width of the two-layer network; 0 for a linear map alone.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> Adapter(2, hidden=8)(x), Adapter(2, outputs=3)(x)
    (tensor([[3., 4.]], grad_fn=...), tensor([[3., 4., 0.]], grad_fn=...))
    """

    def __init__(self, inputs: int, outputs: int | None = None, hidden: int = 0, seed: int = 0) -> None:
        super().__init__()
        made = inputs if outputs is None else outputs
        if inputs < 1 or made < 1 or hidden < 0:
            raise InputError(f"Adapter({inputs}, {outputs}, {hidden}): widths are at least 1, hidden at least 0")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.linear = nn.Linear(inputs, made)
            nn.init.eye_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)
            self.beside: nn.Sequential | None = None
            if hidden:
                last = nn.Linear(hidden, made)
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)
                self.beside = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the adapted embeddings of a batch."""
        out: Tensor = self.linear(x)
        return out if self.beside is None else out + self.beside(x)


class MLP(nn.Module):
    """Linear layers with ReLU between them, batch normalisation where asked: an encoder or a projection head.

    Parameters
    ----------
    widths : sequence of int
        Widths of the input, of every layer between, of the output.
    batch_norm : bool, default=False
        Whether each layer is followed by batch normalisation, the last one too.
    normalize : bool, default=False
        Whether what comes out is scaled to length 1.
    seed : int, default=0
        Seed of the initial weights; torch's own random state is left alone.

    Examples
    --------
    >>> MLP([4, 8, 2], normalize=True)(torch.ones(3, 4)).norm(dim=1)
    tensor([1.0000, 1.0000, 1.0000], grad_fn=...)
    """

    def __init__(self, widths: Sequence[int], batch_norm: bool = False, normalize: bool = False, seed: int = 0) -> None:
        super().__init__()
        if len(widths) < 2 or min(widths) < 1:
            raise InputError(f"MLP({list(widths)}): give the widths of input and output at least, each at least 1")
        self.normalize = normalize
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for place, (inputs, outputs) in enumerate(pairwise(widths)):
                layers += [nn.ReLU()] if place else []
                layers.append(nn.Linear(inputs, outputs))
                layers += [nn.BatchNorm1d(outputs)] if batch_norm else []
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output of the last layer."""
        out: Tensor = self.layers(x)
        return functional.normalize(out, dim=1) if self.normalize else out


def spectral_head(inputs: int = 512, hidden: int = 2048, outputs: int = 1000, seed: int = 0) -> MLP:
    """Make NSCL's and SORL's projection head (thesis, appendix B.1.4): 2048 wide, batch normalisation, 1000 numbers.

    Parameters
    ----------
    inputs, hidden, outputs, seed : int, default=512 and 2048 and 1000 and 0
        As for `MLP`.

    Returns
    -------
    MLP
        Not trained.

    Examples
    --------
    >>> [type(layer).__name__ for layer in spectral_head(8, 16, 4).layers]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear', 'BatchNorm1d']
    """
    return MLP([inputs, hidden, outputs], batch_norm=True, seed=seed)
