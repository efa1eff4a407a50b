"""When the inputs that were kept are grouped again, and which of them are kept: a round costs what is new in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offmap.errors import InputError
from offmap.openworld.decisions import fall_p_value
from offmap.openworld.inputs import LabeledInputs
from offmap.openworld.state import LearningState

GROWTH = 1.25  # times as many inputs as when they were grouped last
UNUSUAL = 2.0  # times as many flagged inputs as usual, and significantly more than that
LEVEL = 0.01  # of that test, which is asked again in every round
LEAST_USUAL = 0.02  # of inputs that are flagged
LOOKED_AT = 2000  # inputs that say how many are usual
KEPT_PER_CLASS = 200
KEPT_IN_ALL = 50_000


@dataclass(frozen=True)
class Pace:
    """The pace of a run: what came in since inputs were grouped last.

    Parameters
    ----------
    seen : int, default 0
        How many inputs came in altogether.
    grouped : int, default 0
        How many of them had come in when inputs were grouped last; 0 before the first time.
    usual : float, default 0.0
        The share of these that the deployment calls unknown since.
    flagged : int, default 0
        How many of those that came in later the deployment calls unknown.
    """

    seen: int = 0
    grouped: int = 0
    usual: float = 0.0
    flagged: int = 0

    @property
    def arrived(self) -> int:
        """How many inputs came in since inputs were grouped last."""
        return self.seen - self.grouped

    def take_in(self, arrived: int, flagged: int) -> Pace:
        """Return the pace with so many more inputs, so many of them flagged."""
        return replace(self, seen=self.seen + arrived, flagged=self.flagged + flagged)

    def is_due(self, growth: float, min_size: int) -> bool:
        """Tell whether there is a reason to group again.

        There is one when the share ``growth - 1`` of all inputs before came in, or when so many are flagged, at least
        `min_size` and significantly more than twice the usual share, that something new has probably come in.

        Examples
        --------
        >>> pace = Pace(seen=1000, grouped=1000, usual=0.02)
        >>> pace.take_in(100, 3).is_due(1.25, 10), pace.take_in(100, 15).is_due(1.25, 10)
        (False, True)
        >>> pace.take_in(250, 3).is_due(1.25, 10), Pace().is_due(1.25, 10)
        (True, True)
        """
        if not self.grouped or self.arrived >= (growth - 1) * self.grouped:
            return True
        allowed = min(UNUSUAL * self.usual, 1.0)
        return self.flagged >= min_size and fall_p_value(self.flagged, self.arrived, allowed) < LEVEL

    def describe_wait(self, growth: float) -> str:
        """Say why inputs are not grouped again yet.

        Examples
        --------
        >>> Pace(1000, 1000, 0.02).take_in(100, 3).describe_wait(1.25)
        'not grouped again: since 1000 were, 100 came in, 3 of them flagged; grouping waits for 250, or for ...
        """
        enough = "" if np.isinf(growth) else f"{int(np.ceil((growth - 1) * self.grouped))}, or for "
        return (
            f"not grouped again: since {self.grouped} were, {self.arrived} came in, {self.flagged} of them flagged; "
            f"grouping waits for {enough}significantly more flagged ones than {UNUSUAL * self.usual:.0%}"
        )

    def after(self, state: LearningState, kept: LabeledInputs, seed: int) -> Pace:
        """Return the pace right after the inputs that are kept were grouped and this state came of it.

        Of a class only a sample is kept, and all inputs without one, so the two count by how many there were.
        """
        few = kept
        if len(kept) > LOOKED_AT:
            few = kept[np.random.default_rng(seed).permutation(len(kept))[:LOOKED_AT]]
        flagged = state.assign(few) < 0
        without = float((kept.labels < 0).sum()) / max(self.seen, 1)
        shares = [float(flagged[part].mean()) if part.any() else 0.0 for part in (few.labels < 0, few.labels >= 0)]
        return Pace(self.seen, self.seen, max(without * shares[0] + (1 - without) * shares[1], LEAST_USUAL))


def check_growth(growth: Any) -> None:
    """Raise an error unless this is a number that a history may grow by."""
    if not isinstance(growth, int | float | np.number) or not growth >= 1:
        raise InputError(f"growth={growth!r}: a number from 1 on; 1 groups in every round")


def thin(store: LabeledInputs, seed: int) -> LabeledInputs:
    """Keep all inputs without a class and a sample of each class, the newest where even these are too many."""
    rng = np.random.default_rng(seed)
    keep = store.labels < 0
    for label in np.unique(store.labels[store.labels >= 0]):
        rows = np.flatnonzero(store.labels == label)
        keep[rows if len(rows) <= KEPT_PER_CLASS else rng.permutation(rows)[:KEPT_PER_CLASS]] = True
    return store[np.flatnonzero(keep)[-KEPT_IN_ALL:]]
