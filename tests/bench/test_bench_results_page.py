"""docs/results.md holds the tables of the committed results, nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_results_is_what_the_committed_files_say():
    code = "import gen_results; raise SystemExit(gen_results.PAGE.read_text() != gen_results.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"docs/results.md is out of date: run python docs/gen_results.py\n{done.stderr}"
