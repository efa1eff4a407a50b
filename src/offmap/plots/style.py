"""How every figure looks: colours that colour-blind readers tell apart, and one layout."""

from __future__ import annotations

from typing import Any

from offmap.errors import DependencyError

# Okabe & Ito (2008), "Color Universal Design". Black is a middle grey here, so that it shows on dark paper
# too, and yellow comes last because it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#7F7F7F", "#F0E442")
KNOWN, UNKNOWN = PALETTE[0], PALETTE[1]
# Lines differ in their dashes too: colour is never the only sign.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
HEIGHT = 420


def graph_objects() -> Any:
    """Return Plotly's `graph_objects`, or an error that says how to get it."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise DependencyError("figures need plotly, which is not installed: pip install 'offmap[report]'") from error
    return go


def colour(i: int) -> str:
    """Return the i-th colour of the palette, beginning again after the last.

    Parameters
    ----------
    i : int
        Number of the series.

    Returns
    -------
    str
        Such as ``"#1f77b4"``.
    """
    return PALETTE[i % len(PALETTE)]


def dash(i: int) -> str:
    """Return the dashes of the i-th line, shifted when the colours begin again: no two of 48 lines look alike.

    Parameters
    ----------
    i : int
        Number of the line.

    Returns
    -------
    str
        A dash style of plotly.
    """
    return DASHES[(i // len(PALETTE) + i % len(PALETTE)) % len(DASHES)]


def faint(hex_colour: str, alpha: float) -> str:
    """Make a colour translucent, for areas.

    Parameters
    ----------
    hex_colour : str
        Such as ``"#1f77b4"``.
    alpha : float
        Opacity, from 0 to 1.

    Returns
    -------
    str
        Such as ``"rgba(31,119,180,0.2)"``.

    Examples
    --------
    >>> faint("#0072B2", 0.25)
    'rgba(0,114,178,0.25)'
    """
    red, green, blue = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def apply_style(figure: Any, *, x: str = "", y: str = "", title: str = "", height: int = HEIGHT) -> Any:
    """Give a figure the margins, legend and axes that all figures have.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
        Changed in place.
    x, y : str, default=""
        Titles of the axes.
    title : str, default=""
        Title of the figure.
    height : int, optional
        In pixels.

    Returns
    -------
    plotly.graph_objects.Figure
        The same figure.
    """
    figure.update_layout(
        template="none",
        colorway=list(PALETTE),
        height=height,
        margin={"l": 64, "r": 16, "t": 56 if title else 36, "b": 56},
        title={"text": title, "x": 0, "xanchor": "left", "font": {"size": 15}} if title else None,
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
            "title": {"text": ""},
        },
        font={"size": 13},
        hovermode="closest",
    )
    figure.update_xaxes(gridcolor="rgba(127,127,127,0.25)", zeroline=False, automargin=True)
    figure.update_yaxes(gridcolor="rgba(127,127,127,0.25)", zeroline=False, automargin=True)
    if x:
        figure.update_xaxes(title_text=x)
    if y:
        figure.update_yaxes(title_text=y)
    return figure
