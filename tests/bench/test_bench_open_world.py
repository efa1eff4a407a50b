"""Open-world suites: declared, run by the command, resumed, with a page; the published splits on stand-ins."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offmap.bench.open_world import (
    OpenWorldProtocol,
    expand_open_world,
    is_open_world,
    list_open_world,
    load_open_world,
)
from offmap.bench.open_world_apart import predict_apart
from offmap.bench.open_world_page import build_open_world_page
from offmap.bench.open_world_runner import run_open_world
from offmap.data.splits import PUBLISHED
from offmap.errors import InputError, StoreError
from offmap.learning import registered

SUITE = """
about = "blobs"
methods = ["k-means", "discover", "gcd"]

[data]
path = "blobs.npz"

[split]
known = 3
ratio = 0.5

[settings]
epochs = 1
neighbours = 5

[protocol]
seeds = 2

[thesis]
gcd = { all = 87.5, novel = 86.7, known = 90.1 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 25)
    rows = rng.normal(size=(6, 10))[truth] + 0.1 * rng.normal(size=(150, 10))
    np.savez(tmp_path / "blobs.npz", features=rows.astype(np.float32), labels=truth)
    (tmp_path / "mine.toml").write_text(SUITE)
    return tmp_path


def test_the_command_runs_a_suite_writes_a_page_and_goes_on_where_it_stopped(folder: Path) -> None:
    command = [sys.executable, "-m", "offmap.cli", "bench", str(folder / "mine.toml"), "--data", str(folder)]
    first = subprocess.run(
        [*command, "--out", str(folder / "out"), "--seeds", "1"], capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    held = json.loads((folder / "out" / "results.json").read_text())
    assert [row["method"] for row in held["rows"]] == ["k-means", "discover", "gcd"]
    assert held["rows"][1]["accuracy"]["v2"]["all"] > 95
    assert held["rows"][0]["accuracy"]["ncd"]["known"] is None
    assert "Beside the thesis" in (folder / "out" / "report.html").read_text()
    held["rows"][0]["seconds"] = 1234.5  # a run that is there is not repeated
    (folder / "out" / "results.json").write_text(json.dumps(held))
    result = run_open_world(load_open_world(folder / "mine.toml"), folder / "out", data=folder)
    assert [row.seed for row in result.rows] == [0, 0, 0, 1, 1, 1]
    assert result.rows[0].seconds == 1234.5
    assert "\u00b1" in str(result)
    assert "87.5" in build_open_world_page(result).html()


def test_the_number_of_classes_can_be_estimated_and_conventions_differ(folder: Path) -> None:
    suite = load_open_world(folder / "mine.toml")
    result = run_open_world(
        suite, folder / "estimated", methods=["discover"], data=folder, classes="estimated", seeds=1
    )
    (row,) = result.rows
    assert row.classes == "estimated"
    assert set(row.accuracy) == {"orca", "v1", "v2", "ncd"}
    assert math.isnan(row.accuracy["ncd"]["known"])


def test_inputs_to_test_on_are_told_apart_as_in_the_thesis_tables(folder: Path) -> None:
    """Known inputs by a linear head, novel ones grouped alone: on blobs both are certain, joint predictions are not."""
    rng = np.random.default_rng(1)
    truth = np.repeat(np.arange(6), 8)
    rows = np.load(folder / "blobs.npz")["features"].reshape(6, 25, 10).mean(axis=1)[truth]
    np.savez(folder / "test.npz", features=rows + 0.05 * rng.normal(size=rows.shape).astype(np.float32), labels=truth)
    figures = "[thesis_test]\nk-means = { all = 95.5, novel = 96.7, known = 94.2 }\n"
    declared = SUITE.replace("[split]", '[test]\npath = "test.npz"\n\n[split]') + figures
    (folder / "apart.toml").write_text(declared)
    suite = load_open_world(folder / "apart.toml")
    assert suite.digest != load_open_world(folder / "mine.toml").digest
    result = run_open_world(suite, folder / "apart", methods=["k-means", "gcd"], data=folder, seeds=1)
    for row in result.rows:
        assert set(row.accuracy) == {"orca", "v1", "v2", "ncd", "apart", "test"}
        assert row.accuracy["test"] == {"all": 100.0, "known": 100.0, "novel": 100.0}
        assert row.accuracy["apart"]["novel"] == 100.0
    page = build_open_world_page(result).html()
    assert "96.7" in page
    assert "87.5" in page
    assert "not there in learning" in page
    assert "\ntest " in str(result)
    again = run_open_world(suite, folder / "apart", methods=["k-means"], data=folder, seeds=1)
    assert again.rows[0].accuracy["test"] == result.rows[0].accuracy["test"]


def test_telling_apart_uses_no_class_of_a_novel_input_and_only_labelled_rows_of_known_ones() -> None:
    rng = np.random.default_rng(2)
    targets = np.repeat([0, 1, 2, 3], 30)
    features = rng.normal(size=(4, 5))[targets] + 0.4 * rng.normal(size=(120, 5))
    labels = np.where((targets < 2) & (rng.random(120) < 0.5), targets, -1)
    found = predict_apart(features, labels, features, targets, [0, 1], seed=3)
    swapped = np.where(targets == 2, 3, np.where(targets == 3, 2, targets))
    assert (predict_apart(features, labels, features, swapped, [0, 1], seed=3) == found).all()
    moved = features.copy()
    moved[labels < 0] += 50.0  # what is unlabelled does not move the head
    assert (predict_apart(moved, labels, features, targets, [0, 1], seed=3) == found).all()
    assert set(found[targets < 2]) <= {0, 1}
    assert set(found[targets >= 2]) == {4, 5}


def test_the_suites_of_novel_class_discovery_have_the_printed_figures_of_both_tables() -> None:
    printed = {name: load_open_world(name) for name in ("c10-5", "c100-80", "c100-50")}
    assert {name: suite.thesis["nscl"]["novel"] for name, suite in printed.items()} == {
        "c10-5": 97.5, "c100-80": 85.9, "c100-50": 64.0
    }  # fmt: skip
    assert printed["c10-5"].thesis["dualrank"] == {"novel": 91.6}
    assert printed["c10-5"].thesis_test["nscl"] == {"all": 95.5, "novel": 96.7, "known": 94.2}
    assert printed["c100-50"].thesis_test["comex"] == {"all": 67.2, "novel": 54.5, "known": 80.1}
    assert not printed["c100-80"].thesis_test  # table 6.2 leaves it out
    assert all(suite.test is not None and suite.convention == "apart" for suite in printed.values())


def test_results_of_another_declaration_are_not_continued(folder: Path) -> None:
    suite = load_open_world(folder / "mine.toml")
    run_open_world(suite, folder / "out", methods=["k-means"], data=folder, seeds=1)
    with pytest.raises(StoreError, match="another declaration"):
        run_open_world(suite, folder / "out", methods=["k-means"], data=folder, seeds=1, limit=100)
    (folder / "out" / "results.json").write_text("{}")
    with pytest.raises(StoreError, match="not results"):
        run_open_world(suite, folder / "out", data=folder)


def test_a_method_that_cannot_run_is_left_out_with_its_reason(folder: Path) -> None:
    suite = load_open_world(folder / "mine.toml")
    (folder / "all.toml").write_text(SUITE.replace("[settings]", "[settings]\nnonsense = 1"))
    result = run_open_world(load_open_world(folder / "all.toml"), folder / "o", methods=["gcd"], data=folder, seeds=1)
    assert not result.rows
    assert "nonsense" in result.skipped["gcd"]
    assert "Left out" in build_open_world_page(result).html()
    with pytest.raises(InputError, match="there is no objective"):
        expand_open_world(["gdc"])
    assert suite.methods == ("k-means", "discover", "gcd")


def test_every_declared_suite_is_whole() -> None:
    names = {"open-banking77", "open-clinc150", "open-fashion-mnist", "open-digits", "open-cifar10-small"}
    assert names <= set(list_open_world())
    used = set()
    for name in list_open_world():
        suite = load_open_world(name)
        assert suite.about
        assert is_open_world(name)
        expanded = expand_open_world(suite.methods)
        assert expanded
        used |= {suite.split.get("published")}
        if suite.methods == ("all",):
            assert set(registered()) <= set(expanded)
        for method in suite.thesis:
            expand_open_world([method])
    assert set(PUBLISHED) <= used


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seeds": 0}, "at least 1 run"),
        ({"limit": 3}, "at least 20"),
        ({"classes": "guessed"}, "'given' or 'estimated'"),
    ],
)
def test_impossible_protocols_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        OpenWorldProtocol(**change)


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    for text, told in (
        ("about = 1", "is missing"),
        (SUITE + "\n[extra]\na = 1", "'extra' is not known"),
        (SUITE.replace("seeds = 2", "seed = 2"), "'seed' is not known"),
        ("[", "not readable as TOML"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=told):
            load_open_world(file)
    with pytest.raises(InputError, match="no such suite"):
        load_open_world("nothing")
