"""The demonstration from the command line to the page in a browser: repeatable, honest about its promise, readable."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import offmap
from offmap.bench.demo import GUARD, METHODS, run_demo, write_demo
from offmap.errors import InputError


@pytest.fixture(scope="module")
def demo():
    return run_demo(seed=1)


@pytest.fixture(scope="module")
def folder(demo, tmp_path_factory):
    target = tmp_path_factory.mktemp("demo") / "a" / "b"
    assert write_demo(demo, target) == target / "report.html"
    return target


def test_the_command_gives_the_same_bytes_in_another_process(folder, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "offmap.cli", "demo", "--seed", "1", "--out", str(tmp_path / "again"), "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    said = json.loads(done.stdout)
    assert done.stderr == "", "silent when not on a terminal"
    assert said["report"] == str(tmp_path / "again" / "report.html")
    for name in ("report.html", "guard.offmap"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_numbers_are_those_of_the_guard(demo, folder):
    assert {row.method for row in demo.comparison.rows} == {repr(offmap.detector(spec)) for spec in METHODS}
    assert demo.accuracy > 0.95
    assert 0.85 < demo.accepted <= 1
    assert demo.flagged > 0.6
    guard = offmap.load(folder / "guard.offmap")
    assert repr(guard) == GUARD
    np.testing.assert_array_equal(guard(demo.unknown_acts).known, demo.verdicts.known[len(demo.test) :])
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert len(rows) == 2 * len(METHODS)


def test_verdicts_in_words_match_the_pictures(demo):
    for row in demo.draw_rows():
        words = demo.describe(row)
        assert words.startswith("✓" if demo.is_right(row) else "✗")
        assert ("unknown" in words) != demo.verdicts.known[row]
        assert demo.picture(row).shape == (8, 8)
        assert (int(demo.name_truth(row)) < 6) == (row < len(demo.test))


def test_threads_are_left_as_they_were_and_nonsense_is_refused():
    before = torch.get_num_threads()
    with pytest.raises(InputError, match="2 to 9 digits"):
        run_demo(known=10)
    assert torch.get_num_threads() == before


def test_the_page_in_a_browser(browser, folder):
    context = browser.new_context(viewport={"width": 390, "height": 800}, offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    assert page.locator(".plot > svg").count() == 4
    assert page.locator(".gallery img").count() == 36
    assert page.locator(".sortable tbody tr").count() == len(METHODS)
    page.locator("th button", has_text="AUROC").click()
    shown = page.eval_on_selector_all(".sortable tbody td:nth-child(3)", "cells => cells.map(c => +c.dataset.value)")
    assert shown == sorted(shown, reverse=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
    context.close()
