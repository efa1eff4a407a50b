"""What a notebook shows of a result is one short line, whatever it holds."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import offmap
from offmap import data

rng = np.random.default_rng(0)
LABELS = np.arange(300) % 3
ROWS = (rng.normal(size=(300, 6)) + 6 * np.eye(3, 6)[LABELS]).astype(np.float32)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    acts = offmap.Activations(ROWS, offmap.Head(np.eye(3, 6)), labels=LABELS)
    guard = offmap.detector("energy").fit(acts[:150]).calibrate(acts[150:])
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("ant", "bee"):
        (folder / name).mkdir()
        for i in range(20):
            Image.new("RGB", (4, 4)).save(folder / name / f"{i}.png")
    hidden = np.where(LABELS < 2, LABELS, -1)
    return {
        "activations": acts,
        "detector": guard,
        "calibration": guard.calibration,
        "verdicts": guard(acts),
        "comparison": offmap.compare("msp, energy", acts[:150], acts[150:], {"far": acts[:50]}),
        "discovery": offmap.discover(ROWS, hidden, 3),
        "samples": data.Samples({"features": ROWS, "labels": LABELS}),
        "folder": data.image_folder(folder),
        "batches": data.batches(folder),
        "batches of an array": data.Batches(ROWS, LABELS),
        "split": data.open_world_split(LABELS, [0, 1], 0.5, 0),
    }


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("activations", "Activations(300 inputs, 6 features, 3 classes, labels)"),
        ("detector", "energy"),
        ("calibration", "Calibration(150 held-out inputs, tpr=0.95)"),
        ("verdicts", "Verdicts(300 inputs, "),
        ("comparison", "Comparison(2 methods on id, far; print it for the table)"),
        ("discovery", "Discovery(300 rows, 2 known classes, 1 novel)"),
        ("samples", "Samples(300"),
        ("folder", "ImageFolder(40 pictures, 2 classes)"),
        ("batches", "Batches(ImageFolder(40 pictures, 2 classes), 128 at a time, with labels)"),
        ("batches of an array", "Batches(300×6, 128 at a time, with labels)"),
        ("split", "OpenWorldSplit(300 samples"),
    ],
)
def test_a_result_is_shown_in_one_short_line(results, name, starts):
    shown = repr(results[name])
    assert shown.startswith(starts)
    assert len(shown) < 120
    assert "\n" not in shown


def test_one_of_a_thing_is_in_the_singular():
    one = offmap.Activations(np.ones((1, 1)), head=offmap.Head(np.ones((1, 1))))
    assert (repr(one), repr(one.head)) == ("Activations(1 input, 1 feature, 1 class)", "Head(1 class, 1 feature)")
