"""The embedding: Lanczos against the dense solver, the optimum it claims, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from offmap.errors import InputError
from offmap.graph import Graph, add_labels, eigengap, knn_graph, normalized_adjacency, spectral_embedding


def planted(n: int, classes: int, seed: int):
    """A sparse graph with strong edges inside classes, and labels for half of them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    i, j = rng.integers(n, size=(2, 14 * n))
    keep = (labels[i] == labels[j]) | (rng.random(len(i)) < 0.08)
    weights = sparse.csr_array((np.ones(keep.sum()), (i[keep], j[keep])), shape=(n, n))
    weights = weights + weights.T + sparse.eye_array(n)
    return weights.tocsr(), labels


def test_lanczos_agrees_with_the_dense_solver():
    base, labels = planted(700, 6, 0)
    known = np.where(labels < 3, labels, -1)
    graph = add_labels(base * (1 / base.sum()), known, eta_l=0.2)
    dense = spectral_embedding(graph, 6, dense_nodes=1000)
    lanczos = spectral_embedding(graph, 6, dense_nodes=0)
    np.testing.assert_allclose(lanczos.values, dense.values, atol=1e-8)
    np.testing.assert_allclose(lanczos.features, dense.features, atol=1e-5)
    again = spectral_embedding(graph, 6, dense_nodes=0)
    assert (again.vectors == lanczos.vectors).all()


def test_separate_components_are_all_found():
    """Eigenvalue 1 with multiplicity 25, which one start vector could miss."""
    block = np.ones((40, 40))
    graph = sparse.block_diag([sparse.csr_array(block)] * 25, format="csr")
    found = spectral_embedding(graph, 26, dense_nodes=0)
    np.testing.assert_allclose(found.values, [1.0] * 25 + [0.0], atol=1e-6)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_factor_is_the_best_low_rank_approximation(seed):
    rng = np.random.default_rng(seed)
    half = rng.random((9, 9))
    graph = Graph(None, half)
    scaled = normalized_adjacency(graph).toarray()
    spectrum = spectral_embedding(graph, 3)
    best = ((scaled - spectrum.factor @ spectrum.factor.T) ** 2).sum()
    values = np.linalg.svd(scaled, compute_uv=False)
    np.testing.assert_allclose(best, (values[3:] ** 2).sum(), atol=1e-10)
    np.testing.assert_allclose(spectrum.features, spectrum.factor / np.sqrt(graph.degrees)[:, None], atol=1e-12)
    assert (np.diff(spectrum.values) <= 0).all()
    largest = np.abs(spectrum.vectors).argmax(axis=0)
    assert (spectrum.vectors[largest, np.arange(3)] > 0).all()


def test_negative_eigenvalues_do_not_enter_the_factor():
    spectrum = spectral_embedding(np.array([[0.0, 1.0], [1.0, 0.0]]), 2)
    np.testing.assert_allclose(spectrum.values, [1.0, -1.0])
    np.testing.assert_allclose(spectrum.factor[:, 1], 0.0)


def test_a_node_without_edges_sits_at_the_origin():
    graph = np.zeros((4, 4))
    graph[:3, :3] = 1.0
    spectrum = spectral_embedding(graph, 1)
    np.testing.assert_allclose(spectrum.features[3], 0.0)
    assert np.isfinite(spectrum.features).all()


def test_unnormalised_spectrum_is_that_of_the_matrix():
    matrix = np.diag([3.0, 1.0, 2.0])
    spectrum = spectral_embedding(matrix, 2, normalized=False)
    np.testing.assert_allclose(spectrum.values, [3.0, 2.0])
    np.testing.assert_allclose(spectrum.features, spectrum.factor)


def test_eigengap_counts_planted_classes():
    base, _ = planted(400, 5, 1)
    values = spectral_embedding(base, 12).values
    assert eigengap(values, smallest=2)[0] == 5
    assert eigengap(values, smallest=2, largest=3)[0] in (2, 3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: spectral_embedding(np.eye(3), 4), "1 to 3 eigenvectors"),
        (lambda: eigengap([1.0]), "at least two"),
        (lambda: eigengap([0.1, 1.0]), "largest first"),
        (lambda: eigengap([1.0, 0.5], largest=2), "k can be 1 to 1"),
    ],
)
def test_errors_say_what_is_wrong(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_a_filtered_block_spans_what_the_dense_solver_finds():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(8), 60)
    rows = rng.normal(size=(8, 5))[truth] + 0.5 * rng.normal(size=(480, 5))
    graph = add_labels(knn_graph(rows, 10), np.where(truth < 3, truth, -1), eta_l=0.5)
    dense = spectral_embedding(graph, 12)
    rough = spectral_embedding(graph, 12, dense_nodes=0, tolerance=1e-3)
    np.testing.assert_allclose(rough.values, dense.values, atol=2e-3)
    assert np.linalg.norm(rough.vectors[:, :8].T @ dense.vectors) ** 2 / 8 > 0.999
    np.testing.assert_allclose(rough.vectors.T @ rough.vectors, np.eye(12), atol=1e-4)
    again = spectral_embedding(graph, 12, dense_nodes=0, tolerance=1e-3)
    np.testing.assert_array_equal(rough.vectors, again.vectors)
