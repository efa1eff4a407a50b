"""A plotly figure drawn as SVG, small and without a script, so that a page can hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.errors import InputError
from offmap.plots.axes import Axis, make_axis
from offmap.plots.marks import (
    FONT,
    SYMBOLS,
    Panel,
    Trace,
    draw_bars,
    draw_heat,
    draw_series,
    element,
    hatch_of,
    heat_axis,
    heat_range,
    places,
    scale_colour,
    stroke_of,
    text,
)
from offmap.plots.style import HEIGHT, PALETTE

WIDTH = 960.0
LETTER = 0.56 * FONT  # the mean width of a letter
LONGEST = 44  # letters of a name beside an axis
LEGEND_LINE = 20.0
KINDS = ("scatter", "bar", "heatmap", "contour")
HEAT = ("heatmap", "contour")


def draw_svg(figure: Any, *, label: str = "", name: str = "figure", paper: str | None = None) -> str:
    """Draw a figure of series, bars or coloured cells; a contour is drawn as cells.

    Text and axes have the ink of what surrounds them (``currentColor``), so a page can be light, dark or printed.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
        Of traces `Scatter`, `Bar`, `Heatmap` and `Contour`, in one panel or several.
    label : str, default=""
        What it shows, for those who cannot see it.
    name : str, default="figure"
        Beginning of the ids inside; another one for each figure of a page.
    paper : str or None, default=None
        The colour behind it, for a file of its own.

    Returns
    -------
    str
        One ``svg`` element.

    Examples
    --------
    >>> from offmap.plots import grouped_bars
    >>> drawn = draw_svg(grouped_bars({"digits": {"plain": 40.0, "clipped": 30.0}}, y="FPR95"))
    >>> drawn[:5], drawn.count("<title>")
    ('<svg ', 2)
    """
    traces = [trace.to_plotly_json() for trace in figure.data]
    layout = figure.layout.to_plotly_json()
    _check(traces, layout)
    inks = [_ink(trace, i) for i, trace in enumerate(traces)]
    axes = {key: _axis(key, traces, layout) for key in _axis_keys(traces)}
    legend, legend_height = _legend(traces, inks, layout)
    title = (layout.get("title") or {}).get("text")
    height = float(layout.get("height") or HEIGHT)
    top = (30.0 if title else 8.0) + legend_height
    area = _area(traces, layout, axes, top, height)
    parts = []
    if paper is not None:
        parts.append(element("rect", width="100%", height="100%", fill=paper))
    if title:
        parts.append(text(title, area.left, 20, font_size=15))
    parts.append(element("g", legend, transform=f"translate({area.left:.1f} {30 if title else 8})"))
    for x_key, y_key in dict.fromkeys(_keys(trace) for trace in traces):
        parts += _draw_panel(area, axes, (x_key, y_key), traces, inks, layout, name)
    parts += _shapes(area, axes, layout)
    parts += [_colour_bar(trace, area) for trace in traces if trace["type"] in HEAT]
    own = {"xmlns": "http://www.w3.org/2000/svg", "font_family": "sans-serif", "color": "#222"} if paper else {}
    head = {"viewBox": f"0 0 {WIDTH:.0f} {height:.0f}", "role": "img", "aria_label": label or title, **own}
    return element("svg", "\n".join(parts), font_size=FONT, **head)


@dataclass(frozen=True)
class _Area:
    """Where the panels are, inside the margins."""

    left: float
    top: float
    width: float
    height: float

    def part(self, key: str, layout: Mapping[str, Any]) -> tuple[float, float]:
        """Return the start and the length of an axis, from the left or from above."""
        low, high = _options(key, layout).get("domain") or (0.0, 1.0)
        if key.startswith("x"):
            return self.left + low * self.width, (high - low) * self.width
        return self.top + (1 - high) * self.height, (high - low) * self.height


def _check(traces: Sequence[Trace], layout: Mapping[str, Any]) -> None:
    for trace in traces:
        if trace["type"] not in KINDS:
            raise InputError(
                f"a figure with a trace of kind {trace['type']!r}: a page draws {', '.join(KINDS)}; "
                "write others by their own write_html"
            )
    bars = sum(trace["type"] == "bar" for trace in traces)
    if bars > 1 and layout.get("barmode", "group") != "group":
        raise InputError(f"barmode={layout['barmode']!r}: a page draws bars side by side, barmode='group'")


def _ink(trace: Trace, i: int) -> str:
    for part in ("line", "marker"):
        colour = (trace.get(part) or {}).get("color")
        if isinstance(colour, str):
            return colour
    return PALETTE[i % len(PALETTE)]


def _keys(trace: Trace) -> tuple[str, str]:
    return trace.get("xaxis") or "x", trace.get("yaxis") or "y"


def _axis_keys(traces: Sequence[Trace]) -> list[str]:
    return list(dict.fromkeys(key for trace in traces for key in _keys(trace)))


def _options(key: str, layout: Mapping[str, Any]) -> Mapping[str, Any]:
    return layout.get(f"{key[0]}axis{key[1:]}") or {}


def _axis(key: str, traces: Sequence[Trace], layout: Mapping[str, Any]) -> Axis:
    """Make one axis; those that match another share its limits."""
    group = {key, _options(key, layout).get("matches") or key}
    group |= {other for other in _axis_keys(traces) if (_options(other, layout).get("matches") or other) in group}
    place = "xy".index(key[0])
    shown = [trace for trace in traces if _keys(trace)[place] in group]
    found: list[Any] = []
    start = None
    for trace in shown:
        if trace["type"] in HEAT:
            found += _with_edges(heat_axis(trace, key[0], np.asarray(trace["z"]).shape[1 - place]))
        elif trace["type"] == "bar" and place == (trace.get("orientation") == "h"):
            found += _with_edges(places(trace)[place])
        else:
            found += places(trace)[place]
            if trace["type"] == "bar" or (key[0] == "y" and trace.get("fill") == "tozeroy"):
                start = 0.0
    lines = all(trace["type"] == "scatter" and "markers" not in trace.get("mode", "lines") for trace in shown)
    tight = (lines and key[0] == "x") or any(trace["type"] in HEAT for trace in shown)
    return make_axis(found, _options(key, layout), start=start, tight=tight)


def _with_edges(middles: list[Any]) -> list[Any]:
    """Add half a cell to either side of numbers; names have room already."""
    if not middles or any(isinstance(middle, str) for middle in middles):
        return middles
    half = min(np.diff(np.unique(middles)), default=1.0) / 2
    return [min(middles) - half, *middles, max(middles) + half]


def _legend(traces: Sequence[Trace], inks: Sequence[str], layout: Mapping[str, Any]) -> tuple[str, float]:
    """Write the names of the series, as many on a line as fit; also the height of all lines."""
    named = [
        (trace, ink)
        for trace, ink in zip(traces, inks, strict=True)
        if trace.get("name") and trace.get("showlegend", True) and trace["type"] not in HEAT
    ]
    if len(named) < 2 or layout.get("showlegend") is False:
        return "", 0.0
    parts, x, y = [], 0.0, 0.0
    for trace, ink in named:
        shown = _cut(trace["name"], 2 * LONGEST)
        width = 34 + LETTER * len(shown) + 18
        if x and x + width > WIDTH - 80:
            x, y = 0.0, y + LEGEND_LINE
        parts.append(_swatch(trace, ink, x, y + 8))
        parts.append(text(shown, x + 34, y + 12))
        x += width
    return "".join(parts), y + LEGEND_LINE + 4


def _swatch(trace: Trace, ink: str, x: float, y: float) -> str:
    if trace["type"] == "bar":
        box = element("rect", x=x + 8, y=y - 6, width=16, height=12, fill=ink)
        strokes: dict[str, Any] = {"stroke": "#fff", "stroke_width": 1.4, "fill": "none"}
        moved = f"translate({x + 8:.1f} {y - 4:.1f})"
        lines = element("path", d=hatch_of(trace), transform=moved, **strokes)
        return box + lines if hatch_of(trace) else box
    made, mode = "", trace.get("mode", "lines")
    if trace.get("fill"):
        made += element("rect", x=x, y=y - 6, width=28, height=12, fill=trace.get("fillcolor", ink))
    if "lines" in mode:
        made += element("line", x1=x, x2=x + 28, y1=y, y2=y, **stroke_of(trace.get("line") or {}, ink))
    if "markers" in mode:
        symbol = (trace.get("marker") or {}).get("symbol", "circle")
        shape = SYMBOLS.get(str(symbol if isinstance(symbol, str) else symbol[0]).removesuffix("-open"))
        made += element("path", d=shape, transform=f"translate({x + 14:.1f} {y:.1f}) scale(4)", fill=ink)
    return made


def _area(
    traces: Sequence[Trace], layout: Mapping[str, Any], axes: Mapping[str, Axis], top: float, height: float
) -> _Area:
    """Leave room for what is written beside the axes."""
    left, bottom = 16.0, 24.0
    for key, axis in axes.items():
        titled = bool((_options(key, layout).get("title") or {}).get("text"))
        if key.startswith("y"):
            longest = max((len(_cut(word)) for _, word in axis.ticks()), default=0)
            left = max(left, 14 + LETTER * longest + (22 if titled else 0))
        else:
            bottom = max(bottom, 24 + (22 if titled else 0) + (40 if _slanted(axis) else 0))
    right = 96.0 if any(trace["type"] in HEAT for trace in traces) else 18.0
    return _Area(left, top, WIDTH - left - right, height - top - bottom)


def _cut(word: str, longest: int = LONGEST) -> str:
    """Shorten a name in its middle: beginnings tell methods apart, and the end of a legend holds a number."""
    return word if len(word) <= longest else f"{word[: longest - 9]}…{word[-8:]}"


def _slanted(axis: Axis) -> bool:
    """Return whether names are too long to stand side by side."""
    return bool(axis.names) and max(map(len, axis.names)) * LETTER > 0.8 * WIDTH / len(axis.names)


def _draw_panel(
    area: _Area,
    axes: Mapping[str, Axis],
    keys: tuple[str, str],
    traces: Sequence[Trace],
    inks: Sequence[str],
    layout: Mapping[str, Any],
    name: str,
) -> list[str]:
    """Draw the grid, the marks and the words of one pair of axes."""
    (left, width), (top, height) = area.part(keys[0], layout), area.part(keys[1], layout)
    panel = Panel(axes[keys[0]], axes[keys[1]], width, height)
    mine = [(trace, ink) for trace, ink in zip(traces, inks, strict=True) if _keys(trace) == keys]
    parts = _grid(panel, left, top, keys, layout, any(trace["type"] in HEAT for trace, _ in mine))
    marks: list[str] = []
    before: Trace | None = None
    for trace, ink in mine:
        if trace["type"] == "scatter":
            marks += draw_series(trace, panel, ink, before)
            before = trace
        elif trace["type"] in HEAT:
            marks += draw_heat(trace, panel)
    if bars := [(trace, ink) for trace, ink in mine if trace["type"] == "bar"]:
        marks += draw_bars([trace for trace, _ in bars], panel, [ink for _, ink in bars], name)
    # An inner svg cuts off what lies beyond the axes.
    parts.append(element("svg", "".join(marks), x=left, y=top, width=width, height=height))
    return parts


def _grid(
    panel: Panel, left: float, top: float, keys: tuple[str, str], layout: Mapping[str, Any], covered: bool
) -> list[str]:
    faint: dict[str, Any] = {"stroke": "currentColor", "stroke_opacity": 0.16}
    right, bottom = left + panel.width, top + panel.height
    across, down = (_options(key, layout) for key in keys)
    parts = []
    for share, word in panel.y.ticks():
        y = top + panel.height * (1 - share)
        if not covered:
            parts.append(element("line", x1=left, x2=right, y1=y, y2=y, **faint))
        if down.get("showticklabels", True):
            parts.append(text(_cut(word), left - 8, y + 4, text_anchor="end"))
    slanted = _slanted(panel.x)
    for share, word in panel.x.ticks():
        x = left + panel.width * share
        if not covered and not panel.x.names:
            parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, **faint))
        if across.get("showticklabels", True):
            turn = {"text_anchor": "end", "transform": f"rotate(-20 {x:.1f} {bottom + 16:.1f})"} if slanted else {}
            parts.append(text(_cut(word), x, bottom + 16, **{"text_anchor": "middle", **turn}))
    if words := (across.get("title") or {}).get("text"):
        under = bottom + (78 if slanted else 38)
        parts.append(text(words, left + panel.width / 2, under, text_anchor="middle"))
    if words := (down.get("title") or {}).get("text"):
        middle = top + panel.height / 2
        parts.append(text(words, 0, 0, text_anchor="middle", transform=f"translate(14 {middle:.1f}) rotate(-90)"))
    return parts


def _shapes(area: _Area, axes: Mapping[str, Axis], layout: Mapping[str, Any]) -> list[str]:
    """Draw the lines and the words that were put over the panels."""
    parts = []
    for shape in layout.get("shapes") or ():
        x0, x1 = (_position(area, axes, layout, "x", shape.get("xref"), shape[end]) for end in ("x0", "x1"))
        y0, y1 = (_position(area, axes, layout, "y", shape.get("yref"), shape[end]) for end in ("y0", "y1"))
        if shape.get("type") == "rect":
            box: dict[str, Any] = {"x": min(x0, x1), "y": min(y0, y1), "width": abs(x1 - x0), "height": abs(y1 - y0)}
            parts.append(element("rect", fill=shape.get("fillcolor", "none"), opacity=shape.get("opacity"), **box))
        else:
            line = stroke_of(shape.get("line") or {}, "currentColor")
            parts.append(element("line", x1=x0, x2=x1, y1=y0, y2=y1, **line))
    for note in layout.get("annotations") or ():
        x = _position(area, axes, layout, "x", note.get("xref"), note["x"])
        y = _position(area, axes, layout, "y", note.get("yref"), note["y"])
        anchor = {"left": "start", "right": "end"}.get(note.get("xanchor", ""), "middle")
        lower = {"top": FONT + 2, "bottom": -4}.get(note.get("yanchor", ""), FONT / 3)
        words = str(note.get("text", ""))
        gap = 6 * (anchor == "start") - 6 * (anchor == "end")
        parts.append(text(words.strip(), x + gap, y + lower, text_anchor=anchor))
    return parts


def _position(
    area: _Area, axes: Mapping[str, Axis], layout: Mapping[str, Any], direction: str, ref: str | None, value: Any
) -> float:
    """Return where a value lies that counts along an axis, its panel (`x domain`) or the whole figure (`paper`)."""
    key = (ref or direction).split(" ")[0]
    if key == "paper":
        start, length = (area.left, area.width) if direction == "x" else (area.top, area.height)
        share = float(value)
    else:
        start, length = area.part(key, layout)
        share = float(value) if (ref or "").endswith("domain") else axes[key].place(value)
    return start + length * (share if direction == "x" else 1 - share)


def _colour_bar(trace: Trace, area: _Area) -> str:
    """Draw the scale of the colours at the right, its largest number on top."""
    if trace.get("showscale") is False:
        return ""
    low, high = heat_range(trace)
    left, steps = area.left + area.width + 14, 40
    size = min(area.height, 220.0)
    boxes = []
    for step in range(steps):
        red, green, blue = (round(part) for part in scale_colour(trace, 1 - (step + 0.5) / steps))
        top = area.top + size * step / steps
        boxes.append(
            element("rect", x=left, y=top, width=12, height=size / steps + 0.5, fill=f"rgb({red},{green},{blue})")
        )
    title = ((trace.get("colorbar") or {}).get("title") or {}).get("text", "")
    words = [
        text(f"{high:.3g}", left + 18, area.top + 10),
        text(f"{low:.3g}", left + 18, area.top + size),
        text(title, left, area.top + size + 18),
    ]
    return "".join([*boxes, *words])
