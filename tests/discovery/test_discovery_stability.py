import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.discovery import discover
from offmap.discovery.class_sizes import ClassSizes
from offmap.discovery.stability import count_by_stability
from offmap.metrics.clustering import open_world_accuracy
from offmap.neighbors.vectors import unit


@settings(max_examples=10)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_classes_that_stand_apart_are_counted_without_labels(n_classes, seed):
    rng = np.random.default_rng(seed)
    truth = np.arange(50 * n_classes) % n_classes
    rows = 6 * np.eye(n_classes, 16)[truth] + rng.normal(size=(len(truth), 16))
    count, (low, high) = count_by_stability(rows.astype(np.float32), seed)
    assert 0.75 * n_classes <= count <= 1.3 * n_classes
    assert low <= count <= high


@pytest.mark.parametrize("scales", [np.ones(10), np.ones(40), np.geomspace(3, 0.1, 20)])
def test_rows_of_one_gaussian_have_no_stable_number(scales):
    rows = np.random.default_rng(0).normal(size=(1500, len(scales))) * scales
    assert count_by_stability(unit(rows.astype(np.float32))) is None


def test_few_rows_or_columns_are_not_counted():
    rows = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    assert count_by_stability(rows[:99]) is None
    assert count_by_stability(rows[:, :9]) is None


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
