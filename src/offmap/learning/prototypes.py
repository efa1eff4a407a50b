"""OpenCon's prototypes: one direction per class, moved by the rows of its class, and the gate that finds novel rows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from offmap.errors import InputError
from offmap.neighbors.vectors import unit

GateRule = Literal["thesis", "authors"]
RECENT = 4096  # labelled scores that the gate's percentile is taken over


class Prototypes(nn.Module):
    """Unit vectors of known classes (first) and novel classes, and the recent scores of labelled rows.

    Parameters
    ----------
    n_classes, n_known, width : int
        How many there are, how many of them known, of how many columns.
    momentum : float, default=0.9
        γ of the moving average (thesis, section 8.2.2, eq. 8.6).
    percentile : float, default=70.0
        p: this share of labelled rows scores above the gate, in percent (section 8.2.2, eq. 8.2).
    rule : GateRule, default="thesis"
        ``"thesis"``: raw cosines, the percentile over recent labelled rows. ``"authors"``: ten times the cosine,
        standardised over all prototypes of a row, the percentile over the labelled rows of this batch.

    Examples
    --------
    >>> prototypes = Prototypes(3, 2, width=2)
    >>> prototypes.place(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    >>> rows = torch.tensor([[1.0, 0.1], [0.1, 1.0], [-1.0, 0.3]])
    >>> prototypes.is_novel(rows, torch.tensor([0, 1, -1]))
    tensor([False, False,  True])
    >>> prototypes.predict(rows)
    tensor([0, 1, 2])
    """

    vectors: Tensor
    recent: Tensor
    seen: Tensor

    def __init__(
        self,
        n_classes: int,
        n_known: int,
        width: int,
        momentum: float = 0.9,
        percentile: float = 70.0,
        rule: GateRule = "thesis",
    ) -> None:
        super().__init__()
        if not 0 <= momentum <= 1 or not 0 <= percentile <= 100:
            raise InputError(
                f"Prototypes(momentum={momentum}, percentile={percentile}): 0 to 1 and 0 to 100 are possible"
            )
        self.n_known = n_known
        self.momentum = momentum
        self.percentile = percentile
        self.rule = rule
        self.register_buffer("vectors", torch.zeros(n_classes, width))
        self.register_buffer("recent", torch.zeros(RECENT))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def place(self, vectors: Tensor) -> None:
        """Set all prototypes."""
        self.vectors.copy_(unit(vectors))

    @torch.no_grad()
    def predict(self, embeddings: Tensor) -> Tensor:
        """Predict the class of the nearest prototype."""
        return (unit(embeddings) @ self.vectors.T).argmax(dim=1)

    @torch.no_grad()
    def is_novel(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Find unlabelled rows whose best known cosine is below the gate: D_n (thesis, chapter 8, eq. 8.2).

        Notes the scores of labelled rows; without any so far every unlabelled row counts as novel.

        Parameters
        ----------
        embeddings : Tensor of shape (n, d)
            One row per input.
        labels : Tensor of shape (n,)
            Known classes, -1 where unlabelled.

        Returns
        -------
        Tensor of bool of shape (n,)
            Whether a row is taken for novel.
        """
        scores = unit(embeddings) @ self.vectors.T
        if self.rule == "authors":
            scores = 10 * scores
            scores = (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True).clamp(min=1e-8)
        known = scores[:, : self.n_known].amax(dim=1) if self.n_known else torch.full_like(scores[:, 0], -torch.inf)
        labelled = known[labels >= 0]
        if self.rule == "thesis":
            labelled = self._remember(labelled)
        if not len(labelled):
            return labels < 0
        gate = torch.quantile(labelled.float(), 1 - self.percentile / 100)
        return (labels < 0) & (known < gate)

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor, novel: Tensor) -> None:
        """Move prototypes (thesis, section 8.2.2, eq. 8.6): labelled rows move their class, novel rows the nearest
        novel prototype.

        A class with m rows goes to ``normalize(γ^m μ + (1−γ^m) mean)``, what m steps of the moving average lead to
        when the rows agree, and the same in whatever order they come; the thesis moves them row by row, and where rows
        of a class differ the two end 1 to 14 degrees apart. With the authors' rule a row counts as novel
        when its nearest prototype of all is a novel one.
        """
        rows = unit(embeddings.float())
        scores = rows @ self.vectors.T
        if self.rule == "authors":
            chosen = scores.argmax(dim=1)
            moves = (labels < 0) & (chosen >= self.n_known)
        elif self.n_known < len(self.vectors):
            chosen = self.n_known + scores[:, self.n_known :].argmax(dim=1)
            moves = (labels < 0) & novel
        else:
            chosen, moves = labels, torch.zeros_like(novel)
        classes = torch.where(labels >= 0, labels, torch.where(moves, chosen, torch.full_like(chosen, -1)))
        self.vectors.copy_(moved(self.vectors, rows, classes, self.momentum))

    def _remember(self, scores: Tensor) -> Tensor:
        """Write scores into the ring of recent ones; what it holds now."""
        scores = scores[-RECENT:]
        at = (self.seen + torch.arange(len(scores), device=scores.device)) % RECENT
        self.recent[at] = scores.to(self.recent.dtype)
        self.seen += len(scores)
        return self.recent[: min(int(self.seen), RECENT)]


def moved(vectors: Tensor, rows: Tensor, classes: Tensor, momentum: float) -> Tensor:
    """Prototypes after one batch: ``normalize(γ^m μ_c + (1−γ^m) mean of the m rows of class c)``; -1 moves nothing.

    Examples
    --------
    >>> moved(torch.eye(2), torch.tensor([[0.0, 1.0]]), torch.tensor([0]), momentum=0.5)
    tensor([[0.7071, 0.7071],
            [0.0000, 1.0000]])
    """
    taken = classes >= 0
    sums = torch.zeros_like(vectors).index_add_(0, classes[taken], rows[taken].to(vectors.dtype))
    count = torch.bincount(classes[taken], minlength=len(vectors)).to(vectors.dtype)[:, None]
    keep = momentum**count
    mixed = keep * vectors + (1 - keep) * sums / count.clamp(min=1)
    return torch.where(count > 0, unit(mixed), vectors)
