from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from offmap.discovery import discover, graph_groups
from offmap.discovery.assign import Rows
from offmap.discovery.calibrating import calibrate, hide_and_group, share_counted
from offmap.discovery.class_sizes import ClassSizes, compare_novel, estimate_known_sizes, estimate_sizes
from offmap.discovery.graph_groups import group_by_graph
from offmap.discovery.inputs import hide_classes
from offmap.discovery.label_tests import LabelTest, leaf_order
from offmap.discovery.merging import WRONG, GroupScore, MergeTree, build_tree, one_class_odds
from offmap.discovery.regrouping import follow_neighbors, merge_groups, name_groups, vote_share
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
        (few, volume), (many, _) = sorted((len(members[x]), dense[members[x]].sum()) for x in (a, b))
        degree = volume / few / (dense.sum() / 12)
        assert tree.evidence[j] == pytest.approx(float(one_class_odds(weight, few, many, degree)))
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
    tree = MergeTree(np.array(joins), 2 * rng.normal(size=6), np.ones(6, bool), 7, np.ones(6))
    groups, _ = max(every_cut(tree, 12), key=lambda pair: pair[1])
    truth = np.zeros(7, int)
    for number, members in enumerate(groups):
        truth[members] = number
    assert adjusted_rand(truth, tree.cut()) == 1
    # sizes and labels make groups more or less likely
    codes = np.array([0, 1, -1, -1, 0, 1, -1])
    score = GroupScore(rng.normal(size=7), rng.normal(size=7), -0.4, -0.3)

    def worth(members):
        held = np.bincount(codes[members][codes[members] >= 0], minlength=2)
        novel = score.novel[len(members) - 1] - WRONG * held.sum()
        known = score.known[len(members) - 1] - 0.4 * held.max() - 0.3 * (len(members) - held.sum())
        return max(novel, known - WRONG * held.min()) if held.any() else novel

    totals = [value + sum(worth(m) for m in groups) for groups, value in every_cut(tree, 12)]
    groups, _ = every_cut(tree, 12)[int(np.argmax(totals))]
    for number, members in enumerate(groups):
        truth[members] = number
    assert adjusted_rand(truth, tree.cut(0.0, codes, score)) == 1
    assert tree.best_score(0.0, codes, score) == pytest.approx(max(totals))


