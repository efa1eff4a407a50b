"""Graphs against their definitions, written out as loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from offmap.errors import InputError
from offmap.graph import (
    Graph,
    add_labels,
    augmentation_graph,
    knn_graph,
    label_connections,
    normalized_adjacency,
)

seeds = st.integers(0, 2**32 - 1)


def random_case(seed: int, n: int = 7):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, n))
    matrix /= matrix.sum(axis=0)
    labels = rng.integers(-1, 3, size=n)
    labels[0], labels[1] = -1, 0
    return rng, matrix, labels


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_the_factored_graph_is_its_dense_matrix(seed):
    rng = np.random.default_rng(seed)
    n, r = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    base = rng.random((n, n))
    base = base + base.T
    factors = rng.random((n, r))
    dense = base + factors @ factors.T
    for graph in (Graph(base, factors), Graph(sparse.csr_array(base), sparse.csr_array(factors))):
        np.testing.assert_allclose(graph.toarray(), dense)
        np.testing.assert_allclose(graph.degrees, dense.sum(axis=1))
        block = rng.standard_normal((n, 3))
        np.testing.assert_allclose(graph.dot(block), dense @ block)
        expected = np.array(
            [[dense[i, j] / np.sqrt(dense[i].sum() * dense[j].sum()) for j in range(n)] for i in range(n)]
        )
        np.testing.assert_allclose(normalized_adjacency(graph).toarray(), expected)


@given(seeds, st.sampled_from(["sorl", "nscl"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_edges_are_the_probabilities_of_positive_pairs(seed, setting, thin):
    rng, T, labels = random_case(seed)
    eta_u, eta_l = rng.random(2) + 0.1
    n = len(T)
    sources = range(n) if setting == "sorl" else [s for s in range(n) if labels[s] < 0]
    expected = np.zeros((n, n))
    for x in range(n):
        for other in range(n):
            alone = np.mean([T[x, s] * T[other, s] for s in sources])
            together = 0.0
            for c in set(labels) - {-1}:
                mine = [s for s in range(n) if labels[s] == c]
                together += np.mean([[T[x, s] * T[other, t] for s in mine] for t in mine])
            expected[x, other] = eta_u * alone + eta_l * together
    graph = augmentation_graph(sparse.csr_array(T) if thin else T, labels, eta_u=eta_u, eta_l=eta_l, setting=setting)
    np.testing.assert_allclose(graph.toarray(), expected, rtol=1e-10)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_low_rank_approximation_is_the_contrastive_loss(seed):
    """‖Ȧ − FFᵀ‖² is the SORL loss plus a constant when η_l weighs the labelled terms (not as printed)."""
    rng, T, labels = random_case(seed)
    eta_u, eta_l = rng.random(2) + 0.1
    n = len(T)
    graph = augmentation_graph(T, labels, eta_u=eta_u, eta_l=eta_l)
    connections = np.asarray(label_connections(labels, T))
    everyone = T.mean(axis=1)
    pairs_u = np.mean([np.outer(T[:, s], T[:, s]) for s in range(n)], axis=0)
    f = rng.standard_normal((n, 2))
    dots = f @ f.T
    one = sum(connections[:, c] @ dots @ connections[:, c] for c in range(connections.shape[1]))
    two = (pairs_u * dots).sum()
    labelled = connections.sum(axis=1)
    three = labelled @ dots**2 @ labelled
    four = labelled @ dots**2 @ everyone
    five = everyone @ dots**2 @ everyone
    loss = -2 * eta_l * one - 2 * eta_u * two + eta_l**2 * three + 2 * eta_u * eta_l * four + eta_u**2 * five
    scaled = normalized_adjacency(graph).toarray()
    F = np.sqrt(graph.degrees)[:, None] * f
    whole = ((scaled - F @ F.T) ** 2).sum()
    np.testing.assert_allclose(whole - (scaled**2).sum(), loss, rtol=1e-8)


def test_labels_are_added_to_any_graph():
    rng, T, labels = random_case(3)
    base = rng.random((7, 7))
    base = base + base.T
    expected = 0.5 * base
    for c in set(labels) - {-1}:
        column = T[:, labels == c].mean(axis=1)
        expected = expected + 2.0 * np.outer(column, column)
    got = add_labels(base, labels, eta_u=0.5, eta_l=2.0, transition=T).toarray()
    np.testing.assert_allclose(got, expected)
    factored = Graph(None, np.linalg.cholesky(base + 10 * np.eye(7)))
    again = add_labels(factored, labels, eta_u=0.5, eta_l=2.0, transition=T)
    np.testing.assert_allclose(again.toarray(), expected + 5 * np.eye(7))


def test_a_huge_clique_stays_factored():
    n = 60_000
    graph = add_labels(sparse.eye_array(n, format="csr"), np.zeros(n, dtype=int))
    np.testing.assert_allclose(graph.degrees, 1 + 1 / n)


def brute_knn(points, k, weights, symmetry, metric):
    n = len(points)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    used = unit if metric == "cosine" else points
    distance = np.array([[np.linalg.norm(a - b) for b in used] for a in used])
    directed = np.zeros((n, n))
    order = [sorted((j for j in range(n) if j != i), key=lambda j: distance[i, j])[:k] for i in range(n)]
    for i in range(n):
        for j in order[i]:
            if weights == "binary":
                directed[i, j] = 1.0
            elif weights == "cosine":
                directed[i, j] = max(unit[i] @ unit[j], 0.0)
            else:
                reach = distance[i, order[i][-1]] * distance[j, order[j][-1]]
                directed[i, j] = np.exp(-(distance[i, j] ** 2) / reach)
    if symmetry == "union":
        return np.maximum(directed, directed.T)
    if symmetry == "mutual":
        return np.minimum(directed, directed.T)
    return (directed + directed.T) / 2


@pytest.mark.parametrize("weights", ["binary", "cosine", "gaussian"])
@pytest.mark.parametrize("symmetry", ["union", "mutual", "mean"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_neighbour_graph_against_loops(weights, symmetry, metric):
    points = np.random.default_rng(5).standard_normal((25, 3)).astype(np.float32)
    graph = knn_graph(points, 4, weights=weights, symmetry=symmetry, metric=metric)
    expected = brute_knn(points.astype(float), 4, weights, symmetry, metric)
    np.testing.assert_allclose(graph.toarray(), expected, atol=2e-5)
    assert (graph.diagonal() == 0).all()


def test_copies_are_neighbours_of_each_other_not_of_themselves():
    points = np.zeros((6, 2), dtype=np.float32)
    graph = knn_graph(points, 2, symmetry="union")
    assert (graph.diagonal() == 0).all()
    assert (graph.sum(axis=1) >= 2).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: knn_graph(np.ones((3, 2)), 3), "k must be between 1 and 2"),
        (lambda: knn_graph(np.ones((3, 2)), 1, weights="heat"), "choose one of"),
        (lambda: knn_graph(np.array([[0.0], [np.nan], [1.0]]), 1), "NaN"),
        (lambda: Graph(np.array([[0.0, 1.0], [0.0, 0.0]])), "not symmetric"),
        (lambda: Graph(np.array([[np.nan]])), "NaN"),
        (lambda: Graph(None), "give a base"),
        (lambda: normalized_adjacency(np.array([[0.0, -1.0], [-1.0, 0.0]])), "negative"),
        (lambda: add_labels(np.eye(2), [0]), "1 labels for 2 nodes"),
        (lambda: add_labels(np.eye(2), [0.0, 1.0]), "whole numbers"),
        (lambda: add_labels(np.eye(2), [0, 1], eta_l=-1), "eta_l=-1"),
        (lambda: augmentation_graph(np.eye(2), [0, 1], setting="nscl"), "no unlabelled source"),
        (lambda: augmentation_graph(np.eye(2), [0]), "1 labels but 2 sources"),
    ],
)
def test_errors_name_the_value_and_the_way_out(call, said):
    with pytest.raises(InputError, match=said):
        call()
