"""Expectations of rectified skew-normal activations against quadrature; fits against what made the data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from offmap.errors import InputError
from offmap.theory.rectified import (
    esn_excess,
    esn_mean,
    esn_pdf,
    esn_reduction,
    fit_esn,
    reduction_surface,
)

mus = st.floats(-1.5, 2.0)
sigmas = st.floats(0.2, 2.0)
skews = st.floats(-0.95, 0.95)
levels = st.floats(-0.5, 3.0)


def density(x, mu, sigma, epsilon):
    side = 1 + epsilon if x < mu else 1 - epsilon
    return norm.pdf((x - mu) / (sigma * side)) / sigma


def expect(function, mu, sigma, epsilon, breaks=()):
    """The expectation by quadrature, cut where the integrand has a corner."""
    low, high = mu - 12 * sigma * (1 + epsilon), mu + 12 * sigma * (1 - epsilon)
    corners = sorted({low, high, *(b for b in (mu, *breaks) if low < b < high)})
    return sum(
        quad(lambda x: function(x) * density(x, mu, sigma, epsilon), a, b, epsabs=1e-11)[0]
        for a, b in pairwise(corners)
    )


@given(mus, sigmas, skews)
@settings(max_examples=60, deadline=None)
def test_mean_of_the_rectified_activation(mu, sigma, epsilon):
    expected = expect(lambda x: max(x, 0.0), mu, sigma, epsilon, breaks=(0.0,))
    assert esn_mean(mu, sigma, epsilon) == pytest.approx(expected, abs=1e-8)


@given(mus, sigmas, skews, levels)
@settings(max_examples=60, deadline=None)
def test_what_clipping_takes(mu, sigma, epsilon, c):
    expected = expect(lambda x: max(x, 0.0) - min(max(x, 0.0), c), mu, sigma, epsilon, breaks=(0.0, max(c, 0.0)))
    assert esn_reduction(mu, sigma, epsilon, c) == pytest.approx(expected, abs=1e-8)


@given(mus, sigmas, skews)
@settings(max_examples=30, deadline=None)
def test_the_density_is_one_and_matches_the_definition(mu, sigma, epsilon):
    points = np.linspace(mu - 2 * sigma, mu + 2 * sigma, 9)
    np.testing.assert_allclose(
        esn_pdf(points, mu, sigma, epsilon), [density(x, mu, sigma, epsilon) for x in points], rtol=1e-12
    )
    assert expect(lambda x: 1.0, mu, sigma, epsilon) == pytest.approx(1.0, abs=1e-9)


def test_the_thesis_main_text_where_it_applies():
    """Section 3.4, eqs. 3.6 and 3.8 as printed, for μ > 0 and c ≥ μ."""
    mu, sigma, epsilon, c = 0.5, 0.8, -0.4, 1.2
    up, down = (1 - epsilon), (1 + epsilon)
    mean = (
        mu
        - down * norm.cdf(-mu / (down * sigma)) * mu
        + down**2 * norm.pdf(-mu / (down * sigma)) * sigma
        - 4 * epsilon / np.sqrt(2 * np.pi) * sigma
    )
    reduction = up**2 * norm.pdf((c - mu) / (up * sigma)) * sigma - up * (1 - norm.cdf((c - mu) / (up * sigma))) * (
        c - mu
    )
    assert esn_mean(mu, sigma, epsilon) == pytest.approx(mean)
    assert esn_reduction(mu, sigma, epsilon, c) == pytest.approx(reduction)


def test_printed_reduction_fails_below_the_mode():
    """With c < μ the printed branch is the wrong one; ours follows the integral."""
    mu, sigma, epsilon, c = 1.0, 0.8, -0.8, 0.0
    up = 1 - epsilon
    printed = up**2 * norm.pdf((c - mu) / (up * sigma)) * sigma - up * (1 - norm.cdf((c - mu) / (up * sigma))) * (
        c - mu
    )
    true = expect(lambda x: max(x - c, 0.0), mu, sigma, epsilon, breaks=(c,))
    assert abs(printed - true) > 0.05
    assert esn_reduction(mu, sigma, epsilon, c) == pytest.approx(true)


@pytest.mark.parametrize("epsilon", [-1.0, 1.0])
def test_the_extreme_skews_are_half_gaussians(epsilon):
    for level in (-1.0, 0.0, 0.7):
        expected = expect(lambda x, a=level: max(x - a, 0.0), 0.0, 1.0, epsilon * (1 - 1e-9), (level,))
        assert esn_excess(level, 0.0, 1.0, epsilon) == pytest.approx(expected, abs=1e-6)


def test_surface_rises_with_chaos_and_right_skew():
    sigmas, epsilons, surface = reduction_surface()
    assert surface.shape == (len(epsilons), len(sigmas))
    assert (np.diff(surface, axis=1) > 0).all()
    assert (np.diff(surface, axis=0) < 0).all()


def sample(rng, n, mu, sigma, epsilon):
    left = rng.random(n) < (1 + epsilon) / 2
    size = np.abs(rng.standard_normal(n)) * sigma
    return np.where(left, mu - (1 + epsilon) * size, mu + (1 - epsilon) * size)


def log_likelihood(z, mu, sigma, epsilon):
    zero = z <= 0
    chance = expect(lambda x: float(x <= 0), mu, sigma, epsilon, breaks=(0.0,))
    seen = np.log(esn_pdf(z[~zero], mu, sigma, epsilon)).sum()
    return seen + zero.sum() * np.log(max(chance, 1e-300))


@pytest.mark.parametrize("truth", [(1.0, 0.5, 0.0), (0.4, 0.6, -0.5), (0.6, 0.3, 0.4), (-0.2, 0.7, -0.3)])
def test_the_fit_finds_what_made_the_data_and_cannot_be_improved(truth):
    rng = np.random.default_rng(3)
    z = np.maximum(sample(rng, 20_000, *truth), 0)
    fit = fit_esn(z)
    assert fit.mean == pytest.approx(z.mean(), rel=0.02)
    assert fit.reduction(0.8) == pytest.approx((z - np.minimum(z, 0.8)).mean(), rel=0.06, abs=2e-3)
    mu, sigma, epsilon = float(fit.mu), float(fit.sigma), float(fit.epsilon)
    found = log_likelihood(z, mu, sigma, epsilon)
    assert found >= log_likelihood(z, *truth) - 0.5
    for step in ((0.03, 0, 0), (-0.03, 0, 0), (0, 0.03, 0), (0, -0.03, 0), (0, 0, 0.04), (0, 0, -0.04)):
        near = (mu + step[0], sigma + step[1], float(np.clip(epsilon + step[2], -1, 1)))
        assert log_likelihood(z, *near) <= found + 0.5


def test_each_unit_gets_its_own_fit():
    rng = np.random.default_rng(0)
    z = np.maximum(np.stack([sample(rng, 3000, 1.0, 0.3, 0.0), sample(rng, 3000, 0.5, 0.6, -0.5)], axis=1), 0)
    fit = fit_esn(z)
    assert fit.mu.shape == (2,)
    assert fit.sigma[1] > fit.sigma[0]
    assert fit.epsilon[1] < fit.epsilon[0] - 0.2
    dead = fit_esn(np.zeros((10, 2)))
    assert np.isfinite(dead.mean).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: esn_mean(0.0, 0.0, 0.0), "larger than 0"),
        (lambda: esn_mean(0.0, 1.0, 1.5), "epsilon=1.5"),
        (lambda: fit_esn([-1.0, 0.0, 1.0]), "not negative"),
        (lambda: fit_esn([1.0]), "at least three"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()