def test_a_higher_shift_merges_more():
    rows, _ = classes([40] * 16, spread=0.7)
    tree = build_tree(shared_neighbor_graph(nearest_neighbors(rows, 10)[1]))
    counts = [len(np.unique(tree.cut(shift))) for shift in (-6.0, -2.0, 2.0, 6.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


@pytest.mark.parametrize("every", [5, 2, 1])
def test_sizes_of_known_classes_are_estimated_from_the_labels_among_neighbours(every):
    sizes = np.array([400, 200, 100, 60, 300, 300])
    rows, truth = classes(sizes, spread=0.6)
    codes = np.where((truth < 4) & (np.arange(len(truth)) % every == 0), truth, -1)
    _, near = nearest_neighbors(rows, 10)
    got = estimate_known_sizes(near, codes, 4)
    errors = np.log(got / sizes[:4])
    assert np.abs(errors).max() < 0.4
    assert np.abs(errors.mean()) < 0.15


def test_novel_classes_may_be_of_another_size_than_known_ones():
    for sizes, sign in (([200] * 10, 0), ([200] * 5 + [12] * 5, -1), ([10] * 5 + [300] * 5, 1)):
        rows, truth = classes(sizes, spread=0.3)
        codes = np.where((truth < 5) & (np.arange(len(truth)) % 2 == 0), truth, -1)
        _, near = nearest_neighbors(rows, 20)
        got = estimate_sizes(build_tree(shared_neighbor_graph(near[:, :10])), near, codes, 5)
        assert np.sign(got.difference) == sign
        assert np.exp(got.centre) == pytest.approx(sizes[-1], rel=0.8)


def test_the_typical_size_is_found_without_labels():
    rows, truth = classes([80] * 12, spread=0.6)
    _, near = nearest_neighbors(rows, 20)
    got = estimate_sizes(build_tree(shared_neighbor_graph(near[:, :10])), near, np.full(len(truth), -1), 0)
    assert 80 / 1.5 < np.exp(got.centre) < 80 * 1.5
    assert got.count(12)[0] == 12  # nothing but the tree says how many


def test_the_count_lies_between_what_the_tree_and_the_sizes_say():
    even = ClassSizes(np.full(20, 100.0), np.log(100.0), 0.4, 0.0, 4000)  # room for twenty novel classes
    assert even.count(40)[0] == pytest.approx(40, abs=0.5)
    assert 40 < even.count(60)[0] < 50
    assert 30 < even.count(30)[0] < 40
    assert even.count(60, tree_error=0.01)[0] == pytest.approx(60, abs=0.5)  # the tree is sure
    assert even.count(20)[0] == 20  # nothing novel is a possible answer
    assert even.count(60)[1] < 0.25
    assert even.count_plausible(np.array([3, 8, 80, 100, 300, 2000])) == 3
    assert even.log_likelihood(np.full(40, 100)) > even.log_likelihood(np.array([100] * 39 + [1000]))


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
    np.testing.assert_array_equal(merge_groups(graph, order[halves], 0, 6) % 6, truth)
    np.testing.assert_array_equal(merge_groups(graph, order[halves], 6, 6), truth)
    assert merge_groups(graph, np.arange(300) % 2, 2, 1).max() == 1  # one blob each, but both are known
    for k in (4, 6, 9):
        assert merge_groups(graph, order[halves], 3, k).max() == k - 1


def test_confidence_is_a_share_of_weight():
    graph = links(3)
    dense, labels = graph.toarray(), np.arange(12) % 3
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


def test_long_links_are_weaker_than_short_ones():
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    distances, near = nearest_neighbors(rows, 8)
    plain, got = shared_neighbor_graph(near).toarray(), shared_neighbor_graph(near, distances).toarray()
    scale = np.maximum(distances[:, 3], distances[:, -1] / 2)
    for i, j in zip(*np.nonzero(plain), strict=True):
        length = float(((rows[i] - rows[j]) ** 2).sum())
        closeness = min(np.exp(1 - length / (scale[i] * scale[j])), 1)
        assert got[i, j] == got[j, i] == pytest.approx(plain[i, j] * closeness, rel=1e-3)


def test_hidden_known_classes_tell_how_coarse_classes_are():
    rng = np.random.default_rng(0)
    part = np.repeat(np.arange(36), 40)
    truth = part // 3  # every class has three parts of its own
    centres = 3 * rng.normal(size=(12, 16))[np.arange(36) // 3] + 0.9 * rng.normal(size=(36, 16))
    rows = (centres[part] + 0.5 * rng.normal(size=(1440, 16))).astype(np.float32)
    codes = np.where((truth < 8) & (np.arange(1440) % 2 == 0), truth, -1)
    _, near = nearest_neighbors(rows, 20)
    tree = build_tree(shared_neighbor_graph(near[:, :10]))
    assert (calibrate(tree, near, codes, 8).evidence > tree.evidence).all()
    few = np.where(codes < 3, codes, -1)
    assert calibrate(tree, near, few, 3) is tree  # too few to hide some


def test_small_classes_that_a_count_misses_are_told_by_known_ones_made_as_small():
    known = np.repeat(np.arange(10, 30), 30)
    labels = np.concatenate([known - 10, np.repeat(np.arange(20, 24), [5, 5, 20, 20])])
    rows = np.concatenate([known, np.zeros(50)])[:, None].astype(np.float32)
    codes = np.where((labels < 20) & (np.arange(len(labels)) % 2 == 0), labels, -1)

    def count_novel(rows, codes, n_known):
        shown = np.unique(rows[codes >= 0, 0])
        unlabelled = codes < 0
        unlabelled[np.isin(rows[:, 0], shown)] = False
        return n_known + int((np.bincount(rows[unlabelled, 0].astype(int)) >= 10).sum())

    share = share_counted(rows, labels, codes, 20, count_novel)
    assert 0.55 < share < 0.7  # half of the novel groups have ten rows, a few classes are taken to be seen
    assert share_counted(rows, labels, codes, 20, count_novel) == share
    assert share_counted(rows, labels, codes, 20, lambda rows, codes, n: 20) == 1  # never fewer than were counted
    assert share_counted(rows, labels, codes, 20, lambda rows, codes, n: n) == 0.6  # nor many more
    large = np.where(labels >= 20, 20 + labels % 2, labels)
    assert share_counted(rows, large, codes, 20, lambda rows, codes, n: n) == 1  # two groups say nothing
    few = np.where(labels < 7, labels, 7)
    assert share_counted(rows, few, np.where(codes < 7, codes, -1), 7, lambda rows, codes, n: n) == 1


def test_scattered_rows_are_not_counted_as_classes():
    rows, truth = classes([60] * 12, width=16, spread=0.35)
    strange = 1.1 * np.random.default_rng(1).normal(size=(180, 16))
    both = Rows(np.concatenate([rows, strange]).astype(np.float32))
    codes = np.concatenate([np.where((truth < 6) & (np.arange(720) % 2 == 0), truth, -1), np.full(180, -1)])
    assert group_by_graph(both, codes, 6).n_groups == pytest.approx(12, abs=1)


def test_one_known_class_does_not_decide_how_large_the_others_are():
    rows, truth = classes([30] * 40 + [200], width=24, spread=0.4)
    codes = np.where((truth == 40) & (np.arange(len(truth)) % 2 == 0), 0, -1)
    found = group_by_graph(Rows(rows), codes, 1)
    assert found.n_groups == pytest.approx(41, abs=4)
    assert (found.labels[truth == 40] == 0).mean() > 0.95


def test_known_and_novel_sizes_are_compared_before_the_merge_test_is_fitted():
    rows, truth = classes([60] * 12, spread=0.6)
    codes = np.where((truth < 6) & (np.arange(720) % 2 == 0), truth, -1)
    _, near = nearest_neighbors(rows, 20)
    plain = build_tree(shared_neighbor_graph(near[:, :10]))
    merged = replace(plain, evidence=plain.evidence + 6)  # without labels nearly all of it is one group
    got = estimate_sizes(merged, near, codes, 6, plain)
    assert got.difference >= estimate_sizes(plain, near, codes, 6).difference
    assert np.exp(got.centre) > 40


def test_small_novel_classes_are_told_by_the_labels_that_they_lack():
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(8, 12))
    centres[4:] = centres[:4] + 0.45 * rng.normal(size=(4, 12))  # each novel class lies beside a known one
    truth = np.repeat(np.arange(8), [120] * 4 + [14] * 4)
    rows = (centres[truth] + 0.3 * rng.normal(size=(len(truth), 12))).astype(np.float32)
    codes = np.where((truth < 4) & (rng.random(len(truth)) < 0.5), truth, -1)
    distances, near = nearest_neighbors(rows, 20)
    graph = shared_neighbor_graph(near[:, :10], distances[:, :10])
    tree = build_tree(graph)
    sizes = ClassSizes(np.full(4, 120.0), np.log(20), 0.6, np.log(20 / 120), len(truth))
    merged = truth % 4
    taken = LabelTest(tree, graph, codes, 4).apply(merged, sizes)
    assert taken.max() >= 5
    assert adjusted_rand(truth, taken) > adjusted_rand(truth, merged)
    assert (taken[codes >= 0] == codes[codes >= 0]).all()

    scraps = merged.copy()  # four rows of a known class, as a group: without a label by chance
    scraps[np.flatnonzero((truth == 1) & (codes < 0))[:4]] = 4
    like_known = ClassSizes(np.full(4, 120.0), np.log(120), 0.6, 0.0, len(truth))
    only_known = truth < 4
    part = LabelTest(
        build_tree(graph[only_known][:, only_known].tocsr()),
        graph[only_known][:, only_known].tocsr(),
        codes[only_known],
        4,
    )
    given_back = part.apply(scraps[only_known], like_known)
    np.testing.assert_array_equal(given_back, truth[only_known])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_the_leaf_order_makes_every_node_a_range(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(30, 3))
    tree = build_tree(shared_neighbor_graph(nearest_neighbors(rows.astype(np.float32), 4)[1]))
    order, starts, sizes = leaf_order(tree)
    inside = [{row} for row in range(30)]
    for a, b in tree.joins.tolist():
        inside.append(inside[a] | inside[b])
    for node, rows_of in enumerate(inside):
        assert set(order[starts[node] : starts[node] + sizes[node]].tolist()) == rows_of


def test_few_scraps_do_not_make_novel_classes_small():
    known = np.full(30, 40.0)
    assert compare_novel(known, np.array([6, 5])) == 0
    assert compare_novel(known, np.array([40] * 20 + [5] * 10)) == 0  # scraps beside whole classes
    assert compare_novel(known, np.full(20, 10)) < -1


def test_few_groups_look_at_fewer_neighbours():
    rows, truth = classes([60] * 5, spread=0.5)
    codes = np.where((truth < 3) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    points = rows.astype(np.float32)
    distances, near = nearest_neighbors(points, 30)
    wide, narrow = (
        graph_groups._Problem(points, distances[:, :k], near[:, :k], codes, 3, 0).find()[0] for k in (30, 20)
    )
    np.testing.assert_array_equal(wide, narrow)
    assert graph_groups.most_neighbors(20) < graph_groups.most_neighbors(21)


def clumped(n_classes, clumps, rows, seed=0):
    """Classes of several clumps each, nearer to each other than to those of other classes."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_classes), clumps * rows)
    centres = rng.normal(size=(n_classes, 24))[truth]
    places = (
        0.75 * rng.normal(size=(n_classes, clumps, 24))[truth, np.tile(np.repeat(np.arange(clumps), rows), n_classes)]
    )
    points = centres + places + 0.3 * rng.normal(size=(len(truth), 24))
    return points.astype(np.float32), truth


def test_known_classes_come_apart_like_novel_ones_where_their_labels_are_hidden():
    points, truth = clumped(16, 3, 40)
    codes = np.where((truth < 10) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    distances, near = nearest_neighbors(points, 10)
    tree = build_tree(shared_neighbor_graph(near, distances))
    pieces = hide_and_group(tree, near, codes, 10)
    assert 24 <= len(pieces) <= 33  # three clumps a class
    assert np.median(pieces) == 40
    few = np.where(codes < 7, codes, -1)
    assert not len(hide_and_group(tree, near, few, 7))


def test_clumps_of_novel_classes_are_not_taken_for_small_classes_where_known_ones_have_clumps_too():
    points, truth = clumped(16, 3, 40)
    codes = np.where((truth < 10) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    assert 14 <= discover(points, codes).n_classes <= 22  # 10 + 6; as many as there are clumps would be 28


def test_large_novel_classes_that_come_apart_further_are_not_taken_for_many_small_ones():
    known, labels = clumped(10, 2, 120)
    novel, others = clumped(6, 4, 60, seed=1)
    points, truth = np.concatenate([known, novel]), np.concatenate([labels, 10 + others])
    codes = np.where((truth < 10) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    distances, near = nearest_neighbors(points, 30)
    problem = graph_groups._Problem(points, distances, near, codes, 10, 0)
    k, joined, _, _ = problem.count()
    assert problem.sizes.difference < 0  # they look smaller than known ones
    assert problem.groups_per_class == pytest.approx(2, abs=0.2)
    assert joined - 10 >= 20  # four clumps a class
    assert k - 10 <= 13  # as many classes as hidden ones would be in so many clumps
