"""Several processes that train as one: each runs its part of the batch, all see the embeddings of the whole.

A contrastive loss compares every row with every other, so two processes with 256 rows each are one with 512 only when
embeddings are exchanged. Each process computes the loss of the whole batch and differentiates it through its own rows;
the sum of these gradients is the gradient. ``torchrun --nproc-per-node 2 script.py`` is all that is needed.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ranks:
    """The number of this process and of all; one when neither torchrun nor the caller has made a process group.

    Examples
    --------
    >>> Ranks().slice_of(np.arange(5))
    slice(0, 5, None)
    >>> Ranks(1, 2).slice_of(np.arange(5))
    slice(3, 5, None)
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and draws the bar."""
        return self.rank == 0

    def slice_of(self, rows: Rows) -> slice:
        """Return the part of a batch that this process runs; parts differ by at most one row."""
        ends = np.cumsum([0, *self._sizes(len(rows))])
        return slice(int(ends[self.rank]), int(ends[self.rank + 1]))

    def gather(self, own: Tensor, rows: int) -> Tensor:
        """Gather the embeddings of the whole batch in its order; only those computed here carry a gradient."""
        if self.world == 1:
            return own
        import torch.distributed as group

        sizes = self._sizes(rows)
        padded = own.detach().new_zeros((max(sizes), *own.shape[1:]))
        padded[: len(own)] = own.detach()
        found = [torch.empty_like(padded) for _ in sizes]
        group.all_gather(found, padded)
        parts = [part[:size] for part, size in zip(found, sizes, strict=True)]
        parts[self.rank] = own
        return torch.cat(parts)

    def share_gradients(self, network: Iterable[nn.Parameter], objective: Iterable[nn.Parameter]) -> None:
        """Add up the network's gradients; the objective's are of the whole loss in every process already."""
        if self.world == 1:
            return
        import torch.distributed as group

        for parameters, scale in ((network, 1.0), (objective, 1 / self.world)):
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                group.all_reduce(parameter.grad)
                parameter.grad *= scale

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            import torch.distributed as group

            group.barrier()

    def _sizes(self, rows: int) -> list[int]:
        return [rows // self.world + (place < rows % self.world) for place in range(self.world)]


def join_processes(device: str = "cpu") -> Ranks:
    """Join the group that torchrun started this process in, or the one the caller has made; a single process otherwise.

    A group that is made here is left when the process ends: torchrun lets a process join only once.

    Examples
    --------
    >>> join_processes().world
    1
    """
    import torch.distributed as group

    if not group.is_available():
        return Ranks()
    if not group.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
            return Ranks()
        on_gpus = device.startswith("cuda")
        if on_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        group.init_process_group("nccl" if on_gpus else "gloo")
        atexit.register(group.destroy_process_group)
    return Ranks(group.get_rank(), group.get_world_size())
