"""What readers of a report meet: methods in order in one row each, novel classes first, few screens, plain words."""

from __future__ import annotations

import re

import numpy as np
import pytest

import offmap

SCREEN = 800  # pixels


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    head = offmap.Head(np.eye(3, 6))
    known = offmap.Activations(rng.normal(size=(240, 6)) + 4 * np.eye(3, 6)[labels], head, labels=labels)
    far = {f"a set called {name}": offmap.Activations(rng.normal(size=(80, 6)), head) for name in "abc"}
    methods = "msp, react(90)|dice(0.7)|energy, mahalanobis, knn(5) + energy + maxlogit + gen"
    return offmap.compare(methods, known[:160], known[160:], far)


@pytest.fixture(scope="module")
def many_classes():
    """150 classes, 90 of them novel, with a long text per row."""
    rng = np.random.default_rng(1)
    truth = np.arange(3000) % 150
    rows = (6 * rng.normal(size=(150, 24))[truth] + rng.normal(size=(3000, 24))).astype(np.float32)
    given = np.where((truth < 60) & (rng.random(3000) < 0.5), truth, -1)
    found = offmap.discover(rows, given, 150)
    return found, [f"row {i} of topic {truth[i]}: " + "a long sentence that goes on " * 20 for i in range(3000)]


def open_page(browser, file, width=1280):
    page = browser.new_context(viewport={"width": width, "height": SCREEN}, offline=True).new_page()
    page.goto(file.as_uri())
    return page


def test_compared_methods_stand_in_one_row_each_the_best_first(comparison):
    html = comparison.to_html()
    first = re.search(r"<tbody>(.*?)</tbody>", html, re.S).group(1)
    methods = re.findall(r"<tr>\s*<td>(.*?)</td>", first)
    assert methods == [row.chosen for row in comparison.averages()]


def test_a_sum_with_weights_keeps_its_stars():
    """A star stands for emphasis in the text of a page, but not in the text form of a detector."""
    rng = np.random.default_rng(0)
    known = offmap.Activations(rng.normal(size=(120, 4)), offmap.Head(np.eye(3, 4)))
    table = offmap.compare("2*energy + 0.5*knn(5)", known[:60], known[60:], {"far": known[:20]})
    assert "<code>2*energy + 0.5*knn(5)</code> lets in" in table.to_html()


def test_no_column_of_a_comparison_is_cut_off(browser, comparison, tmp_path):
    comparison.to_html(tmp_path / "page.html")
    page = open_page(browser, tmp_path / "page.html", width=1000)
    widths = page.eval_on_selector_all(".scroll", "all => all.map(one => [one.scrollWidth, one.clientWidth])")
    assert len(widths) == 3
    assert all(inner <= outer for inner, outer in widths)
    page.context.close()


def test_a_page_with_figures_is_light(comparison):
    assert len(comparison.to_html()) < 200_000


def test_discovered_classes_are_shown_novel_first_in_few_screens(browser, many_classes, tmp_path):
    found, texts = many_classes
    found.to_html(tmp_path / "page.html", texts)
    page = open_page(browser, tmp_path / "page.html")
    assert page.locator("h2").first.inner_text() == "Novel classes"
    largest = max(found.novel, key=lambda info: info.size)
    assert page.locator(".text strong").first.inner_text() == largest.name
    topic = re.search(r"topic \d+", texts[largest.exemplars[0]]).group()
    assert topic in page.locator(".card").first.inner_text()
    assert page.evaluate("document.documentElement.scrollHeight") <= 10 * SCREEN
    assert page.locator(".scroll.long tbody tr").count() == len(found.classes)
    page.context.close()


def test_rows_without_items_are_named_by_number(many_classes, tmp_path):
    found, _ = many_classes
    found.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"typical: row {max(found.novel, key=lambda info: info.size).exemplars[0]}," in text
