"""A page in a real browser: it opens from disk, draws plots, sorts tables and complains of nothing."""

from __future__ import annotations

import numpy as np
import pytest

from offmap import plots
from offmap.report import Page


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    known, far = rng.normal(3, 1, 400), rng.normal(0, 1, 300)
    page = (
        Page("A page", "The **answer** first.")
        .section("Table")
        .table(
            ["method", "FPR95", "note"],
            [["msp", 47.44, "b"], ["energy", 9.5, "a"], ["knn(50)", None, "c"], ["dice", 30.15, ""]],
            best={"FPR95": "min"},
        )
        .section("Figures")
        .figure(plots.score_histogram(known, {"far": far}, 1.2), "Scores.")
        .figure(plots.roc_curves({"m": (known, far)}), "ROC.")
        .figure(plots.activation_pattern(rng.random((50, 64)), rng.exponential(1, (50, 64))), "Pattern.")
        .figure(plots.grouped_bars({"a": {"s": 1.0}, "b": {"s": 2.0}}, y="FPR95"))
        .figure(plots.comparison_heat({"a": {"s": 1.0}, "b": {"s": 2.0}}, metric="FPR95", best="min"))
        .section("Pictures")
        .gallery([rng.integers(0, 256, (8, 8), dtype=np.uint8)] * 3, ["one", "two", "three"])
        .settings({"seed": 0})
    )
    return page.write(tmp_path_factory.mktemp("page") / "page.html")


def column(page, index):
    return page.eval_on_selector_all(f".sortable tbody td:nth-child({index})", "cells => cells.map(c => c.textContent)")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_draws_and_fits(browser, page_file, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    assert page.locator(".plot > svg[role=img]").count() == 5
    for plot in page.locator(".plot").all():
        assert plot.locator("svg svg").locator("path, rect").count() >= 1
        box = plot.locator("svg svg").first.bounding_box() or {"width": 0, "height": 0}
        assert min(box["width"], box["height"]) > 20
        assert 0 < (plot.bounding_box() or {"width": 0})["width"] <= width
    assert page.locator("img").first.evaluate("image => image.naturalWidth") == 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def test_a_table_sorts_by_click_and_by_key(browser, page_file):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    number = page.locator("th button", has_text="FPR95")
    number.click()
    assert column(page, 2) == ["9.50", "30.15", "47.44", "–"], "where small is good, small comes first"
    number.click()
    assert column(page, 2) == ["47.44", "30.15", "9.50", "–"]
    assert page.locator("th", has_text="FPR95").get_attribute("aria-sort") == "descending"
    page.locator("th button", has_text="method").focus()
    page.keyboard.press("Enter")
    assert column(page, 1) == ["dice", "energy", "knn(50)", "msp"]
    assert page.locator("th", has_text="FPR95").get_attribute("aria-sort") == "none"
    context.close()


def test_figures_take_dark_ink_for_paper(browser, page_file):
    context = browser.new_context(offline=True, color_scheme="dark")
    page = context.new_page()
    page.goto(page_file.as_uri())
    ink = "getComputedStyle(document.querySelector('.plot text')).fill"
    assert page.evaluate(ink) == "rgb(230, 234, 238)"
    page.emulate_media(media="print")
    assert page.evaluate(ink) == "rgb(0, 0, 0)"
    context.close()


def test_printing_opens_the_settings(browser, page_file):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("details[open]").count() == 0
    assert page.pdf()[:5] == b"%PDF-"
    assert page.locator("details[open]").count() == 1
    context.close()
