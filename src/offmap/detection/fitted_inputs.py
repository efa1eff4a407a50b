"""What a detector keeps of the inputs it was fitted on: enough to notice them among the calibration inputs.

Kept in memory only: a file of a detector holds nothing of its inputs but what its scores need.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap.activations import Activations
from offmap.typing import Array

SKETCH = 256  # hashes kept
_COLUMNS = 256  # read of each input, which is enough to tell it from others


@dataclass(frozen=True)
class FittedInputs:
    """The smallest hashes of the fitted inputs, how often each came, and how many inputs there were.

    Parameters
    ----------
    hashes : ndarray of uint64
        Of different inputs, sorted upwards.
    counts : ndarray of int64
        How often each of them was there.
    total : int
        Inputs in all.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(500, 8))
    >>> fitted = FittedInputs.of(Activations(rows))
    >>> fitted.estimate_share(Activations(rows[::-1])), fitted.estimate_share(Activations(rows + 1))
    (1.0, 0.0)
    """

    hashes: Array
    counts: Array
    total: int

    @classmethod
    def of(cls, acts: Activations) -> FittedInputs:
        """Look at activations block by block; the order of the inputs does not matter."""
        hashes, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        for part in acts.blocks():
            new, again = np.unique(hash_rows(part), return_counts=True)
            both = np.concatenate([hashes, new])
            every, place = np.unique(both, return_inverse=True)
            summed = np.zeros(len(every), np.int64)
            np.add.at(summed, place, np.concatenate([counts, again]))
            hashes, counts = every[:SKETCH], summed[:SKETCH]
        return cls(hashes, counts, len(acts))

    def estimate_share(self, acts: Activations) -> float:
        """Estimate which share of these inputs was fitted on.

        Inputs that come again by nature, such as short texts, come again among the fitted inputs too. So only those are
        looked for that came once there, less the number of them that would come again by chance (Good and Turing: the
        chance that the next input is one of those seen once is twice the number seen twice over all).

        Parameters
        ----------
        acts : Activations
            Of the calibration inputs.

        Returns
        -------
        float
            0 where at most one of the inputs kept is among these.
        """
        once, twice = self.hashes[self.counts == 1], int((self.counts == 2).sum())
        if not len(once) or not len(acts):
            return 0.0
        found = [np.intersect1d(hash_rows(part), once) for part in acts.blocks()]
        again = len(np.unique(np.concatenate(found)))
        kept = int(self.counts.sum()) / self.total  # the share of all fitted inputs that the sketch stands for
        by_chance = 2 * twice * len(acts) / self.total
        return 0.0 if again < 2 else max((again - by_chance) / (kept * len(acts)), 0.0)


def hash_rows(acts: Activations) -> Array:
    """Compute a number of 64 bits per input from the bits of its features, or of its logits."""
    rows = acts.features if acts.has_features else acts.logits
    bits = np.ascontiguousarray(rows[:, :_COLUMNS], np.float32).view(np.uint32).astype(np.uint64)
    odd = np.random.default_rng(0).integers(1, 2**63, bits.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        mixed = (bits * odd).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(31)
        return np.asarray(mixed * np.uint64(0x9E3779B97F4A7C15))
