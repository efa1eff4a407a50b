"""Contrastive losses as EM and as eigenproblems: identities by loops, limits by numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import iv

from offmap.errors import InputError
from offmap.theory.contrast import (
    alignment_identity,
    alignment_loss,
    evidence_bound,
    mean_classifier_bound,
    optimal_prototypes,
    simclr_loss,
    simclr_matrix,
    vmf_posterior,
)

seeds = st.integers(0, 2**32 - 1)


def unit_vectors(rng, n, d):
    z = rng.standard_normal((n, d))
    return z / np.linalg.norm(z, axis=1, keepdims=True)


@given(seeds, st.floats(0.05, 2.0))
@settings(max_examples=40, deadline=None)
def test_alignment_is_a_function_of_class_means(seed, tau):
    rng = np.random.default_rng(seed)
    z, given_classes = unit_vectors(rng, 15, 3), rng.integers(4, size=15)
    by_loops = 0.0
    for i in range(15):
        others = [j for j in range(15) if j != i and given_classes[j] == given_classes[i]]
        if others:
            by_loops -= np.mean([z[i] @ z[j] / tau for j in others])
    assert alignment_loss(z, given_classes, tau) == pytest.approx(by_loops)
    assert alignment_identity(z, given_classes, tau) == pytest.approx(by_loops)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_posterior_is_bayes_rule_for_vmf_densities(seed):
    rng = np.random.default_rng(seed)
    d, kappa = 3, rng.uniform(0.5, 8)
    z, prototypes = unit_vectors(rng, 5, d), unit_vectors(rng, 4, d)
    prior = rng.dirichlet(np.ones(4))
    constant = kappa ** (d / 2 - 1) / ((2 * np.pi) ** (d / 2) * iv(d / 2 - 1, kappa))
    joint = prior * constant * np.exp(kappa * z @ prototypes.T)
    posterior = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(vmf_posterior(z, prototypes, kappa, prior), posterior)
    evidence, bound = evidence_bound(np.log(joint), posterior)
    np.testing.assert_allclose(evidence, np.log(joint.sum(axis=1)))
    np.testing.assert_allclose(bound, evidence)
    other = rng.dirichlet(np.ones(4), size=5)
    assert (evidence_bound(np.log(joint), other)[1] < evidence).all()
    hard = np.eye(4)[posterior.argmax(axis=1)]
    assert np.isfinite(evidence_bound(np.log(joint), hard)[1]).all()


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_prototypes_maximise_the_alignment_with_their_class(seed):
    rng = np.random.default_rng(seed)
    z, classes = unit_vectors(rng, 12, 3), np.arange(12) % 3
    best = optimal_prototypes(z, classes)
    np.testing.assert_allclose(np.linalg.norm(best, axis=1), 1)
    reached = (z * best[classes]).sum()
    for _ in range(10):
        assert (z * unit_vectors(rng, 3, 3)[classes]).sum() <= reached + 1e-12


@given(seeds, st.floats(0.1, 2.0))
@settings(max_examples=40, deadline=None)
def test_mean_classifier_bound_by_loops(seed, tau):
    rng = np.random.default_rng(seed)
    n = 12
    z, classes = unit_vectors(rng, n, 3), rng.integers(3, size=n)
    classes[:3] = [0, 1, 2]
    means = [z[classes == c].mean(axis=0) for c in range(3)]
    share = [np.mean(classes == c) for c in range(3)]
    left = 0.0
    for i in range(n):
        close = np.mean([z[i] @ z[j] / tau for j in range(n) if classes[j] == classes[i]])
        left += (np.log(np.mean([np.exp(z[i] @ z[j] / tau) for j in range(n)])) - close) / n
    gamma = sum(p**2 for p in share)
    supervised = 0.0
    for a in range(3):
        for b in range(3):
            if a != b:
                supervised -= share[a] * share[b] / (1 - gamma) * means[a] @ (means[a] - means[b])
    got = mean_classifier_bound(z, classes, tau)
    assert got == pytest.approx((left, (1 - gamma) / tau * supervised))
    assert got[0] >= got[1]


def test_fewer_classes_raise_the_bound_the_other_way_than_printed():
    """Equal classes, perfectly apart: γ = 1/C grows as classes get fewer, and the bound rises with it."""
    bounds = [mean_classifier_bound(np.eye(8)[np.arange(8) % c], np.arange(8) % c)[1] for c in (2, 4, 8)]
    assert bounds[0] > bounds[1] > bounds[2]


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_large_temperature_makes_simclr_an_eigenproblem(seed):
    rng = np.random.default_rng(seed)
    A = rng.random((6, 6))
    A = A + A.T
    A /= A.sum()
    Z = rng.standard_normal((6, 2))
    degrees = A.sum(axis=1)
    total = sum(degrees[i] * degrees[j] for i in range(6) for j in range(6) if i != j)
    by_loops = -sum(A[i, j] * Z[i] @ Z[j] for i in range(6) for j in range(6)) + np.log(
        sum(degrees[i] * degrees[j] * np.exp(Z[i] @ Z[j]) for i in range(6) for j in range(6) if i != j)
    )
    assert simclr_loss(Z, A, 1.0) == pytest.approx(by_loops)
    tau = 1e5
    scaled = tau * (simclr_loss(Z, A, tau) - np.log(total))
    assert scaled == pytest.approx(-np.trace(Z.T @ simclr_matrix(A) @ Z), abs=1e-3)
    values, vectors = np.linalg.eigh(simclr_matrix(A))
    top = vectors[:, -2:]
    best = simclr_loss(top, A, tau)
    for _ in range(5):
        other = np.linalg.qr(rng.standard_normal((6, 2)))[0]
        assert simclr_loss(other, A, tau) >= best - 1e-9
    assert np.trace(top.T @ simclr_matrix(A) @ top) == pytest.approx(values[-2:].sum())


def test_identity_refuses_features_of_other_lengths():
    with pytest.raises(InputError, match="unit vectors"):
        alignment_identity(np.ones((3, 2)), [0, 0, 1])
