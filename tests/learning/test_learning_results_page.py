"""docs/learning-results.md holds the tables of the committed results, nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_committed_files_say() -> None:
    code = "import gen_learning as g; raise SystemExit(g.PAGE.read_text() != g.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"out of date: run python docs/gen_learning.py\n{done.stderr}"
