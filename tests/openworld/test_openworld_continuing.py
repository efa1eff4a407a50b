"""Classes of earlier rounds: they stay apart unless links say that they are one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offmap.openworld import continuing
from offmap.openworld.continuing import keep_apart

KNOWN, ALL, EACH, WIDTH = 4, 7, 60, 10


def blobs(seed=0, apart=8.0):
    """Rows of seven classes, in order."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(ALL), EACH)
    return (apart * np.eye(WIDTH)[truth] + rng.normal(size=(len(truth), WIDTH))).astype(np.float32), truth


def learned(truth, every=2):
    """Return what new classes were learned from earlier: every second of their rows."""
    return np.where((truth >= KNOWN) & (np.arange(len(truth)) % every == 0), truth, -1)


def test_two_classes_that_one_group_holds_stay_apart():
    rows, truth = blobs()
    merged = np.where(truth == 6, 5, truth)
    found, _ = keep_apart(rows, merged, learned(truth), truth < KNOWN, KNOWN)
    assert len(np.unique(found)) == ALL
    assert all(len(np.unique(found[truth == one])) == 1 for one in range(ALL))  # rows without a class follow


def test_what_two_groupings_in_a_row_put_together_becomes_one():
    rows, truth = blobs()
    merged = np.where(truth == 6, 5, truth)
    _, apart = keep_apart(rows, merged, learned(truth), truth < KNOWN, KNOWN)
    assert apart == {(5, 6)}
    found, again = keep_apart(rows, merged, learned(truth), truth < KNOWN, KNOWN, asked=apart)
    assert np.array_equal(found, merged)
    assert not again
    swapped, _ = keep_apart(rows, merged, learned(truth), truth < KNOWN, KNOWN, asked=frozenset({(6, 5)}))
    assert np.array_equal(swapped, merged)


def test_a_class_that_a_known_one_swallowed_comes_out_again():
    rows, truth = blobs()
    swallowed = np.where(truth == 6, 2, truth)
    labelled = (truth < KNOWN) & (np.arange(len(truth)) % 3 == 0)
    found, _ = keep_apart(rows, swallowed, learned(truth), labelled, KNOWN)
    assert (found[truth == 2] == 2).all()
    assert (found[truth == 6] == ALL - 1).all()  # the number after the largest


def test_parts_of_one_class_become_one():
    rows, truth = blobs()
    halves = np.where((truth == 6) & (rows[:, 0] > 0), 7, truth)  # learned as two classes, now in one group
    found, apart = keep_apart(rows, truth, learned(halves), truth < KNOWN, KNOWN)
    assert np.array_equal(found, truth)
    assert not apart


def test_a_class_that_comes_apart_is_left_to_grouping():
    rows, truth = blobs()
    heap = np.where(truth == 6, 5, truth)
    assert np.array_equal(keep_apart(rows, truth, learned(heap), truth < KNOWN, KNOWN)[0], truth)


@pytest.mark.parametrize("n_known", [0, 1, 2])
def test_few_known_classes_say_nothing_about_links(n_known):
    rows, truth = blobs()
    merged = np.where(truth == 6, 5, truth)
    earlier = np.where(truth >= KNOWN, truth, -1)
    assert np.array_equal(keep_apart(rows, merged, earlier, truth < n_known, n_known)[0], merged)


def test_very_many_rows_are_looked_at_through_a_sample(monkeypatch):
    monkeypatch.setattr(continuing, "MOST_ROWS", 200)
    rows, truth = blobs()
    merged = np.where(truth == 6, 5, truth)
    found, _ = keep_apart(rows, merged, learned(truth), truth < KNOWN, KNOWN)
    assert all(len(np.unique(found[truth == one])) == 1 for one in range(ALL))
    assert len(np.unique(found)) == ALL


@given(st.integers(0, 10_000), st.floats(0.0, 6.0))
def test_labelled_rows_and_groups_that_nothing_speaks_against_stay(seed, apart):
    rng = np.random.default_rng(seed)
    rows, truth = blobs(seed, apart)
    groups = np.where(rng.random(len(truth)) < 0.1, rng.integers(0, ALL, len(truth)), truth)
    labelled = (truth < KNOWN) & (rng.random(len(truth)) < 0.5)
    groups[labelled] = truth[labelled]
    earlier = np.where(labelled | (rng.random(len(truth)) < 0.3), -1, rng.integers(KNOWN, ALL, len(truth)))
    found, _ = keep_apart(rows, groups, earlier, labelled, KNOWN, seed)
    assert np.array_equal(found[labelled], truth[labelled])
    for one in np.unique(found):  # groups are parted, never joined
        assert len(np.unique(groups[found == one])) == 1
    assert np.array_equal(found, keep_apart(rows, groups, earlier, labelled, KNOWN, seed)[0])
