"""Figures drawn as SVG: marks stand where the numbers say, all figures can be drawn, and nothing becomes markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap import plots
from offmap.errors import InputError
from offmap.plots import theory
from offmap.plots.axes import make_axis, round_numbers
from offmap.plots.marks import Panel
from offmap.plots.svg import draw_svg

rng = np.random.default_rng(0)
known, unknown = rng.normal(3, 1, 200), rng.normal(0, 1, 100)
FIGURES = {
    "histogram": lambda: plots.score_histogram(known, {"far": unknown}, 1.2),
    "roc": lambda: plots.roc_curves({"energy": (known, unknown), "msp": (known, unknown + 1)}),
    "pattern": lambda: plots.activation_pattern(rng.random((9, 30)), rng.random((9, 30)), clip=0.9),
    "bars": lambda: plots.grouped_bars({"a": {"s": 1.0, "t": 2.0}, "b": {"s": 2.0}}, y="FPR95"),
    "heat": lambda: plots.comparison_heat({"a": {"s": 1.0}, "b": {"s": 2.0, "t": 3.0}}, metric="m", best="min"),
    "pairs": lambda: plots.paired_dots({"msp": (1.0, 2.0)}, names=("here", "thesis"), x="FPR95"),
    "surface": lambda: theory.reduction_surface([0.5, 1], [-0.4, 0], [[0.1, 0.4], [0.05, 0.2]], {"known": (0.6, 0)}),
    "moments": lambda: theory.unit_moments(rng.random((2, 9)), rng.random((2, 9)), clip=0.5),
    "sparsity": lambda: theory.sparsity_curves([0, 0.5], [0, 0.3], [0, 0.1], [1, 1.2]),
    "densities": lambda: theory.log_densities(known, unknown),
    "spectrum": lambda: theory.spectrum([1.0, 0.9, 0.2], gap=2),
    "advice": lambda: theory.advice_bars(["a", "b"], [0.1, 0.0], [0.0, 0.2]),
    "ranking": lambda: theory.method_ranking(["a", "b"], [0.9, None], [0.95, 0.7], [True, False]),
}


def parse(figure, **options) -> ET.Element:
    return ET.fromstring(draw_svg(figure, **options))


def words(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_of_offmap_is_drawn_within_its_frame(name):
    root = parse(FIGURES[name](), label="a figure")
    _, _, width, height = map(float, root.get("viewBox").split())
    panels = root.findall("svg")
    assert panels
    for panel in panels:
        x, y, w, h = (float(panel.get(key)) for key in ("x", "y", "width", "height"))
        assert min(x, y) >= 0
        assert min(w, h) > 40
        assert x + w <= width
        assert y + h <= height
        assert len(panel) >= 1
    assert "nan" not in ET.tostring(root, "unicode").lower()


def test_points_stand_where_their_numbers_say():
    root = parse(go.Figure(go.Scatter(x=[0, 1, 4], y=[0.0, 2.0, 1.0], mode="markers")))
    spots = [
        tuple(map(float, re.match(r"translate\(([\d.]+) ([\d.]+)\)", mark.get("transform")).groups()))
        for mark in root.find("svg")
    ]
    assert (spots[1][0] - spots[0][0]) / (spots[2][0] - spots[0][0]) == pytest.approx(0.25, abs=0.001)
    assert (spots[0][1] - spots[2][1]) / (spots[0][1] - spots[1][1]) == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(("orientation", "side"), [("v", "height"), ("h", "width")])
def test_bars_are_as_long_as_their_numbers(orientation, side):
    names, numbers = ["a", "b", "c"], [10.0, 20.0, 0.0]
    bar = go.Bar(x=names, y=numbers) if orientation == "v" else go.Bar(y=names, x=numbers, orientation="h")
    lengths = [float(box.get(side)) for box in parse(go.Figure(bar)).find("svg").iter("rect")]
    assert lengths[1] == pytest.approx(2 * lengths[0], rel=1e-3)
    assert lengths[2] == 0


def test_cells_carry_their_numbers_and_the_scale_its_ends():
    root = parse(plots.comparison_heat({"a": {"s": 1.0}, "b": {"s": 25.5}}, metric="FPR95", best="min"))
    assert {"1.0", "25.5", "1", "FPR95", "a", "b", "s"} <= set(words(root))


def test_a_gap_in_a_line_stays_a_gap():
    root = parse(go.Figure(go.Scatter(x=[0, 1, 2, 3], y=[1, 2, None, 1], mode="lines")))
    assert root.find("svg").find("path").get("d").count("M") == 2


def test_matching_axes_have_the_same_limits():
    figure = plots.activation_pattern(rng.random((9, 5)), 10 * rng.random((9, 5)))
    ticks = [word for word in words(parse(figure)) if re.fullmatch(r"-?\d+", word)]
    assert ticks.count("6") == 2


def test_nothing_given_becomes_markup():
    evil = "<script>alert(1)</script>&\"'"
    figure = go.Figure(
        [go.Scatter(x=[evil], y=[1], name=evil, mode="markers+text", text=[evil]), go.Bar(x=[evil], y=[1])]
    )
    figure.update_layout(title={"text": evil}, xaxis={"title": {"text": evil}})
    figure.add_annotation(x=evil, y=1, text=evil)
    drawn = draw_svg(figure, label=evil)
    assert "<script" not in drawn
    assert evil in words(ET.fromstring(drawn))


def test_a_file_of_its_own_has_paper_and_a_namespace():
    drawn = draw_svg(FIGURES["bars"](), paper="white")
    assert ET.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        (go.Figure(go.Violin(y=[1, 2])), "kind 'violin'"),
        (go.Figure([go.Bar(y=[1]), go.Bar(y=[2])], {"barmode": "stack"}), "barmode='stack'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(figure, problem):
    with pytest.raises(InputError, match=problem):
        draw_svg(figure)


@settings(deadline=None)
@given(st.lists(st.floats(-1e12, 1e12, allow_nan=False, allow_subnormal=False), min_size=1, max_size=9))
def test_any_numbers_fit_on_an_axis_with_round_ticks(numbers):
    axis = make_axis(numbers, {}, tight=False)
    assert all(-1e-9 <= axis.place(number) <= 1 + 1e-9 for number in numbers)
    shares = [share for share, _ in axis.ticks()]
    assert 1 <= len(shares) <= 9
    assert shares == sorted(shares)


def test_logarithmic_and_turned_axes():
    axis = make_axis([1, 100], {"type": "log"}, tight=True)
    assert [axis.place(value) for value in (1, 10, 100)] == pytest.approx([0, 0.5, 1])
    assert [word for _, word in axis.ticks()] == ["1", "10", "100"]
    assert make_axis([0, 4], {"autorange": "reversed"}, tight=True).place(1) == 0.75
    assert Panel(axis, make_axis([0, 1], {}, tight=True), 200, 100).down(1) == 0
    assert round_numbers(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
