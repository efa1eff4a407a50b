"""What happened in one round of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offmap.openworld.decisions import GroupDecision, describe_decisions
from offmap.openworld.result import Round


@dataclass(frozen=True)
class RoundRecord:
    """The record of one round.

    Parameters
    ----------
    arrived : int
        How many inputs came in.
    flagged : int
        How many of them the deployment of that time called unknown.
    considered : int
        How many unlabelled inputs there were: those that came in, and those kept from earlier rounds.
    groups : tuple of GroupDecision
        What became of each proposed group, and why.
    deployed : bool
        Whether a new deployment replaced the old one.
    reason : str
        Why or why not.
    n_classes : int
        How many classes there are after the round.
    round : Round or None
        What was learned and measured; `None` when there was no group to learn.
    grouped : bool
        Whether they were grouped; if not, they were only judged and kept.
    """

    arrived: int
    flagged: int
    considered: int
    groups: tuple[GroupDecision, ...]
    deployed: bool
    reason: str
    n_classes: int
    round: Round | None = field(default=None, repr=False)
    grouped: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "arrived": self.arrived,
            "flagged": self.flagged,
            "considered": self.considered,
            "grouped": self.grouped,
            "groups": [one.to_json() for one in self.groups],
            "deployed": self.deployed,
            "why": self.reason,
            "n_classes": self.n_classes,
            "round": None if self.round is None else self.round.to_json(),
        }

    def summary(self) -> str:
        """Return the outcome in a line."""
        came = f"{self.arrived} inputs came in, {self.flagged} flagged"
        if not self.grouped:
            return f"{came}; {self.n_classes} classes as before; {self.reason}"
        outcome = "deployed" if self.deployed else "NOT deployed"
        left_out = "".join(f" ({one.name} left out: {one.reason})" for one in self.groups if one.outcome == "left out")
        decided = f"{describe_decisions(self.groups)}{left_out}; {self.n_classes} classes"
        return f"{came}; all {self.considered} that are kept were grouped: {decided}; {outcome}: {self.reason}"
