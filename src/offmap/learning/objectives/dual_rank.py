"""DualRank (Zhao & Han 2021): rank statistics of pictures and of their parts, two branches that teach each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offmap.learning import losses
from offmap.learning.objectives.base import Parts, Task, TrainingProgress, register
from offmap.learning.objectives.heads import SCALE, CosineHead
from offmap.learning.objectives.transfer import ramp
from offmap.neighbors.vectors import unit

QUARTERS = 4


@register
class DualRank(CosineHead):
    """Pairs by the largest features of pictures, and by the commonest words of their parts; pictures only.

    The paper's parts are places of the last feature map, in a last block of their own. An objective sees features after
    pooling, so here the parts are the four quarters of a picture, enlarged and sent through the same network. Words are
    features of recent parts; the branches are compared within the batch, not with a queue.
    """

    name = "dualrank"
    settings = {
        "top": 5, "scale": SCALE, "words": 256, "sharpness": 15.0, "temperature": 0.1, "mutual": 1.0,
        "consistency": 5.0, "ramp": 0.5,
    }  # fmt: skip
    grid = {"top": (3, 5)}
    kinds = ("images",)
    copies = 1 + QUARTERS
    words: Tensor
    filled: Tensor

    def __init__(self, task: Task, settings: Mapping[str, Any]) -> None:
        super().__init__(task, dict(settings))
        self.of_parts = nn.Parameter(torch.zeros(task.n_classes, task.width))
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("words", unit(torch.randn(self.chosen["words"], task.width, generator=generator)))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def copy_inputs(views: Tensor, number: int) -> Tensor:
        """Return the pictures, or one quarter of each in their size."""
        if not number:
            return views
        height, width = views.shape[2] // 2, views.shape[3] // 2
        top, left = (number - 1) // 2, (number - 1) % 2
        quarter = views[:, :, top * height : (top + 1) * height, left * width : (left + 1) * width]
        return functional.interpolate(quarter, size=views.shape[2:], mode="bilinear", align_corners=False)

    def start(self, features: Tensor, labels: Tensor, centres: Tensor) -> None:
        """Place the vectors of both branches at the centres of the first grouping."""
        super().start(features, labels, centres)
        with torch.no_grad():
            self.of_parts.copy_(unit(centres))

    def forward(self, first: Tensor, second: Tensor, labels: Tensor, moment: TrainingProgress) -> Parts:
        """Return the parts of both branches together, and their divergence."""
        views = [view.reshape(self.copies, len(labels), -1) for view in (first, second)]
        whole, pieces = [view[0] for view in views], [_scale_parts(view) for view in views]
        local = [piece.mean(dim=0) for piece in pieces]
        free = labels < 0
        top = min(self.chosen["top"], first.shape[1], len(self.words))
        shares = losses.word_shares(pieces[0][:, free].detach(), self.words, self.chosen["sharpness"])
        pairs = (losses.rank_statistics(whole[0][free].abs(), top), losses.rank_statistics(shares, top))
        branches = [
            self._branch(rows, weight, same, labels)
            for rows, weight, same in ((whole, self.weight, pairs[0]), (local, self.of_parts, pairs[1]))
        ]
        out = {name: branches[0][name] + branches[1][name] for name in branches[0]}
        out["consistency"] = out["consistency"] * self.chosen["consistency"] * ramp(moment, self.chosen["ramp"])
        opinions = [(rows[0][free], rows[1][free]) for rows in (whole, local)]
        divergence = losses.mutual_divergence(opinions[0], opinions[1], self.chosen["temperature"])
        return out | {"mutual": self.chosen["mutual"] * divergence}

    def _branch(self, rows: list[Tensor], weight: Tensor, same: Tensor, labels: Tensor) -> Parts:
        """Return AutoNovel's three parts for one branch."""
        logits = [self.chosen["scale"] * unit(view) @ unit(weight).T for view in rows]
        p, q = (torch.softmax(part, dim=1) for part in logits)
        free = labels < 0
        return {
            "labelled": torch.stack([losses.cross_entropy(part, labels) for part in logits]).mean(),
            "pairs": losses.autonovel_pairs(p[free], q[free], same),
            "consistency": functional.mse_loss(p, q),
        }

    def after_step(self, first: Tensor, second: Tensor, labels: Tensor) -> None:
        """Let one part of each picture take the place of the oldest words."""
        pieces = _scale_parts(first.reshape(self.copies, len(labels), -1))
        which = torch.randint(QUARTERS, (len(labels),)).to(first.device)
        new = pieces[which, torch.arange(len(labels), device=first.device)][: len(self.words)]
        places = (int(self.filled) + torch.arange(len(new), device=first.device)) % len(self.words)
        self.words[places] = new.to(self.words.dtype)
        self.filled.add_(len(new))


def _scale_parts(view: Tensor) -> Tensor:
    """Return the features of the parts alone, each scaled to length 1, parts × pictures × width."""
    parts = view[1:]
    return unit(parts.flatten(0, 1)).reshape(parts.shape)
