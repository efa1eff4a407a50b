"""The slope of the K-means measure against finite differences; the closed form and bounds against it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.graph import Graph, spectral_embedding
from offmap.metrics.kmeans_measure import class_scatter, kmeans_measure
from offmap.theory.class_perturbation import class_perturbation, intuitive_bound
from offmap.theory.perturbation import (
    kmeans_measure_change,
    kmeans_measure_derivative,
    measure_gradient,
    perturbation_report,
    rank_correlation,
)

seeds = st.integers(0, 2**32 - 1)


def doubly_stochastic(rng, n):
    """A positive definite graph with unit degrees, as the thesis assumes."""
    A = rng.random((n, n))
    A = A @ A.T + 2 * np.eye(n)
    for _ in range(2000):
        scale = 1 / np.sqrt(A.sum(axis=1))
        A = scale[:, None] * A * scale[None, :]
    return A


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_measure_is_its_definition(seed):
    rng = np.random.default_rng(seed)
    Z, labels = rng.standard_normal((20, 3)), rng.integers(-1, 4, size=20)
    assume((labels >= 0).sum() > 3)
    counted = [i for i in range(20) if labels[i] >= 0]
    centre = np.mean([Z[i] for i in counted], axis=0)
    inside = between = 0.0
    for c in set(labels[counted]):
        members = [Z[i] for i in counted if labels[i] == c]
        mean = np.mean(members, axis=0)
        inside += sum(((z - mean) ** 2).sum() for z in members)
        between += len(members) * ((mean - centre) ** 2).sum()
    assert class_scatter(Z, labels) == pytest.approx((inside, between))
    if between > 1e-9:
        assert kmeans_measure(Z, labels) == pytest.approx(inside / between)


def test_measure_at_the_edges():
    assert kmeans_measure([[0.0], [0.0], [1.0]], [0, 0, 1]) == 0.0
    assert kmeans_measure([[0.0], [2.0], [0.0], [2.0]], [0, 0, 1, 1]) == np.inf
    assert np.isnan(kmeans_measure([[1.0], [1.0]], [0, 1]))


@given(seeds, st.booleans())
@settings(max_examples=50, deadline=None)
def test_exact_derivative_is_the_finite_difference(seed, unit):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(8, 20)), int(rng.integers(2, 5))
    A = doubly_stochastic(rng, n) if unit else rng.random((n, n))
    A = A if unit else A @ A.T
    labels = rng.integers(-1 if not unit else 0, 3, size=n)
    labels[:3] = [0, 1, 2]
    bond = rng.random(n)
    bond = bond / bond.sum() if unit else bond
    values = spectral_embedding(A, n).values
    assume(values[k - 1] - values[k] > 1e-3 and values[k] > 0)
    exact = kmeans_measure_derivative(A, bond, labels, k)

    def measure(delta):
        return kmeans_measure(spectral_embedding(A + delta * np.outer(bond, bond), k).features, labels)

    h = 1e-5
    numeric = (8 * (measure(h) - measure(-h)) - (measure(2 * h) - measure(-2 * h))) / (12 * h)
    assert exact == pytest.approx(numeric, rel=1e-4, abs=1e-6)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_unit_degree_formula_of_the_errata(seed):
    """The same number by the formula in the eigenbasis, written as loops."""
    rng = np.random.default_rng(seed)
    n, k = 9, 3
    A = doubly_stochastic(rng, n)
    bond = rng.random(n)
    bond /= bond.sum()
    labels = np.repeat([0, 1, 2], 3)
    values, V = np.linalg.eigh(A)
    values, V = values[::-1], V[:, ::-1]
    assume(values[k - 1] - values[k] > 1e-3)
    H = (labels[:, None] == labels[None, :]) / 3.0
    J = np.ones((n, n)) / n
    ZZ = (V[:, :k] * values[:k]) @ V[:, :k].T
    inside, between = np.trace((np.eye(n) - H) @ ZZ), np.trace((H - J) @ ZZ)
    ratio = inside / between
    U = V.T @ ((1 + ratio) * H - np.eye(n) - ratio * J) @ V
    L, D = V.T @ np.outer(bond, bond) @ V, V.T @ np.diag(bond) @ V
    total = closed = 0.0
    for j in range(k):
        for i in range(n):
            if i < k:
                term = U[i, j] * (L[i, j] - 2 * values[j] * D[i, j])
                total, closed = total + term, closed + term
            else:
                term = 2 * U[i, j] * (L[i, j] - values[j] * D[i, j])
                total += term * values[j] / (values[j] - values[i])
                closed += term
    assert kmeans_measure_derivative(A, bond, labels, k) == pytest.approx(-total / between)
    approximate = kmeans_measure_derivative(A, bond, labels, k, closed_form=True)
    assert approximate == pytest.approx(-closed / between)
    project = V[:, :k] @ V[:, :k].T
    upsilon = (1 + ratio) * H - np.eye(n) - ratio * J
    printed = project @ np.outer(bond, bond) @ (2 * np.eye(n) - project) - 2 * ZZ @ np.diag(bond)
    assert approximate == pytest.approx(-np.trace(upsilon @ printed) / between)


def test_partial_spectrum_lies_between_closed_form_and_exact():
    rng = np.random.default_rng(2)
    A = doubly_stochastic(rng, 40)
    labels, bond = rng.integers(4, size=40), rng.random((40, 3))
    exact = kmeans_measure_derivative(A, bond, labels, 4)
    errors = [
        np.abs(measure_gradient(spectral_embedding(A, found), labels, 4)(bond) - exact).max() for found in (4, 20, 39)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert exact.shape == (3,)
    for c in range(3):
        assert kmeans_measure_derivative(A, bond[:, c], labels, 4) == pytest.approx(exact[c])


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_change_is_embedding_twice_and_starts_with_the_derivative(seed):
    rng = np.random.default_rng(seed)
    A = doubly_stochastic(rng, 12)
    labels, bond = np.repeat([0, 1, 2], 4), rng.random(12)
    values = spectral_embedding(A, 12).values
    assume(values[2] - values[3] > 1e-2)
    small = 1e-7  # the second order grows with the inverse square of the gap
    slope = kmeans_measure_change(A, bond, labels, 3, small) / small
    assert slope == pytest.approx(-kmeans_measure_derivative(A, bond, labels, 3), rel=0.02, abs=1e-3)
    factored = Graph(None, np.linalg.cholesky(A))
    assert kmeans_measure_change(factored, bond, labels, 3, 0.3) == pytest.approx(
        kmeans_measure_change(A, bond, labels, 3, 0.3), abs=1e-8
    )


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_class_perturbation_against_loops(seed):
    rng = np.random.default_rng(seed)
    n = 12
    Z, bond = rng.standard_normal((n, 3)), rng.random(n)
    labels = np.repeat([0, 1, 3], 4)
    found = class_perturbation(Z, bond, labels)
    for position, c in enumerate([0, 1, 3]):
        mine = [i for i in range(n) if labels[i] == c]
        rest = [i for i in range(n) if labels[i] != c]
        intra = np.mean([Z[i] @ Z[j] for i in mine for j in mine])
        inter = np.mean([Z[i] @ Z[j] for i in mine for j in rest])
        tie = np.mean([bond[i] for i in mine]) - 1 / n
        assert found.intra[position] == pytest.approx(intra)
        assert found.inter[position] == pytest.approx(inter)
        assert found.delta[position] == pytest.approx(tie - 2 * (1 - 4 / n) * (intra - inter))
    assert "of 3 classes" in str(found)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_intuitive_bound_holds_under_its_assumptions(seed):
    """Rank-k graph (infinite gap), 𝔩 in its span and constant on classes, unit degrees: block graphs have it all."""
    rng = np.random.default_rng(seed)
    sizes = [3, 4, 5]
    labels = np.repeat([0, 1, 2], sizes)
    n = len(labels)
    blocks = rng.random((3, 3))
    blocks = blocks @ blocks.T + np.eye(3)
    A = blocks[labels][:, labels]
    for _ in range(2000):
        scale = 1 / np.sqrt(A.sum(axis=1))
        A = scale[:, None] * A * scale[None, :]
    mixed = labels.copy()  # the true classes are not the blocks, or the measure would be 0
    mixed[[0, 3]] = mixed[[3, 0]]
    bond = np.full(n, 1 / n)
    values = np.linalg.eigvalsh(A)[::-1]
    assume(values[2] > 1e-6)
    Z = spectral_embedding(A, 3).features
    slope = kmeans_measure_derivative(A + 1e-13 * np.eye(n), bond, mixed, 3, closed_form=True)
    assert -slope >= intuitive_bound(Z, bond, mixed) - 1e-9


def test_intuitive_bound_is_the_printed_sum():
    rng = np.random.default_rng(0)
    Z, bond, labels = rng.standard_normal((10, 3)), rng.random(10), np.repeat([0, 1], 5)
    found = class_perturbation(Z, bond, labels)
    inside, between = class_scatter(Z, labels)
    total = sum(5 * bond[labels == c].mean() * found.delta[c] for c in (0, 1))
    assert intuitive_bound(Z, bond, labels) == pytest.approx(1 / between * (inside / between) * total)


def test_report_predicts_what_then_happens():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 12)
    spread = rng.uniform(0.3, 1.2, size=6)
    X = rng.standard_normal((6, 4))[labels] * 1.5 + rng.standard_normal((72, 4)) * spread[labels][:, None]
    A = np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2))
    bonds = np.eye(6)[labels] / 12
    report = perturbation_report(A, labels, 6, bonds, delta=0.5)
    assert report.correlation > 0.8
    assert "correlate" in str(report)


def test_rank_correlation_with_ties_and_constants():
    assert rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: kmeans_measure_derivative(np.eye(3), np.ones(2), [0, 1, 1], 1), "equal|one number per node"),
        (lambda: kmeans_measure_derivative(np.eye(3), np.ones(3), [0, 1, 1], 2), "equal"),
        (lambda: kmeans_measure_derivative(np.diag([3.0, 2, 1]) + 1, np.ones(3), [0, 1], 1), "one for each"),
        (lambda: kmeans_measure([[1.0]], [-1]), "every label is -1"),
        (lambda: kmeans_measure([1.0], [0]), "one label per row"),
        (lambda: measure_gradient(spectral_embedding(np.eye(3), 2), [0, 1, 1], 3), "eigenvectors at hand"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()
