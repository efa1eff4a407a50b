"""What `serve.py` runs in child processes: the network it serves, and direct calls of that network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from offmap.models.resnet import ResNet
from worker import serve


def half_resnet18() -> torch.nn.Module:
    """A ResNet-18 of half the width for pictures of 32×32, with random weights: speed does not depend on them.

    It costs a quarter of the whole one, which makes what the service adds weigh four times as much.
    """
    return ResNet(n_classes=10, depth=18, width=32)


def small_cnn() -> torch.nn.Module:
    """A network that costs next to nothing, so that the service is what is tried."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 32),
        torch.nn.ReLU(), torch.nn.Linear(32, 10),
    )  # fmt: skip


class Tasks:
    """Direct calls, on arrays from a file."""

    def load(self, file: str, batch: int) -> None:
        """Read the inputs and build the network."""
        self.inputs = torch.from_numpy(np.load(file)).split(batch)
        self.model = half_resnet18().eval()

    def direct(self, batches: int) -> list[float]:
        """The network itself, in evaluation mode, without gradients."""
        with torch.no_grad():
            answers = [self.model(self.inputs[k % len(self.inputs)]) for k in range(batches)]
        return [float(answers[-1].sum())]


def run() -> None:
    tasks = Tasks()
    names: dict[str, Any] = {"load": tasks.load, "direct": tasks.direct}
    serve(names)


if __name__ == "__main__":
    run()
