"""Kinds of sets and networks for ImageNet-like suites: pictures, corrupted ones, classes left out of the head."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from offmap.bench.kinds.left_out import choose_left_out
from offmap.bench.runner import run_suite
from offmap.bench.sets import load_set
from offmap.bench.suite_page import build_suite_page
from offmap.bench.suites import SetSpec, parse_suite
from offmap.errors import InputError

CLASSES, WIDTH = 12, 10

LEFT_OUT = """
methods = ["msp", "energy", "rmds", "knn(3)"]
network.net = { kind = "head", weights = "head.npz", leave_out = 4 }
known = { features_of = "features.npz", head = "head.npz", part = "fit", leave_out = 4 }
test = { features_of = "features.npz", head = "head.npz", part = "test", leave_out = 4 }
ood.near = { features_of = "features.npz", head = "head.npz", part = "left out", leave_out = 4 }
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(CLASSES, WIDTH))
    labels = np.repeat(np.arange(CLASSES), 6)
    names = np.array([str(name) for name in rng.permutation(CLASSES)])
    index = names.astype(int)[labels]
    rows = (centres[index] + 0.5 * rng.normal(size=(len(labels), WIDTH))).astype(np.float16)
    np.savez(tmp_path / "features.npz", features=rows, labels=labels, classes=names)
    np.savez(tmp_path / "head.npz", weight=centres.astype("f4"), bias=-np.square(centres).sum(axis=1) / 2)
    return tmp_path


def test_classes_left_out_of_the_head_are_near_unknowns(stored: Path) -> None:
    suite = parse_suite(tomllib.loads(LEFT_OUT), "near")
    found = run_suite(suite, data=stored, cache=stored / "cache", seeds=1)
    assert found.notes["accuracy"]["net"] > 95, "labels are those of the smaller head"
    assert {row.inputs for row in found.rows} == {(24, 24)}
    rows = {row.method: row.auroc for row in found.rows}
    assert rows["rmds"] > 0.7
    assert rows["knn(3)"] > 0.7
    assert found.sets["net"]["id"].samples.labels.max() == CLASSES - 5


def test_similar_classes_are_told_from_the_weights(stored: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 20))
    weight[5] = weight[1] + 0.01 * rng.normal(size=20)
    weight[6] = weight[2] + 0.1 * rng.normal(size=20)
    assert choose_left_out(weight, 1, "similar").tolist() == [5]
    assert choose_left_out(weight, 2, "similar").tolist() == [5, 6]
    drawn = choose_left_out(weight, 3)
    assert len(set(drawn)) == 3
    np.testing.assert_array_equal(drawn, choose_left_out(weight, 3))
    for count, how in ((8, "random"), (-1, "random"), (2, "far")):
        with pytest.raises(InputError, match="leave_out"):
            choose_left_out(weight, count, how)


def test_wrong_parts_are_refused(stored: Path) -> None:
    options = {"features_of": "features.npz", "head": "head.npz"}
    with pytest.raises(InputError, match="'fit', 'test' or 'left out'"):
        load_set(SetSpec("s", {**options, "part": "train"}), stored)
    with pytest.raises(InputError, match="there is no such file"):
        load_set(SetSpec("s", {**options, "features_of": "none.npz"}), stored)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in (0, 2, 10):
        (tmp_path / "known" / str(label)).mkdir(parents=True)
        for place in range(5):
            pixels = np.clip(25 * label + 10 * rng.normal(size=(20, 30, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "known" / str(label) / f"{place}.png")
    return tmp_path


def test_parts_of_a_folder_do_not_overlap_and_labels_are_class_numbers(pictures: Path) -> None:
    options = {"pictures": "known", "side": 8, "short": 10, "numbered": True}
    first = load_set(SetSpec("s", {**options, "take": 6}), pictures).samples
    second = load_set(SetSpec("s", {**options, "skip": 6}), pictures).samples
    assert first.inputs.shape == (6, 8, 8, 3)
    assert len(second) == 9
    assert not set(first.names) & set(second.names)
    for samples in (first, second):
        assert [int(Path(source).parent.name) for source in samples.names] == samples.labels.tolist()
    dark = load_set(SetSpec("s", {**options, "take": 6, "corruption": "brightness", "strength": 5}), pictures).samples
    assert (dark.inputs >= first.inputs).all()
    assert dark.names == first.names


def test_pictures_that_cannot_be_had_are_refused(pictures: Path) -> None:
    with pytest.raises(InputError, match="none of them after the first 99"):
        load_set(SetSpec("s", {"pictures": "known", "side": 8, "short": 10, "skip": 99}), pictures)
    with pytest.raises(InputError, match="side is 1 to short"):
        load_set(SetSpec("s", {"pictures": "known", "side": 12, "short": 10}), pictures)
    (pictures / "known" / "cat").mkdir()
    Image.new("RGB", (20, 20)).save(pictures / "known" / "cat" / "0.png")
    with pytest.raises(InputError, match="folders named 0, 1, 2"):
        load_set(SetSpec("s", {"pictures": "known", "side": 8, "short": 10, "numbered": True}), pictures)


def test_known_inputs_under_a_shift_are_reported_apart(blobs: Path) -> None:
    declared = tomllib.loads((blobs / "blobs.toml").read_text())
    test = np.load(blobs / "test.npz")
    np.savez(blobs / "moved.npz", features=test["features"] + 3, labels=test["labels"])
    suite = parse_suite({**declared, "shifted": {"moved": {"path": "moved.npz"}}}, "blobs")
    found = run_suite(suite, methods=["energy", "mahalanobis"], data=blobs, cache=blobs / "c")
    plain = run_suite(parse_suite(declared, "blobs"), methods=["mahalanobis"], data=blobs, cache=blobs / "c")
    assert {row.ood for row in found.rows} == {"far"}
    assert [(row.method, row.ood) for row in found.shifted] == [("energy", "moved"), ("mahalanobis", "moved")]
    row = next(row for row in found.rows if row.method == "mahalanobis")
    assert row.auroc == plain.rows[0].auroc, "the plain figures are as without the shift"
    assert row.full_spectrum["auroc"] < row.auroc
    assert not plain.rows[0].full_spectrum
    assert "covariate shift" in str(found)
    assert "look otherwise" in build_suite_page(found).html()
    assert '"shifted"' in found.to_json()
    with pytest.raises(InputError, match=r"both among \[ood\] and among \[shifted\]"):
        parse_suite({**declared, "shifted": {"far": {"path": "moved.npz"}}}, "blobs")
