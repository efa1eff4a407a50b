"""The share of the fitting data that is set aside, so that the terms of a sum are standardised on inputs they have not
seen. Whether an input is set aside is a seeded hash of what it is, so that blocks, shards and order do not matter.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from offmap.detection.batch import ActivationBatch
from offmap.detection.statistics import Arrays, Statistic
from offmap.sampling import Reservoir, priorities

SHARE = 0.1
LARGEST = 2000  # rows kept; more would not make a median or a quartile noticeably better
FEWEST = 20  # below, rows that were fitted on are kept too
SEED = 0x5E7A51DE


class HeldOut(Statistic):
    """Inputs set aside for standardisation: a tenth of all, at most 2000 of them kept.

    Where a tenth is fewer than 20, the 20 inputs of lowest hash are kept, though some of them are fitted on.

    Examples
    --------
    >>> held_out = HeldOut()
    >>> batch = ActivationBatch(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)))
    >>> apart = held_out.update(batch)
    >>> int(apart.sum()), len(held_out.batch())
    (99, 99)
    """

    def __init__(self) -> None:
        self.kept = Reservoir(LARGEST, SEED)
        self.others = 0  # inputs that were not set aside
        self.complete = False  # all inputs have gone by; further readings only leave out what was set aside

    def update(self, batch: ActivationBatch) -> Tensor:
        """Keep a batch's share, unless complete, and say which inputs are set aside.

        Returns
        -------
        Tensor
            One boolean per input.
        """
        rows = _rows(batch)
        hashes = priorities(rows, SEED)
        apart = hashes < np.uint64(SHARE * 2**64)
        if not self.complete and len(rows):
            offered = apart.copy()
            offered[np.argsort(hashes, kind="stable")[:FEWEST]] = True
            companions = {f"extra.{name}": value[offered].cpu().numpy() for name, value in batch.extras.items()}
            if batch.given_features is not None and batch.given_logits is not None:
                companions["logits"] = batch.given_logits.cpu().numpy()[offered]
            companions["with_features"] = np.full(int(offered.sum()), batch.given_features is not None)
            self.kept.update(rows[offered], **companions)
            self.others += int((~apart).sum())
        return torch.from_numpy(apart).to(batch.device)

    def batch(self) -> ActivationBatch:
        """Give what was set aside as a batch without head."""
        rows, companions = self.kept.rows, self.kept.companions
        if len(rows) == 0:
            return ActivationBatch()
        apart = int((priorities(rows, SEED) < np.uint64(SHARE * 2**64)).sum())
        count = apart if apart >= FEWEST else min(FEWEST, len(rows))
        tensors = {name: torch.from_numpy(np.array(value[:count])) for name, value in companions.items()}
        values = torch.from_numpy(np.array(rows[:count], dtype=np.float32))
        extras = {name.removeprefix("extra."): value for name, value in tensors.items() if name.startswith("extra.")}
        with_features = bool(companions["with_features"][0])
        logits = tensors.get("logits") if with_features else values
        return ActivationBatch(values if with_features else None, logits, extras=extras)

    def merge(self, other: HeldOut) -> None:
        """Take in what another one has set aside."""
        if not self.complete:
            self.kept.merge(other.kept)
            self.others += other.others

    def state(self) -> Arrays:
        """Give the rows kept, with what belongs to them."""
        return self.kept.state() | {"complete": np.array(self.complete), "others": np.array(self.others)}

    def restore(self, state: Arrays) -> None:
        """Keep again what `state` gave."""
        rows = {name: value for name, value in state.items() if name not in ("complete", "others")}
        self.kept = Reservoir.from_state(rows)
        self.complete, self.others = bool(state["complete"]), int(state["others"])


def _rows(batch: ActivationBatch) -> np.ndarray:
    given = batch.given_features if batch.given_features is not None else batch.given_logits
    assert given is not None
    return given.detach().cpu().numpy()
