"""No loss keeps more than a batch × batch table: nothing grows with batch² times the width."""

from __future__ import annotations

import pytest
import torch

from offmap.learning import registered
from offmap.learning.objectives import Task, TrainingProgress

ROWS, WIDTH, CLASSES = 64, 96, 40


@pytest.mark.parametrize("name", registered())
def test_saved_for_the_gradient_is_at_most_a_table_of_pairs(name: str) -> None:
    kind = registered()[name]
    loss = kind(Task(WIDTH, CLASSES, 20, (0.05,) * 20, 0.5), {**kind.settings, **kind.embeddings})
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(torch.arange(ROWS) % 2 == 0, torch.arange(ROWS) % 20, -1)
    first, second = (torch.randn(loss.copies * ROWS, WIDTH, generator=generator, requires_grad=True) for _ in range(2))
    loss.start(first[:ROWS].detach(), labels, torch.randn(CLASSES, WIDTH, generator=generator))
    sizes = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        sum(loss(first, second, labels, TrainingProgress(0, 1)).values()).backward()
    assert max(sizes) <= (2 * loss.copies * ROWS) ** 2
