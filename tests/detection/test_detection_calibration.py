"""The promises of calibration: exact formulas, and simulated rates."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from detection_zoo import blobs, rebuilt
from hypothesis import given, settings
from hypothesis import strategies as st

import offmap
from offmap.detection.calibration import Calibration
from offmap.detection.p_values import discoveries, order_statistic, p_values
from offmap.errors import InputError, NotFittedError, OffmapWarning

SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, -np.inf]), min_size=1, max_size=40)


@settings(deadline=None)
@given(SCORES, SCORES)
def test_p_values_against_counting(calibration: list[float], scores: list[float]) -> None:
    wanted = [(1 + sum(c <= s for c in calibration)) / (len(calibration) + 1) for s in scores]
    np.testing.assert_allclose(p_values(np.sort(calibration), np.array(scores)), wanted)


@settings(max_examples=300, deadline=None)
@given(SCORES, SCORES, st.one_of(st.sampled_from([0.5, 0.75, 0.8, 0.9, 0.95]), st.floats(0.05, 0.97)))
def test_threshold_and_p_value_say_the_same(calibration: list[float], scores: list[float], tpr: float) -> None:
    try:
        made = Calibration.of(np.array(calibration), tpr)
    except InputError:
        assert (1 - tpr) * (len(calibration) + 1) < 1
        return
    verdicts = made.verdicts(np.array(scores))
    assert np.array_equal(verdicts.known, np.array(scores) >= made.threshold)
    assert np.array_equal(verdicts.known, verdicts.p_value > 1 - tpr + 1e-12)


@pytest.mark.parametrize(("tpr", "n"), [(0.95, 19), (0.9, 9), (0.99, 99), (0.5, 1), (0.999, 999), (0.8, 4)])
def test_the_smallest_set_that_carries_a_level(tpr: float, n: int) -> None:
    assert order_statistic(n, tpr) == 1
    with pytest.raises(InputError, match=f"from {n - 1} calibration inputs; at least {n} are needed"):
        order_statistic(n - 1, tpr)
    with pytest.raises(InputError, match="lies between 0 and 1"):
        order_statistic(100, 95)


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Over calibration sets and new inputs P(p ≤ α) is ⌊α(n+1)⌋/(n+1) for continuous scores: at most α."""
    rng = np.random.default_rng(0)
    for n, tpr in ((19, 0.95), (100, 0.95), (57, 0.9)):
        runs, new = 4000, 20
        alarms = 0
        for _ in range(runs):
            made = Calibration.of(rng.normal(size=n), tpr)
            alarms += int((~made.verdicts(rng.normal(size=new)).known).sum())
        rate = alarms / (runs * new)
        exact = np.floor((1 - tpr) * (n + 1) + 1e-9) / (n + 1)
        # one calibration set serves `new` inputs, so the rates of runs vary as a beta distribution does
        error = np.sqrt(exact * (1 - exact) / (n + 2) / runs + exact / (runs * new))
        assert abs(rate - exact) < 4 * error
        assert rate < 1 - tpr + 4 * error


def test_ties_only_make_it_more_cautious() -> None:
    rng = np.random.default_rng(0)
    alarms = [
        (
            ~Calibration.of(rng.integers(0, 4, 39).astype(float), 0.9)
            .verdicts(rng.integers(0, 4, 50).astype(float))
            .known
        )
        for _ in range(2000)
    ]
    assert np.mean(alarms) <= 0.1


def test_the_promise_holds_in_every_class() -> None:
    """Classes with other scores: on average the promise holds, by class only with by_class."""
    rng = np.random.default_rng(1)
    shift = np.array([0.0, 3.0, -2.0])
    plain, mondrian = np.zeros(3), np.zeros(3)
    runs, new = 600, 200
    counts = np.zeros(3)
    for _ in range(runs):
        classes, fresh = rng.integers(0, 3, 300), rng.integers(0, 3, new)
        calibration, scores = rng.normal(size=300) + shift[classes], rng.normal(size=new) + shift[fresh]
        flags = ~Calibration.of(calibration, 0.9).verdicts(scores).known
        by_class = ~Calibration.of(calibration, 0.9, classes, 3).verdicts(scores, fresh).known
        plain += np.bincount(fresh, flags, 3)
        mondrian += np.bincount(fresh, by_class, 3)
        counts += np.bincount(fresh, minlength=3)
    assert plain.sum() / counts.sum() == pytest.approx(0.1, abs=0.01)
    assert (plain / counts).max() > 0.2, "one class pays for the others"
    assert (mondrian / counts).max() < 0.105
    assert (mondrian / counts).min() > 0.08


