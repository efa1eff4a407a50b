"""Single figures from plain values; every `.plot()` ends here. Needs the extra `report`."""

from offmap.plots.comparisons import comparison_heat, grouped_bars, paired_dots
from offmap.plots.figures import FIGURES
from offmap.plots.patterns import activation_pattern
from offmap.plots.scores import roc_curves, score_histogram

__all__ = [
    "FIGURES",
    "activation_pattern",
    "comparison_heat",
    "grouped_bars",
    "paired_dots",
    "roc_curves",
    "score_histogram",
]
