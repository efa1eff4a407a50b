"""Single figures from plain values; every `.plot()` ends here. Needs the extra `report`."""

from offmap.plots.comparisons import comparison_bars, comparison_heat
from offmap.plots.patterns import activation_pattern
from offmap.plots.scores import roc_curves, score_histogram

__all__ = ["activation_pattern", "comparison_bars", "comparison_heat", "roc_curves", "score_histogram"]
