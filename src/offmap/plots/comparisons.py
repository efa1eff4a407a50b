"""Figures that set methods side by side: a coloured table, grouped bars, and pairs of numbers joined by a stroke."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from offmap.errors import InputError
from offmap.plots.style import apply_style, colour, graph_objects

Table = Mapping[str, Mapping[str, float]]
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross")


def comparison_heat(values: Table, *, metric: str, best: Literal["max", "min"], title: str = "") -> Any:
    """Draw a table of numbers with colour behind them, light is good; the best method on top.

    Parameters
    ----------
    values : mapping of str to mapping of str to float
        One number by method, then by set.
    metric : str
        Name of the number, for the colour bar.
    best : {"max", "min"}
        Whether large or small numbers are good.
    title : str, default=""
        Title above the figure.

    Returns
    -------
    plotly.graph_objects.Figure

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
    return apply_style(figure, title=title, height=110 + 30 * len(methods))


def grouped_bars(groups: Mapping[str, Mapping[str, float]], *, y: str, title: str = "") -> Any:
    """Draw bars side by side: one group per label, one bar per series.

    Parameters
    ----------
    groups : mapping of str to mapping of str to float
        By label, then by series: the height of a bar.
    y : str
        Name of the number.
    title : str, default=""
        Title above the figure.

    Returns
    -------
    plotly.graph_objects.Figure

    Examples
    --------
    >>> figure = grouped_bars({"svhn": {"plain": 40.0, "react": 30.0}}, y="FPR95")
    >>> [trace.name for trace in figure.data]
    ['plain', 'react']
    """
    go = graph_objects()
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    figure = go.Figure()
    for i, name in enumerate(names):
        figure.add_trace(
            go.Bar(
                x=list(groups), y=[group.get(name) for group in groups.values()], name=name,
                marker={"color": colour(i), "pattern": {"shape": ["", "/", "x", ".", "-", "\\"][i % 6]}},
            )
        )  # fmt: skip
    apply_style(figure, y=y, title=title)
    figure.update_layout(barmode="group")
    return figure


def paired_dots(pairs: Mapping[str, tuple[float, float]], *, names: tuple[str, str], x: str, title: str = "") -> Any:
    """Draw two numbers for each label, joined by a stroke: ours and theirs, before and after.

    Parameters
    ----------
    pairs : mapping of str to tuple of float
        Both numbers by label.
    names : tuple of str
        Names of the first and the second number.
    x : str
        Name of the axis.
    title : str, default=""
        Title above the figure.

    Returns
    -------
    plotly.graph_objects.Figure

    Examples
    --------
    >>> figure = paired_dots({"msp": (47.4, 47.2)}, names=("here", "thesis"), x="FPR95")
    >>> [trace.name for trace in figure.data if trace.name]
    ['here', 'thesis']
    """
    go = graph_objects()
    if not pairs:
        raise InputError("paired_dots: no pairs; give at least one")
    labels = list(pairs)[::-1]
    figure = go.Figure()
    for label in labels:
        figure.add_trace(
            go.Scatter(
                x=list(pairs[label]), y=[label, label], mode="lines", line={"color": "#7F7F7F", "width": 1.5},
                showlegend=False, hoverinfo="skip",
            )
        )  # fmt: skip
    for i, name in enumerate(names):
        figure.add_trace(
            go.Scatter(
                x=[pairs[label][i] for label in labels], y=labels, name=name, mode="markers",
                marker={"color": colour(i), "size": 10, "symbol": SYMBOLS[i]},
            )
        )  # fmt: skip
    return apply_style(figure, x=x, title=title, height=110 + 24 * len(labels))


def _ordered(values: Table, best: str) -> tuple[list[str], list[str]]:
    """Methods from worst to best by their mean over sets (axes count upwards); sets as they appear."""
    if best not in ("max", "min"):
        raise InputError(f"best={best!r}: 'max' when large numbers are good, 'min' when small ones are")
    if not values or not all(values.values()):
        raise InputError("no numbers to compare: give at least one method with at least one set")
    sets = list(dict.fromkeys(name for row in values.values() for name in row))
    sign = 1 if best == "max" else -1
    return sorted(values, key=lambda method: sign * float(np.mean(list(values[method].values())))), sets
