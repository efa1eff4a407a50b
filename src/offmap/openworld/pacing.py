"""When the inputs that were kept are grouped again, and which of them are kept: a round costs what is new in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offmap.openworld.decisions import LEVEL, fall_p_value
from offmap.openworld.inputs import LabeledInputs
from offmap.openworld.state import LearningState

GROWTH = 1.25  # times as many inputs as when they were grouped last
UNUSUAL = 2.0  # times as many flagged inputs as usual, and significantly more than that
LEAST_USUAL = 0.02  # of inputs that are flagged
LOOKED_AT = 2000  # inputs that say how many are usual
KEPT_PER_CLASS = 200
KEPT_IN_ALL = 50_000


@dataclass(frozen=True)
class Pace:
    """The pace of a run: what came in since inputs were grouped last.

    Parameters
    ----------
    grouped : int, default 0
        How many inputs were grouped then; 0 before the first time.
    usual : float, default 0.0
        The share of them that the deployment calls unknown since.
    arrived, flagged : int, default 0
        How many inputs came in after that, and how many of these the deployment calls unknown.
    """

    grouped: int = 0
    usual: float = 0.0
    arrived: int = 0
    flagged: int = 0

    def take_in(self, arrived: int, flagged: int) -> Pace:
        """Return the pace with so many more inputs, so many of them flagged."""
        return Pace(self.grouped, self.usual, self.arrived + arrived, self.flagged + flagged)

    def is_due(self, growth: float, min_size: int) -> bool:
        """Tell whether there is a reason to group again.

        There is one when a share ``growth - 1`` has been added to what was grouped, or when so many inputs are flagged,
        at least `min_size` and significantly more than twice the usual share, that something new has probably come in.

        Examples
        --------
        >>> pace = Pace(grouped=1000, usual=0.02)
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
        >>> Pace(1000, 0.02).take_in(100, 3).describe_wait(1.25)
        'nothing was grouped: 100 inputs since 1000 were grouped, 3 of them flagged; grouping waits for 250, or for ...
        """
        return (
            f"nothing was grouped: {self.arrived} inputs since {self.grouped} were grouped, {self.flagged} of them "
            f"flagged; grouping waits for {int(np.ceil((growth - 1) * self.grouped))}, or for significantly more "
            f"flagged ones than {UNUSUAL * self.usual:.0%}"
        )


def pace_after(state: LearningState, grouped: LabeledInputs, seed: int) -> Pace:
    """Return the pace right after these inputs were grouped and the state came of it."""
    few = grouped
    if len(grouped) > LOOKED_AT:
        few = grouped[np.random.default_rng(seed).permutation(len(grouped))[:LOOKED_AT]]
    usual = float((~state.judge(few).known).mean()) if len(few) else 0.0
    return Pace(len(grouped), max(usual, LEAST_USUAL))


def thin(store: LabeledInputs, seed: int) -> LabeledInputs:
    """Keep all inputs without a class and a sample of each class, the newest where even these are too many."""
    rng = np.random.default_rng(seed)
    keep = store.labels < 0
    for label in np.unique(store.labels[store.labels >= 0]):
        rows = np.flatnonzero(store.labels == label)
        keep[rows if len(rows) <= KEPT_PER_CLASS else rng.permutation(rows)[:KEPT_PER_CLASS]] = True
    return store[np.flatnonzero(keep)[-KEPT_IN_ALL:]]