def test_false_discoveries_stay_below_the_rate() -> None:
    """Bates et al. 2023: with conformal p-values of one calibration set, BH keeps the expected share of known inputs
    among those flagged at most fdr × the share of known inputs in the batch."""
    rng = np.random.default_rng(2)
    shares, found = [], []
    for _ in range(600):
        made = Calibration.of(rng.normal(size=500), 0.95)
        known, unknown = rng.normal(size=80), rng.normal(-4, 1, 20)
        flagged = ~made.verdicts(np.concatenate([known, unknown]), fdr=0.2).known
        shares.append(flagged[:80].sum() / max(flagged.sum(), 1))
        found.append(flagged[80:].mean())
    error = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) <= 0.2 * 0.8 + 3 * error
    assert np.mean(found) > 0.8, "it flags most of the unknown"


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=20), st.floats(0.01, 0.5))
def test_benjamini_hochberg_by_hand(values: list[float], fdr: float) -> None:
    ordered = sorted(values)
    # in fractions: p * n / n is not always p in floating point
    passed = [rank for rank, p in enumerate(ordered, 1) if Fraction(p) * len(values) / rank <= Fraction(fdr)]
    wanted = np.array(values) <= (ordered[passed[-1] - 1] if passed else -1)
    assert np.array_equal(discoveries(np.array(values), fdr), wanted)


def test_by_class_names_the_class_that_is_too_small() -> None:
    known = blobs(200)
    made = offmap.detector("energy").fit(known)
    few = known[np.concatenate([np.flatnonzero(known.predictions != 1), np.flatnonzero(known.predictions == 1)[:5]])]
    with pytest.raises(
        InputError, match=r"class 1: tpr=0\.95 cannot be promised from 5 calibration inputs; at least 19"
    ):
        made.calibrate(few, by_class=True)
    none = known[known.predictions != 2]
    with pytest.raises(InputError, match=r"class 2: tpr=0\.95 cannot be promised from 0"):
        made.calibrate(none, by_class=True)
    made.calibrate(known, tpr=0.9, by_class=True)
    with pytest.raises(InputError, match="thresholds"):
        made.threshold  # noqa: B018 - reading it is the test
    assert made.calibration is not None
    limits = made.calibration.thresholds()
    verdicts = made(known)
    assert verdicts.predicted is not None
    assert np.array_equal(verdicts.known, verdicts.score >= [limits[c] for c in verdicts.predicted])


def test_detector_calibrates_saves_and_speaks(tmp_path: object) -> None:
    known = blobs(300)
    made = offmap.detector("knn(5)").fit(known[:200])
    with pytest.raises(NotFittedError, match="call calibrate"):
        made(known)
    with pytest.raises(InputError, match="no calibration inputs"):
        made.calibrate(known[:0])
    with pytest.raises(InputError, match="at least 19 are needed"):
        made.calibrate(known[:18])
    assert made.calibrate(known[200:]) is made
    strange = offmap.Activations(-known.features[:7], known.head)
    verdicts = made(strange)
    assert not verdicts.known.any()
    assert np.allclose(verdicts.p_value, 1 / 101)
    first = next(iter(verdicts))
    assert (first.known, first.score) == (False, verdicts.score[0])
    assert "7 unknown" in repr(verdicts)
    assert np.array_equal(made.predict(strange), -np.ones(7))
    bare = rebuilt(strange, head=None)
    assert made(bare).predicted is not None, "the head of fitting says the class"
    with pytest.raises(InputError, match="fdr=2"):
        made.verdicts(strange, fdr=2)
    assert not made.verdicts(strange, fdr=0.2).known.any()


def test_infinite_scores_are_ordered_and_an_infinite_threshold_is_said() -> None:
    scores = np.concatenate([[-np.inf, np.inf], np.arange(98.0)])
    made = Calibration.of(scores, tpr=0.95)
    assert made.threshold == 3.0
    np.testing.assert_allclose(made.p_values(np.array([-np.inf, 3.0, np.inf])), np.array([2, 6, 101]) / 101)
    np.testing.assert_array_equal(
        made.verdicts(np.array([-np.inf, 2.9, 3.0, np.inf])).known, [False, False, True, True]
    )
    rows = np.random.default_rng(0).random((100, 3)).astype(np.float32)
    silent = rows.copy()
    silent[:6] = 0  # features that point nowhere are infinitely far from all neighbours
    guard = offmap.detector("knn(1)").fit(rows)
    with pytest.warns(OffmapWarning, match="6 of 100 calibration inputs score -inf, so that nothing will be flagged"):
        guard.calibrate(silent)
    assert guard.threshold == -np.inf
    assert guard(silent).known.all()
    guard.calibrate(silent[3:], tpr=0.95)  # three of 97: the fourth lowest score is the threshold
    assert np.isfinite(guard.threshold)
    assert not guard(silent[:6]).known.any()
