"""What the page on the loop says was measured is what the committed results say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_page_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("loop_benchmark", ROOT / "benchmarks" / "loop.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found = json.loads(benchmark.RESULTS.read_text())
    page = (ROOT / "docs" / "howto" / "loop.md").read_text()
    assert benchmark.table(found) in page, "copy what python benchmarks/loop.py --show prints into docs/howto/loop.md"
