"""What every method must hold, and the formula against an independent one."""

import numpy as np
import offmap_margin  # noqa: F401 - registers the method where the package is not installed

import offmap


def activations(n=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 4
    rows = (rng.random((n, 6)) + 2 * np.eye(4, 6)[labels]).astype(np.float32)
    return offmap.Activations(rows, offmap.Head(np.eye(4, 6)), labels=labels)


def test_the_formula():
    acts = activations()
    logits = np.sort(acts.logits, axis=1)
    found = offmap.detector("margin").fit(acts).score(acts)
    np.testing.assert_allclose(found, logits[:, -1] - logits[:, -2], rtol=1e-5)


def test_it_composes_adds_saves_and_calibrates(tmp_path):
    acts = activations()
    for spec in ("margin", "react(90)|margin", "margin + energy"):
        guard = offmap.detector(spec).fit(acts[:150]).calibrate(acts[150:])
        guard.save(tmp_path / "guard.offmap")
        again = offmap.load(tmp_path / "guard.offmap")
        np.testing.assert_array_equal(again.score(acts), guard.score(acts))
        parts = np.concatenate([guard.score(acts[:7]), guard.score(acts[7:])])
        np.testing.assert_allclose(parts, guard.score(acts), rtol=1e-5, atol=1e-6)  # however the data are cut


def test_a_shift_of_all_logits_changes_nothing():
    acts = activations()
    moved = offmap.Activations(None, logits=acts.logits + 5)
    plain = offmap.Activations(None, logits=acts.logits)
    guard = offmap.detector("margin").fit(plain)
    np.testing.assert_allclose(guard.score(moved), guard.score(plain), atol=1e-4)
