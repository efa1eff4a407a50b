"""The running statistics against plain formulas, whichever way the data is cut."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offmap.detection.quantiles import Quantile
from offmap.detection.statistics import ClassMoments, ClassScatters, Extremes, Mean, NullStatistic, RowSample, Statistic
from offmap.errors import InputError

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
MODEST = st.floats(-1e3, 1e3, width=32)
PERCENTILES = st.one_of(st.sampled_from([0, 10, 50, 90, 95, 99, 100]), st.floats(0, 100))


def labelled(seed: int, n: int, width: int = 3, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, width)).astype(np.float32)), torch.from_numpy(
        rng.integers(0, classes, n)
    )


def looped_moments(rows: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts, means = np.zeros(classes), np.zeros((classes, rows.shape[1]))
    for c in range(classes):
        mine = [row for row, label in zip(rows, labels, strict=True) if label == c]
        counts[c] = len(mine)
        if mine:
            means[c] = sum(mine) / len(mine)
    scatter = np.zeros((rows.shape[1], rows.shape[1]))
    for row, label in zip(rows, labels, strict=True):
        scatter += np.outer(row - means[label], row - means[label])
    return counts, means, scatter


def test_class_moments_against_loops() -> None:
    x, y = labelled(0, 57)
    moments = ClassMoments()
    moments.update(x, y)
    rows, labels = x.double().numpy(), y.numpy()
    counts, means, scatter = looped_moments(rows, labels, 4)
    np.testing.assert_allclose(moments.counts, counts)
    np.testing.assert_allclose(moments.means, means, atol=1e-14)
    np.testing.assert_allclose(moments.scatter, scatter, atol=1e-12)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(moments.tied_covariance(), scatter / len(rows), atol=1e-13)
    np.testing.assert_allclose(moments.covariance(), np.cov(rows.T, bias=True), atol=1e-13)
    np.testing.assert_allclose(moments.second_moment(), rows.T @ rows / len(rows), atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 25), min_size=2, max_size=5), st.randoms())
def test_moments_merge_in_any_order_and_grouping(seed: int, sizes: list[int], random: Any) -> None:
    x, y = labelled(seed, sum(sizes) + 1)
    whole = ClassMoments()
    whole.update(x, y)
    cuts = np.cumsum([0, *sizes, 1])
    parts = []
    for start, stop in itertools.pairwise(cuts):
        part = ClassMoments()
        part.update(x[start:stop], y[start:stop])
        parts.append(part)
    while len(parts) > 1:
        first = parts.pop(random.randrange(len(parts)))
        place = random.randrange(len(parts))
        first.merge(parts[place])
        parts[place] = first
    for name in ("counts", "means", "scatter"):
        a, b = getattr(parts[0], name), getattr(whole, name)
        np.testing.assert_allclose(a[: len(b)], b, atol=1e-9, err_msg=name)


def test_moments_keep_their_digits_far_from_the_origin() -> None:
    rng = np.random.default_rng(0)
    small = rng.integers(-8, 8, size=(400, 3)).astype(np.float64)
    far = ClassMoments()
    near = ClassMoments()
    for start in range(0, 400, 50):
        far.update(torch.from_numpy(small[start : start + 50] + 2.0**22))
        near.update(torch.from_numpy(small[start : start + 50]))
    np.testing.assert_allclose(far.scatter, near.scatter, rtol=1e-9)


def test_moments_refuse_what_are_no_classes() -> None:
    x, y = labelled(0, 5)
    with pytest.raises(InputError, match="labels >= 0"):
        ClassMoments().update(x, y - 9)
    with pytest.raises(InputError, match="class indices"):
        ClassMoments().update(x, y + 10**9)
    moments = ClassMoments()
    moments.update(x, y)
    with pytest.raises(InputError, match="2 features per input, but earlier ones had 3"):
        moments.update(x[:, :2], y)


def test_mean_against_numpy_and_deaf_ears() -> None:
    x, _ = labelled(0, 31)
    mean = Mean()
    for start in range(0, 31, 7):
        mean.update(x[start : start + 7])
    np.testing.assert_allclose(mean.value, x.double().numpy().mean(axis=0), atol=1e-15)
    NullStatistic().update(x, labels=x)


def exact(values: np.ndarray, percentiles: tuple[float, ...], parts: int = 1) -> list[float]:
    quantile = Quantile(percentiles)
    for _ in range(2):
        for part in np.array_split(values, parts):
            quantile.update(torch.from_numpy(part))
        quantile.begin_second_pass()
    return quantile.values()


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 60), elements=FLOAT32), PERCENTILES)
def test_quantile_is_numpys_after_two_readings(values: np.ndarray, percentile: float) -> None:
    wanted = np.percentile(values.astype(np.float64), percentile)
    (found,) = exact(values, (percentile,), parts=min(3, len(values)))
    assert found == pytest.approx(wanted, rel=1e-12, abs=float(1e-12 * np.abs(values).max()) + 1e-45)


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-0.0, 0.0, 0.0, 1.0, -1.0, 1.0, 2.5])),
    PERCENTILES,
)
def test_quantile_with_ties_and_zeros(values: np.ndarray, percentile: float) -> None:
    (found,) = exact(values, (percentile,))
    assert found == pytest.approx(np.percentile(values.astype(np.float64), percentile), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 60), elements=FLOAT32), PERCENTILES)
def test_quantile_of_one_reading_keeps_its_promise(values: np.ndarray, percentile: float) -> None:
    quantile = Quantile((percentile,))
    quantile.update(torch.from_numpy(values))
    ordered = np.sort(values.astype(np.float64))
    place = percentile / 100 * (len(values) - 1)
    low, high = ordered[int(np.floor(place))], ordered[min(int(np.floor(place)) + 1, len(values) - 1)]
    slack = 6.2e-5 * max(abs(low), abs(high)) + 1e-37
    assert low - slack <= quantile.values()[0] <= high + slack


def test_quantile_of_many_zeros_stays_zero_in_one_reading() -> None:
    quantile = Quantile((50, 90))
    quantile.update(torch.tensor([0.0] * 60 + [5.0] * 40))
    middle, upper = quantile.values()
    assert middle == 0.0
    assert upper == pytest.approx(5.0, rel=6e-5)


def test_quantile_merges_to_the_same_bits_and_minds_readings() -> None:
    values = torch.randn(999, generator=torch.Generator().manual_seed(0))
    whole, first, second = Quantile((10, 95)), Quantile((10, 95)), Quantile((10, 95))
    whole.update(values)
    first.update(values[:400])
    second.update(values[400:])
    first.merge(second)
    assert first.values() == whole.values()
    assert np.array_equal(first.state()["counts"], whole.state()["counts"])
    assert second.count == 599, "merging must not change the other"
    whole.begin_second_pass()
    with pytest.raises(InputError, match="different readings"):
        first.merge(whole)
    with pytest.raises(InputError, match="at least one input"):
        Quantile((50,)).values()
    assert not Quantile((50,)).begin_second_pass()


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.float32, (12, 2), elements=MODEST), hnp.arrays(np.int64, 12, elements=st.integers(0, 3)))
def test_extremes_against_loops(rows: np.ndarray, classes: np.ndarray) -> None:
    parts = [Extremes(), Extremes()]
    for part, keep in zip(parts, (slice(0, 5), slice(5, 12)), strict=True):
        part.update(torch.from_numpy(rows[keep]), torch.from_numpy(classes[keep]))
    parts[0].merge(parts[1])
    for c in range(int(classes.max()) + 1):
        mine = rows[classes == c]
        low = mine.min(axis=0) if len(mine) else np.full(2, np.inf)
        high = mine.max(axis=0) if len(mine) else np.full(2, -np.inf)
        assert np.array_equal(parts[0].low[c], low)
        assert np.array_equal(parts[0].high[c], high)


def test_rows_do_not_depend_on_the_cut() -> None:
    x, y = labelled(0, 300)
    for settings_ in ({"size": 20}, {"alpha": 0.1}, {"alpha": 1.0}):
        whole, first, second = (RowSample(**settings_) for _ in range(3))
        whole.update(x, label=y)
        second.update(x[:111], label=y[:111])
        first.update(x[111:], label=y[111:])
        first.merge(second)
        assert torch.equal(first.rows, whole.rows)
        assert torch.equal(first.companion("label"), whole.companion("label"))


@pytest.mark.parametrize("begin_second_pass", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        Mean(),
        ClassMoments(),
        ClassMoments(scatter=False),
        ClassScatters(),
        Quantile((5, 90)),
        RowSample(size=9),
        RowSample(alpha=0.5),
        Extremes(),
    ],
    ids=lambda made: type(made).__name__,
)
def test_state_goes_round_before_and_after_data(made: Statistic, begin_second_pass: bool) -> None:
    x, y = labelled(0, 40)
    statistic, twin = copy.deepcopy(made), copy.deepcopy(made)
    for rows, labels in ((x[:0], y[:0]), (x[:25], y[:25]), (x[25:], y[25:])):
        if len(rows):
            with_labels = isinstance(statistic, ClassMoments | ClassScatters | Extremes)
            for each in (statistic, twin):
                each.update(rows, labels) if with_labels else each.update(rows)
            if begin_second_pass:
                assert statistic.begin_second_pass() == twin.begin_second_pass()
        twin.restore({name: array.copy() for name, array in statistic.state().items()})
        for name, array in statistic.state().items():
            assert np.array_equal(array, twin.state()[name]), name
