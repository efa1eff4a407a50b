"""Two random views of embeddings: coordinates dropped, noise added, a neighbour in one's place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offmap.errors import InputError


def neighbour_lists(features: Any, k: int, normalize: bool = True) -> npt.NDArray[np.int64]:
    """Find the k nearest other rows of each row, nearest first; exact.

    Parameters
    ----------
    features : array-like of shape (n, d)
        The rows.
    k : int
        How many neighbours, fewer than there are samples.
    normalize : bool, default=True
        Whether rows are compared by their direction alone.

    Returns
    -------
    ndarray of int64 of shape (n, k)
        Row numbers.

    Examples
    --------
    >>> neighbour_lists([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], k=1).tolist()
    [[1], [0], [1]]
    """
    from offmap.neighbors import Bank

    rows = np.asarray(features)
    if not 1 <= k < len(rows):
        raise InputError(f"neighbour_lists(k={k}): {len(rows)} samples have from 1 to {len(rows) - 1} neighbours each")
    found = Bank(normalize=normalize).add(rows).search(rows, k + 1)[1]
    own = found == np.arange(len(rows))[:, None]
    own[~own.any(axis=1), -1] = True  # hidden behind k + 1 copies of itself
    return found[~own].reshape(len(rows), k).astype(np.int64)


@dataclass(frozen=True, eq=False)
class VectorViews:
    """Views of embeddings or other rows of numbers, each sample and each view changed by its own random numbers.

    Parameters
    ----------
    width : int
        Numbers in a row.
    dropout : float, default=0.1
        The chance that a coordinate becomes 0; the others grow so that the mean stays.
    noise : float, default=0.1
        The length of Gaussian noise as a share of the row's own.
    features, neighbours : Tensor or None, default=None
        The whole data set and the neighbours of each of its rows, as `neighbour_lists` gives them.
    neighbour : tuple of 2 float, default=(0.0, 0.0)
        The chances that the first and the second view start from a random neighbour instead of the sample itself.

    Examples
    --------
    >>> from offmap.data.views import step_generator
    >>> features = torch.eye(6)
    >>> views = VectorViews.among(features, k=2, dropout=0.0, noise=0.0)
    >>> rows = torch.tensor([0, 3])
    >>> first, second = views(features[rows], step_generator(0, 0), rows)
    >>> bool((first == features[rows]).all()), second.sum(dim=1), (second * features[rows]).sum().item()
    (True, tensor([1., 1.]), 0.0)
    """

    width: int
    dropout: float = 0.1
    noise: float = 0.1
    features: Tensor | None = None
    neighbours: Tensor | None = None
    neighbour: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        chances = len(self.neighbour) == 2 and all(0 <= chance <= 1 for chance in self.neighbour)
        if self.width < 1 or not 0 <= self.dropout < 1 or self.noise < 0 or not chances:
            raise InputError(
                f"VectorViews(width={self.width}, dropout={self.dropout}, noise={self.noise}, "
                f"neighbour={self.neighbour}): the width is at least 1, dropout from 0 to below 1, noise at least 0, "
                "neighbour two chances from 0 to 1"
            )
        if any(self.neighbour) and (self.features is None or self.neighbours is None):
            raise InputError(
                f"VectorViews(neighbour={self.neighbour}): give features and neighbours, or use VectorViews.among"
            )

    @classmethod
    def among(
        cls, features: Any, k: int = 10, neighbour: tuple[float, float] = (0.0, 1.0), **settings: Any
    ) -> VectorViews:
        """Return views that know the data set: by default the second is always one of the k nearest neighbours.

        Parameters
        ----------
        features : array-like
            Samples × width; row numbers given to the views count here.
        k : int, default=10
            How many neighbours to choose from.
        neighbour, **settings : tuple of 2 float, default=(0.0, 1.0) and None
            As for the class.
        """
        whole = torch.as_tensor(features, dtype=torch.float32)
        lists = torch.from_numpy(neighbour_lists(whole.numpy(), k))
        return cls(whole.shape[1], features=whole, neighbours=lists, neighbour=neighbour, **settings)

    def __call__(self, batch: Tensor, generator: torch.Generator, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Two views of a batch; with neighbours, `rows` are the places of its samples in the data set."""
        return self.apply(batch, self.draw(len(batch), generator), rows)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random numbers for two views of each row.

        Parameters
        ----------
        count : int
            Number of rows.
        generator : torch.Generator
            The source.

        Returns
        -------
        Tensor of shape (count, 2, numbers)
            From 0 to 1.
        """
        numbers = 2 + self.width * ((self.dropout > 0) + (self.noise > 0))
        return torch.rand((count, 2, numbers), generator=generator)

    def apply(self, batch: Tensor, numbers: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make the two views that the numbers stand for.

        Parameters
        ----------
        batch : Tensor of shape (n, d)
            The rows.
        numbers : Tensor
            What `draw` gave.
        rows : Tensor of shape (n,) or None, default=None
            Which samples of the data set these are.

        Returns
        -------
        tuple of 2 Tensor of shape (n, d)
            The views.
        """
        if batch.ndim != 2 or batch.shape[1] != self.width or len(batch) != len(numbers):
            raise InputError(
                f"rows of shape {tuple(batch.shape)} and random numbers for {len(numbers)}: these views take "
                f"samples × {self.width}, and numbers for each"
            )
        drawn = numbers.to(batch.device)
        first, second = (
            self._view(self._moved(batch.float(), drawn[:, side], rows, chance), drawn[:, side])
            for side, chance in enumerate(self.neighbour)
        )
        return first, second

    def plain(self, batch: Tensor) -> Tensor:
        """Return the rows as they are: for evaluation."""
        return batch.float()

    def _view(self, x: Tensor, numbers: Tensor) -> Tensor:
        left = numbers[:, 2:]
        if self.noise:
            # the inverse of the normal distribution; kept away from 0, where it is infinite
            uniform, left = left[:, : self.width].clamp(min=1e-7), left[:, self.width :]
            normal = torch.erfinv(2 * uniform - 1) * math.sqrt(2)
            scale = self.noise * torch.linalg.vector_norm(x, dim=1, keepdim=True) / math.sqrt(self.width)
            x = x + scale * normal
        if self.dropout:
            x = x * (left >= self.dropout) / (1 - self.dropout)
        return x

    def _moved(self, x: Tensor, numbers: Tensor, rows: Tensor | None, chance: float) -> Tensor:
        """Return some samples replaced by one of their neighbours."""
        if not chance or self.features is None or self.neighbours is None:
            return x
        if rows is None or len(rows) != len(x):
            raise InputError("neighbour views: say with `rows` which samples of the data set these are, one each")
        lists = self.neighbours.to(rows.device)[rows]
        which = (numbers[:, 1] * lists.shape[1]).long().clamp(max=lists.shape[1] - 1).to(rows.device)
        chosen = lists.gather(1, which[:, None])[:, 0]
        others = self.features[chosen.to(self.features.device)].to(x)
        return torch.where((numbers[:, 0] < chance)[:, None], others, x)
