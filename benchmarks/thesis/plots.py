"""Figures of the thesis' questions: sweeps of a parameter, grids, densities, and what units contribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.plots.comparisons import SYMBOLS
from offmap.plots.style import KNOWN, UNKNOWN, apply_style, colour, dash, faint, graph_objects
from offmap.typing import Array

STEPS = 80


def sweep_lines(
    series: Mapping[str, Mapping[Any, float]], *, x: str, y: str, logarithmic: bool = False, title: str = ""
) -> Any:
    """One line per series over the values of a parameter; lines differ in colour, dashes and signs.

    Parameters
    ----------
    series
        By name: the number at each value of the parameter. Values that are text are set side by side.
    x, y
        What the parameter and the number are.
    logarithmic
        Whether the parameter is drawn on a logarithmic axis.
    title
        Written above the figure.

    Examples
    --------
    >>> figure = sweep_lines({"FPR95": {0.1: 30.0, 0.9: 25.0}}, x="p", y="per cent")
    >>> list(figure.data[0].x)
    [0.1, 0.9]
    """
    go = graph_objects()
    figure = go.Figure()
    for i, (name, points) in enumerate(series.items()):
        if not points:
            raise InputError(f"sweep_lines: {name!r} has no points")
        figure.add_trace(
            go.Scatter(
                x=list(points), y=list(points.values()), name=name, mode="lines+markers",
                line={"color": colour(i), "dash": dash(i), "width": 2},
                marker={"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8},
            )
        )  # fmt: skip
    apply_style(figure, x=x, y=y, title=title)
    if logarithmic:
        figure.update_xaxes(type="log")
    return figure


def grid_heat(values: Mapping[str, Mapping[str, float]], *, x: str, y: str, metric: str, title: str = "") -> Any:
    """One number over two parameters, written into the cells; light is low.

    Examples
    --------
    >>> figure = grid_heat({"1%": {"1": 9.0, "10": 8.0}}, x="k", y="α", metric="FPR95")
    >>> [list(row) for row in figure.data[0].z]
    [[9.0, 8.0]]
    """
    go = graph_objects()
    columns = list(dict.fromkeys(name for row in values.values() for name in row))
    heights = [[row.get(name, np.nan) for name in columns] for row in values.values()]
    figure = go.Figure(
        go.Heatmap(
            x=columns, y=list(values), z=heights, texttemplate="%{z:.1f}", colorscale="Cividis", reversescale=True,
            colorbar={"title": {"text": metric}, "thickness": 12}, xgap=2, ygap=2,
        )
    )  # fmt: skip
    apply_style(figure, x=x, y=y, title=title, height=140 + 40 * len(values))
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category")
    return figure


def shaded_densities(
    known: npt.ArrayLike, unknown: npt.ArrayLike, *, x: str, threshold: float | None = None, title: str = ""
) -> Any:
    """Two densities, and the area of unknown inputs that lie on the known side of a threshold (thesis, section 3.1,
    figure 3.1).

    Parameters
    ----------
    known, unknown
        Numbers, higher = known where there is a threshold.
    x
        What they are.
    threshold
        From here on an input is taken for known; the unknown ones beyond it are shaded.
    title
        Written above the figure.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> figure = shaded_densities(rng.normal(3, 1, 99), rng.normal(0, 1, 99), x="score", threshold=1.5)
    >>> [trace.name for trace in figure.data]
    ['known', 'unknown', 'misidentified']
    """
    go = graph_objects()
    inside, outside = (np.asarray(part, np.float64).reshape(-1) for part in (known, unknown))
    inside, outside = inside[np.isfinite(inside)], outside[np.isfinite(outside)]
    if not len(inside) or not len(outside):
        raise InputError("shaded_densities: both groups need at least one finite number")
    low, high = np.percentile(np.concatenate([inside, outside]), [0.2, 99.8])
    edges = np.linspace(low, high, STEPS + 1) if high > low else np.array([low - 0.5, low + 0.5])
    middle = (edges[1:] + edges[:-1]) / 2
    figure = go.Figure()
    heights = {}
    for name, part, ink in (("known", inside, KNOWN), ("unknown", outside, UNKNOWN)):
        counts, _ = np.histogram(part, edges)
        heights[name] = counts / (len(part) * np.diff(edges))
        figure.add_trace(
            go.Scatter(
                x=middle.round(6), y=heights[name].round(6), name=name, mode="lines", fill="tozeroy",
                line={"color": ink, "width": 1.5}, fillcolor=faint(ink, 0.15),
            )
        )  # fmt: skip
    if threshold is not None:
        beyond = middle >= threshold
        figure.add_trace(
            go.Scatter(
                x=middle[beyond].round(6), y=heights["unknown"][beyond].round(6), name="misidentified", mode="lines",
                line={"width": 0}, fill="tozeroy", fillcolor=faint(UNKNOWN, 0.6),
            )
        )  # fmt: skip
        figure.add_vline(x=threshold, line={"color": "#7F7F7F", "width": 1.5, "dash": "dash"})
    return apply_style(figure, x=x, y="density", title=title)


def unit_means(known: Array, unknown: Array, *, title: str = "") -> Any:
    """The histogram of the units' mean activations μ_i, known and unknown, with each one's skewness (thesis, section
    3.4, figure 3.2).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> figure = unit_means(rng.random((9, 50)), rng.exponential(1, (9, 50)))
    >>> figure.data[0].name.startswith("known, skewness")
    True
    """
    from scipy.stats import skew

    go = graph_objects()
    figure = go.Figure()
    means = [np.asarray(part, np.float64).mean(axis=0) for part in (known, unknown)]
    edges = np.linspace(min(m.min() for m in means), max(m.max() for m in means), 41)
    for name, mean, ink in zip(("known", "unknown"), means, (KNOWN, UNKNOWN), strict=True):
        counts, _ = np.histogram(mean, edges)
        figure.add_trace(
            go.Scatter(
                x=np.repeat(edges, 2)[1:-1].round(5), y=np.repeat(counts, 2), mode="lines", fill="tozeroy",
                name=f"{name}, skewness {float(skew(mean)):.2f}",
                line={"color": ink, "width": 1.5}, fillcolor=faint(ink, 0.2),
            )
        )  # fmt: skip
    return apply_style(figure, x="mean activation of a unit", y="units", title=title)


def contribution_curves(known: Array, unknown: Array, *, title: str = "") -> Any:
    """Mean contribution of each unit to one class, sorted by its mean on known inputs, with bands of one deviation.

    The picture behind DICE (thesis, section 4.5, figure 4.4): on the left stand units that known inputs do not need,
    with large variance on unknown ones.

    Parameters
    ----------
    known, unknown
        Contributions v = w ⊙ h, inputs × units.
    title
        Written above the figure.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> figure = contribution_curves(rng.random((9, 5)), rng.random((8, 5)))
    >>> [trace.name for trace in figure.data if trace.name]
    ['known', 'unknown']
    """
    go = graph_objects()
    order = np.argsort(np.asarray(known, np.float64).mean(axis=0), kind="stable")
    place = np.arange(len(order))
    figure = go.Figure()
    for name, part, ink in (("known", known, KNOWN), ("unknown", unknown, UNKNOWN)):
        values = np.asarray(part, np.float64)[:, order]
        mean, spread = values.mean(axis=0), values.std(axis=0)
        band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_trace(go.Scatter(x=place, y=(mean + spread).round(5), **band))
        figure.add_trace(
            go.Scatter(x=place, y=(mean - spread).round(5), fill="tonexty", fillcolor=faint(ink, 0.2), **band)
        )
        figure.add_trace(
            go.Scatter(
                x=place, y=mean.round(5), name=name, mode="lines",
                line={"color": ink, "width": 2, "dash": "solid" if name == "known" else "dash"},
            )
        )  # fmt: skip
    return apply_style(figure, x="unit, by its mean contribution on known inputs", y="contribution", title=title)


def covariance_heat(values: Array, order: Sequence[int], *, limit: int = 120, title: str = "") -> Any:
    """The covariance of units' contributions, units in the given order (thesis, appendix A.2.1, figure A.3); at most
    `limit` of them.

    Examples
    --------
    >>> figure = covariance_heat(np.random.default_rng(0).random((9, 4)), [3, 1, 0, 2])
    >>> figure.data[0].z.shape
    (4, 4)
    """
    go = graph_objects()
    places = np.asarray(order)
    if len(places) > limit:
        places = places[np.linspace(0, len(places) - 1, limit).astype(int)]
    matrix = np.atleast_2d(np.cov(np.asarray(values, np.float64)[:, places], rowvar=False))
    largest = float(np.abs(matrix).max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=matrix.round(6), colorscale="RdBu", zmid=0, zmin=-largest, zmax=largest, colorbar={"thickness": 12}
        )
    )
    apply_style(figure, x="unit", y="unit", title=title, height=480)
    figure.update_yaxes(autorange="reversed")
    return figure


def embedding_scatter(points: Array, groups: Sequence[str], *, title: str = "") -> Any:
    """Points in the plane, coloured and shaped by group.

    Examples
    --------
    >>> figure = embedding_scatter(np.zeros((3, 2)), ["a", "b", "a"])
    >>> [trace.name for trace in figure.data]
    ['a', 'b']
    """
    go = graph_objects()
    flat = np.asarray(points, np.float64)
    if flat.ndim != 2 or flat.shape[1] != 2 or len(flat) != len(groups):
        raise InputError(f"embedding_scatter: points of shape {flat.shape} for {len(groups)} groups; two numbers each")
    figure = go.Figure()
    labels = np.asarray(groups)
    for i, name in enumerate(dict.fromkeys(groups)):
        chosen = labels == name
        figure.add_trace(
            go.Scatter(
                x=flat[chosen, 0].round(3), y=flat[chosen, 1].round(3), name=str(name), mode="markers",
                marker={"color": colour(i), "symbol": SYMBOLS[i // 8 % len(SYMBOLS)], "size": 5, "opacity": 0.7},
            )
        )  # fmt: skip
    return apply_style(figure, title=title, height=520)
