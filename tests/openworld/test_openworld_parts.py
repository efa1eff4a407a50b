"""Groups that are parts of one class are merged; classes that lie close to each other are not."""

from __future__ import annotations

import numpy as np
import pytest

from offmap.openworld.parts import merge_parts

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
    merged = merge_parts(found, rows, KNOWN)
    assert set(merged.tolist()) == set(range(ALL))
    assert [len(set(merged[truth == label].tolist())) for label in range(ALL)] == [1] * ALL
    np.testing.assert_array_equal(merged[truth < KNOWN], truth[truth < KNOWN])


def test_true_classes_stay_apart(rows_and_truth):
    rows, truth = rows_and_truth
    np.testing.assert_array_equal(merge_parts(truth, rows, KNOWN), truth)


def test_two_classes_that_touch_are_too_large_for_one():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(8), EACH)
    centres = 6 * np.eye(8)
    centres[7] = centres[6] + 2.5 * np.eye(8)[0]  # near enough for links, too many rows for one class
    rows = (centres[truth] + rng.normal(size=(len(truth), 8))).astype(np.float32)
    np.testing.assert_array_equal(merge_parts(truth, rows, KNOWN), truth)


def test_known_classes_are_never_merged_and_few_of_them_say_nothing(rows_and_truth):
    rows, truth = rows_and_truth
    split = np.where((truth == 0) & (np.arange(len(truth)) % 2 == 0), ALL, truth)
    merged = merge_parts(split, rows, KNOWN)
    np.testing.assert_array_equal(np.unique(merged[truth == 0]), [0, ALL])
    few = np.where(truth < 2, truth, 2 + (np.arange(len(truth)) % 2))
    np.testing.assert_array_equal(merge_parts(few, rows, 2), few)
