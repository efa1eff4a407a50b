"""OpenOOD's protocol on small stand-ins: its lists of pictures, its names of weights, its groups and its metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score, roc_curve

from offmap.bench.groups import summarise_groups
from offmap.bench.runner import run_suite
from offmap.bench.sets import load_set
from offmap.bench.suites import SetSpec, Suite, load_suite, parse_suite
from offmap.errors import InputError
from offmap.models.resnet import ResNet

SUITES = ("openood-cifar10", "openood-cifar100", "openood-imagenet200", "openood-imagenet")
PICTURES = 12


def openood_fpr95(known: np.ndarray, unknown: np.ndarray) -> float:
    """As OpenOOD computes it: unknown inputs are the positives of the curve."""
    truth = np.concatenate([np.zeros(len(known)), np.ones(len(unknown))])
    flagged, found, _ = roc_curve(truth, -np.concatenate([known, unknown]))
    return float(flagged[np.argmax(found >= 0.95)])


def make_small(suite: Suite) -> Suite:
    """The suite with narrow networks."""
    narrow = (replace(network, options={**network.options, "width": 4}) for network in suite.networks)
    return replace(suite, networks=tuple(narrow))


def lay_out(folder: Path, suite: Suite, classes: int) -> None:
    """Make the pictures, lists and checkpoints that a suite names, small ones: noise, each set with a tint."""
    rng = np.random.default_rng(0)
    places = [suite.known, suite.test, suite.val, suite.outliers, *suite.ood, *suite.shifted]
    for number, spec in enumerate(place for place in places if place is not None):
        listed, root = folder / spec.source["image_list"], folder / spec.source["root"]
        listed.parent.mkdir(parents=True, exist_ok=True)
        known = spec in (suite.known, suite.test, suite.val, *suite.shifted)
        lines = []
        for row in range(PICTURES):
            name = f"{listed.stem}/{row}.png"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (40, 36, 3)) + 12 * number
            Image.fromarray(pixels.astype(np.uint8)).save(root / name)
            lines.append(f"{name} {row % classes if known else -1}")
        listed.write_text("\n".join(lines) + "\n")
    for seed, network in enumerate(suite.networks):
        options = {name: value for name, value in network.options.items() if name not in ("weights", "mean", "std")}
        state = ResNet(**options, seed=seed).state_dict()
        file = folder / network.options["weights"]
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({name.replace("downsample", "shortcut"): value for name, value in state.items()}, file)


@pytest.mark.parametrize("name", SUITES)
def test_the_suites_have_near_and_far_sets_and_published_figures(name: str) -> None:
    suite = load_suite(name)
    assert [part.group for part in suite.ood if part.group == "near"] == ["near", "near"]
    assert len([part for part in suite.ood if part.group == "far"]) >= 3
    assert {"near", "far"} <= suite.published.keys()
    assert len(suite.published["near"]) >= 15
    assert set(suite.published["near"]) <= set(suite.methods)


def test_a_suite_runs_from_lists_and_checkpoints_to_means_over_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offmap.bench.runner.RESAMPLED", 2)  # standard errors are not looked at
    suite = make_small(load_suite("openood-cifar10"))
    lay_out(tmp_path, suite, 10)
    methods = ["msp", "energy", "react(auto)|energy"]
    result = run_suite(suite, methods=methods, data=tmp_path, cache=tmp_path / "cache")
    assert not result.skipped
    rows = {(row.network, row.group, row.method): row for row in result.groups}
    assert {group for _, group, _ in rows} == {"near", "far", "near, full spectrum", "far, full spectrum"}
    near = rows["s1", "near", "energy"]
    scores = result.scores["s1"]["energy"]
    expected = [(openood_fpr95(scores["id"], scores[name]), name) for name in ("CIFAR-100", "TinyImageNet")]
    assert near.sets == ("CIFAR-100", "TinyImageNet")
    assert near.fpr95_unknown == pytest.approx(np.mean([fpr for fpr, _ in expected]))
    both = np.concatenate([scores["id"], scores["CIFAR-10-C"]])
    truth = np.repeat([1, 0], [len(both), PICTURES])
    whole = [roc_auc_score(truth, np.concatenate([both, scores[name]])) for _, name in expected]
    assert rows["s1", "near, full spectrum", "energy"].auroc == pytest.approx(np.mean(whole))
    mean = rows["mean over networks", "far", "msp"]
    assert mean.auroc == pytest.approx(np.mean([rows[f"s{seed}", "far", "msp"].auroc for seed in range(3)]))
    assert mean.published == pytest.approx(0.9073)
    text = str(result)
    assert "near: mean over CIFAR-100, TinyImageNet; s0" in text
    assert "(Δ)" in text
    written = json.loads(result.to_json())["groups"]
    assert len(written) == len(result.groups)
    assert written[0]["sets"] == ["CIFAR-100", "TinyImageNet"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("../secret.png 1\n", "not below pictures"),
        ("/etc/secret.png 1\n", "not below pictures"),
        ("a.png\n", "not a picture and a class index"),
        ("a.png one\n", "not a picture and a class index"),
        ("b.png 1\n", "there is no such picture"),
    ],
)
def test_a_list_that_is_wrong_is_refused(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "list.txt").write_text(lines)
    with pytest.raises(InputError, match=words):
        load_set(SetSpec("own", {"image_list": "list.txt", "root": "pictures"}), tmp_path)


def test_many_pictures_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = make_small(load_suite("openood-cifar10"))
    lay_out(tmp_path, suite, 10)
    plain = load_set(suite.test, tmp_path)
    monkeypatch.setattr("offmap.bench.kinds.pictures.IN_MEMORY", 0)
    mapped = load_set(suite.test, tmp_path)
    assert isinstance(mapped.samples.inputs, np.memmap)
    assert mapped.digest == plain.digest


def test_published_figures_of_no_group_are_refused(declare: Callable[[], dict[str, object]]) -> None:
    with pytest.raises(InputError, match="'close', which is no group"):
        parse_suite(declare() | {"published": {"close": {"msp": 90}}}, "own")


def test_sets_without_a_group_are_in_no_mean() -> None:
    found = {"id": np.arange(4.0), "a": np.zeros(2), "b": np.ones(2)}
    assert [row.sets for row in summarise_groups({"net": {"msp": found}}, {"a": "far"})] == [("a",)]


@pytest.fixture
def declare() -> Callable[[], dict[str, object]]:
    return lambda: {
        "network": {"n": {"kind": "linear"}},
        "known": {"digits": "train"},
        "test": {"digits": "test"},
        "ood": {"u": {"digits": "unknown", "group": "near"}},
        "methods": ["msp"],
    }
