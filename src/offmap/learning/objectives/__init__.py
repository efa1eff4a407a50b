"""What can be learned, by name: each objective in the file of its kind."""

from __future__ import annotations

from offmap.learning.objectives.base import OBJECTIVES, Objective, Task, TrainingProgress, register, registered

__all__ = [
    "OBJECTIVES",
    "Objective",
    "Task",
    "TrainingProgress",
    "objective",
    "register",
    "registered",
]


def objective(name: str) -> type[Objective]:
    """Return the objective of this name.

    Examples
    --------
    >>> objective("opencon").settings["percentile"]
    70.0
    """
    return OBJECTIVES.get(name, also=("sorl-spectral",))
