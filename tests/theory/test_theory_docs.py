"""The examples in the theory pages run, and the numbers they quote come from the committed results."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "theory").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testfile(str(page), module_relative=False, optionflags=flags).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_exist(page):
    for line in page.read_text().splitlines():
        if line.startswith("!["):
            assert (page.parent / line.split("(")[1].rstrip(")")).is_file(), line


def test_the_advice_table_is_the_committed_result():
    sets = json.loads((ROOT / "benchmarks" / "results" / "advice.json").read_text())["sets"]
    text = (ROOT / "docs" / "theory" / "advice.md").read_text()
    for name, result in sets.items():
        correlation = result["summary"]["correlation_with_measure"]["advice"]
        assert f"{correlation['mean']:.2f} ± {correlation['standard_error']:.2f}" in text, name
