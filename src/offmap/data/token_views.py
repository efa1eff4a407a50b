"""Two random views of texts as tokens: single tokens dropped, and a span of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offmap.errors import InputError


@dataclass(frozen=True)
class TokenViews:
    """Views of texts, each text and each view changed by its own random numbers.

    A token that is dropped becomes 0, which encoders take for absent; the first one, the mark of the beginning, stays.
    A batch may hold token numbers (texts × tokens) or states of tokens (texts × tokens × width).

    Parameters
    ----------
    tokens : int
        Columns of the batches, padding included.
    dropout : float, default 0.1
        The chance that a token is dropped.
    span : float, default 0.2
        The share of a text's tokens that are dropped as one span.

    Examples
    --------
    >>> from offmap.data.views import step_generator
    >>> views = TokenViews(6, dropout=0.0, span=0.5)
    >>> one, two = views(torch.tensor([[7, 1, 2, 3, 4, 0]]), step_generator(0, 1))
    >>> one, two
    (tensor([[7, 1, 0, 0, 4, 0]]), tensor([[7, 0, 0, 3, 4, 0]]))
    """

    tokens: int
    dropout: float = 0.1
    span: float = 0.2

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.dropout < 1 or not 0 <= self.span < 1:
            raise InputError(
                f"TokenViews(tokens={self.tokens}, dropout={self.dropout}, span={self.span}): at least one token, and "
                "shares from 0 to below 1"
            )

    def __call__(self, batch: Tensor, generator: torch.Generator, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return two views of a batch; `rows` is not needed here."""
        return self.apply(batch, self.draw(len(batch), generator))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random numbers for two views of so many texts: texts × 2 × numbers."""
        return torch.rand((count, 2, self.tokens + 1), generator=generator)

    def apply(self, batch: Tensor, numbers: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the two views that the numbers stand for."""
        if batch.ndim not in (2, 3) or batch.shape[1] != self.tokens or len(batch) != len(numbers):
            raise InputError(
                f"a batch of shape {tuple(batch.shape)} and random numbers for {len(numbers)}: these views take "
                f"texts × {self.tokens} tokens, and numbers for each"
            )
        present = batch != 0 if batch.ndim == 2 else (batch != 0).any(dim=2)
        drawn = numbers.to(batch.device)
        return self._view(batch, present, drawn[:, 0]), self._view(batch, present, drawn[:, 1])

    def plain(self, batch: Tensor) -> Tensor:
        """Return the texts as they are: for evaluation."""
        return batch

    def _view(self, batch: Tensor, present: Tensor, numbers: Tensor) -> Tensor:
        place = present.cumsum(dim=1) - 1  # among the tokens of a text that are there
        length = present.sum(dim=1, keepdim=True) - 1  # without the first
        size = (self.span * length).round()
        start = 1 + (numbers[:, :1] * (length - size + 1)).floor().clamp(max=length - size)
        gone = (place >= start) & (place < start + size) | (numbers[:, 1:] < self.dropout)
        keep = ~gone | (place == 0)
        return batch * (keep if batch.ndim == 2 else keep[:, :, None])
