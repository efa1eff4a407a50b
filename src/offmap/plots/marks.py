"""The marks of a drawing in SVG: lines, areas, points, bars and coloured cells inside one panel."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from offmap.plots.axes import Axis

Trace = Mapping[str, Any]
FONT = 13
SHADES = 48  # colours of a heat map without numbers
TOOLTIPS = 200  # points of one series up to which each says its values
LABELLED = 24  # bars up to which each carries its number
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4", "longdashdot": "12 3 2 3"}
SYMBOLS = {  # inside a square of side 2 around the origin
    "circle": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z",
    "diamond": "M0 -1.2L1.2 0L0 1.2L-1.2 0z",
    "square": "M-.9 -.9h1.8v1.8h-1.8z",
    "triangle-up": "M0 -1.1L1.1 .9h-2.2z",
    "x": "M-1 -.6L-.6 -1L0 -.4L.6 -1L1 -.6L.4 0L1 .6L.6 1L0 .4L-.6 1L-1 .6L-.4 0z",
    "cross": "M-.3 -1h.6v.7h.7v.6h-.7v.7h-.6v-.7h-.7v-.6h.7z",
}
HATCHES = {"/": "M0 8L8 0", "\\": "M0 0L8 8", "x": "M0 8L8 0M0 0L8 8", "-": "M0 4h8", "|": "M4 0v8", ".": "M4 4h.1"}


@dataclass(frozen=True)
class Panel:
    """A rectangle in which one pair of axes spans the plane; places count from its upper left corner."""

    x: Axis
    y: Axis
    width: float
    height: float

    def across(self, value: Any) -> float:
        """Return how far from the left edge a value stands."""
        return self.width * self.x.place(value)

    def down(self, value: Any) -> float:
        """Return how far below the upper edge a value stands."""
        return self.height * (1 - self.y.place(value))


def element(tag: str, content: str | None = None, **attributes: Any) -> str:
    """Write one element; `content` is markup, attributes are escaped, `None` leaves one out.

    Examples
    --------
    >>> element("line", x1=0.0, x2=2.126, stroke_width=None, stroke="red")
    '<line x1="0" x2="2.13" stroke="red"/>'
    """
    written = "".join(
        f' {name.strip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}/>" if content is None else f"<{tag}{written}>{content}</{tag}>"


def text(words: Any, x: float, y: float, **attributes: Any) -> str:
    """Write words in the ink of the page."""
    return element("text", escape(str(words)), x=x, y=y, **{"fill": "currentColor", **attributes})


def _attribute(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(str(value))


def values(found: Any) -> list[Any]:
    """Return numbers or names as a plain list."""
    return np.asarray(found).tolist() if isinstance(found, np.ndarray) else list(found)


def places(trace: Trace) -> tuple[list[Any], list[Any]]:
    """Return both coordinates of a series; one that was left out counts from 0."""
    x, y = trace.get("x"), trace.get("y")
    if x is None and y is None:
        return [], []
    xs = range(len(y)) if x is None else x  # type: ignore[arg-type]  # one of them is there
    ys = range(len(x)) if y is None else y  # type: ignore[arg-type]
    return values(xs), values(ys)


def stroke_of(line: Mapping[str, Any], ink: str) -> dict[str, Any]:
    """Return the attributes of a stroke from plotly's description of a line."""
    return {
        "stroke": line.get("color", ink),
        "stroke_width": float(line.get("width", 2)),
        "stroke_dasharray": DASHES.get(line.get("dash", "solid")),
    }


