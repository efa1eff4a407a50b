"""Objectives by name, each in the file of its kind."""

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
    """Look up an objective by its name.

    Parameters
    ----------
    name : str
        Such as ``"opencon"``.

    Returns
    -------
    type
        A subclass of `Objective`.

    Examples
    --------
    >>> objective("opencon").settings["percentile"]
    70.0
    """
    return OBJECTIVES.get(name, also=("sorl-spectral",))
