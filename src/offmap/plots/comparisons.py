"""Figures that set methods side by side: bars of one number, and a coloured table of it per set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from offmap.errors import InputError
from offmap.plots.style import KNOWN, colour, graph_objects, styled

Table = Mapping[str, Mapping[str, float]]


def comparison_bars(values: Table, *, metric: str, best: Literal["max", "min"], title: str = "") -> Any:
    """One group of bars per method, one bar per set, the best method on top.

    Parameters
    ----------
    values
        By method, then by set: one number.
    metric
        What the number is, for the axis.
    best
        Whether large (``"max"``) or small (``"min"``) is good.
    title
        Written above the figure.

    Returns
    -------
    plotly.graph_objects.Figure

    Examples
    --------
    >>> figure = comparison_bars({"msp": {"svhn": 47.4}, "knn": {"svhn": 4.2}}, metric="FPR95", best="min")
    >>> list(figure.data[0].y)
    ['msp', 'knn']
    """
    go = graph_objects()
    methods, sets = _ordered(values, best)
    figure = go.Figure()
    for i, name in enumerate(sets):
        figure.add_trace(
            go.Bar(
                x=[values[method].get(name) for method in methods],
                y=methods,
                name=name,
                orientation="h",
                marker={"color": colour(i) if len(sets) > 1 else KNOWN},
            )
        )
    styled(figure, x=metric, title=title, height=110 + len(methods) * (16 + 12 * len(sets)))
    figure.update_layout(barmode="group", showlegend=len(sets) > 1)
    return figure


def comparison_heat(values: Table, *, metric: str, best: Literal["max", "min"], title: str = "") -> Any:
    """A table of numbers with colour behind them, light is good; the best method on top.

    Parameters and return value are those of `comparison_bars`.

    Examples
    --------
    >>> figure = comparison_heat({"msp": {"svhn": 47.4}, "knn": {"svhn": 4.2}}, metric="FPR95", best="min")
    >>> [list(row) for row in figure.data[0].z]
    [[47.4], [4.2]]
    """
    go = graph_objects()
    methods, sets = _ordered(values, best)
    heights = [[values[method].get(name, np.nan) for name in sets] for method in methods]
    figure = go.Figure(
        go.Heatmap(
            x=sets,
            y=methods,
            z=heights,
            texttemplate="%{z:.1f}",
            colorscale="Cividis",
            reversescale=best == "min",
            colorbar={"title": {"text": metric}, "thickness": 12},
            xgap=2,
            ygap=2,
        )
    )
    return styled(figure, title=title, height=110 + 30 * len(methods))


def _ordered(values: Table, best: str) -> tuple[list[str], list[str]]:
    """Methods from worst to best by their mean over sets (axes count upwards); sets as they appear."""
    if best not in ("max", "min"):
        raise InputError(f"best={best!r}: 'max' when large numbers are good, 'min' when small ones are")
    if not values or not all(values.values()):
        raise InputError("no numbers to compare: give at least one method with at least one set")
    sets = list(dict.fromkeys(name for row in values.values() for name in row))
    sign = 1 if best == "max" else -1
    return sorted(values, key=lambda method: sign * float(np.mean(list(values[method].values())))), sets
