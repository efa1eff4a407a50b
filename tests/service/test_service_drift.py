"""The test for drift: its formulas against plain loops, its promise by simulation, its power."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offmap
from offmap.detection.drift import DriftMonitor, compute_bets, compute_smoothed_ranks, update_capital
from offmap.detection.drift_columns import ColumnDrift, DriftReference
from offmap.errors import InputError
from offmap.service import Deployment
from offmap.service.monitoring import ServiceMetrics


def test_ranks_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    counts, bins, noise = rng.integers(0, 4, 7), rng.integers(0, 7, 50), rng.random(50)
    ranks, after = compute_smoothed_ranks(bins, counts, noise)
    held = [value for value, count in enumerate(counts) for _ in range(count)]
    for value, u, rank in zip(bins, noise, ranks, strict=True):
        held.append(value)
        below, equal = sum(h < value for h in held), sum(h == value for h in held)
        assert rank == pytest.approx((below + u * equal) / len(held))
    np.testing.assert_array_equal(after, np.bincount(held, minlength=7))


def test_capital_is_that_of_a_loop_over_starting_times():
    """Each bettor starts with its share before each rank, and multiplies what it has: all such products, summed."""
    rng = np.random.default_rng(1)
    ranks = rng.random(40)
    factors = compute_bets(ranks)
    expected = []
    for n in range(1, 41):
        total = 1 / (n + 1)
        for start in range(1, n + 1):
            share = 1 / (start * (start + 1)) / factors.shape[1]
            total += sum(share * np.prod(factors[start - 1 : n, bettor]) for bettor in range(factors.shape[1]))
        expected.append(total)
    capital, total = update_capital(np.zeros(factors.shape[1]), ranks, 0)
    np.testing.assert_allclose(total, expected, rtol=1e-12)
    half, _ = update_capital(np.zeros(factors.shape[1]), ranks[:15], 0)
    rest, later = update_capital(half, ranks[15:], 15)
    np.testing.assert_allclose(rest, capital, rtol=1e-12)
    np.testing.assert_allclose(later, total[15:], rtol=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 5))
def test_it_does_not_matter_how_the_stream_is_cut(cuts, seed):
    rng = np.random.default_rng(seed)
    calibration, stream = rng.normal(size=100), rng.normal(-0.3, size=sum(cuts))
    whole, parts = DriftMonitor(calibration), DriftMonitor(calibration)
    whole.update(stream)
    for part in np.split(stream, np.cumsum(cuts)[:-1]):
        parts.update(part)
    assert parts.evidence.capital == pytest.approx(whole.evidence.capital, rel=1e-9)
    assert parts.evidence.highest == pytest.approx(whole.evidence.highest, rel=1e-9)
    assert (parts.evidence.seen, parts.evidence.alarm_at) == (whole.evidence.seen, whole.evidence.alarm_at)


@pytest.mark.parametrize(("n", "kind"), [(20, "smooth"), (300, "ties")])
def test_false_alarms_stay_below_alpha_however_long_it_watches(n, kind):
    """200 streams without drift, 3,000 inputs each, watched after every input."""
    alpha, runs, alarms = 0.1, 200, 0
    for run in range(runs):
        rng = np.random.default_rng(10_000 + run)
        calibration, stream = rng.normal(size=n), rng.normal(size=3000)
        if kind == "ties":
            calibration, stream = calibration.round(), stream.round()
        alarms += DriftMonitor(calibration, alpha, seed=run).update(stream).alarm_at is not None
    assert alarms / runs <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / runs)


@pytest.mark.parametrize(("mean", "deviation"), [(-0.7, 1), (0.7, 1), (0, 2), (0, 0.5)])
@pytest.mark.parametrize("quiet", [0, 2000])
def test_a_change_is_found_whenever_it_comes(mean, deviation, quiet):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        drift = DriftMonitor(rng.normal(size=1000), alpha=0.01, seed=seed)
        assert drift.update(rng.normal(size=quiet)).alarm_at is None
        found = drift.update(rng.normal(mean, deviation, size=1000)).alarm_at
        assert found is not None
        assert found <= quiet + 400


def test_unknown_inputs_among_known_ones_are_drift():
    rng = np.random.default_rng(0)
    drift = DriftMonitor(rng.normal(size=1000), alpha=0.01)
    mixed = np.where(rng.random(3000) < 0.15, rng.normal(-4, size=3000), rng.normal(size=3000))
    assert drift.update(mixed).alarm_at is not None


def test_it_survives_overwhelming_evidence_and_constant_scores():
    drift = DriftMonitor(np.zeros(50))
    assert np.isfinite(drift.update(np.zeros(5000)).capital)
    drift = DriftMonitor(np.random.default_rng(0).normal(size=1000))
    evidence = drift.update(np.full(50_000, -9.0))
    assert np.isfinite(evidence.capital)
    assert evidence.alarm_at is not None


@pytest.mark.parametrize(("scores", "alpha"), [([1.0], 0.1), ([1.0, 2.0], 0.0), ([1.0, 2.0], 1.0)])
def test_what_cannot_be_promised_is_refused(scores, alpha):
    with pytest.raises(InputError):
        DriftMonitor(np.array(scores), alpha)


def reference_of(rng: np.random.Generator, n: int = 3000) -> DriftReference:
    predicted = rng.integers(0, 4, n)
    return DriftReference.of(rng.normal(size=n) + predicted, predicted, rng.normal(size=(n, 12)), 4)


def stream_of(rng: np.random.Generator, n: int, labels: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    predicted = rng.integers(0, 4, n) if labels is None else labels
    return rng.normal(size=n) + predicted, predicted, rng.normal(size=(n, 12))


def test_nothing_is_named_while_nothing_drifts() -> None:
    """The promise: any alarm among 20 tests, ever, with probability at most alpha."""
    alarmed = 0
    for run in range(60):
        rng = np.random.default_rng(run)
        drift = ColumnDrift(reference_of(rng, 400), alpha=0.1, seed=run)
        alarmed += bool(drift.update(*stream_of(rng, 250)))
    assert alarmed <= 12, "binomial with 60 tries at 0.1: more than 12 has a probability of 0.6 %"


def test_the_drifting_class_and_feature_are_named() -> None:
    rng = np.random.default_rng(0)
    reference = reference_of(rng)
    moved = ColumnDrift(reference)
    scores, predicted, features = stream_of(rng, 500)
    features[:, 7] -= 1
    assert [(one.what, one.index, one.direction) for one in moved.update(scores, predicted, features)] == [
        ("feature", 7, "lower")
    ]
    sunk = ColumnDrift(reference)
    scores, predicted, features = stream_of(rng, 600)
    scores[predicted == 2] -= 1.5
    assert [(one.what, one.index, one.direction) for one in sunk.update(scores, predicted, features)] == [
        ("score", 2, "lower")
    ]
    frequent = ColumnDrift(reference)
    found = frequent.update(*stream_of(rng, 500, rng.choice(4, 500, p=[0.1, 0.1, 0.1, 0.7])))
    assert ("share", 3, "higher") in [(one.what, one.index, one.direction) for one in found]
    assert {one.what for one in found} == {"share"}
    assert all(0 < one.alarm_at <= 500 and one.evidence > 3 for one in found)


def test_what_drifts_is_in_the_summary_and_the_metrics() -> None:
    rng = np.random.default_rng(1)
    head = offmap.Head(4 * np.eye(3, 6))

    def inputs(n: int, shift: float = 0.0) -> offmap.Activations:
        rows = rng.normal(size=(n, 6)) + 4 * np.eye(3, 6)[rng.integers(0, 3, n)]
        rows[:, 5] += shift
        return offmap.Activations(rows, head)

    guard = offmap.detector("energy").fit(inputs(300)).calibrate(inputs(900))
    deployment = Deployment(guard, None, ("ant", "bee", "cat"))
    metrics = ServiceMetrics(deployment, 0.01, tested_per_second=1e9)
    for shift, named in ((0.0, []), (2.0, [5])):
        acts = inputs(400, shift)
        metrics.record(deployment, guard(acts), acts.features)
        drift = metrics.summarize()["drift"]
        assert [one["feature"] for one in drift["features"]] == named
        assert drift["classes"] == []
    assert drift["features"][0]["direction"] == "higher"
    assert drift["tested"] == 800
    assert b'offmap_drift_columns{what="feature"} 1.0' in metrics.render(0, 0, 0)
    few = ServiceMetrics(deployment, 0.01, tested_per_second=10)
    few.record(deployment, guard(acts), acts.features)
    assert few.summarize()["drift"]["tested"] == 30
