"""Batches that mix labelled and unlabelled samples: every batch is a function of its step number alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from offmap.errors import InputError
from offmap.typing import IntArray

_UNLABELLED, _LABELLED, _CLASSES, _MEMBERS = range(4)  # streams of random numbers that must not meet


class MixedBatch(NamedTuple):
    """The samples of one step."""

    labelled: IntArray
    unlabelled: IntArray

    @property
    def indices(self) -> IntArray:
        """All of them, the labelled ones first."""
        return np.concatenate([self.labelled, self.unlabelled])

    def shard(self, rank: int, world: int) -> MixedBatch:
        """Every `world`-th sample of both parts: what one of several processes takes.

        Examples
        --------
        >>> batch = MixedBatch(np.arange(4), np.arange(10, 14))
        >>> batch.shard(1, 2).indices
        array([ 1,  3, 11, 13])
        """
        return MixedBatch(self.labelled[rank::world], self.unlabelled[rank::world])


class MixedBatches:
    """Labelled and unlabelled samples in fixed numbers per batch, shuffled anew in every pass.

    A batch depends on the step and the seed, on nothing that came before: training that was cut short goes on at
    step `n` with the batches it would have seen.

    Parameters
    ----------
    labels
        One per sample; −1 where unlabelled.
    size
        Samples in a batch.
    share
        The labelled share of a batch; `None` takes the data's own, as OpenCon does (at least one of each kind there
        is). A part smaller than its place in a batch is repeated.
    per_class
        0 draws labelled samples as they come. A number draws classes in turn and so many samples of each, so that
        rare classes are seen as often as others and every labelled sample finds company.
    seed
        Of all shuffling.

    Examples
    --------
    >>> labels = np.where(np.arange(100) < 25, np.arange(100) % 5, -1)
    >>> mixed = MixedBatches(labels, size=20, seed=0)
    >>> mixed.steps, mixed.batch(3).labelled.shape, mixed.batch(3).unlabelled.shape
    (5, (5,), (15,))
    >>> pairs = MixedBatches(labels, size=20, share=0.5, per_class=2).batch(0)
    >>> labels[pairs.labelled]
    array([4, 4, 2, 2, 1, 1, 0, 0, 3, 3])
    """

    def __init__(self, labels: Any, size: int, share: float | None = None, per_class: int = 0, seed: int = 0) -> None:
        given = np.asarray(labels)
        if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) == 0:
            raise InputError(
                f"labels of shape {given.shape}, {given.dtype}: one whole number per sample, −1 if unlabelled"
            )
        if share is not None and not 0 <= share <= 1:
            raise InputError(f"share={share}: the labelled share of a batch is from 0 to 1")
        if per_class < 0 or seed < 0:
            raise InputError(f"per_class={per_class}, seed={seed}: neither can be below 0")
        self.size, self.per_class, self.seed = size, per_class, seed
        self._labelled = np.flatnonzero(given >= 0).astype(np.int64)
        self._unlabelled = np.flatnonzero(given < 0).astype(np.int64)
        self._members = [np.flatnonzero(given == label) for label in np.unique(given[self._labelled])]
        self.n_labelled = self._place(share, len(given))
        # The orders of the passes that are under way; worked out again when asked for, so they are no state.
        self._order = lru_cache(maxsize=4 + 2 * len(self._members))(self._shuffled)

    @property
    def n_unlabelled(self) -> int:
        """Unlabelled samples in a batch."""
        return self.size - self.n_labelled

    @property
    def steps(self) -> int:
        """Batches in an epoch: one pass over the unlabelled samples, or over the labelled if there are no others."""
        if self.n_unlabelled:
            return max(1, len(self._unlabelled) // self.n_unlabelled)
        return max(1, len(self._labelled) // self.n_labelled)

    def batch(self, step: int) -> MixedBatch:
        """The samples of step `step`, counted from 0 and over all epochs."""
        if step < 0:
            raise InputError(f"step={step}: steps count from 0")
        unlabelled = self._take(_UNLABELLED, 0, self._unlabelled, step, self.n_unlabelled)
        if not self.per_class:
            return MixedBatch(self._take(_LABELLED, 0, self._labelled, step, self.n_labelled), unlabelled)
        start, stop = step * self.n_labelled, (step + 1) * self.n_labelled
        groups = range(start // self.per_class, -(-stop // self.per_class))
        row = [self._in_turn(group) for group in groups] or [np.empty(0, np.int64)]
        first = groups.start * self.per_class
        return MixedBatch(np.concatenate(row)[start - first : stop - first], unlabelled)

    def _place(self, share: float | None, total: int) -> int:
        """Labelled samples in a batch."""
        some, others = len(self._labelled), len(self._unlabelled)
        least = (some > 0) + (others > 0) if share is None else 1
        if self.size < least:
            raise InputError(f"size={self.size}: a batch needs room for at least {least} samples")
        if share is not None:
            wanted = round(share * self.size)
            if (wanted and not some) or (wanted < self.size and not others):
                kind = "labelled" if wanted and not some else "unlabelled"
                raise InputError(f"share={share}: there are no {kind} samples to fill it with; use share=None")
            return wanted
        wanted = round(self.size * some / total)
        return min(max(wanted, int(some > 0)), self.size - int(others > 0))

    def _take(self, stream: int, which: int, members: IntArray, step: int, count: int) -> IntArray:
        """The next `count` members; a pass drops what does not fill a batch, so that no sample is twice in one."""
        if count == 0 or len(members) == 0:
            return np.empty(0, np.int64)
        if len(members) >= count:
            turn, place = divmod(step, len(members) // count)
            return members[self._order(stream, which, turn, len(members))[place * count : (place + 1) * count]]
        start = step * count
        turns = range(start // len(members), (start + count - 1) // len(members) + 1)
        orders = np.concatenate([self._order(stream, which, turn, len(members)) for turn in turns])
        first = start - turns.start * len(members)
        return members[orders[first : first + count]]

    def _in_turn(self, group: int) -> IntArray:
        """Samples of one class from the endless row in which each class has its turn before any has a second."""
        turn, rank = divmod(group, len(self._members))
        which = int(self._order(_CLASSES, 0, turn, len(self._members))[rank])
        return self._take(_MEMBERS, which, self._members[which], turn, self.per_class)

    def _shuffled(self, stream: int, which: int, turn: int, count: int) -> IntArray:
        return np.random.default_rng([self.seed, stream, which, turn]).permutation(count)
