"""docs/imagenet-results.md holds the tables of the committed results, nothing else."""

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_committed_files_say():
    code = "import gen_imagenet; raise SystemExit(gen_imagenet.PAGE.read_text() != gen_imagenet.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"imagenet-results.md is out of date: run python docs/gen_imagenet.py\n{done.stderr}"
