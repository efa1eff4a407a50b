"""Novel groups that chance makes: none is new where all classes are known, and small new classes stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from offmap.discovery import discover
from offmap.discovery.chance import draw_labels, drop_chance, least_size

SIZES = st.lists(st.integers(4, 60), max_size=12).map(lambda sizes: np.array(sizes, np.int64))


def overlapping(seed, n_classes=20, each=40, width=12):
    """Rows of classes that touch, half of them labelled."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_classes), each)
    rows = 3.0 * rng.normal(size=(n_classes, width))[truth] / np.sqrt(width) + 0.5 * rng.normal(
        size=(len(truth), width)
    )
    return rows.astype(np.float32), truth, np.where(rng.random(len(truth)) < 0.5, truth, -1)


@pytest.mark.parametrize("seed", range(4))
def test_no_class_is_new_where_all_are_known(seed):
    rows, _, labels = overlapping(seed)
    assert discover(rows, labels).n_classes == 20


def test_a_small_class_beside_many_known_ones_is_found():
    rows, _, labels = overlapping(0)
    rng = np.random.default_rng(9)
    novel = (4 * np.eye(12)[3] + 0.3 * rng.normal(size=(12, 12))).astype(np.float32)
    found = discover(np.concatenate([rows, novel]), np.concatenate([labels, np.full(12, -1)]))
    assert found.n_classes == 21
    assert (found.labels[-12:] == 20).all()


def test_groups_that_drawn_labels_give_too_go_back_to_the_class_that_they_are_linked_to():
    labels = np.array([0] * 20 + [1] * 20 + [2] * 20 + [3] * 60 + [4] * 4)  # 4 is a scrap of class 1
    codes = np.where(np.arange(124) % 2 == 0, np.where(labels < 4, labels, -1), -1)
    links = np.zeros((124, 124))
    links[120:, 20:30] = links[20:30, 120:] = 1

    def scraps(drawn):
        assert np.array_equal(np.bincount(drawn[drawn >= 0]), np.bincount(codes[codes >= 0]))
        return np.where(np.arange(124) < 5, 4, np.minimum(labels, 3))

    found = drop_chance(labels, sparse.csr_array(links), codes, 4, scraps)
    assert np.array_equal(found, np.where(labels == 4, 1, labels))
    alone = drop_chance(labels, sparse.csr_array((124, 124)), codes, 4, scraps)
    assert np.array_equal(alone, labels)  # what nothing links to a known class is no part of one
    kept = drop_chance(labels, sparse.csr_array(links), codes, 4, lambda drawn: np.minimum(labels, 3))
    assert np.array_equal(kept, labels)


@given(SIZES.filter(len), st.lists(SIZES, min_size=1, max_size=4))
def test_of_the_groups_that_are_kept_at_most_half_are_chance(sizes, drawn):
    least = least_size(sizes, drawn)
    kept = (sizes >= least).sum()
    assert np.mean([(one >= least).sum() for one in drawn]) <= 0.5 * kept or not kept
    assert not kept or least in sizes


@given(st.integers(0, 1000))
def test_as_many_rows_of_each_class_are_labelled_as_before(seed):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 5, 100)
    codes = np.where(rng.random(100) < 0.4, classes, -1)
    drawn = draw_labels(classes, codes, 5, rng)
    assert (classes[drawn >= 0] == drawn[drawn >= 0]).all()
    assert np.array_equal(np.bincount(drawn + 1, minlength=6), np.bincount(codes + 1, minlength=6))
