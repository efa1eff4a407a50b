"""Densities and thresholds of k-NN against sampling; the normality test against loops and its own null."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gamma

from offmap.errors import InputError
from offmap.theory.density import (
    bayes_threshold,
    cap_area,
    id_posterior,
    intrinsic_dimension,
    knn_density,
    log_ball_constant,
    neighbour_report,
)
from offmap.theory.normality import henze_zirkler, normality_by_class, null_moments, project_principal


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_ball_constant_is_the_volume_by_recursion(d):
    volumes = {0: 1.0, 1: 2.0}
    for i in range(2, d + 1):
        volumes[i] = volumes[i - 2] * 2 * np.pi / i
    assert np.exp(log_ball_constant(d)) == pytest.approx(volumes[d])


@pytest.mark.parametrize("m", [2, 3, 5, 8])
@pytest.mark.parametrize("r", [0.3, 1.0, 1.4142, 1.7, 2.0])
def test_cap_area_is_the_share_of_random_points(m, r):
    rng = np.random.default_rng(m)
    points = rng.standard_normal((200_000, m))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    near = np.linalg.norm(points - np.eye(m)[0], axis=1) <= r
    whole = 2 * np.pi ** (m / 2) / gamma(m / 2)
    error = 5 * np.sqrt(max(near.mean() * (1 - near.mean()), 1e-6) / len(points))
    assert cap_area(r, m) / whole == pytest.approx(near.mean(), abs=error)


def test_small_caps_approach_the_ball():
    for m in (3, 6):
        assert cap_area(1e-3, m) == pytest.approx(np.exp(log_ball_constant(m - 1)) * 1e-3 ** (m - 1), rel=1e-5)


def test_density_estimate_recovers_a_known_density():
    """Uniform on the sphere of R³: the density is 1/(4π) everywhere."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((4000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    distances = np.sort(np.linalg.norm(points[:300, None] - points[None], axis=2), axis=1)[:, 1:41]
    for exact in (False, True):
        estimate = knn_density(distances[:, -1], 40, len(points), 2, exact_sphere=exact)
        assert estimate.mean() == pytest.approx(1 / (4 * np.pi), rel=0.05)
    assert intrinsic_dimension(distances) == pytest.approx(2.0, rel=0.06)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_threshold_on_the_distance_is_the_threshold_on_the_posterior(seed):
    rng = np.random.default_rng(seed)
    k, n, d = int(rng.integers(1, 50)), int(rng.integers(50, 5000)), float(rng.uniform(1, 20))
    c0, beta, epsilon = rng.uniform(0.01, 5), rng.uniform(0.05, 0.95), rng.uniform(0.01, 0.6)
    threshold = bayes_threshold(k, n, d, c0, beta, epsilon)
    r = -threshold * rng.uniform(0.5, 1.5, size=50)
    posterior = id_posterior(knn_density(r, k, n, d), c0, beta, epsilon)
    np.testing.assert_array_equal(-r >= threshold, posterior >= beta)


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.6), st.floats(0.1, 3.0))
@settings(max_examples=30, deadline=None)
def test_posterior_is_bayes_rule_where_unknowns_live(beta, epsilon, c0):
    low = 0.5 * beta * epsilon * c0 / ((1 - beta) * (1 - epsilon))
    expected = (1 - epsilon) * low / ((1 - epsilon) * low + epsilon * c0)
    assert id_posterior(low, c0, beta, epsilon) == pytest.approx(expected)
    assert id_posterior(4 * low, c0, beta, epsilon) == 1.0


def test_report_says_the_ambient_dimension_is_hopeless():
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((4, 60))
    known = (rng.standard_normal((800, 4)) + 3 * np.eye(4)[0]) @ basis
    unknown = rng.standard_normal((200, 60)) * 3
    report = neighbour_report(known.astype(np.float32), unknown.astype(np.float32), k=10)
    assert report.intrinsic < 6
    assert np.median(report.known_log_density) > np.median(report.unknown_log_density)
    assert "of 60 dimensions" in str(report)
    assert "denser" in str(report)


def loop_henze_zirkler(X):
    n, d = X.shape
    inverse = np.linalg.inv(np.cov(X, rowvar=False, bias=True).reshape(d, d))
    beta = 1 / np.sqrt(2) * ((2 * d + 1) / 4) ** (1 / (d + 4)) * n ** (1 / (d + 4))
    centre = X.mean(axis=0)
    pairs = 0.0
    singles = 0.0
    for i in range(n):
        singles += np.exp(-(beta**2) / (2 * (1 + beta**2)) * (X[i] - centre) @ inverse @ (X[i] - centre))
        for j in range(n):
            gap = X[i] - X[j]
            pairs += np.exp(-(beta**2) / 2 * gap @ inverse @ gap)
    return n * (pairs / n**2 - 2 * (1 + beta**2) ** (-d / 2) * singles / n + (1 + 2 * beta**2) ** (-d / 2))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_statistic_against_loops_and_affine_maps(seed):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 5))
    X = rng.standard_normal((25, d)) ** 2 + rng.standard_normal((25, d))
    got = henze_zirkler(X).statistic
    assert got == pytest.approx(loop_henze_zirkler(X), rel=1e-8)
    mapped = X @ (rng.standard_normal((d, d)) + 3 * np.eye(d)) + 7
    assert henze_zirkler(mapped).statistic == pytest.approx(got, rel=1e-6)


@pytest.mark.parametrize(("n", "d"), [(60, 2), (200, 5)])
def test_null_moments_and_level(n, d):
    """Under a Gaussian: mean and variance as derived, and small p-values about as often as they say."""
    rng = np.random.default_rng(0)
    tests = [henze_zirkler(rng.standard_normal((n, d))) for _ in range(600)]
    statistics = np.array([t.statistic for t in tests])
    mean, variance = null_moments(n, d)
    assert statistics.mean() == pytest.approx(mean, rel=0.05)
    assert statistics.var() == pytest.approx(variance, rel=0.3)
    assert 0.01 < np.mean([t.p_value < 0.05 for t in tests]) < 0.1


def test_power_and_verdict_by_class():
    rng = np.random.default_rng(0)
    good = rng.standard_normal((200, 6))
    bad = rng.exponential(size=(200, 6))
    found = normality_by_class(np.vstack([good, bad]), np.repeat([0, 4], 200), dimensions=4)
    assert list(found.classes) == [0, 4]
    assert found.p_values[0] > 0.05 > 1e-6 > found.p_values[1]
    assert found.rejected == 0.5
    assert "50% of 2 classes" in str(found)


def test_principal_part_keeps_the_variance():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 10))
    part = project_principal(X, 5)
    assert part.shape == (50, 3)
    assert (part**2).sum() == pytest.approx(((X - X.mean(axis=0)) ** 2).sum())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: henze_zirkler(np.ones((3, 5))), "more rows than columns"),
        (lambda: henze_zirkler(np.ones((30, 2))), "do not vary"),
        (lambda: bayes_threshold(1, 10, 2, 1.0, 1.0, 0.1), "beta=1.0"),
        (lambda: bayes_threshold(1, 10, 2, 0.0, 0.5, 0.1), "c0=0.0"),
        (lambda: knn_density(1.0, 11, 10, 2), "between 1 and n"),
        (lambda: intrinsic_dimension(np.ones((5, 4))), "equally far"),
        (lambda: intrinsic_dimension(np.zeros((5, 4))), "exact copy"),
        (lambda: cap_area(1.0, 1), "at least two"),
        (lambda: log_ball_constant(0), "positive"),
        (lambda: normality_by_class(np.ones((3, 2)), [0, 0, 0]), "too few"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()
