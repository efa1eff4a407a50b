"""A page is one safe file: escaped, self-contained, reproducible, written whole or not at all."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from offmap.errors import InputError, StoreError
from offmap.report import Page, versions

EVIL = "<script>alert(1)</script>&\"'"


def full_page() -> Page:
    return (
        Page(EVIL, f"summary {EVIL}")
        .section(EVIL)
        .text(EVIL)
        .table([EVIL, "n"], [[EVIL, 1.5], {"n": 2.5}], best={"n": "max"}, caption=EVIL)
        .figure(go.Figure(go.Bar(x=[EVIL], y=[1])), EVIL)
        .gallery([np.zeros((4, 4), np.uint8), EVIL], [EVIL, EVIL], caption=EVIL)
        .settings({EVIL: {"a": EVIL}}, title=EVIL)
    )


def test_nothing_given_becomes_markup():
    html = full_page().html()
    assert "alert(1)</script>" not in html
    assert html.count("<script") == html.count("</script>")


def test_a_page_asks_for_nothing_from_outside():
    html = full_page().html()
    for outside in ("http://", "https://", "//cdn", "@import", "url("):
        assert outside not in html.replace("http-equiv", "")
    assert "default-src 'none'" in html


def test_figures_are_light_and_need_no_script():
    bare, drawn = Page("p").text("x").html(), Page("p").figure(go.Figure(go.Bar(y=[1]))).html()
    assert len(drawn) - len(bare) < 5_000
    assert drawn.count("<script") == bare.count("<script") == 1


def test_same_parts_give_the_same_text():
    assert full_page().html() == full_page().html()


@given(st.text())
def test_any_text_is_escaped_and_kept(text):
    from html import unescape

    from offmap.report.inline import markup

    html = str(markup(text))
    tags = set(re.findall(r"<[^>]*>", html))
    assert tags <= {f"<{end}{tag}>" for tag in ("p", "ul", "li", "strong", "em", "code") for end in ("", "/")}
    letters = re.sub(r"[\s`*\-]", "", text)
    assert re.sub(r"[\s`*\-]", "", unescape(re.sub(r"<[^>]*>", "", html))) == letters


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 4)])
def test_pictures_come_back_as_they_were(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    html = Page("p").gallery([image]).html()
    data = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)
    assert data is not None
    back = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1]))))
    np.testing.assert_array_equal(back, image.squeeze())


def test_best_values_are_marked_and_gaps_shown():
    html = (
        Page("p")
        .table(
            ["m", "fpr", "n"],
            [["a", 4.2, 1], ["b", 4.204, 22], ["c", None, 3], ["d", float("nan"), 4]],
            best={"fpr": "min", "n": "max"},
        )
        .html()
    )
    best = re.findall(r'<td class="number best"[^>]*>([^<]*)</td>', html)
    assert best == ["4.20", "4.20", "22"]
    assert ">–</td>" in html
    alike = Page("p").table(["n"], [[1.0], [1.0], [1.0], [0.5]], best={"n": "max"}).html()
    assert '"number best"' not in alike, "a mark on most of a column tells nothing"
    assert '<td class="number" data-value="1.0">1</td>' in html


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.table(["a"], [[1, 2]]), "2 cells under 1 columns"),
        (lambda p: p.table(["a"], [{"b": 1}]), "'b'"),
        (lambda p: p.table(["a"], [], best={"b": "max"}), "no column is named 'b'"),
        (lambda p: p.figure("plot.png"), "a plotly figure is needed"),
        (lambda p: p.figure(go.Figure(go.Pie(values=[1]))), "kind 'pie': a page draws scatter, bar"),
        (lambda p: p.gallery([np.zeros((2, 2))]), "float64"),
        (lambda p: p.gallery([np.zeros((2, 2, 2), np.uint8)]), "height × width"),
        (lambda p: p.gallery(["a"], ["b", "c"]), "1 items but 2 captions"),
    ],
)
def test_refusals_say_what_is_wrong(call, words):
    with pytest.raises(InputError, match=words):
        call(Page("p"))


def test_write_replaces_whole_files(tmp_path):
    file = tmp_path / "page.html"
    Page("first").write(file)
    assert Page("second").write(str(file)) == file
    assert "<h1>second</h1>" in file.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(StoreError, match="does not exist"):
        Page("p").write(tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize("package", ["jinja2", "plotly"])
def test_a_missing_package_is_named_with_its_extra(package):
    code = f"""
import sys
import offmap.report, offmap.plots, offmap.errors
sys.modules["{package}"] = None
sys.modules["{package}.graph_objects"] = None
try:
    page = offmap.report.Page("p")
    figure = offmap.plots.grouped_bars({{"m": {{"s": 1.0}}}}, y="x")
    page.figure(figure).html()
except offmap.errors.DependencyError as error:
    assert "{package}" in str(error) and "offmap[report]" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_versions_name_what_numbers_depend_on():
    assert {"offmap", "numpy", "torch"} <= versions().keys()
