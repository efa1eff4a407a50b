"""The variance split of DICE against direct variances, by loops and on data that make its sign turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.theory.sparsified import (
    sparsity_profile,
    top_contributions,
    variance_reduction,
    variance_split,
)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1]))
@settings(max_examples=60, deadline=None)
def test_the_split_is_the_thesis_formula_and_the_real_difference(seed, ddof):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(3, 30)), int(rng.integers(2, 8))
    v = rng.standard_normal((n, m)) @ rng.standard_normal((m, m))
    keep = rng.random(m) < 0.5
    covariance = np.cov(v, rowvar=False, ddof=ddof)
    dropped = [i for i in range(m) if not keep[i]]
    independent = sum(covariance[i, i] for i in dropped)
    pairs = sum(2 * covariance[i, j] for i in range(m) for j in range(i + 1, m))
    kept = sum(2 * covariance[i, j] for i in range(m) for j in range(i + 1, m) if keep[i] and keep[j])
    split = variance_split(v, keep, ddof)
    assert split.independent == pytest.approx(independent, abs=1e-9)
    assert split.correlated == pytest.approx(pairs - kept, abs=1e-8)
    real = v.sum(axis=1).var(ddof=ddof) - v[:, keep].sum(axis=1).var(ddof=ddof)
    assert variance_reduction(v, keep, ddof) == pytest.approx(real, abs=1e-8)
    assert variance_reduction(v, np.flatnonzero(keep), ddof) == pytest.approx(real, abs=1e-8)


def test_correlation_can_turn_the_sign_and_the_sentence_says_so():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(500)
    v = np.stack([a, -a + 0.1 * rng.standard_normal(500)], axis=1)
    split = variance_split(v, [True, False])
    assert split.independent > 0 > split.reduction
    assert "RAISES" in str(split)


def test_top_contributions_keep_the_exact_number_of_the_whole_matrix():
    matrix = np.array([[5.0, 1.0, 4.0], [3.0, 3.0, 0.0]])
    assert top_contributions(matrix, 0.5).sum() == 3
    np.testing.assert_array_equal(top_contributions(matrix, 0.5), [[True, False, True], [True, False, False]])
    assert top_contributions(matrix, 0.0).all()


def test_the_diagnosis_masks_as_the_detector_does():
    """Kept in NumPy so that the theory does not load torch; the two must stay one rule."""
    torch = pytest.importorskip("torch")
    from offmap.detection.shapers.dice import largest, n_kept

    rng = np.random.default_rng(0)
    for p in (0.0, 0.33, 0.7, 0.9):
        values = rng.integers(0, 5, size=(4, 9)).astype(float)  # with ties
        expected = largest(torch.from_numpy(values), n_kept(p, values.size)).numpy()
        np.testing.assert_array_equal(top_contributions(values, p), expected)


def test_profile_against_loops():
    rng = np.random.default_rng(1)
    known, unknown = rng.random((40, 6)) + 0.5, rng.random((50, 6)) ** 2
    w, b = rng.standard_normal((3, 6)), rng.standard_normal(3)
    profile = sparsity_profile(known, unknown, w, b, sparsity=[0.0, 0.5])
    mask = top_contributions(known.mean(axis=0) * w, 0.5)
    for c in range(3):
        v = unknown * w[c]
        split = variance_split(v, mask[c])
        assert profile.measured[1, c] == pytest.approx(split.reduction / split.full)
        assert profile.predicted[1, c] == pytest.approx(split.independent / split.full)
    inner = (known @ (w * mask).T + b).max(axis=1)
    outer = (unknown @ (w * mask).T + b).max(axis=1)
    assert profile.gap[1] == pytest.approx(inner.mean() - outer.mean())
    spread = np.sqrt((inner.var() + outer.var()) / 2)
    assert profile.separation[1] == pytest.approx((inner.mean() - outer.mean()) / spread)
    np.testing.assert_allclose(profile.measured[0], 0, atol=1e-12)
    assert "p = " in str(profile)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: variance_reduction(np.ones((3, 2)), [True]), "one truth value"),
        (lambda: variance_reduction(np.ones((3, 2)), [2]), "from 0 to 1"),
        (lambda: variance_reduction(np.ones(3), [0]), "inputs × units"),
        (lambda: top_contributions(np.ones((2, 2)), 1.0), "p=1.0"),
        (lambda: sparsity_profile(np.ones((3, 2)), np.ones((3, 3)), np.ones((2, 2))), "the head reads"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()
