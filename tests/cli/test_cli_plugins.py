"""Methods of one's own by `--plugin` and by the template under examples/, and suites of one's own as tables."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import offmap
from offmap.bench.suites import load_suite

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "examples" / "plugin"
SUITE = """
about = "blobs"
methods = ["margin", "react(90)|energy"]

[network.own]
kind = "linear"
c = 1.0

[train]
path = "known.npz"

[known]
path = "known.npz"

[test]
path = "test.npz"

[ood.far_away]
path = "far.npz"
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{Path(offmap.__file__).parents[1]}", "OFFMAP_DATA": str(folder)}
    command = [sys.executable, "-m", "offmap.cli", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_suite_of_ones_own_with_a_method_of_ones_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("known", 150), ("test", 90)):
        labels = np.arange(n) % 3
        rows = (4 * np.eye(3, 6)[labels] + rng.normal(size=(n, 6))).astype("f4")
        np.savez(tmp_path / f"{name}.npz", features=rows, labels=labels)
    np.savez(tmp_path / "far.npz", features=(3 * rng.normal(size=(80, 6))).astype("f4"))
    (tmp_path / "own.toml").write_text(SUITE)
    plugin = str(TEMPLATE / "src" / "offmap_margin" / "__init__.py")
    words = ["bench", "--suite", "own.toml", "--plugin", plugin, "--cache", "cache", "--out", "out", "--json"]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert not json.loads(done.stdout)["skipped"]
    with (tmp_path / "out" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["method"] for row in rows} == {"margin", "react(90)|energy"}
    assert all(0 <= float(row["auroc"]) <= 100 for row in rows)
    markdown, latex = ((tmp_path / "out" / f"results.{kind}").read_text() for kind in ("md", "tex"))
    assert "| `margin` |" in markdown
    assert r"| `react(90)\|energy` |" in markdown
    assert r"\multicolumn{2}{c}{far\_away}" in latex
    assert r"react(90)$|$energy & " in latex


def test_a_plugin_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for plugin, said in (("broken.py", "ZeroDivisionError"), ("none.py", "no such file"), ("no_module_x", "No module")):
        done = run(tmp_path, "methods", "--plugin", plugin)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_the_suite_that_the_template_names_is_there() -> None:
    assert "--suite my.toml" in (TEMPLATE / "README.md").read_text()
    suite = load_suite(TEMPLATE / "my.toml")
    assert "margin" in suite.methods


def test_the_template_passes_its_own_tests(tmp_path: Path) -> None:
    places = [str(TEMPLATE / "src"), str(Path(offmap.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(TEMPLATE), "tests"]
    done = subprocess.run(command, cwd=TEMPLATE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
