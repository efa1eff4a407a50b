"""Figures of scores: how they spread, and what each threshold buys. Higher scores mean known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.plots.figures import FIGURES
from offmap.plots.style import KNOWN, apply_style, colour, dash, faint, graph_objects

Scores = npt.ArrayLike
TAIL = 0.2  # per cent of scores at each end that may lie beyond the drawn range
POINTS = 300  # a curve shows no more than this on paper, and a page stays light


@FIGURES.register("score_histogram")
def score_histogram(
    id_scores: Scores,
    ood_scores: Mapping[str, Scores],
    threshold: float | None = None,
    *,
    bins: int | None = None,
    title: str = "",
) -> Any:
    """Draw the density of scores on known inputs and on each unknown set, and the threshold between them.

    Parameters
    ----------
    id_scores : Scores
        Scores of inputs from known classes.
    ood_scores : mapping of str to Scores
        Scores of unknown inputs, by the name of their set.
    threshold : float or None, default=None
        λ: inputs that score at least this are taken for known.
    bins : int or None, default=None
        Steps over the drawn range; the outermost collect the few scores beyond it. By default 12 to 60,
        more when there are many scores.
    title : str, default=""
        Written above the figure.

    Returns
    -------
    plotly.graph_objects.Figure

    Examples
    --------
    >>> figure = score_histogram([2.0, 3.0, 4.0], {"noise": [0.0, 1.0]}, threshold=1.5, bins=4)
    >>> [trace.name for trace in figure.data]
    ['known', 'noise']
    """
    go = graph_objects()
    known = _scores(id_scores, "id_scores")
    unknown = {name: _scores(scores, f"ood_scores[{name!r}]") for name, scores in ood_scores.items()}
    fewest = min(map(len, [known, *unknown.values()]))
    steps = int(np.clip(2 * np.sqrt(fewest), 12, 60)) if bins is None else bins
    edges = _edges([known, *unknown.values()], threshold, steps)
    figure = go.Figure()
    figure.add_trace(_density(go, known, edges, "known", KNOWN))
    for i, (name, scores) in enumerate(unknown.items(), start=1):
        figure.add_trace(_density(go, scores, edges, name, colour(i)))
    if threshold is not None:
        figure.add_vline(x=threshold, line={"color": "#7F7F7F", "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=threshold, y=1, yref="paper", yanchor="top", xanchor="left", showarrow=False, text=" known →"
        )
    return apply_style(figure, x="score", y="density", title=title)


def roc_curves(scores: Mapping[str, tuple[Scores, Scores]], *, title: str = "") -> Any:
    """Draw one curve per method: the share of known inputs kept against the share of unknown inputs let in.

    Parameters
    ----------
    scores : mapping of str to tuple of 2 Scores
        By method: the scores of known inputs and the scores of unknown ones.
    title : str, default=""
        Written above the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        The legend carries each method's area under the curve, best first.

    Examples
    --------
    >>> figure = roc_curves({"msp": ([0.9, 0.8], [0.1, 0.85]), "energy": ([3.0, 2.0], [1.0, 0.0])})
    >>> [trace.name for trace in figure.data][:2]
    ['energy  100.0', 'msp  75.0']
    """
    from sklearn.metrics import auc

    go = graph_objects()
    curves = []
    for name, (known, unknown) in scores.items():
        fpr, tpr = _roc(_scores(known, f"{name}: known"), _scores(unknown, f"{name}: unknown"))
        curves.append((float(auc(fpr, tpr)), name, *_thinned(fpr, tpr)))
    figure = go.Figure()
    for i, (area, name, fpr, tpr) in enumerate(sorted(curves, key=lambda curve: (-curve[0], curve[1]))):
        figure.add_trace(
            go.Scatter(
                x=fpr,
                y=tpr,
                mode="lines",
                name=f"{name}  {100 * area:.1f}",
                line={"color": colour(i), "dash": dash(i), "width": 2},
            )
        )
    figure.add_trace(
        go.Scatter(
            x=[0, 1],
            y=[0, 1],
            mode="lines",
            name="chance",
            showlegend=False,
            hoverinfo="skip",
            line={"color": "#7F7F7F", "width": 1, "dash": "dot"},
        )
    )
    apply_style(figure, x="unknown inputs let in", y="known inputs kept", title=title, height=500)
    figure.update_xaxes(range=[0, 1.005], tickformat=".0%")
    figure.update_yaxes(range=[0, 1.005], tickformat=".0%")
    return figure


def _scores(values: Scores, name: str) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if not array.size:
        raise InputError(f"{name}: empty; at least one score is needed to draw it")
    if np.isnan(array).any():
        raise InputError(f"{name}: holds NaN; scores are numbers")
    return array


def _edges(groups: list[npt.NDArray[np.float64]], threshold: float | None, bins: int) -> npt.NDArray[np.float64]:
    """Equal bins over all groups but for their extreme tails, which would press the rest into one bar."""
    finite = [group[np.isfinite(group)] for group in groups]
    ends = [np.percentile(group, [TAIL, 100 - TAIL]) for group in finite if group.size]
    low, high = (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (0.0, 1.0)
    if threshold is not None and np.isfinite(threshold):
        low, high = min(low, threshold), max(high, threshold)
    margin = 0.02 * (high - low) or 0.5
    return np.linspace(low - margin, high + margin, bins + 1)


def _density(go: Any, scores: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], name: str, ink: str) -> Any:
    counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), bins=edges)
    heights = counts / (counts.sum() * np.diff(edges))
    return go.Scatter(
        x=np.repeat(edges, 2)[1:-1].round(6),
        y=np.repeat(heights, 2).round(6),
        name=name,
        mode="lines",
        line={"color": ink, "width": 1.5},
        fill="tozeroy",
        fillcolor=faint(ink, 0.22),
    )


def _roc(known: npt.NDArray[np.float64], unknown: npt.NDArray[np.float64]) -> tuple[Any, Any]:
    from sklearn.metrics import roc_curve

    truth = np.concatenate([np.ones(len(known), int), np.zeros(len(unknown), int)])
    scores = np.concatenate([known, unknown])
    order = np.unique(scores, return_inverse=True)[1]  # ranks: exact on ties, and infinite scores are allowed
    fpr, tpr, _ = roc_curve(truth, order)
    return fpr, tpr


def _thinned(fpr: Any, tpr: Any) -> tuple[Any, Any]:
    """At most `POINTS` points, spread evenly along the curve, its ends kept."""
    if len(fpr) > POINTS:
        along = np.concatenate([[0], np.cumsum(np.abs(np.diff(fpr)) + np.abs(np.diff(tpr)))])
        kept = np.unique(np.searchsorted(along, np.linspace(0, along[-1], POINTS)).clip(max=len(fpr) - 1))
        fpr, tpr = fpr[kept], tpr[kept]
    return np.round(fpr, 5), np.round(tpr, 5)
