"""docs/howto/text.md holds what the committed results say."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def gen():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("gen_text")
    finally:
        sys.path.remove(str(DOCS))


def test_the_page_is_what_the_committed_files_say(gen):
    text = gen.PAGE.read_text()
    assert text == gen.page(), "docs/howto/text.md is out of date: run python docs/gen_text.py"
    assert set(re.findall(r"<!-- table: (\S+) -->", text)) == set(gen.TABLES)


def test_numbers_of_the_text_have_a_source(gen):
    from quotes import check_quotes

    text = gen.PAGE.read_text()
    measured = re.sub(r"<!-- text: .*?<!-- end -->", "", text[text.index("## Measured") :], flags=re.DOTALL)
    assert check_quotes(measured, gen.find) == []
    assert check_quotes(measured + "\n\nIt is 12.3 better.\n", gen.find)
