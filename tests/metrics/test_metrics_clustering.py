from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from offmap.errors import InputError
from offmap.metrics.clustering import (
    Contingency,
    adjusted_rand,
    class_table,
    match_clusters,
    normalized_mutual_info,
    open_world_accuracy,
    purity,
)
from offmap.metrics.linear_probe import linear_probe_accuracy

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=40)


def best_by_trying(truth, found, chosen):
    """The most samples right under any one-to-one naming of groups, counted per true class."""
    groups, classes = sorted(set(found)), sorted(set(truth))
    slots = classes + [None] * len(groups)
    best = max(
        permutations(slots, len(groups)),
        key=lambda names: sum(dict(zip(groups, names, strict=True))[f] == t for t, f in zip(truth, found, strict=True)),
    )
    named = dict(zip(groups, best, strict=True))
    return sum(named[f] == t for t, f in zip(truth, found, strict=True) if chosen(t))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
def test_v2_all_is_the_best_naming(samples):
    truth, found = [t for t, _ in samples], [f for _, f in samples]
    got = open_world_accuracy(truth, found, known_classes=[0])
    assert got.all * len(truth) == pytest.approx(best_by_trying(truth, found, lambda t: True))


@settings(max_examples=40, deadline=None)
@given(pairs)
def test_agreement_measures_match_scikit_learn(samples):
    truth, found = [t for t, _ in samples], [f for _, f in samples]
    assert normalized_mutual_info(truth, found) == pytest.approx(
        reference.normalized_mutual_info_score(truth, found), abs=1e-9
    )
    assert adjusted_rand(truth, found) == pytest.approx(reference.adjusted_rand_score(truth, found), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(pairs, st.integers(0, 40))
def test_shards_give_the_same_numbers_as_one_table(samples, cut):
    truth, found = np.array([t for t, _ in samples]), np.array([f for _, f in samples])
    merged = Contingency().update(truth[:cut], found[:cut]).merge(Contingency().update(truth[cut:], found[cut:]))
    for convention in ("orca", "v1", "v2", "v2-balanced", "ncd"):
        np.testing.assert_equal(
            tuple(open_world_accuracy(merged, None, [0, 1], convention)),
            tuple(open_world_accuracy(truth, found, [0, 1], convention)),
        )


@settings(max_examples=40, deadline=None)
@given(pairs, st.permutations(range(5)))
def test_names_of_groups_do_not_matter_but_in_orca_known(samples, order):
    truth, found = np.array([t for t, _ in samples]), np.array([f for _, f in samples])
    for convention in ("v1", "v2", "ncd"):
        np.testing.assert_allclose(
            open_world_accuracy(truth, found, [0], convention),
            open_world_accuracy(truth, np.array(order)[found], [0], convention),
        )


def test_conventions_differ_as_their_papers_do():
    truth = np.array([0] * 4 + [1] * 4 + [2] * 4)
    found = np.array([0, 0, 5, 5, 5, 5, 5, 0, 7, 7, 7, 5])
    assert open_world_accuracy(truth, found, [0, 1], "v2") == pytest.approx((8 / 12, 5 / 8, 3 / 4))
    assert open_world_accuracy(truth, found, [0, 1], "orca") == pytest.approx((8 / 12, 2 / 8, 3 / 4))
    assert open_world_accuracy(truth, found, [0, 1], "v1") == pytest.approx((8 / 12, 5 / 8, 3 / 4))
    all_, known, novel = open_world_accuracy(truth, found, [0, 1], "ncd")
    assert np.isnan([all_, known]).all()
    assert novel == 0.75


def test_v1_matches_known_and_novel_apart():
    truth, found = [0, 0, 1, 1], [3, 3, 3, 3]
    assert open_world_accuracy(truth, found, [0], "v2").all == 0.5
    assert open_world_accuracy(truth, found, [0], "v1").all == 1.0


def test_balanced_weighs_classes_alike():
    truth, found = [0] * 8 + [1] * 2, [0] * 10
    assert open_world_accuracy(truth, found, [0], "v2").all == 0.8
    assert open_world_accuracy(truth, found, [0], "v2-balanced").all == 0.5


def test_too_many_and_too_few_groups():
    truth = np.repeat([0, 1], 4)
    assert open_world_accuracy(truth, np.arange(8), [0]).all == 0.25
    assert open_world_accuracy(truth, np.zeros(8, int), [0]).all == 0.5


def test_outliers_are_never_right_and_rows_without_class_do_not_count():
    assert open_world_accuracy([0, 0, 1, 1], [5, -1, -1, -1], [0]) == (0.25, 0.5, 0.0)
    assert open_world_accuracy([0, 0, -1], [5, 5, 9], [0]).all == 1.0
    assert purity([0, 0], [5, -1]) == 0.5


def test_strings_and_class_table():
    truth, found = ["cat", "cat", "dog", "emu"], ["x", "x", "y", "x"]
    assert match_clusters(truth, found) == {"x": "cat", "y": "dog"}
    emu = class_table(truth, found)[2]
    assert (emu.label, emu.group, emu.recall) == ("emu", None, 0.0)


def test_linear_probe_finds_a_line_and_refuses_one_class():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, 3))
    labels = (rows[:, 0] > 0).astype(int)
    assert linear_probe_accuracy(rows[:60], labels[:60], rows[60:], labels[60:]) > 0.9
    with pytest.raises(InputError, match="one class"):
        linear_probe_accuracy(rows, np.zeros(80, int), rows, labels)


@pytest.mark.parametrize(
    ("truth", "found", "message"),
    [([0, 1], [0], "2 true labels but 1"), ([-1, -1], [0, 0], "no sample"), ([0.5], [0], "fractions")],
)
def test_bad_input_is_named(truth, found, message):
    with pytest.raises(InputError, match=message):
        open_world_accuracy(truth, found, [0])


def test_unknown_convention_is_named():
    with pytest.raises(InputError, match="the conventions are"):
        open_world_accuracy([0], [0], [0], "v3")
