"""Suites are short files; the command writes what its contract says, for built-in suites and for one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import offmap
from offmap.bench.results import SuiteResult
from offmap.bench.runner import expand_methods, run_suite
from offmap.bench.suite_page import build_suite_page, recommend
from offmap.bench.suites import list_built_in, load_suite, parse_suite
from offmap.errors import InputError
from offmap.metrics.detection import STANDARD

CONTRACT = ["suite", "network", "ood", "method", "fpr95", "auroc", "aupr_in", "aupr_out", "seconds", "thesis"]


def offmap_bench(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "offmap.cli", "bench", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_built_in_suite_can_be_read():
    names = {"cifar10-densenet", "cifar100-densenet", "digits", "fashion-mnist", "imagenet-efflite0", "clinc150"}
    assert names <= list_built_in().keys()
    for name in list_built_in():
        suite = load_suite(name)
        assert suite.about
        assert expand_methods(suite.methods), "every text form of a declared suite is a detector"


def test_a_suite_of_ones_own_runs_from_its_file(blobs):
    done = offmap_bench(
        blobs / "blobs.toml", "--data", blobs, "--out", blobs / "out", "--cache", blobs / "c", "--seeds", 2
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("random_k(0.5)|energy")]
    assert " ±" in line, "what depends on the seed carries its spread"
    rows = json.loads((blobs / "out" / "results.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["msp", "energy", "mahalanobis", "knn(auto)", "random_k(0.5)|energy"]
    for row in rows:
        assert list(row)[: len(CONTRACT)] == CONTRACT
        assert all(0 <= row[metric] <= 100 for metric in STANDARD)
    assert rows[0]["thesis"] == {"fpr95": 12.5, "auroc": 90.25}
    assert rows[1]["thesis"] is None
    assert rows[-1]["seeds"] == 2
    assert rows[-1]["std"]["fpr95"] >= 0
    assert "<h1>blobs" in (blobs / "out" / "report.html").read_text()


def test_the_numbers_are_those_of_compare(blobs):
    found = run_suite(
        load_suite(blobs / "blobs.toml"), methods=["energy", "mahalanobis"], data=blobs, cache=blobs / "c"
    )
    network = found.sets["own"]
    assert len(network["id"]) == 90
    read = {name: np.load(blobs / f"{name}.npz") for name in ("known", "test", "far")}
    from safetensors.numpy import load_file

    (weights,) = (blobs / "c").glob("weights-*.safetensors")
    head = offmap.Head(load_file(weights)["weight"], load_file(weights)["bias"])
    acts = {name: offmap.Activations(a["features"], head, labels=a.get("labels")) for name, a in read.items()}
    table = offmap.compare(["energy", "mahalanobis"], acts["known"], acts["test"], {"far": acts["far"]})
    expected = {row.method: row for row in table.rows if row.ood == "far"}
    for row in found.rows:
        for metric in STANDARD:
            assert getattr(row, metric) == pytest.approx(getattr(expected[row.method], metric), abs=1e-8)


def test_methods_that_run_the_network_again_say_so(blobs):
    found = run_suite(load_suite(blobs / "blobs.toml"), methods=["energy", "odin"], data=blobs, cache=blobs / "c")
    assert [(row.method, row.runs_again) for row in found.rows] == [("energy", False), ("odin", True)]
    assert "sends every input through the network again" in build_suite_page(of(found, "odin")).html()
    assert "sends every input through the network again" not in build_suite_page(of(found, "energy")).html()


def of(found: SuiteResult, method: str) -> SuiteResult:
    """The result with one method alone."""
    return replace(found, rows=[row for row in found.rows if row.method == method])


def test_of_equally_good_methods_the_one_without_a_second_pass_is_recommended(blobs):
    found = run_suite(load_suite(blobs / "blobs.toml"), methods=["energy", "odin"], data=blobs, cache=blobs / "c")
    rows = {row.method: row for row in found.rows}
    near = replace(rows["odin"], fpr95=rows["energy"].fpr95 - 0.004)
    far = replace(rows["odin"], fpr95=rows["energy"].fpr95 - 0.05)
    assert recommend(replace(found, rows=[rows["energy"], near]), "own") == "energy"
    assert recommend(replace(found, rows=[rows["energy"], far]), "own") == "odin"


def test_columns_without_a_number_are_not_shown(blobs):
    suite = load_suite(blobs / "blobs.toml")
    found = run_suite(suite, methods=["energy", "mahalanobis"], data=blobs, cache=blobs / "c")
    assert "thesis" not in str(found)
    assert "thesis FPR95" not in build_suite_page(found).html()
    printed = run_suite(suite, methods=["msp"], data=blobs, cache=blobs / "c")
    assert "12.50" in str(printed)
    assert "thesis FPR95" in build_suite_page(printed).html()


def test_what_cannot_run_is_left_out_with_its_reason(blobs):
    done = run_suite(
        load_suite(blobs / "blobs.toml"), methods=["energy", "ensemble", "mc_dropout"], data=blobs, cache=blobs / "c"
    )
    assert [row.method for row in done.rows] == ["energy"]
    assert set(done.skipped) == {"ensemble", "mc_dropout"}
    assert "dropout" in done.skipped["mc_dropout"]


def test_parameters_are_chosen_without_the_test_sets(blobs):
    suite = load_suite(blobs / "blobs.toml")
    first = run_suite(suite, methods=["knn(auto)"], data=blobs, cache=blobs / "c", seeds=1).rows[0].chosen
    far = np.load(blobs / "far.npz")["features"]
    np.savez(blobs / "far.npz", features=100 + far)
    assert run_suite(suite, methods=["knn(auto)"], data=blobs, cache=blobs / "c", seeds=1).rows[0].chosen == first


def test_all_stands_for_the_registry_but_not_twice():
    found = expand_methods(["react(c=1.0)|energy", "all"])
    assert len(found) == len(set(found))
    assert sum("react" in spec for spec in found) == 1
    assert {"energy", "knn(50)"} <= set(found)
    assert expand_methods(["react( 90 ) | energy", "react(90)|energy"]) == ["react(90)|energy"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": 1}, "'colour' is not known"),
        ({"protocol": {"speed": 1}}, "'speed' is not known"),
        ({"protocol": {"limit": 1}}, "at least 2 inputs"),
        ({"network": {"own": {}}}, "needs a kind"),
        ({"known": "known.npz"}, "a table is needed"),
        ({"ood": {}}, r"\[ood\] is missing"),
        ({"thesis": {"near": {"msp": [1, 2]}}}, "not among its unknown sets"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(blobs, change, words):
    import tomllib

    declared = tomllib.loads((blobs / "blobs.toml").read_text())
    with pytest.raises(InputError, match=words):
        parse_suite({**declared, **change}, "blobs")


def test_the_command_says_what_is_wrong(blobs):
    for words, expected in (
        (("nothing",), "no such suite"),
        ((), "--list"),
        ((blobs / "blobs.toml", "--data", blobs / "nowhere"), "no such folder"),
        ((blobs / "blobs.toml", "--data", blobs, "--methods", "mps"), "did you mean"),
    ):
        done = offmap_bench(*words, "--out", blobs / "out", "--cache", blobs / "c")
        assert done.returncode == 1
        assert expected in done.stderr


def test_the_list_names_every_suite():
    done = offmap_bench("--list", "--json")
    assert {"digits", "cifar10-densenet"} <= json.loads(done.stdout)["suites"].keys()
