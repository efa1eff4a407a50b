"""Figures say what the numbers say: heights, areas, orders, moments, and refusals in words."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap import plots
from offmap.errors import InputError
from offmap.plots import style


def area(trace) -> float:
    x, y = np.asarray(trace.x), np.asarray(trace.y)
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def test_histogram_densities_integrate_to_one_with_the_tails_kept():
    rng = np.random.default_rng(0)
    known = np.concatenate([rng.normal(5, 1, 3000), [1e6, np.inf]])
    figure = plots.score_histogram(known, {"far": rng.normal(0, 1, 500), "near": rng.normal(4, 1, 700)}, 3.5)
    assert [trace.name for trace in figure.data] == ["known", "far", "near"]
    for trace in figure.data:
        assert area(trace) == pytest.approx(1, abs=1e-4)
    assert max(figure.data[0].x) < 20, "one huge score must not press the rest into one bar"
    assert figure.layout.shapes[0].x0 == 3.5


@pytest.mark.parametrize("constant", [0.0, 1e9, -3.25])
def test_histogram_of_equal_scores(constant):
    figure = plots.score_histogram([constant] * 5, {"x": [constant]})
    assert area(figure.data[0]) == pytest.approx(1, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
)
def test_roc_area_is_the_chance_that_known_scores_higher(known, unknown):
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in known for b in unknown]
    figure = plots.roc_curves({"m": (known, unknown)})
    assert area(figure.data[0]) == pytest.approx(np.mean(wins), abs=1e-3)


def test_roc_curves_are_thinned_but_keep_their_area_and_ends():
    rng = np.random.default_rng(1)
    known, unknown = rng.normal(1, 1, 20000), rng.normal(0, 1, 20000)
    curve = plots.roc_curves({"m": (known, unknown)}).data[0]
    assert len(curve.x) <= 300
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (0, 0, 1, 1)
    assert area(curve) == pytest.approx(0.7602, abs=0.01)


def test_activation_pattern_shows_moments_in_the_order_of_known_means():
    rng = np.random.default_rng(2)
    known = rng.normal(100, 1, (9000, 7)).astype(np.float32) * np.arange(1, 8, dtype=np.float32)
    unknown = rng.exponential(1, (50, 7)).astype(np.float16)
    figure = plots.activation_pattern(known, unknown, clip=2.0)
    upper, lower, mean = figure.data[:3]
    expected = known.astype(np.float64)
    order = np.argsort(-expected.mean(0))
    np.testing.assert_allclose(mean.y, expected.mean(0)[order], rtol=1e-6)
    np.testing.assert_allclose((np.asarray(upper.y) - np.asarray(lower.y)) / 2, expected.std(0)[order], rtol=1e-3)
    np.testing.assert_array_equal(mean.customdata, order)
    plain = plots.activation_pattern(known, unknown, order="index")
    np.testing.assert_allclose(plain.data[5].y, unknown.astype(np.float64).mean(0), atol=1e-5)


def test_heat_puts_the_best_on_top_and_bars_keep_their_groups():
    values = {"b": {"x": 2.0, "y": 4.0}, "a": {"x": 1.0, "y": 1.0}, "c": {"x": 9.0}}
    bars = plots.grouped_bars(values, y="FPR95")
    assert list(bars.data[0].x) == ["b", "a", "c"]
    assert [trace.name for trace in bars.data] == ["x", "y"]
    assert list(bars.data[1].y) == [4.0, 1.0, None]
    assert list(plots.comparison_heat(values, metric="FPR95", best="min").data[0].y) == ["c", "b", "a"]
    heat = plots.comparison_heat(values, metric="AUROC", best="max")
    assert list(heat.data[0].y) == ["a", "b", "c"]
    assert np.isnan(heat.data[0].z[2][1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plots.score_histogram([], {}), "id_scores: empty"),
        (lambda: plots.roc_curves({"m": ([1.0], [np.nan])}), "NaN"),
        (lambda: plots.activation_pattern(np.ones((2, 3)), np.ones((2, 4))), "3 units on known"),
        (lambda: plots.activation_pattern(np.ones(3), np.ones((2, 3))), "inputs × units"),
        (lambda: plots.comparison_heat({}, metric="x", best="min"), "no numbers"),
        (lambda: plots.comparison_heat({"a": {"s": 1.0}}, metric="x", best="up"), "best='up'"),
    ],
)
def test_refusals_say_what_is_wrong(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_no_two_lines_look_alike():
    looks = [(style.colour(i), style.dash(i)) for i in range(48)]
    assert len(set(looks)) == 48


def test_importing_plots_does_not_import_plotly():
    code = "import sys, offmap.plots; assert not {'plotly', 'sklearn', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
