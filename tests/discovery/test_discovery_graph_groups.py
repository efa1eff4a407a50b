from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from offmap.discovery import discover, graph_groups
from offmap.discovery.assign import Rows
from offmap.discovery.graph_groups import (
    association,
    follow_neighbors,
    group_by_graph,
    merge_groups,
    name_groups,
    vote_share,
)
from offmap.discovery.inputs import hide_classes
from offmap.discovery.merging import MergeTree, build_tree, calibrate_shift, one_class_odds
from offmap.graph import nearest_neighbors, shared_neighbor_graph
from offmap.metrics.clustering import adjusted_rand, open_world_accuracy


def classes(sizes, width=12, spread=0.25, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    rows = rng.normal(size=(len(sizes), width))[truth] + spread * rng.normal(size=(len(truth), width))
    return rows.astype(np.float32), truth


def links(seed, n=12):
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.random((n, n)) * (rng.random((n, n)) < 0.4), 1)
    return sparse.csr_array(dense + dense.T)


def test_shared_neighbours_are_counted_as_sets():
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    _, near = nearest_neighbors(rows, 5)
    lists = [{i, *near[i].tolist()} for i in range(40)]
    got = shared_neighbor_graph(near).toarray()
    for i, j in combinations(range(40), 2):
        joined = j in lists[i] or i in lists[j]
        expected = len(lists[i] & lists[j]) / len(lists[i] | lists[j]) if joined else 0
        assert got[i, j] == got[j, i] == pytest.approx(expected)
    assert (np.diag(got) == 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_the_tree_joins_the_strongest_link_first(seed):
    graph = links(seed)
    dense = graph.toarray()
    members = {i: [i] for i in range(12)}
    tree = build_tree(graph)
    for j, (a, b) in enumerate(tree.joins.tolist()):

        def strength(x, y):
            inside = dense[np.ix_(members[x], members[y])].sum()
            return inside / np.sqrt(dense[members[x]].sum() * dense[members[y]].sum()) if inside else 0.0

        best = max(strength(x, y) for x, y in combinations(members, 2))
        assert strength(a, b) == pytest.approx(best)
        weight = dense[np.ix_(members[a], members[b])].sum() / (dense.sum() / 12)
        few, many = sorted((len(members[a]), len(members[b])))
        assert tree.evidence[j] == pytest.approx(float(one_class_odds(weight, few, many)))
        members[12 + j] = members.pop(a) + members.pop(b)
    left = list(members)
    assert all(not dense[np.ix_(members[x], members[y])].any() for x, y in combinations(left, 2))


def every_cut(tree, node):
    """All ways to cut the tree below a node: groups, and the log-likelihood of the joins above and below the cut."""
    n = tree.n_rows
    if node < n:
        return [([[node]], 0.0)]
    a, b = tree.joins[node - n].tolist()
    odds = float(tree.evidence[node - n])
    whole, total = members_of(tree, node)
    apart = [
        (left + right, p + q - np.logaddexp(0, odds))
        for left, p in every_cut(tree, a)
        for right, q in every_cut(tree, b)
    ]
    return [([whole], total), *apart]


def members_of(tree, node):
    if node < tree.n_rows:
        return [node], 0.0
    (left, p), (right, q) = (members_of(tree, int(child)) for child in tree.joins[node - tree.n_rows])
    return left + right, p + q - np.logaddexp(0, -float(tree.evidence[node - tree.n_rows]))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_cut_is_the_most_likely_one(seed):
    rng = np.random.default_rng(seed)
    alive, joins = list(range(7)), []
    while len(alive) > 1:
        a, b = rng.choice(alive, 2, replace=False).tolist()
        joins.append((a, b))
        alive = [one for one in alive if one not in (a, b)] + [6 + len(joins)]
    tree = MergeTree(np.array(joins), 2 * rng.normal(size=6), np.ones(6, bool), 7)
    groups, _ = max(every_cut(tree, 12), key=lambda pair: pair[1])
    truth = np.zeros(7, int)
    for number, members in enumerate(groups):
        truth[members] = number
    assert adjusted_rand(truth, tree.cut()) == 1
    # a labelled row in a group of another class costs one unit
    codes = np.array([0, 1, -1, -1, 0, 1, -1])

    def cost(members):
        held = np.bincount(codes[members][codes[members] >= 0], minlength=2)
        return held.sum() - held.max()

    groups, _ = max(every_cut(tree, 12), key=lambda pair: pair[1] - sum(cost(m) for m in pair[0]))
    for number, members in enumerate(groups):
        truth[members] = number
    assert adjusted_rand(truth, tree.cut(0.0, codes)) == 1


def test_a_higher_shift_merges_more_and_labels_set_it():
    rows, _ = classes([40] * 16, spread=0.7)
    tree = build_tree(shared_neighbor_graph(nearest_neighbors(rows, 10)[1]))
    counts = [len(np.unique(tree.cut(shift))) for shift in (-6.0, -2.0, 2.0, 6.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]
    # every known class holds half of the blobs of a coarser one: more must be merged to give those back
    coarse = tree.cut(3.0)
    fine = tree.cut(-1.0)
    shifts = [calibrate_shift(tree, known, int(known.max()) + 1) for known in (coarse, fine)]
    assert shifts[0] > shifts[1]


def test_groups_take_the_number_of_their_class_unless_labels_are_astray():
    found = np.repeat([0, 1, 2, 3, 4], [20, 20, 20, 20, 2])
    codes = np.full(82, -1)
    codes[:10] = 1  # half of the first group
    codes[20:28] = 0
    codes[40] = 0  # one of twenty: astray
    named = name_groups(found, codes, 2)
    assert set(named[:20]) == {1}
    assert set(named[20:40]) == {0}
    assert named[40] == 0
    assert set(named[41:60]) == {2}
    assert set(named[60:80]) == {3}
    assert set(named[80:]) == {-1}  # too small for a class
    chain = sparse.csr_array(np.eye(82, k=1) + np.eye(82, k=-1))
    assert (follow_neighbors(chain, named, np.array([80, 81]))[80:] == 3).all()
    assert follow_neighbors(chain, np.array([0] * 81 + [-1]), np.array([81]))[81] == 0


def test_merging_respects_known_classes_and_the_wanted_number():
    rows, truth = classes([50] * 6, spread=0.2)
    graph = shared_neighbor_graph(nearest_neighbors(rows, 10)[1])
    halves = 2 * truth + np.arange(300) % 2
    order = np.array([0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11])  # first halves of all classes, then the second ones
    np.testing.assert_array_equal(merge_groups(graph, order[halves], 0) % 6, truth)
    np.testing.assert_array_equal(merge_groups(graph, order[halves], 6), truth)
    assert merge_groups(graph, np.arange(300) % 2, 2).max() == 1  # one blob each, but both are known
    for k in (4, 6, 9):
        assert merge_groups(graph, order[halves], 3, k).max() == k - 1


def test_association_and_confidence_are_shares_of_weight():
    graph = links(3)
    dense, labels = graph.toarray(), np.arange(12) % 3
    inside = [dense[np.ix_(labels == c, labels == c)].sum() / dense[labels == c].sum() for c in range(3)]
    assert association(graph, labels, 3) == pytest.approx(np.mean(inside))
    same = labels[:, None] == labels
    np.testing.assert_allclose(vote_share(graph, labels), (dense * same).sum(axis=1) / dense.sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "known"),
    [
        ([300, 300, 300, 15, 10, 8], 3),  # small novel classes beside large known ones
        ([12, 12, 200, 200, 200, 200], 2),  # and the reverse
        ([400, 200, 100, 50, 25, 12], 3),  # a long tail
        ([100] * 6, 1),
        ([100] * 6, 6),  # nothing new
        ([100] * 6, 0),
        ([20] * 60, 30),
    ],
)
def test_classes_of_any_size_are_found(sizes, known):
    rows, truth = classes(sizes)
    rng = np.random.default_rng(1)
    labels = np.where((truth < known) & (rng.random(len(truth)) < 0.5), truth, -1)
    got = discover(rows, labels)
    assert abs(got.n_classes - len(sizes)) <= len(sizes) // 50  # of sixty, two may be next to each other
    assert (got.labels[labels >= 0] == labels[labels >= 0]).all()
    assert (got.labels == truth)[truth < known].mean() > 0.95 if known else True
    assert open_world_accuracy(truth, got.labels, range(known)).all > 0.95
    assert len(got.novel) == got.n_classes - known
    assert all(info.confidence > 0.5 and info.core <= info.size for info in got.novel)
    assert (got.confidence[got.is_core] >= 0.5).all()


def test_few_rows_in_many_columns():
    rows, truth = classes([25] * 8, width=5000, spread=2.0)
    assert discover(rows, np.where((truth < 4) & (np.arange(200) % 2 == 0), truth, -1)).n_classes == 8


def test_large_sets_go_through_a_sample(monkeypatch):
    rows, truth = classes([200, 100, 60, 40])
    labels = np.where((truth < 2) & (np.arange(400) % 2 == 0), truth, -1)
    monkeypatch.setattr(graph_groups, "GRAPH_ROWS", 150)
    got = group_by_graph(Rows(rows), labels, 2)
    assert got.n_groups == 4
    assert (got.labels == truth).mean() > 0.97
    assert ((got.confidence >= 0) & (got.confidence <= 1)).all()


@pytest.mark.parametrize("method", ["graph", "ss-kmeans", "kmeans", "gcd", "spectral", "gmm", "vmf"])
def test_the_number_of_classes_asked_for_is_what_comes_back(method):
    rows, truth = classes([40] * 12, spread=1.2)
    labels = np.where((truth < 8) & (np.arange(480) % 3 == 0), truth, -1)
    for k in (9, 14, 20):
        assert discover(rows, labels, k, method).n_classes == k


def test_half_of_the_classes_and_half_of_their_rows_are_hidden():
    truth = np.repeat(np.arange(10), 20)
    given, shown = hide_classes(truth, 3)
    assert len(shown) == 5
    np.testing.assert_array_equal(np.unique(given[given >= 0]), shown)
    assert np.bincount(given[given >= 0], minlength=10)[shown].tolist() == [10] * 5
    np.testing.assert_array_equal(hide_classes(truth, 3)[0], given)