def draw_series(trace: Trace, panel: Panel, ink: str, before: Trace | None) -> list[str]:
    """Draw points of a series, joined or not, with the area below or down to the series `before` it."""
    mode = trace.get("mode", "lines")
    points = [(panel.across(x), panel.down(y)) for x, y in zip(*places(trace), strict=True)]
    made = []
    fill = trace.get("fill")
    if fill in ("tozeroy", "tonexty") and points:
        floor = [(panel.across(x), panel.down(y)) for x, y in zip(*places(before), strict=True)] if before else []
        ground = panel.height if panel.y.log else min(max(panel.down(0), 0.0), panel.height)
        back = floor[::-1] if fill == "tonexty" and floor else [(points[-1][0], ground), (points[0][0], ground)]
        made.append(element("path", d=_path([*points, *back]) + "z", fill=trace.get("fillcolor", ink), stroke="none"))
    line = trace.get("line", {})
    if "lines" in mode and line.get("width", 2) > 0:
        made.append(element("path", d=_path(points), fill="none", stroke_linejoin="round", **stroke_of(line, ink)))
    if "markers" in mode:
        made += _markers(trace, points, ink)
    if "text" in mode:
        shift = {"top": -9, "bottom": 9 + FONT}.get(str(trace.get("textposition", "")).split(" ")[0], FONT / 3)
        words = trace.get("text", "")
        each = [words] * len(points) if isinstance(words, str) else values(words)
        halo = {"fill": "#000", "stroke": "#fff", "stroke_width": 3, "paint_order": "stroke", "text_anchor": "middle"}
        made += [text(word, x, y + shift, **halo) for word, (x, y) in zip(each, points, strict=False)]
    return made


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Join points; one that lies nowhere leaves a gap."""
    parts, pen = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return "".join(parts)


def _markers(trace: Trace, points: Sequence[tuple[float, float]], ink: str) -> list[str]:
    marker = trace.get("marker", {})
    xs, ys = places(trace)
    made = []
    for i, (x, y) in enumerate(points):
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        symbol, colour, size = (
            _one(marker.get(name, default), i) for name, default in (("symbol", "circle"), ("color", ink), ("size", 6))
        )
        hollow = str(symbol).endswith("-open")
        outline = marker.get("line", {})
        radius = float(size) / 2
        say = " ".join(filter(None, (trace.get("name"), f"({_short(xs[i])}, {_short(ys[i])})")))
        made.append(
            element(
                "path",
                element("title", escape(say)) if len(points) <= TOOLTIPS else None,
                d=SYMBOLS.get(str(symbol).removesuffix("-open"), SYMBOLS["circle"]),
                transform=f"translate({x:.1f} {y:.1f}) scale({radius:g})",
                fill="none" if hollow else colour,
                stroke=colour if hollow else outline.get("color"),
                stroke_width=(1.5 if hollow else float(outline.get("width", 0))) / radius,
                opacity=marker.get("opacity"),
            )
        )
    return made


def _one(value: Any, i: int) -> Any:
    """Return the value of one point, where all may have the same."""
    return value if isinstance(value, str | int | float) or value is None else values(value)[i]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_bars(traces: Sequence[Trace], panel: Panel, inks: Sequence[str], name: str) -> list[str]:
    """Draw bars side by side, upright or lying; `name` begins the ids of their hatches."""
    made: list[str] = []
    count = sum(len(places(trace)[0]) for trace in traces)
    for i, (trace, ink) in enumerate(zip(traces, inks, strict=True)):
        lying = trace.get("orientation") == "h"
        marker = trace.get("marker", {})
        hatched = hatch_of(trace)
        if hatched is not None:
            made.append(_hatch(f"{name}-hatch-{i}", marker.get("color", ink), hatched))
        for j, (x, y) in enumerate(zip(*places(trace), strict=True)):
            base, value = (y, x) if lying else (x, y)
            if value is None or not math.isfinite(value):
                continue
            axis = panel.y if lying else panel.x
            band = bar_band(axis, traces) * 0.8 / len(traces)
            middle = axis.place(base) + ((i + 0.5) / len(traces) - 0.5) * band * len(traces) * (-1 if lying else 1)
            start, end = sorted((panel.across(0), panel.across(value)) if lying else (panel.down(0), panel.down(value)))
            box = (
                (start, panel.height * (1 - middle - band / 2), end - start, panel.height * band)
                if lying
                else (panel.width * (middle - band / 2), start, panel.width * band, end - start)
            )
            colour = _one(marker.get("color", ink), j)
            made.append(
                element(
                    "rect",
                    element("title", escape(f"{trace.get('name', '')} {base}: {_short(float(value))}".strip())),
                    x=box[0], y=box[1], width=box[2], height=box[3],
                    fill=colour if hatched is None else f"url(#{name}-hatch-{i})",
                )
            )  # fmt: skip
            if count <= LABELLED:
                word = f"{value:.3g}"
                made.append(
                    text(word, end + 4, box[1] + box[3] / 2 + 4)
                    if lying
                    else text(word, box[0] + box[2] / 2, start - 4, text_anchor="middle")
                )
    return made


def bar_band(axis: Axis, traces: Sequence[Trace]) -> float:
    """Return the share of an axis that belongs to one group of bars."""
    if axis.names:
        return 1 / len(axis.names)
    found = sorted({float(base) for trace in traces for base in places(trace)[trace.get("orientation") == "h"]})
    return min(np.diff(found), default=1.0) / (axis.high - axis.low)


def hatch_of(trace: Trace) -> str | None:
    """Return the strokes of a hatched series of bars, as a path inside a square of side 8."""
    shape = ((trace.get("marker") or {}).get("pattern") or {}).get("shape", "")
    return HATCHES.get(shape) if isinstance(shape, str) else None


def _hatch(name: str, colour: str, path: str) -> str:
    lines = element("path", d=path, stroke="#fff", stroke_width=1.6, stroke_linecap="round", stroke_opacity=0.75)
    area = element("rect", width=8, height=8, fill=colour)
    return element("pattern", area + lines, id=name, width=8, height=8, patternUnits="userSpaceOnUse")


def heat_range(trace: Trace) -> tuple[float, float]:
    """Return the numbers that the ends of the colour scale stand for."""
    grid = np.asarray(trace["z"], dtype=np.float64)
    low, high = np.nanmin(grid), np.nanmax(grid)
    return float(trace.get("zmin", low)), float(trace.get("zmax", high))


def draw_heat(trace: Trace, panel: Panel) -> list[str]:
    """Draw a grid of coloured cells, with their numbers where a template for them is given."""
    grid = np.asarray(trace["z"], dtype=np.float64)
    low, high = heat_range(trace)
    xs, ys = heat_axis(trace, "x", grid.shape[1]), heat_axis(trace, "y", grid.shape[0])
    across = _cells([panel.across(x) for x in xs], panel.width)
    down = _cells([panel.down(y) for y in ys], panel.height)
    template = re.search(r"%\{z:(.*?)\}", trace.get("texttemplate") or "")
    gap = (float(trace.get("xgap", 0)), float(trace.get("ygap", 0)))
    made: list[str] = []
    shades: dict[str, list[str]] = {}
    for row, (top, bottom) in enumerate(down):
        for column, (left, right) in enumerate(across):
            value = grid[row, column]
            if not math.isfinite(value):
                continue
            share = 0.5 if high == low else min(max((value - low) / (high - low), 0.0), 1.0)
            if template is None:
                ink = scale_colour(trace, round(share * SHADES) / SHADES)
                box = f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}z"
                shades.setdefault(_hex(ink), []).append(box)
                continue
            ink = scale_colour(trace, share)
            made.append(
                element("rect", x=left + gap[0] / 2, y=top + gap[1] / 2, width=right - left - gap[0],
                        height=bottom - top - gap[1], fill=_hex(ink))
            )  # fmt: skip
            dark = 0.299 * ink[0] + 0.587 * ink[1] + 0.114 * ink[2] < 140
            made.append(
                text(format(value, template[1]), (left + right) / 2, (top + bottom) / 2 + 4,
                     text_anchor="middle", fill="#fff" if dark else "#000")
            )  # fmt: skip
    return made + [
        element("path", d="".join(boxes), fill=ink, shape_rendering="crispEdges") for ink, boxes in shades.items()
    ]


def heat_axis(trace: Trace, name: str, count: int) -> list[Any]:
    """Return the places of the rows or columns of a grid."""
    found = trace.get(name)
    return list(range(count)) if found is None else values(found)


def _cells(middles: Sequence[float], size: float) -> list[tuple[float, float]]:
    """Return both edges of each cell: halfway to its neighbours."""
    if len(middles) == 1:
        return [(0.0, size)]
    half = [(a + b) / 2 for a, b in pairwise(middles)]
    edges = [2 * middles[0] - half[0], *half, 2 * middles[-1] - half[-1]]
    return [(min(pair), max(pair)) for pair in pairwise(edges)]


def scale_colour(trace: Trace, share: float) -> tuple[float, float, float]:
    """Return the colour at a share of a colour scale, as red, green and blue up to 255."""
    stops = [(float(place), _rgb(colour)) for place, colour in trace["colorscale"]]
    share = 1 - share if trace.get("reversescale") else share
    places_ = [place for place, _ in stops]
    red, green, blue = (float(np.interp(share, places_, [rgb[i] for _, rgb in stops])) for i in range(3))
    return red, green, blue


def _rgb(colour: str) -> tuple[float, float, float]:
    if colour.startswith("#"):
        return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
    red, green, blue = (float(part) for part in re.findall(r"[\d.]+", colour)[:3])
    return red, green, blue


def _hex(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in colour)
