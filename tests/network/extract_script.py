"""Run as a process of its own and killed by a test: extracts into a folder, slowly, and says how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from network_zoo import conv_net, images

from offmap.extra_passes import Layer, Passes, Requirements
from offmap.network import Network, writer

NEEDS = Requirements(extras=(Passes(2), Layer("block", "mean")))
BATCHES = 12


def batches(pause: float = 0.0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for i in range(BATCHES):
        time.sleep(pause)
        print(f"batch {i}", flush=True)
        yield images(7, seed=i), torch.arange(7) % 5


if __name__ == "__main__":
    torch.set_num_threads(1)
    writer._COMMIT_BYTES = int(sys.argv[2])  # small blocks, so that a few of them are done when the test strikes
    Network(conv_net()).extract(batches(pause=0.15), NEEDS, to=sys.argv[1])
