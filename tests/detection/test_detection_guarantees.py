"""Promises beyond plain exchangeability, each against a simulation: confidence, shift, windows, streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detection_zoo import blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

import offmap
from offmap.deploy.guards import check_exportable
from offmap.detection.calibration import Calibration
from offmap.detection.online_fdr import LORD, SAFFRON
from offmap.detection.p_values import (
    conditional_p_values,
    effective_size,
    order_statistic,
    p_values,
    weighted_p_values,
)
from offmap.detection.shift import CovariateShift
from offmap.errors import InputError


@pytest.mark.parametrize(("n", "tpr", "confidence"), [(59, 0.95, 0.95), (500, 0.9, 0.9), (1000, 0.95, 0.99)])
def test_with_confidence_at_most_a_share_is_flagged(n: int, tpr: float, confidence: float) -> None:
    """The share of N(0, 1) below a threshold is known exactly, set by set: no second sample is needed."""
    rng = np.random.default_rng(n)
    runs = 2000
    broken = {"plain": 0, "confident": 0}
    for _ in range(runs):
        scores = rng.normal(size=n)
        for name, given_ in (("plain", None), ("confident", confidence)):
            threshold = Calibration.of(scores, tpr, confidence=given_).threshold
            broken[name] += norm.cdf(threshold) > 1 - tpr
    allowed = 1 - confidence
    assert broken["confident"] / runs < allowed + 3 * np.sqrt(allowed / runs)
    assert broken["plain"] / runs > 0.3, "the plain promise is kept on average only"


@given(st.integers(1, 3000), st.floats(0.5, 0.99), st.floats(0.5, 0.999))
@settings(max_examples=200, deadline=None)
def test_the_order_statistic_is_the_largest_that_carries_the_confidence(n: int, tpr: float, confidence: float) -> None:
    try:
        place = order_statistic(n, tpr, confidence)
    except InputError:
        assert beta.cdf(1 - tpr, 1, n) < confidence + 1e-9
        return
    assert beta.cdf(1 - tpr, place, n + 1 - place) >= confidence - 1e-9
    if place < n:
        assert beta.cdf(1 - tpr, place + 1, n - place) < confidence + 1e-9


def test_verdicts_and_thresholds_agree_with_a_confidence() -> None:
    rng = np.random.default_rng(0)
    scores, classes = rng.normal(size=400), rng.integers(0, 3, 400)
    new, of = rng.normal(size=500), rng.integers(0, 3, 500)
    made = Calibration.of(scores, 0.9, confidence=0.9)
    assert np.array_equal(made.verdicts(new).known, new >= made.threshold)
    assert made.threshold < Calibration.of(scores, 0.9).threshold
    by_class = Calibration.of(scores, 0.9, classes, 3, confidence=0.9)
    limits = by_class.thresholds()
    assert np.array_equal(by_class.verdicts(new, of).known, new >= [limits[label] for label in of])
    with pytest.raises(InputError, match="at least 59 are needed"):
        Calibration.of(scores[:58], 0.95, confidence=0.95)
    for wrong in (0.0, 1.0, 95):
        with pytest.raises(InputError, match="a probability between 0 and 1"):
            Calibration.of(scores, 0.95, confidence=wrong)


def test_conditional_p_values_hold_for_most_sets_at_all_levels_at_once() -> None:
    rng = np.random.default_rng(1)
    n, runs, confidence = 300, 1500, 0.9
    broken = 0
    for _ in range(runs):
        uniform = np.sort(rng.random(n))  # F(score) of the calibration scores
        broken += (conditional_p_values(uniform, np.nextafter(uniform, -1), confidence) < uniform).any()
    assert broken / runs < 1 - confidence + 3 * np.sqrt(0.1 * 0.9 / runs)
    one = np.sort(rng.random(n))
    new = np.sort(rng.random(1000))
    found = conditional_p_values(one, new, confidence)
    assert (np.diff(found) >= 0).all()
    assert (found >= p_values(one, new) - 1 / n).all(), "never below the plain ones by more than rounding"


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.floats(0.1, 9)), min_size=1, max_size=20),
    st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.0]), st.floats(0.1, 9)), min_size=1, max_size=9),
)
def test_weighted_p_values_against_counting(
    calibration: list[tuple[float, float]], new: list[tuple[float, float]]
) -> None:
    ordered = sorted(calibration)
    scores, weights = np.array(ordered).T
    values, own = np.array(new).T
    wanted = [(w + sum(v for s, v in ordered if s <= x)) / (w + sum(v for _, v in ordered)) for x, w in new]
    np.testing.assert_allclose(weighted_p_values(scores, values, weights, own), wanted)
    np.testing.assert_allclose(
        weighted_p_values(scores, values, np.ones_like(weights), np.ones_like(own)), p_values(scores, values)
    )


def shifted_worlds(rng: np.random.Generator, n: int, mean: float) -> np.ndarray:
    """Two features; what is known lies about 0 in the second, wider the larger the first is."""
    first = rng.normal(mean, 1, n)
    return np.stack([first, rng.normal(size=n) * np.exp(first / 2)], axis=1)


@pytest.mark.parametrize("kind", ["known", "estimated"])
def test_weights_keep_the_promise_under_covariate_shift(kind: str) -> None:
    """The density ratio of N(1, 1) and N(0, 1) in the first feature is exp(x - 1/2)."""
    rng = np.random.default_rng(2)
    rates: dict[str, list[float]] = {"plain": [], "weighted": []}
    runs = 60 if kind == "known" else 15
    for _ in range(runs):
        held_out, future = shifted_worlds(rng, 800, 0.0), shifted_worlds(rng, 800, 1.0)
        scores, new = -np.abs(held_out[:, 1]), -np.abs(future[:, 1])
        if kind == "known":
            ratios, own = np.exp(held_out[:, 0] - 0.5), np.exp(future[:, 0] - 0.5)
        else:
            shift, ratios = CovariateShift.fit(held_out, shifted_worlds(rng, 800, 1.0))
            own = shift.ratios(future)
        rates["plain"].append(np.mean(~Calibration.of(scores, 0.9).verdicts(new).known))
        made = Calibration.of(scores, 0.9, weights=ratios)
        rates["weighted"].append(np.mean(~made.verdicts(new, weights=own).known))
    error = np.std(rates["weighted"]) / np.sqrt(runs)
    assert np.mean(rates["plain"]) > 0.2, "without weights the promise is broken twofold"
    assert np.mean(rates["weighted"]) < 0.1 + 3 * error + (0.02 if kind == "estimated" else 0)
    assert np.mean(rates["weighted"]) > 0.06


def test_no_shift_is_estimated_as_none() -> None:
    rng = np.random.default_rng(3)
    shift, ratios = CovariateShift.fit(rng.normal(size=(600, 5)), rng.normal(size=(900, 5)))
    assert np.abs(np.log(ratios)).max() < 0.6
    assert effective_size(ratios) > 550
    with pytest.raises(InputError, match="at least 20 of each"):
        CovariateShift.fit(rng.normal(size=(600, 5)), rng.normal(size=(19, 5)))
    with pytest.raises(InputError, match="6 features of recent inputs, but 5"):
        CovariateShift.fit(rng.normal(size=(600, 5)), rng.normal(size=(50, 6)))
    with pytest.raises(InputError, match="4 features per input"):
        shift.ratios(np.ones((2, 4)))


def test_a_shift_too_large_for_the_set_is_refused() -> None:
    weights = np.where(np.arange(100) < 3, 1.0, 1e-6)
    with pytest.raises(InputError, match="100 weighted inputs count as 3, the shift is too large"):
        Calibration.of(np.arange(100.0), 0.95, weights=weights)
    with pytest.raises(InputError, match="leave one of them out"):
        Calibration.of(np.arange(100.0), 0.95, weights=np.ones(100), confidence=0.9)
    with pytest.raises(InputError, match="one number from 0 on for each"):
        Calibration.of(np.arange(100.0), 0.95, weights=-np.ones(100))
    made = Calibration.of(np.arange(100.0), 0.9, weights=np.ones(100))
    with pytest.raises(InputError, match="each input has its own threshold"):
        made.threshold  # noqa: B018 - reading it is the test
    with pytest.raises(InputError, match="not promised for a calibration with weights"):
        made.verdicts(np.arange(3.0), fdr=0.1)


def test_a_detector_calibrated_for_a_shift_saves_and_comes_back(tmp_path: Path) -> None:
    known = blobs(600)
    recent = blobs(500, seed=4)[blobs(500, seed=4).predictions != 0]
    made = offmap.detector("energy").fit(known[:200]).calibrate(known[200:], tpr=0.9, shift=recent)
    made.save(tmp_path / "guard.offmap")
    again = offmap.load(tmp_path / "guard.offmap")
    assert np.array_equal(again(recent).p_value, made(recent).p_value)
    plain = offmap.detector("energy").fit(known[:200]).calibrate(known[200:], tpr=0.9)
    assert not np.allclose(plain(recent).p_value, made(recent).p_value)
    by_function = made.calibrate(known[200:], tpr=0.9, shift=lambda acts: np.ones(len(acts)))
    assert np.allclose(by_function(recent).p_value, plain(recent).p_value)
    with pytest.raises(InputError, match="which no file can hold"):
        by_function.save(tmp_path / "function.offmap")
    with pytest.raises(InputError, match="for which nothing is promised on streams"):
        made.stream()
    with pytest.raises(InputError, match="a graph does not compute"):
        check_exportable(made)


def test_a_window_follows_a_drift_that_a_fixed_set_does_not() -> None:
    """Known inputs whose scores sink slowly: false alarms of the first calibration rise, those of the window stay."""
    rng = np.random.default_rng(5)
    fixed = rolling = Calibration.of(rng.normal(size=500), 0.95)
    alarms: dict[str, list[float]] = {"fixed": [], "rolling": []}
    for step in range(60):
        scores = rng.normal(-0.03 * step, 1, 200)
        alarms["fixed"].append(np.mean(~fixed.verdicts(scores).known))
        alarms["rolling"].append(np.mean(~rolling.verdicts(scores).known))
        rolling = rolling.extend(scores, window=500)
        assert len(rolling.scores) == 500
    assert np.mean(alarms["fixed"][-10:]) > 0.4
    assert np.mean(alarms["rolling"][-10:]) < 0.07


def test_shares_undo_that_flagged_inputs_are_looked_at_more_often() -> None:
    """Of flagged inputs all are looked at, of others one in ten; nothing drifts, so false alarms must stay at 5 %."""
    rng = np.random.default_rng(6)
    naive_rates, fair_rates = [], []
    for _ in range(40):
        first = Calibration.of(rng.normal(size=1000), 0.95)
        scores = rng.normal(size=20_000)
        shares = np.where(first.verdicts(scores).known, 0.1, 1.0)
        seen = rng.random(20_000) < shares
        naive, fair = (first.extend(scores[seen], 2000, weights=w) for w in (None, 1 / shares[seen]))
        new = rng.normal(size=4000)
        naive_rates.append(np.mean(~naive.verdicts(new).known))
        fair_rates.append(np.mean(~fair.verdicts(new).known))
    assert np.mean(naive_rates) < 0.02, "too many low scores: almost nothing is flagged any more"
    assert 0.035 < np.mean(fair_rates) < 0.05 + 3 * np.std(fair_rates) / np.sqrt(40)


def test_recalibrating_a_detector() -> None:
    known = blobs(900)
    made = offmap.detector("energy").fit(known[:200]).calibrate(known[200:400], tpr=0.9)
    before = made.threshold
    made.recalibrate(known[400:700], window=250)
    assert made.calibration is not None
    assert np.array_equal(made.calibration.scores, np.sort(made.score(known[450:700])))
    made.recalibrate(known[700:], window=250, shares=np.full(200, 0.5))
    assert made.calibration.weights is not None
    assert sorted(set(made.calibration.weights)) == [1.0, 2.0]
    assert before != made.calibration.scores[0]
    for shares in (np.zeros(200), np.ones(3), np.full(200, 2.0)):
        with pytest.raises(InputError, match="one number above 0 and up to 1"):
            made.recalibrate(known[700:], shares=shares)
    by_class = offmap.detector("energy").fit(known[:200]).calibrate(known[200:500], tpr=0.9, by_class=True)
    by_class.recalibrate(known[500:], window=60)
    assert by_class.calibration is not None
    assert np.bincount(by_class.calibration.classes).tolist() == [60, 60, 60]


def lord_by_hand(values: list[float], alpha: float, shares: list[float]) -> list[bool]:
    """LORD++ as a sum over all discoveries, written out."""
    found: list[bool] = []
    for t, value in enumerate(values, 1):
        times = [s for s, one in enumerate(found, 1) if one]
        level = shares[t - 1] * alpha / 2
        if times:
            level += alpha / 2 * shares[t - times[0] - 1]
            level += alpha * sum(shares[t - s - 1] for s in times[1:])
        found.append(value <= level)
    return found


def saffron_by_hand(values: list[float], alpha: float, shares: list[float], bound: float = 0.5) -> list[bool]:
    found: list[bool] = []
    for t, value in enumerate(values, 1):

        def index(since: int, t: int = t) -> int:
            return t - since - sum(v <= bound for v in values[since : t - 1])

        times = [s for s, one in enumerate(found, 1) if one]
        level = shares[index(0) - 1] * alpha / 2
        if times:
            level += alpha / 2 * shares[index(times[0]) - 1] + alpha * sum(shares[index(s) - 1] for s in times[1:])
        found.append(value <= min(bound, (1 - bound) * level))
    return found


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1), st.floats(0, 0.01)), max_size=40), st.floats(0.01, 0.5))
def test_procedures_by_hand(values: list[float], alpha: float) -> None:
    times = np.arange(1.0, 42.0)
    assert LORD(alpha).update(np.array(values)).tolist() == lord_by_hand(values, alpha, LORD().share(times).tolist())
    assert SAFFRON(alpha).update(np.array(values)).tolist() == saffron_by_hand(
        values, alpha, SAFFRON().share(times).tolist()
    )


@pytest.mark.parametrize("kind", [LORD, SAFFRON])
def test_shares_add_up_to_at_most_one(kind: type[LORD] | type[SAFFRON]) -> None:
    total = kind().share(np.arange(1.0, 1e6)).sum()
    assert 0.5 < total < 1


@pytest.mark.parametrize("kind", [LORD, SAFFRON])
def test_the_share_of_false_alarms_stays_below_the_rate_all_along(kind: type[LORD] | type[SAFFRON]) -> None:
    """Streams of 300 with 30 % unknown inputs, one calibration set each; plain p-values and those given the set."""
    rng = np.random.default_rng(7)
    runs = 60
    for confidence in (None, 0.9):
        shares, power = [], []
        for _ in range(runs):
            calibration = np.sort(rng.normal(size=5000))
            unknown = rng.random(300) < 0.3
            scores = rng.normal(np.where(unknown, -5, 0), 1)
            values = p_values(calibration, scores)
            if confidence is not None:
                values = conditional_p_values(calibration, scores, confidence)
            found = kind(0.2).update(values)
            shares.append(np.cumsum(found & ~unknown) / np.maximum(np.cumsum(found), 1))
            power.append(found[unknown].mean())
        worst = np.mean(shares, axis=0).max()
        assert worst < 0.2 + 3 * np.std(np.array(shares)[:, -1]) / np.sqrt(runs)
        assert np.mean(power) > 0.4, "and many unknown inputs are found"


def test_a_stream_of_batches_is_the_stream_of_its_inputs() -> None:
    rng = np.random.default_rng(8)
    made = offmap.detector("knn(5, normalize=false)").fit(rng.normal(size=(300, 4)))
    made.calibrate(rng.normal(size=(1500, 4)))
    rows = np.concatenate([9 + rng.normal(size=(20, 4)), rng.normal(size=(80, 4))])
    for procedure in ("lord", "saffron"):
        whole = made.stream(0.1, procedure)(rows).known
        parts = made.stream(0.1, procedure)
        assert np.array_equal(np.concatenate([parts(rows[:30]).known, parts(rows[30:]).known]), whole)
        assert not whole[:20].any()
        assert (~whole[20:]).sum() <= 4
        given_set = made.stream(0.1, procedure, confidence=0.9)
        assert given_set.can_flag == (procedure == "saffron"), "LORD++ begins at a level below all p-values of this set"
        assert (given_set(rows).p_value >= made(rows).p_value).all()
        for _ in range(3):
            parts(rng.normal(size=(2000, 4)) / 9)  # nothing unknown for a long time
        assert not parts.can_flag
    with pytest.raises(InputError, match="choose one of lord, saffron"):
        made.stream(procedure="bh")
    with pytest.raises(InputError, match="a rate between 0 and 1"):
        made.stream(fdr=5)
    with pytest.raises(InputError, match="a probability between 0 and 1"):
        made.stream(confidence=95)
