"""The figures of scores that a page of compared detectors draws for the best one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offmap.registry import Registry

ScoreFigure = Callable[[Any, Mapping[str, Any]], Any]
"""From the scores of known inputs, and those of unknown inputs by set, to a plotly figure."""

FIGURES: Registry[ScoreFigure] = Registry("figure", package="offmap.plots", group="offmap.figures")
