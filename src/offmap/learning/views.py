"""Two views of every row of a batch, drawn from a generator so that a step is the same whenever it is taken."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class Views(Protocol):
    """Anything that makes two views of the rows of a set."""

    def __call__(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Both views of these rows."""


class EmbeddingViews:
    """A row, and one of its nearest rows; both lose some values and gain noise.

    Parameters
    ----------
    features
        All rows, of length 1.
    neighbours, share
        How many nearest rows a second view is drawn from, and how often; 0 neighbours leaves the row.
    dropout, noise
        The share of values set to zero; the deviation of noise relative to a value's usual size.

    Examples
    --------
    >>> rows = torch.eye(4) + 0.1
    >>> one, two = EmbeddingViews(rows, neighbours=2)(torch.arange(4), torch.Generator().manual_seed(0))
    >>> bool((one == rows).all()), bool((two == rows).all())
    (True, False)
    """

    def __init__(
        self, features: Tensor, neighbours: int = 10, share: float = 1.0, dropout: float = 0.0, noise: float = 0.0
    ) -> None:
        self.features, self.share, self.dropout = features, share, dropout
        self.noise = noise / max(features.shape[1], 1) ** 0.5
        count = min(neighbours, len(features) - 1)
        self.near = nearest_rows(features, count) if count > 0 else None

    def __call__(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Both views of these rows."""
        other = rows
        if self.near is not None:
            column = torch.randint(self.near.shape[1], (len(rows),), generator=generator)
            drawn = torch.rand(len(rows), generator=generator) < self.share
            other = torch.where(drawn, self.near[rows, column], rows)
        return self._worn(self.features[rows], generator), self._worn(self.features[other], generator)

    def _worn(self, values: Tensor, generator: torch.Generator) -> Tensor:
        if self.dropout:
            kept = torch.rand(values.shape, generator=generator) >= self.dropout
            values = values * kept / (1 - self.dropout)
        if self.noise:
            values = values + self.noise * torch.randn(values.shape, generator=generator)
        return values


def nearest_rows(features: Tensor, count: int) -> Tensor:
    """Indices of the `count` nearest other rows of every row."""
    from offmap.neighbors import Bank

    rows = np.ascontiguousarray(features.numpy(), np.float32)
    _, near = Bank.of(rows, normalize=False).search(rows, count + 1)
    own = near == np.arange(len(rows))[:, None]
    own[~own.any(axis=1), -1] = True  # a row among exact copies may be missing from its own list
    return torch.from_numpy(near[~own].reshape(len(rows), count).astype(np.int64))


class PictureViews:
    """Two shifted, mirrored and re-lit copies of every picture.

    Parameters
    ----------
    pictures
        All of them, standardised, N × channels × height × width.
    shift
        The largest shift as a share of the size.
    mirror
        Whether left and right may be exchanged.
    light
        How far contrast and brightness may go.
    """

    def __init__(self, pictures: Tensor, shift: float = 0.125, mirror: bool = True, light: float = 0.4) -> None:
        self.pictures, self.shift, self.mirror, self.light = pictures, shift, mirror, light

    def __call__(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Both views of these rows."""
        return self._view(self.pictures[rows], generator), self._view(self.pictures[rows], generator)

    def _view(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        n = len(batch)
        move = (torch.rand(n, 2, generator=generator) * 2 - 1) * 2 * self.shift
        size = 1 - 0.5 * torch.rand(n, generator=generator)
        flip = 1 - 2 * (torch.rand(n, generator=generator) < 0.5).float() if self.mirror else torch.ones(n)
        theta = torch.zeros(n, 2, 3)
        theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = size * flip, size, move
        grid = functional.affine_grid(theta, list(batch.shape), align_corners=False)
        seen = functional.grid_sample(batch, grid, padding_mode="reflection", align_corners=False)
        strength = 1 + self.light * (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1)
        return seen * strength + self.light * (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1)
