"""k-centre selection against the plain greedy rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.neighbors import coreset
from offmap.neighbors.coreset import k_center


def plain(rows, first, size):
    rows = rows.astype(np.float64)
    chosen = [first]
    while len(chosen) < size:
        near = np.min(np.linalg.norm(rows[:, None] - rows[chosen], axis=2), axis=1)
        chosen.append(int(np.argmax(near)))
    return chosen, np.min(np.linalg.norm(rows[:, None] - rows[chosen], axis=2), axis=1).max()


@given(rows=st.integers(1, 400), width=st.integers(1, 5), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=40, deadline=None)
def test_equals_the_plain_greedy_rule(rows, width, seed, data):
    size = data.draw(st.integers(1, min(rows, 40)))
    values = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    chosen, radius = k_center(values, size, seed)
    expected, expected_radius = plain(values, int(chosen[0]), size)
    assert chosen.tolist() == expected
    assert radius == pytest.approx(expected_radius, abs=1e-6)


def test_the_radius_is_within_twice_the_best():
    values = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    apart = np.linalg.norm(values[:, None] - values[None], axis=2)
    best = min(apart[list(some)].min(axis=0).max() for some in itertools.combinations(range(9), 3))
    assert best <= k_center(values, 3)[1] <= 2 * best


def test_a_small_pool_takes_the_same_rows(monkeypatch):
    values = np.random.default_rng(1).normal(size=(500, 3)).astype(np.float32)
    wide = k_center(values, 60)[0]
    monkeypatch.setattr(coreset, "POOL", 4)
    np.testing.assert_array_equal(k_center(values, 60)[0], wide)


def test_the_order_of_the_rows_does_not_matter():
    values = np.random.default_rng(2).normal(size=(300, 4)).astype(np.float32)
    order = np.random.default_rng(3).permutation(300)
    np.testing.assert_array_equal(values[k_center(values, 20)[0]], values[order][k_center(values[order], 20)[0]])


def test_copies_are_taken_once():
    values = np.repeat(np.eye(3, dtype=np.float32), 1000, axis=0)
    chosen, radius = k_center(values, 50)
    assert len(chosen) == 3
    assert radius == 0


def test_the_size_must_fit():
    with pytest.raises(InputError, match="from 1 to 3"):
        k_center(np.eye(3), 4)
