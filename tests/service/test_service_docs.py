"""The pages about the service say what it does: settings, metrics and measured figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from service_kit import UNKNOWN, make_guard

from offmap.service import Deployment, Service, Settings

ROOT = Path(__file__).parents[2]


def test_tables_and_figures_are_what_settings_and_results_say():
    code = "import gen_serve as g; raise SystemExit(any(g.filled(p) != (g.DOCS / p).read_text() for p in g.PAGES))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0, "a page is out of date: run python docs/gen_serve.py"


def test_every_metric_is_described_and_every_described_one_is_there(tmp_path):
    with Service(Deployment(make_guard()), Settings(store=str(tmp_path))) as service:
        service.score(features=UNKNOWN)
        text = service.render_metrics().decode()
    families = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    families = {name for name in families if not name.endswith("_created")}
    page = (ROOT / "docs" / "operations.md").read_text()
    named = {re.sub(r"_(total|bucket)$", "", name) for name in re.findall(r"\boffmap_[a-z0-9_]+", page)}
    assert named == families
