"""Groups that are parts of one class are merged; classes that lie close to each other are not."""

from __future__ import annotations

import numpy as np
import pytest

from offmap.discovery import discover
from offmap.discovery.parts import are_alike_in_size, merge_parts
from offmap.graph import knn_graph

KNOWN, ALL, EACH = 5, 9, 60


@pytest.fixture(scope="module")
def rows_and_truth():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(ALL), EACH)
    return (5 * rng.normal(size=(ALL, 10))[truth] + rng.normal(size=(len(truth), 10))).astype(np.float32), truth


def test_parts_of_a_class_become_one_and_numbers_have_no_gaps(rows_and_truth):
    rows, truth = rows_and_truth
    inside = truth == KNOWN
    middle = np.median(rows[inside, 0])
    found = np.where(inside & (rows[:, 0] > middle), ALL, truth)
    merged = merge_parts(found, rows, knn_graph(rows, 10), KNOWN)
    assert set(merged.tolist()) == set(range(ALL))
    assert [len(set(merged[truth == label].tolist())) for label in range(ALL)] == [1] * ALL
    np.testing.assert_array_equal(merged[truth < KNOWN], truth[truth < KNOWN])


def test_true_classes_stay_apart(rows_and_truth):
    rows, truth = rows_and_truth
    np.testing.assert_array_equal(merge_parts(truth, rows, knn_graph(rows, 10), KNOWN), truth)


def test_two_classes_that_touch_are_too_large_for_one():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(8), EACH)
    centres = 6 * np.eye(8)
    centres[7] = centres[6] + 2.5 * np.eye(8)[0]  # near enough for links, too many rows for one class
    rows = (centres[truth] + rng.normal(size=(len(truth), 8))).astype(np.float32)
    np.testing.assert_array_equal(merge_parts(truth, rows, knn_graph(rows, 10), KNOWN), truth)


def test_known_classes_are_never_merged_and_few_of_them_say_nothing(rows_and_truth):
    rows, truth = rows_and_truth
    split = np.where((truth == 0) & (np.arange(len(truth)) % 2 == 0), ALL, truth)
    merged = merge_parts(split, rows, knn_graph(rows, 10), KNOWN)
    np.testing.assert_array_equal(np.unique(merged[truth == 0]), [0, ALL])
    few = np.where(truth < 2, truth, 2 + (np.arange(len(truth)) % 2))
    np.testing.assert_array_equal(merge_parts(few, rows, knn_graph(rows, 10), 2), few)


def test_sizes_are_compared_by_rows_so_that_scraps_say_nothing():
    labels = np.repeat(np.arange(6), [50, 60, 55, 5, 4, 3])
    assert are_alike_in_size(labels, 2)
    assert not are_alike_in_size(np.repeat(np.arange(5), [50, 60, 12, 10, 14]), 2)
    assert not are_alike_in_size(labels, 0)
    assert not are_alike_in_size(np.repeat([0, 1], 9), 2)


def test_small_novel_classes_beside_large_known_ones_are_not_merged():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(10), [100] * 5 + [15] * 5)
    rows = 3 * rng.normal(size=(10, 10))[truth] + rng.normal(size=(len(truth), 10))
    codes = np.where((truth < 5) & (rng.random(len(truth)) < 0.5), truth, -1)
    assert discover(rows, codes).n_classes == 10
