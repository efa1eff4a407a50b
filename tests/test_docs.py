"""Every Python example in README and docs runs, top to bottom, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if BLOCK.search(page.read_text())
]


def runnable(page: Path) -> str:
    """The page's blocks in order; one after the comment ``<!-- not run -->`` needs what only the reader has."""
    text = re.sub(r"<!-- not run -->\s*```python\n.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(BLOCK.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    code = runnable(page)
    if not code:
        pytest.skip("no example on this page can run without the reader's own files")
    environment = {name: value for name, value in os.environ.items() if name != "OFFMAP_DATA"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_page_of_methods_is_what_the_registry_says() -> None:
    code = "import gen_methods; raise SystemExit(gen_methods.PAGE.read_text() != gen_methods.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0, "docs/reference/methods.md is out of date: run python docs/gen_methods.py"
