"""The theorems on novel class discovery: identities and bounds on random graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.graph import augmentation_graph, normalized_adjacency
from offmap.theory.residuals import (
    average_labelled,
    coverage,
    discovery_bound,
    ignorance_degree,
    linear_probe_error,
    residual,
    residual_identity,
    split_spectrum,
    weighted_cosine_floor,
)

seeds = st.integers(0, 2**32 - 1)


def random_graph(seed: int):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(7, 16))
    n_labelled = int(rng.integers(1, n // 2))
    T = rng.random((n, n)) ** 3 + 2 * np.eye(n)
    labels = np.where(np.arange(n) < n_labelled, 0, -1)
    matrix = normalized_adjacency(augmentation_graph(T, labels, setting="nscl")).toarray()
    y = np.zeros(n - n_labelled)
    y[: max(1, len(y) // 2)] = 1
    return rng, matrix, y, n_labelled, int(rng.integers(1, 5))


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_residual_is_the_least_squares_error(seed):
    rng = np.random.default_rng(seed)
    U, y = rng.standard_normal((9, 3)), (rng.random(9) < 0.5).astype(float)
    y[0] = 1
    solution = np.linalg.lstsq(U, y, rcond=None)[0]
    assert residual(U, y) == pytest.approx(((y - U @ solution) ** 2).sum(), abs=1e-10)
    for _ in range(5):
        assert ((y - U @ (solution + 0.1 * rng.standard_normal(3))) ** 2).sum() >= residual(U, y)
    Y = np.stack([y, 1 - y + 1e-3], axis=1)
    assert residual(U, Y) == pytest.approx(residual(U, Y[:, 0]) + residual(U, Y[:, 1]))
    doubled = np.hstack([U, U @ rng.standard_normal((3, 2))])  # a redundant direction changes nothing
    assert residual(doubled, y) == pytest.approx(residual(U, y), abs=1e-9)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_printed_upper_bound_is_an_equality(seed):
    _, matrix, y, n_labelled, k = random_graph(seed)
    left, right = residual_identity(split_spectrum(matrix, n_labelled, k), y)
    assert left == pytest.approx(right, abs=1e-9)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_ignorance_is_what_the_representation_lost(seed):
    _, matrix, y, n_labelled, k = random_graph(seed)
    split = split_spectrum(matrix, n_labelled, k)
    kept = split.unlabelled_top @ (split.unlabelled_top.T @ y)
    assert ignorance_degree(split.unlabelled_rest, y) ** 2 == pytest.approx((y @ y - y @ kept) / (y @ y), abs=1e-9)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_residual_of_the_averaged_graph_by_ignorance_and_coverage(seed):
    """``R(Ū*, y) = ‖y‖² 𝔗(y)² (1 − κ(y)²)``: with the square of 𝔗 that the main theorem forgets.

    It needs top eigenvalues other than 0, where the averaged graph has its duplicate directions.
    """
    _, matrix, y, n_labelled, _ = random_graph(seed)
    k = 2
    averaged = average_labelled(matrix, n_labelled)
    split = split_spectrum(averaged, n_labelled, k)
    knowledge = split.labelled_rest.sum(axis=0)
    kappa = coverage(split.unlabelled_rest, knowledge, y)
    degree = ignorance_degree(split.unlabelled_rest, y)
    assert split.values[k - 1] > 1e-9
    assert residual(split.unlabelled_top, y) == pytest.approx((y @ y) * degree**2 * (1 - kappa**2), abs=1e-8)
    found = discovery_bound(matrix, y, n_labelled, k)
    assert found.averaged_residual == pytest.approx(residual(split.unlabelled_top, y), abs=1e-8)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_general_bound_holds_where_its_assumption_does(seed):
    _, matrix, y, n_labelled, k = random_graph(seed)
    found = discovery_bound(matrix, y, n_labelled, k)
    if found.bound is None:
        assert "says nothing" in str(found)
    else:
        assert found.residual <= found.bound + 1e-9
    if found.coverage_floor is not None:
        assert found.coverage >= found.coverage_floor - 1e-6


def test_general_bound_on_a_graph_where_it_applies():
    """Two clear blocks, labelled nodes alike: the averaging changes little and the gap is wide."""
    rng = np.random.default_rng(0)
    blocks = np.kron(np.eye(2), np.ones((6, 6)))
    matrix = blocks + 0.02 * rng.random((12, 12))
    matrix = normalized_adjacency((matrix + matrix.T) / 2).toarray()
    order = [0, 1, 6, 7, 8, 9, 10, 11, 2, 3, 4, 5]
    matrix = matrix[np.ix_(order, order)]
    y = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1.0])
    found = discovery_bound(matrix, y, n_labelled=2, k=2)
    assert found.gap_assumption
    assert found.residual <= found.bound
    assert "bound" in str(found)


@given(st.lists(st.floats(0.01, 50), min_size=2, max_size=6), seeds)
@settings(max_examples=80, deadline=None)
def test_weighted_cosine_floor_is_a_bound_and_tight(weights, seed):
    w = np.array(weights)
    rng = np.random.default_rng(seed)
    floor = weighted_cosine_floor(w)
    for _ in range(20):
        v = rng.standard_normal(len(w))
        assert (v @ (w * v)) / (np.linalg.norm(w * v) * np.linalg.norm(v)) >= floor - 1e-12
    low, high = w.argmin(), w.argmax()
    worst = np.zeros(len(w))
    worst[low], worst[high] = np.sqrt(w[high]), np.sqrt(w[low])
    if low != high:
        reached = (worst @ (w * worst)) / (np.linalg.norm(w * worst) * np.linalg.norm(worst))
        assert reached == pytest.approx(floor)


def test_printed_floor_is_not_a_bound():
    w = np.array([4.0, 4.1])
    printed = 2 * np.sqrt(w[0] * w[1]) / (np.sqrt(w[0]) + np.sqrt(w[1]))
    assert printed > 1  # a cosine can never reach it


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_probe_error_is_at_most_twice_the_residual(seed):
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((20, 4))
    Y = np.eye(3)[rng.integers(3, size=20)]
    assert linear_probe_error(U, Y) <= 2 * residual(U, Y) + 1e-9


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: residual(np.ones((3, 1)), [1.0]), "labels of shape"),
        (lambda: residual(np.ones((3, 1)), np.zeros(3)), "zero everywhere"),
        (lambda: weighted_cosine_floor([1.0, -1.0]), "every weight"),
        (lambda: split_spectrum(np.eye(3), 3, 1), "fewer"),
        (lambda: discovery_bound(np.eye(3), [1, 0, 0], 0, 1), "at least one labelled"),
        (lambda: linear_probe_error(np.ones((2, 1)), [1.0, 0.0]), "one-hot"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()
