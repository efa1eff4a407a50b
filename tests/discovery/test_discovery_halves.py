import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.discovery import discover
from offmap.discovery.checking import check_count
from offmap.discovery.class_sizes import ClassSizes
from offmap.discovery.halves import TriedNumber, agreed_numbers, count_by_halves, draw_gaussian
from offmap.metrics.clustering import open_world_accuracy
from offmap.neighbors.vectors import unit


@settings(max_examples=10)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_classes_that_stand_apart_are_counted_without_labels(n_classes, seed):
    rng = np.random.default_rng(seed)
    truth = np.arange(50 * n_classes) % n_classes
    rows = 6 * np.eye(n_classes, 16)[truth] + rng.normal(size=(len(truth), 16))
    count, (low, high) = count_by_halves(rows.astype(np.float32), seed)
    assert 0.75 * n_classes <= count <= 1.3 * n_classes
    assert low <= count <= high


@pytest.mark.parametrize("scales", [np.ones(10), np.ones(40), np.geomspace(3, 0.1, 20)])
def test_rows_of_one_gaussian_have_no_number_of_classes(scales):
    rows = np.random.default_rng(0).normal(size=(1500, len(scales))) * scales
    assert count_by_halves(unit(rows.astype(np.float32))) is None


def test_few_rows_or_columns_are_not_counted():
    rows = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    assert count_by_halves(rows[:99]) is None
    assert count_by_halves(rows[:, :9]) is None


def test_the_search_for_agreement_starts_from_many_groups_and_may_find_none():
    assert agreed_numbers([TriedNumber(2, 0.5, 0.1), TriedNumber(3, 0.54, 0.2)]) == []
    assert agreed_numbers([TriedNumber(2, 1.0, 0.1), TriedNumber(3, 0.6, 0.2), TriedNumber(4, 0.7, 0.2)]) == [4]


def test_rows_drawn_from_one_gaussian_keep_mean_and_covariance_and_hold_no_classes():
    rng = np.random.default_rng(0)
    rows = unit((4 * np.eye(4, 30)[np.arange(1200) % 4] + rng.normal(size=(1200, 30))).astype(np.float32))
    drawn = draw_gaussian(rows, 1)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(drawn.mean(axis=0), rows.mean(axis=0), atol=0.03)
    assert 4 <= count_by_halves(rows)[0] <= 5
    assert count_by_halves(drawn) is None


def test_groups_that_halves_contradict_are_brought_near_to_their_number():
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 6
    rows = (6 * np.eye(6, 16)[truth] + rng.normal(size=(600, 16))).astype(np.float32)
    cut = 6 * (np.arange(600) // 6 % 4) + truth  # every class in four
    number, (low, high) = check_count(rows, cut, 24, 0)
    assert number == 9
    assert low <= 6 <= high
    assert number <= high
    assert check_count(rows, cut, 24, 4) is None  # four known classes fit the tree: it is not doubted
    assert check_count(rows, cut, 24, 8) is None
    heap = np.where(np.arange(600) < 595, 0, np.arange(600))
    heap = np.unique(heap, return_inverse=True)[1]
    assert check_count(rows, heap, 6, 0)[0] == 6
    assert check_count(rows, heap, 6, 5)[0] == 6  # a heap beside scraps is
    assert check_count(rows, truth, 6, 0) is None


def test_the_number_of_novel_classes_says_how_large_they_are():
    sizes = ClassSizes(np.array([20.0]), centre=1.0, spread=0.5, difference=0.0, n_rows=100)
    assert np.exp(sizes.with_novel(4).centre) == pytest.approx(20)
    assert np.exp(sizes.with_novel(200).centre) == pytest.approx(1)


@pytest.mark.data
def test_real_classes_without_labels_are_neither_one_heap_nor_worse_than_kmeans(data_folder):
    held = np.load(data_folder / "features" / "cifar100-densenet__cifar100_test.npz")
    rows, truth = held["features"][:2500].astype(np.float32), held["labels"][:2500]
    assert discover(rows).n_classes > 25  # rows joined over the graph are one group
    given_number = open_world_accuracy(truth, discover(rows, None, 100).labels).all
    assert given_number > open_world_accuracy(truth, discover(rows, None, 100, "kmeans").labels).all


@pytest.mark.data
def test_features_that_spread_unevenly_are_grouped_as_well_as_by_kmeans(data_folder):
    held = np.load(data_folder / "features" / "cifar10-densenet__cifar10_test.npz")
    rows, truth = held["features"][:2500].astype(np.float32), held["labels"][:2500].astype(np.int64)
    known = np.where((truth < 5) & (np.arange(2500) % 2 == 0), truth, -1)
    for labels in (known, None):  # columns whose spreads differ 200 times are no table here
        found, plain = (discover(rows, labels, 10, method).labels for method in ("auto", "kmeans"))
        pile = known < 0
        ours, theirs = (open_world_accuracy(truth[pile], one[pile], range(5)).all for one in (found, plain))
        assert ours > theirs - 0.02
