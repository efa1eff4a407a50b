"""What can be learned, by name: each objective in the file of its kind."""

from __future__ import annotations

from offmap.errors import InputError
from offmap.learning.objectives import contrastive, heads, opencon
from offmap.learning.objectives.base import Objective, Task, TrainingProgress, register, registered

__all__ = [
    "Objective",
    "Task",
    "TrainingProgress",
    "contrastive",
    "heads",
    "objective",
    "opencon",
    "register",
    "registered",
]


def objective(name: str) -> type[Objective]:
    """The objective of this name.

    Examples
    --------
    >>> objective("opencon").settings["percentile"]
    70.0
    """
    known = registered()
    if name not in known:
        raise InputError(f"objective={name!r}: choose one of {', '.join(known)}, sorl-spectral")
    return known[name]
