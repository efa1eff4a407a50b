"""The activation pattern: the picture that made the thesis look at what unknown inputs do to a network."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.plots.style import KNOWN, UNKNOWN, apply_style, faint, graph_objects

Features = npt.NDArray[Any]
ROWS = 4096  # rows read at a time, so that memory maps stay on disk


def activation_pattern(
    id_features: Features,
    ood_features: Features,
    *,
    order: Literal["mean", "index"] = "mean",
    clip: float | None = None,
    title: str = "",
) -> Any:
    """Draw mean and spread of each unit on known inputs, and below it on unknown ones (thesis, section 3.1, figure
    3.1).

    On known inputs units are alike; on unknown ones a few may rise far above the rest, which is what
    clipping (ReAct) takes away.

    Parameters
    ----------
    id_features, ood_features : Features
        Penultimate features, one row per input; the same units in both.
    order : {"mean", "index"}, default="mean"
        ``"mean"`` sorts units by their mean on known inputs, ``"index"`` leaves them as the network has them.
    clip : float or None, default=None
        A level to draw, such as ReAct's threshold c.
    title : str, default=""
        Written above the figure.

    Returns
    -------
    plotly.graph_objects.Figure

    Examples
    --------
    >>> known, unknown = np.ones((5, 3)), np.arange(6.0).reshape(2, 3)
    >>> figure = activation_pattern(known, unknown)
    >>> [trace.name for trace in figure.data if trace.name]
    ['known', 'unknown']
    """
    if order not in ("mean", "index"):
        raise InputError(f"activation_pattern(order={order!r}): 'mean' or 'index'")
    go = graph_objects()
    from plotly.subplots import make_subplots

    known, unknown = _moments(id_features, "id_features"), _moments(ood_features, "ood_features")
    if known.shape != unknown.shape:
        raise InputError(
            f"activation_pattern: {known.shape[1]} units on known inputs, {unknown.shape[1]} on unknown "
            "ones; they must come from the same layer"
        )
    units = np.argsort(-known[0], kind="stable") if order == "mean" else np.arange(known.shape[1])
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, shared_yaxes="all", vertical_spacing=0.06)
    for row, (moments, name, ink) in enumerate([(known, "known", KNOWN), (unknown, "unknown", UNKNOWN)], start=1):
        mean, spread = moments[:, units].round(5)
        place = np.arange(len(units))
        band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_trace(go.Scatter(x=place, y=mean + spread, **band), row=row, col=1)
        figure.add_trace(
            go.Scatter(x=place, y=mean - spread, fill="tonexty", fillcolor=faint(ink, 0.25), **band),
            row=row,
            col=1,
        )
        figure.add_trace(
            go.Scatter(
                x=place,
                y=mean,
                name=name,
                mode="lines",
                line={"color": ink, "width": 1.5},
                customdata=units,
                hovertemplate="unit %{customdata}: %{y:.3f}",
            ),
            row=row,
            col=1,
        )
        if clip is not None:
            figure.add_hline(y=clip, line={"color": "#7F7F7F", "width": 1, "dash": "dash"}, row=row, col=1)
    apply_style(figure, y="activation", title=title, height=480)
    axis = "unit, by its mean on known" if order == "mean" else "unit"
    figure.update_xaxes(title_text=axis, row=2, col=1)
    return figure


def _moments(features: Features, name: str) -> npt.NDArray[np.float64]:
    """Per unit the mean (first row) and the standard deviation (second), read in parts, summed in float64."""
    array = np.asarray(features)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name} of shape {array.shape}: inputs × units are needed, at least one of each")
    shift = array[:ROWS].astype(np.float64).mean(axis=0)  # sums of squares lose no digits around it
    total, squares = np.zeros_like(shift), np.zeros_like(shift)
    for i in range(0, len(array), ROWS):
        centred = array[i : i + ROWS].astype(np.float64) - shift
        total += centred.sum(axis=0)
        squares += (centred**2).sum(axis=0)
    mean = total / len(array)
    return np.stack([shift + mean, np.sqrt(np.maximum(squares / len(array) - mean**2, 0))])
