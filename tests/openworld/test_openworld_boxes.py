"""A guard per box: the protocol, a real small detector on generated scenes of real digits, crops in the store."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

import offmap
from offmap.bench.scenes import count_found, make_scenes, train_scene_detector
from offmap.errors import InputError
from offmap.metrics.boxes import match_boxes, overlaps
from offmap.openworld import BoxGuard
from offmap.service import open_unknown_store, store_unknown_boxes

KNOWN = range(6)
CORNERS = np.array([[0, 0, 8, 8]], np.float32)


@pytest.fixture(scope="module")
def world():
    train, held_out = make_scenes(160, KNOWN), make_scenes(120, KNOWN, "held-out")
    model = train_scene_detector(train, 6, steps=70, batch=16)
    names = [f"digit {number}" for number in KNOWN]
    guarded = offmap.boxes(
        model, train.batches(), held_out=held_out.batches(), head=model.head, detector="maxlogit + knn(5)",
        class_names=names,
    )  # fmt: skip
    return model, guarded, make_scenes(120, range(10), "test")


def test_unknown_digits_are_flagged_and_the_promise_holds(world) -> None:
    _, guarded, scenes = world
    found = count_found(guarded, scenes, KNOWN)
    assert found["unknown_boxed"] > 0.6, "objectness knows of no classes"
    assert found["known_flagged"] < 0.15
    assert found["unknown_flagged"] > found["known_flagged"] + 0.2
    judged = guarded(scenes.images[:8])
    classes = guarded.predict(scenes.images[:8])
    for one, labels in zip(judged, classes, strict=True):
        assert (labels == np.where(one.verdicts.known, one.logits.argmax(axis=1), -1)).all()
    rows = judged[0].to_json(guarded.deployment.class_names)
    assert set(rows[0]) == {"box", "class", "known", "p_value", "score"}


def test_a_guard_is_one_file_beside_the_model(world, tmp_path) -> None:
    model, guarded, scenes = world
    guarded.save(tmp_path / "boxes.offmap")
    again = BoxGuard.load(tmp_path / "boxes.offmap", model)
    for one, two in zip(guarded(scenes.images[:8]), again(scenes.images[:8]), strict=True):
        np.testing.assert_array_equal(one.verdicts.score, two.verdicts.score)


def test_unknown_crops_go_to_the_store(world, tmp_path) -> None:
    _, guarded, scenes = world
    store = open_unknown_store(tmp_path)
    images = scenes.images[:20]
    flagged = [
        (one.corners[row], one.features[row]) for one in guarded(images) for row in np.flatnonzero(~one.verdicts.known)
    ]
    assert store_unknown_boxes(store, guarded, images, [f"scene {i}" for i in range(20)]) == len(flagged) > 0
    items = store.get([item.id for item in store.read_page(100).items])
    for item, (corners, features) in zip(items, flagged, strict=True):
        crop = Image.open(io.BytesIO(item.content))
        assert crop.size[0] >= min(corners[2], 64) - max(corners[0], 0)
        np.testing.assert_array_equal(item.features, features)
        assert item.reference.startswith("scene ")
        assert item.predicted.startswith("digit ")
    with pytest.raises(InputError, match="one each"):
        store_unknown_boxes(store, guarded, images, ["one name"])


def test_images_without_boxes_are_no_trouble(world) -> None:
    _, guarded, _ = world
    empty = BoxGuard(lambda images: [(np.zeros((0, 4)), np.zeros((0, 6)), np.zeros((0, 48)))] * 2, guarded.deployment)
    assert [len(one) for one in empty(torch.zeros(2, 1, 64, 64))] == [0, 0]
    assert [one.tolist() for one in empty.predict(torch.zeros(2, 1, 64, 64))] == [[], []]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "one entry per image"),
        (torch.zeros(2, 4), "one entry per image"),
        ([{"boxes": CORNERS, "logits": np.zeros((1, 3))}], "without features"),
        ([(CORNERS, np.zeros((1, 3)))], "boxes, logits and features are needed"),
        ([(CORNERS * np.nan, np.zeros((1, 3)), np.zeros((1, 5)))], "boxes hold NaN"),
        ([(CORNERS, np.zeros((1, 3)), np.full((1, 5), np.inf))], "features hold NaN"),
        ([(CORNERS[:, :3], np.zeros((1, 3)), np.zeros((1, 5)))], "k × 4"),
        ([(CORNERS, np.zeros((2, 3)), np.zeros((1, 5)))], "1 boxes, 2 logits"),
    ],
)
def test_a_model_that_answers_otherwise_is_told_the_protocol(answer, said) -> None:
    images = np.zeros((1, 1, 8, 8), np.float32)
    with pytest.raises(InputError, match=said):
        offmap.boxes(lambda batch: answer, [(images, [(CORNERS, [0])])], held_out=[])


def test_boxes_that_match_no_object_are_said_to_be_too_few() -> None:
    images = np.zeros((1, 1, 8, 8), np.float32)
    answer = [(CORNERS + 50, np.zeros((1, 3)), np.zeros((1, 5)))]
    with pytest.raises(InputError, match="0 boxes show one of 1 labelled objects"):
        offmap.boxes(lambda batch: answer, [(images, [{"boxes": CORNERS, "labels": [0]}])], held_out=[])
    with pytest.raises(InputError, match="one target per image"):
        offmap.boxes(lambda batch: answer, [images], held_out=[])
    with pytest.raises(InputError, match=r"the last nn\.Linear"):
        offmap.boxes(lambda batch: answer, [], held_out=[], head="fc")


def test_overlap_is_that_of_pixels() -> None:
    rng = np.random.default_rng(0)
    corners = np.sort(rng.integers(0, 12, (30, 2, 2)), axis=1).reshape(30, 4)[:, [0, 1, 2, 3]]
    masks = np.zeros((30, 12, 12), bool)
    for mask, (x1, y1, x2, y2) in zip(masks, corners, strict=True):
        mask[y1:y2, x1:x2] = True
    both = (masks[:, None] & masks[None]).sum(axis=(2, 3))
    either = (masks[:, None] | masks[None]).sum(axis=(2, 3))
    np.testing.assert_allclose(overlaps(corners, corners), both / np.maximum(either, 1), atol=1e-9)
    matched = match_boxes(corners[:10], corners[10:], 0.2)
    taken = matched[matched >= 0]
    assert len(set(taken.tolist())) == len(taken)
