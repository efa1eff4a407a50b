"""Figures of the theory, each from plain arrays: surfaces, curves, spectra, densities, advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.plots.style import KNOWN, PALETTE, UNKNOWN, apply_style, dash, faint, graph_objects


def reduction_surface(
    sigmas: npt.ArrayLike,
    epsilons: npt.ArrayLike,
    surface: npt.ArrayLike,
    points: Mapping[str, tuple[float, float]] | None = None,
) -> Any:
    """Draw what clipping takes from an activation, over chaoticness σ and skew ε (thesis, chapter 3, figure 3.3).

    Parameters
    ----------
    sigmas, epsilons : array-like
        The grid: columns and rows of the surface.
    surface : array-like
        The reduction at each.
    points : mapping of str to tuple of 2 float or None, default=None
        Places to mark, by name: (σ, ε).

    Returns
    -------
    plotly.graph_objects.Figure
        The surface, seen from above.

    Examples
    --------
    >>> figure = reduction_surface([0.5, 1.0], [-0.4, 0.0], [[0.1, 0.4], [0.05, 0.2]], {"known": (0.6, 0.0)})
    >>> len(figure.data)
    2
    """
    go = graph_objects()
    figure = go.Figure(
        go.Contour(
            x=np.asarray(sigmas), y=np.asarray(epsilons), z=np.asarray(surface),
            colorscale="Viridis", colorbar={"title": {"text": "reduction"}}, contours={"showlabels": True},
        )
    )  # fmt: skip
    for i, (name, (sigma, epsilon)) in enumerate((points or {}).items()):
        ink = (KNOWN, UNKNOWN)[i] if i < 2 else PALETTE[i % len(PALETTE)]
        figure.add_trace(
            go.Scatter(
                x=[sigma], y=[epsilon], name=name, mode="markers+text", text=[name], textposition="top center",
                marker={"size": 12, "color": ink, "line": {"width": 2, "color": "white"}},
            )
        )  # fmt: skip
    return apply_style(figure, x="chaoticness σ", y="skew ε (negative: long right tail)")


def unit_moments(known: npt.ArrayLike, unknown: npt.ArrayLike, clip: float | None = None) -> Any:
    """Draw mean and spread of each unit on known and unknown inputs, units sorted by their mean on known ones.

    Parameters
    ----------
    known, unknown : array-like
        Two rows: means and standard deviations.
    clip : float or None, default=None
        A level to draw.

    Returns
    -------
    plotly.graph_objects.Figure
        Two bands.

    Examples
    --------
    >>> figure = unit_moments([[1.0, 2.0], [0.1, 0.1]], [[3.0, 0.5], [1.0, 0.2]], clip=2.5)
    >>> [trace.name for trace in figure.data if trace.name]
    ['known', 'unknown']
    """
    go = graph_objects()
    inside, outside = np.asarray(known), np.asarray(unknown)
    order = np.argsort(-inside[0], kind="stable")
    place = np.arange(len(order))
    figure = go.Figure()
    for moments, name, ink in ((inside, "known", KNOWN), (outside, "unknown", UNKNOWN)):
        mean, spread = moments[:, order]
        band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_trace(go.Scatter(x=place, y=mean + spread, **band))
        figure.add_trace(
            go.Scatter(x=place, y=np.maximum(mean - spread, 0), fill="tonexty", fillcolor=faint(ink, 0.2), **band)
        )
        figure.add_trace(go.Scatter(x=place, y=mean, name=name, mode="lines", line={"color": ink}))
    if clip is not None and np.isfinite(clip):
        figure.add_hline(y=clip, line={"color": "#7F7F7F", "width": 1, "dash": "dash"})
    return apply_style(figure, x="unit, sorted by its mean on known inputs", y="activation")


def sparsity_curves(
    sparsity: npt.ArrayLike, predicted: npt.ArrayLike, measured: npt.ArrayLike, separation: npt.ArrayLike
) -> Any:
    """Draw variance that goes with sparsity, by independence and measured, and how well logits then separate.

    Parameters
    ----------
    sparsity : array-like
        p, the horizontal axis.
    predicted, measured : array-like
        The share of variance that goes, by independence and as measured.
    separation : array-like
        How far logits of known and unknown inputs are apart, in standard deviations.

    Returns
    -------
    plotly.graph_objects.Figure
        Three curves.

    Examples
    --------
    >>> len(sparsity_curves([0.0, 0.5], [0.0, 0.3], [0.0, 0.1], [1.0, 1.2]).data)
    3
    """
    go = graph_objects()
    figure = go.Figure()
    curves = (
        ("variance gone, if units were independent", predicted),
        ("variance gone, measured", measured),
        ("known from unknown, in standard deviations", separation),
    )
    for i, (name, values) in enumerate(curves):
        figure.add_trace(
            go.Scatter(
                x=np.asarray(sparsity), y=np.asarray(values), name=name, mode="lines+markers",
                line={"color": PALETTE[i], "dash": dash(i)},
            )
        )  # fmt: skip
    figure.add_hline(y=0, line={"color": "#7F7F7F", "width": 1})
    return apply_style(figure, x="sparsity p", y="share, or standard deviations")


def log_densities(known: npt.ArrayLike, unknown: npt.ArrayLike | None = None) -> Any:
    """Draw histograms of the k-NN log density.

    Parameters
    ----------
    known : array-like
        Log densities of known inputs.
    unknown : array-like or None, default=None
        Log densities of unknown inputs.

    Returns
    -------
    plotly.graph_objects.Figure
        One or two histograms.

    Examples
    --------
    >>> len(log_densities([0.0, 1.0], [-3.0, -2.0]).data)
    2
    """
    go = graph_objects()
    parts = [("known", np.asarray(known), KNOWN)]
    if unknown is not None:
        parts.append(("unknown", np.asarray(unknown), UNKNOWN))
    everything = np.concatenate([values for _, values, _ in parts])
    edges = np.linspace(everything.min(), everything.max() + 1e-9, 61)
    figure = go.Figure()
    for name, values, ink in parts:
        heights, _ = np.histogram(values, edges, density=True)
        figure.add_trace(
            go.Scatter(
                x=(edges[1:] + edges[:-1]) / 2, y=heights, name=name, mode="lines",
                fill="tozeroy", line={"color": ink}, fillcolor=faint(ink, 0.25),
            )
        )  # fmt: skip
    return apply_style(figure, x="log p̂", y="share")


def spectrum(values: npt.ArrayLike, gap: int | None = None) -> Any:
    """Draw eigenvalues, largest first, with the place where they break.

    Parameters
    ----------
    values : array-like
        Eigenvalues, largest first.
    gap : int or None, default=None
        After how many they break.

    Returns
    -------
    plotly.graph_objects.Figure
        The points, with a line at the gap.

    Examples
    --------
    >>> len(spectrum([1.0, 0.9, 0.2], gap=2).data)
    1
    """
    go = graph_objects()
    heights = np.asarray(values)
    place = np.arange(1, len(heights) + 1)
    figure = go.Figure(go.Scatter(x=place, y=heights, mode="lines+markers", name="eigenvalue"))
    if gap is not None:
        figure.add_vline(x=gap + 0.5, line={"color": UNKNOWN, "dash": "dash"}, annotation_text=f"{gap} groups")
    return apply_style(figure, x="number", y="eigenvalue")


def advice_bars(names: Sequence[str], known: npt.ArrayLike, novel: npt.ArrayLike, most: int = 30) -> Any:
    """Draw predicted gains per option, over known classes and over novel clusters.

    Parameters
    ----------
    names : sequence of str
        The options.
    known, novel : array-like
        The gains of each.
    most : int, default=30
        How many options are drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        Two bars per option.

    Examples
    --------
    >>> len(advice_bars(["class 0", "cluster 0"], [0.1, 0.0], [0.0, 0.2]).data)
    2
    """
    go = graph_objects()
    shown = list(names)[:most][::-1]
    figure = go.Figure()
    for name, values, ink in (("known classes", known, KNOWN), ("novel clusters", novel, UNKNOWN)):
        lengths = 100 * np.asarray(values, dtype=float)[:most][::-1]
        figure.add_trace(go.Bar(x=lengths, y=shown, name=name, orientation="h", marker={"color": ink}))
    height = 160 + 22 * len(shown)
    return apply_style(figure, x="predicted lowering of the K-means measure, %", height=height)


def method_ranking(
    names: Sequence[str],
    left_out: Sequence[float | None],
    crossed: Sequence[float | None],
    chosen: Sequence[bool],
    most: int = 40,
) -> Any:
    """Draw the AUROC of methods against both kinds of pseudo-unknown inputs, the best first; chosen ones are filled.

    Examples
    --------
    >>> len(method_ranking(["knn(1)", "msp"], [0.9, 0.8], [0.95, 0.7], [True, False]).data)
    2
    """
    go = graph_objects()
    shown = list(names)[:most][::-1]
    full = list(chosen)[:most][::-1]
    figure = go.Figure()
    for name, values, ink, mark in (
        ("classes left out", left_out, KNOWN, "circle"),
        ("crossed inputs", crossed, UNKNOWN, "diamond"),
    ):
        marker = {"color": ink, "size": 9, "symbol": [mark if one else f"{mark}-open" for one in full]}
        places = list(values)[:most][::-1]
        figure.add_trace(go.Scatter(x=places, y=shown, name=name, mode="markers", marker=marker))
    return apply_style(figure, x="AUROC against pseudo-unknown inputs", height=160 + 20 * len(shown))
