import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage

from offmap.columns import has_mixed_scales
from offmap.discovery.assign import Rows
from offmap.discovery.choosing import choose_space
from offmap.discovery.counting import count_classes
from offmap.discovery.kmeans import lloyd, plus_plus
from offmap.discovery.space import Space, column_spread, group, smooth, whitening
from offmap.discovery.tree import Tree, ward, ward_tree
from offmap.metrics.clustering import open_world_accuracy


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 25))
def test_ward_heights_match_scipy(seed, n):
    points = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    _, heights = ward(points, np.ones(n))
    np.testing.assert_allclose(np.sqrt(heights), linkage(points.astype(np.float64), "ward")[:, 2], rtol=1e-4)


def test_weights_stand_for_copies():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(8, 2)).astype(np.float32)
    times = rng.integers(1, 5, 8)
    _, light = ward(points, times.astype(float))
    _, heavy = ward(np.repeat(points, times, axis=0), np.ones(times.sum()))
    np.testing.assert_allclose(light, heavy[-7:], rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(5, 12))
def test_known_classes_never_meet_and_keep_their_numbers(seed, n_known, k):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(30, 3)).astype(np.float32)
    pairs, heights = ward(points, np.ones(30), n_known)
    tree = Tree(points, np.ones(30), n_known, pairs, heights)
    group = tree.cut(k)
    assert group[:n_known].tolist() == list(range(n_known))
    assert len(np.unique(group)) == k
    assert len(np.unique(tree.cut(1))) == max(n_known, 1)


def test_tree_means_are_the_means_of_its_groups():
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    tree = ward_tree(Rows(rows), 5, np.random.default_rng(0))
    group = tree.cut(5)
    expected = np.stack(
        [np.average(tree.centres[group == g], axis=0, weights=tree.sizes[group == g]) for g in range(5)]
    )
    np.testing.assert_allclose(tree.means(5), expected, atol=1e-5)


def test_whitening_makes_known_classes_round():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 500)
    stretch = np.diag([5.0, 1.0, 0.2])
    rows = 10 * rng.normal(size=(4, 3))[labels] + rng.normal(size=(2000, 3)) @ stretch
    white = rows @ whitening(rows, labels, 1e-6)
    inside = white - np.stack([white[labels == c].mean(axis=0) for c in range(4)])[labels]
    np.testing.assert_allclose(np.cov(inside.T), np.eye(3), atol=0.02)


def test_smoothing_is_an_average_over_neighbours():
    rows = np.array([[0.0], [8.0], [100.0], [108.0]], np.float32)
    # each step keeps half of a row and takes the mean of itself and its neighbour for the rest: 0 → 2 → 3
    smooth(rows, 1)
    np.testing.assert_allclose(rows, [[3], [5], [103], [105]])


def hard_pile(seed=0, width=12):
    """Classes told apart in few directions, with strong shared noise in others."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(12), 40)
    rows = np.concatenate([rng.normal(size=(12, 6))[truth], np.zeros((480, width - 6))], axis=1)
    rows += rng.normal(size=(480, width)) * np.array([0.25] * 6 + [1.5] * (width - 6))
    labels = np.where((truth < 6) & (rng.random(480) < 0.5), truth, -1)
    return rows.astype(np.float32), truth, labels


def test_the_space_is_chosen_by_hidden_classes_and_helps_the_real_ones():
    rows, truth, labels = hard_pile()
    space, tried = choose_space(rows, labels)
    assert space.shrinkage is not None
    assert len(tried) >= 4
    pile = labels < 0

    def score(one):
        found, _ = group(Rows(one.prepare(rows, labels)), 12, 0, labels, 6)
        return open_world_accuracy(truth[pile], found[pile], range(6)).all

    assert score(space) > score(Space("euclidean")) + 0.1


def test_few_known_classes_leave_the_plain_space():
    assert choose_space(np.eye(8, dtype=np.float32), np.array([0, 1, 2, -1, -1, -1, -1, -1]))[0] == Space("cosine")


@pytest.mark.parametrize("seed", range(3))
def test_the_start_does_not_lose_to_plain_kmeans(seed):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(30), 25)
    rows = (rng.normal(size=(30, 10))[truth] + 0.45 * rng.normal(size=(750, 10))).astype(np.float32)
    labels = np.where((truth < 15) & (rng.random(750) < 0.5), truth, -1)
    pile = labels < 0
    tree = ward_tree(Rows(rows), 30, np.random.default_rng(seed), labels, 15)
    ours = lloyd(Rows(rows), tree.means(30), forced=labels)
    plain = lloyd(Rows(rows), plus_plus(Rows(rows), 30, np.random.default_rng(seed)))
    score = [open_world_accuracy(truth[pile], fit.labels[pile], range(15)).all for fit in (ours, plain)]
    assert score[0] >= score[1]


@pytest.mark.parametrize("known", [0, 4, 12])
def test_separate_classes_are_counted(known):
    rng = np.random.default_rng(3)
    truth = np.repeat(np.arange(12), 30)
    rows = (rng.normal(size=(12, 16))[truth] + 0.1 * rng.normal(size=(360, 16))).astype(np.float32)
    got = count_classes(rows, np.where((truth < known) & (np.arange(360) % 2 == 0), truth, -1))
    assert abs(got.n_classes - 12) <= 1
    assert got.interval[0] <= 12 <= got.interval[1]
    assert str(got.n_classes) in str(got)


def test_columns_are_standardized_when_one_would_drown_the_others():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(300, 1))
    rows = (shared + rng.normal(size=(300, 4))) * np.array([1.0, 2.0, 1.0, 900.0]) + 50
    assert has_mixed_scales(rows)
    assert choose_space(rows, np.full(300, -1))[0].standardize
    components = rng.normal(size=(300, 4)) * np.array([900.0, 2.0, 1.0, 1.0])  # as principal components come
    assert not has_mixed_scales(components)
    network = np.maximum(shared + rng.normal(size=(300, 60)), 0) * np.r_[np.full(30, 50.0), np.ones(30)]
    assert not has_mixed_scales(network)  # thirty columns that spread further than the rest drown nothing
    mean, spread = column_spread(np.concatenate([rows, np.full((300, 1), 7.0)], axis=1))
    np.testing.assert_allclose(mean[:4], rows.mean(axis=0))
    np.testing.assert_allclose(spread, [*rows.std(axis=0), 1.0])
    got = Space("euclidean", standardize=True).prepare(rows)
    np.testing.assert_allclose(got, (rows - rows.mean(axis=0)) / rows.std(axis=0), atol=1e-4)
    assert "standardized" in str(Space("euclidean", standardize=True))
