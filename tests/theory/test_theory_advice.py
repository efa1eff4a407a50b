"""Advice on what to label: the forecast against re-embedding, harm that is foreseen, budgets that are kept."""

from __future__ import annotations

import numpy as np
import pytest

from offmap.errors import InputError
from offmap.graph import knn_graph, spectral_embedding
from offmap.metrics.kmeans_measure import kmeans_measure
from offmap.theory.advice import add_label_cliques, clique_change, estimate_novel_count, label_advice
from offmap.theory.perturbation import kmeans_measure_derivative, measure_gradient, rank_correlation


def blobs(seed: int, classes: int = 6, each: int = 40, spread: float = 1.3):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), each)
    centres = 3 * rng.standard_normal((classes, 5))
    features = centres[truth] + spread * rng.standard_normal((len(truth), 5))
    labels = np.where((truth < classes // 2) & (np.arange(len(truth)) % each < 5), truth, -1)
    return features.astype(np.float32), truth, labels


def test_forecast_follows_what_labels_really_do():
    """With the true partition the forecast ranks options as re-embedding does; with the believed one it is near."""
    features, truth, labels = blobs(0, classes=8, spread=1.8)
    base = knn_graph(features, 10)
    base = base * (len(truth) / base.sum())
    spectrum = spectral_embedding(add_label_cliques(base, labels), len(truth) - 1, dense_nodes=1000)
    gradient = measure_gradient(spectrum, truth, 8)
    before = kmeans_measure(spectrum.features[:, :8], truth)
    forecast, outcome = [], []
    for c in range(8):
        bought = labels.copy()
        bought[np.flatnonzero((truth == c) & (labels < 0))[:6]] = c
        forecast.append(-clique_change(gradient, labels == c, bought == c))
        after = spectral_embedding(add_label_cliques(base, bought), 8, dense_nodes=1000).features
        outcome.append(before - kmeans_measure(after, truth))
    assert rank_correlation(forecast, outcome) > 0.6


def test_small_label_weights_make_the_forecast_exact():
    features, truth, labels = blobs(1)
    base = knn_graph(features, 10)
    base = base * (len(truth) / base.sum())
    graph = add_label_cliques(base, labels).toarray()
    gradient = measure_gradient(spectral_embedding(graph, len(truth)), truth, 6)
    old, new = labels == 0, (truth == 0) & (np.arange(len(truth)) < 20)
    cliques = np.outer(new, new) / new.sum() - np.outer(old, old) / old.sum()
    h = 1e-4
    first, second = (kmeans_measure(spectral_embedding(graph + s * h * cliques, 6).features, truth) for s in (1, -1))
    assert clique_change(gradient, old, new) == pytest.approx((first - second) / (2 * h), rel=1e-3)


def test_a_spurious_label_is_seen_to_hurt():
    """Objects joined by shape and by colour; the classes are colours. A label on a shape hurts, on a colour helps."""
    rng = np.random.default_rng(0)
    colour, shape = np.repeat([0, 1], 30), np.tile([0, 1], 30)
    same_colour = colour[:, None] == colour[None]
    same_shape = shape[:, None] == shape[None]
    A = 0.2 + 0.5 * same_colour + 0.4 * same_shape + 0.3 * rng.random((60, 60))
    A = A + A.T
    on_shape = kmeans_measure_derivative(A, (shape == 0) / 30.0, colour, 2)
    on_colour = kmeans_measure_derivative(A, (colour == 0) / 30.0, colour, 2)
    assert on_colour < 0 < on_shape


def test_options_cover_known_classes_and_clusters_and_the_budget_is_kept():
    features, _, labels = blobs(2)
    advice = label_advice(features, labels, budget=25, n_novel=3)
    assert sum(option.known for option in advice.options) == 3
    assert len(advice.items) <= 25
    assert (labels[advice.items] == -1).all()
    assert len(np.unique(advice.items)) == len(advice.items)
    gains = [option.gain for option in advice.options]
    assert gains == sorted(gains, reverse=True)
    assert all(option.spend == 0 for option in advice.options if option.known and option.gain <= 0)
    assert all(option.spend >= 3 for option in advice.options if not option.known)
    for option in advice.options:
        members = advice.partition[option.items]
        assert len(set(members)) == 1
    assert (advice.partition[labels >= 0] == np.searchsorted(advice.classes, labels[labels >= 0])).all()
    assert len(advice.rows()) == len(advice.options)
    assert "labels" in str(advice)


def test_the_same_call_gives_the_same_advice():
    features, _, labels = blobs(3)
    first, second = (label_advice(features, labels, budget=20) for _ in range(2))
    assert (first.items == second.items).all()
    assert [o.gain for o in first.options] == [o.gain for o in second.options]


def test_known_classes_may_have_any_numbers():
    features, _, labels = blobs(4)
    renamed = np.where(labels >= 0, labels * 7 + 2, -1)
    assert list(label_advice(features, renamed, budget=10, n_novel=3).classes) == [2, 9, 16]


def test_data_in_many_separate_pieces():
    """Twelve islands but four classes: the spectrum has no gap at four, so another width is taken."""
    rng = np.random.default_rng(0)
    island = np.repeat(np.arange(12), 20)
    features = (50 * rng.standard_normal((12, 4))[island] + rng.standard_normal((240, 4))).astype(np.float32)
    labels = np.where((island < 2) & (np.arange(240) % 20 < 4), island, -1)
    advice = label_advice(features, labels, budget=9, n_novel=2, neighbours=8)
    assert np.isfinite([option.gain for option in advice.options]).all()
    with pytest.raises(InputError, match="fewer classes"):
        label_advice(features, labels, budget=9, n_novel=-1)


def test_novel_classes_are_counted_by_the_gap():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(5), 40)
    features = (20 * np.eye(5)[truth] + rng.standard_normal((200, 5))).astype(np.float32)
    assert estimate_novel_count(knn_graph(features, 10), n_known=2) == 3


@pytest.mark.parametrize(
    ("labels", "budget", "said"),
    [
        ([-1, -1, -1, -1], 1, "nothing is labelled"),
        ([0, 1, 0, 1], 1, "every input is labelled"),
        ([0, 1, -1, -1], 0, "at least one label"),
        ([0, 1, -1], 1, "one label per row"),
        ([0.5, 1, -1, -1], 1, "whole numbers"),
        ([0, -2, -1, -1], 1, "a label is -2"),
    ],
)
def test_refusals(labels, budget, said):
    with pytest.raises(InputError, match=said):
        label_advice(np.random.default_rng(0).random((4, 2)), labels, budget)
