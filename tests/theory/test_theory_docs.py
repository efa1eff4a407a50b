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


def shares(values, digits=0):
    """The least and the largest of some values, in per cent, as a page writes them."""
    return f"{100 * min(values):.{digits}f}–{100 * max(values):.{digits}f}"


def test_what_is_said_of_sparsity_holds_for_every_p():
    found = json.loads((ROOT / "benchmarks/results/theory.json").read_text())
    ten, hundred = found["cifar10"]["sparsity"], found["cifar100"]["sparsity"]
    text = " ".join((ROOT / "docs/theory/sparsified.md").read_text().split())
    gone = [value for part in ten.values() for value in part["measured"][1:]]
    assert f"CIFAR-10: yes, {shares(gone)} % gone at every p ≥ 0.1" in text
    assert not any(value for part in ten.values() for value in part["share_negative"])
    svhn, textures = hundred["svhn"], hundred["textures"]
    assert (
        f"CIFAR-100 on SVHN: {shares(svhn['measured'][1:])} %, up to {100 * max(svhn['share_negative']):.0f} %" in text
    )
    middle = slice(2, 5)  # p from 0.3 to 0.7
    assert svhn["sparsity"][middle] == [0.3, 0.5, 0.7]
    assert max(textures["measured"][middle]) < 0 < min(textures["measured"][1], textures["measured"][5])
    assert f"{shares(textures['share_negative'][middle])} % of classes go the wrong way" in text
    predicted = [value for part in ten.values() for value in part["independent"][1:]]
    assert f"it predicts {shares(predicted)} % on CIFAR-10" in text
    assert {round(100 * value) for value in textures["independent"][middle]} == {21}
    lost = [round(100 * value) for value in textures["measured"][middle]]
    assert [max(lost), min(lost)] == [-2, -5]
    for part, kind, digits, sets in (
        (hundred, "gap", 1, ("svhn", "textures")), (ten, "gap", 1, ("svhn", "textures")),
        (hundred, "separation", 2, ("svhn", "textures")), (ten, "separation", 2, ("svhn", "textures")),
    ):  # fmt: skip
        for name in sets:
            values = part[name][kind]
            assert f"{values[0]:.{digits}f} → {values[-1]:.{digits}f}" in text, (kind, name)
    for name in ("svhn", "textures"):
        assert max(hundred[name]["gap"]) == hundred[name]["gap"][3]
        assert all(value > hundred[name]["gap"][0] for value in hundred[name]["gap"][1:])
        assert all(value < ten[name]["gap"][0] for value in ten[name]["gap"][1:])
        assert max(abs(value - ten[name]["separation"][0]) for value in ten[name]["separation"]) < 0.03
    assert max(svhn["separation"]) == svhn["separation"][3]
    assert "most at p = 0.5, 7.8 and 5.8" in text
    assert [round(part["gap"][3], 1) for part in (svhn, textures)] == [7.8, 5.8]


def test_what_is_said_of_random_graphs_is_what_was_counted():
    found = json.loads((ROOT / "benchmarks/results/theory.json").read_text())
    toys, bounds = found["toys"], found["bounds"]
    text = (ROOT / "docs/theory/graph.md").read_text()
    assert {toys[key] for key in ("cases", "t = 0: 1", "below: r(t)", "above: 0", "harmful: 1")} == {400}
    assert f"violated for {bounds['printed_floor_violated']} of {bounds['cases']} random weight vectors" in text
    assert bounds["corrected_floor_violated"] == 0
    assert f"held in {bounds['positive_omega_assumption_holds']} of 400 random graphs" in text
    assert f"held in {bounds['spectral_gap_assumption_holds']} of 400" in text
    assert f"{toys['largest error of r(t)']:.0e}" == "9e-15"
    assert f"{bounds['largest_gap_of_the_identity']:.0e}" == "8e-15"


def test_what_is_said_of_positive_row_sums_holds_for_every_network_set_and_threshold():
    found = json.loads((ROOT / "benchmarks/results/theory.json").read_text())
    text = " ".join((ROOT / "docs/theory/rectified.md").read_text().split())
    parts = [found[name]["row sums"] for name in ("cifar10", "cifar100")]
    fails = [f"{part['classes with W·1 ≤ 0']} of {part['classes']}" for part in parts]
    assert f"W·1 > 0 fails for {fails[0]} and {fails[1]} classes" in text
    sets = [part[name] for part in parts for name in ("svhn", "textures")]
    pairs = [pair for part in sets for pair in zip(part["auroc"], part["auroc, W·1 > 0"], strict=True)]
    assert f"{sum(after > before for before, after in pairs)} of {len(pairs)} combinations" in text
    for part in sets:
        for before, after in ((max(part["auroc"]), max(part["auroc, W·1 > 0"])), part["plain_auroc"]):
            assert f"{before:.3f} → {after:.3f}".replace("0.", ".") in text
    falling = [value for part in sets for value in part["share of classes whose logits fall further, W·1 > 0"]]
    assert f"in {100 * min(falling):.0f} to {100 * max(falling):.0f} % of the classes" in text
