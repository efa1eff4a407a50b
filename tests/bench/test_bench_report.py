"""A suite's report in a real browser, and the real networks against the thesis."""

from __future__ import annotations

import pytest

from offmap.bench.runner import run_suite
from offmap.bench.suite_page import build_suite_page
from offmap.bench.suites import load_suite


@pytest.fixture(scope="module")
def digits_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    found = run_suite(
        load_suite("digits"), methods=["msp", "energy", "knn(10)", "weight_dropout(0.5)|energy", "mc_dropout"],
        cache=folder, limit=150, seeds=2,
    )  # fmt: skip
    return build_suite_page(found).write(folder / "report.html")


def test_a_suites_report_opens_draws_and_sorts(browser, digits_report):
    context = browser.new_context(viewport={"width": 390, "height": 800}, offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(digits_report.as_uri())
    assert "use" in page.locator("main, body").first.inner_text()
    plots = page.locator(".plot").all()
    assert len(plots) >= 5
    for plot in plots:
        assert plot.locator("svg path, svg rect, svg image").count() >= 1
    page.locator("th button", has_text="AUROC ↑").first.click()
    cells = page.eval_on_selector_all(
        ".sortable:first-of-type tbody td:nth-child(4)", "cells => cells.map(c => parseFloat(c.textContent))"
    )
    numbers = [cell for cell in cells if cell == cell][:4]
    assert numbers == sorted(numbers, reverse=True)
    assert page.locator("img").count() == 24, "the twelve hardest of both sets"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
    context.close()


@pytest.mark.data
@pytest.mark.parametrize("name", ["cifar10-densenet", "cifar100-densenet"])
def test_msp_and_energy_are_what_the_thesis_prints(data_folder, tmp_path, name):
    found = run_suite(load_suite(name), methods=["msp", "energy"], data=data_folder, cache=tmp_path)
    on_svhn = [row for row in found.rows if row.ood == "svhn"]
    assert len(on_svhn) == 2
    for row in on_svhn:
        assert row.thesis is not None
        assert abs(row.fpr95 - row.thesis["fpr95"]) < 0.006
        assert abs(row.auroc - row.thesis["auroc"]) < 0.002
        assert row.inputs == (10_000, 10_000)
