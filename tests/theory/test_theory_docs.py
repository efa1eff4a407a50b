"""The examples in the theory pages run, and the numbers they quote come from the committed results."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
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


def test_the_table_of_activations_and_what_is_said_of_it():
    code = "import gen_theory as g; raise SystemExit(g.PAGE.read_text() != g.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"out of date: run python docs/gen_theory.py\n{done.stderr}"
    found = json.loads((ROOT / "benchmarks/results/thesis_activations.json").read_text())
    largest, mean = "largest unit mean", "mean"
    known, wrong, true = found["batchnorm"].values()
    assert wrong[largest] > 1.5 * known[largest] > true[largest]
    assert wrong[mean] < known[mean]
    noise = found["noise"]["Gaussian noise"]
    assert noise[largest] > 4 * known[largest]
    assert noise["mean deviation"] < known["mean deviation"] / 4
    layers = found["layers"]
    assert layers["trans1"]["unknown"][largest] < layers["trans1"]["known"][largest]
    assert all(layers[name]["unknown"][largest] > layers[name]["known"][largest] for name in ("trans2", "block3"))
    weight = found["weight normalisation"]
    assert weight["unknown"][largest] < weight["known"][largest]
    group, batch = found["group normalisation"], found["batch normalisation, the same CNN"]
    assert abs(group["unknown"][largest] - group["known"][largest]) < 0.05
    assert batch["unknown"][largest] > 1.5 * batch["known"][largest]
    assert 30 < weight["accuracy"] < 40
