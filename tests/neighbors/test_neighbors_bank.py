"""The bank against plain loops, and against everything that can be wrong with its input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.neighbors import Bank, exact, tiled
from offmap.neighbors.vectors import unit_and_length


def plain(bank, queries, k, normalize):
    """Distances to the k nearest, in float64, one pair at a time."""
    bank, queries = np.asarray(bank, np.float64), np.asarray(queries, np.float64)
    if normalize:
        bank = bank / np.linalg.norm(bank, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    return np.array([np.sort([np.linalg.norm(q - b) for b in bank])[:k] for q in queries])


@given(
    rows=st.integers(1, 60),
    asked=st.integers(0, 30),
    width=st.integers(1, 9),
    normalize=st.booleans(),
    dtype=st.sampled_from(["float32", "float16"]),
    cut=st.integers(0, 60),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_equals_plain_loops(rows, asked, width, normalize, dtype, cut, data):
    k = data.draw(st.integers(1, rows))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    vectors, queries = rng.normal(size=(rows, width)) + 0.1, rng.normal(size=(asked, width)) - 0.1
    bank = Bank(normalize, dtype).add(vectors[:cut]).add(vectors[cut:])
    assert (len(bank), bank.width) == (rows, width)
    expected = plain(bank.vectors, queries, k, False) if asked else np.empty((0, k))
    if normalize and asked:
        unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
        expected = plain(bank.vectors, unit, k, False)
    distances, numbers = bank.search(queries, k)
    np.testing.assert_allclose(distances, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(bank.kth_distance(queries, k), expected[:, -1], rtol=2e-5, atol=2e-6)
    mean = bank.kth_distance(queries, k, average=True)
    np.testing.assert_allclose(mean, expected.mean(axis=1), rtol=2e-5, atol=2e-6)
    assert all(len(set(row)) == k for row in numbers.tolist())


@pytest.fixture(scope="module")
def large():
    rng = np.random.default_rng(0)
    return rng.normal(size=(30000, 24)).astype(np.float32), rng.normal(size=(300, 24)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 50, 1000, 30000])
@pytest.mark.parametrize("normalize", [True, False])
def test_tiles_and_bounds_equal_a_full_sort(large, k, normalize):
    vectors, queries = large[0], large[1][: 200_000 // k]
    bank = Bank(normalize).add(vectors)
    asked = queries / np.linalg.norm(queries, axis=1, keepdims=True) if normalize else queries
    wide = bank.vectors.astype(np.float64)
    squared = np.square(asked, dtype=np.float64).sum(1)[:, None] + np.square(wide).sum(1) - 2 * asked @ wide.T
    expected = np.sqrt(np.sort(squared, axis=1)[:, :k])
    np.testing.assert_allclose(bank.kth_distance(queries, k), expected[:, -1], rtol=1e-5)
    distances, numbers = bank.search(queries, k)
    np.testing.assert_allclose(distances, expected, rtol=2e-5)
    true = np.sqrt(np.take_along_axis(squared, numbers, axis=1))
    np.testing.assert_allclose(distances, true, rtol=2e-5)


def test_a_bank_sorted_by_class_and_full_of_copies_is_still_exact(large):
    vectors, queries = large
    sorted_rows = vectors[np.argsort(vectors[:, 0])]
    copies = np.repeat(sorted_rows[:6], 5000, axis=0)
    for rows in (sorted_rows, copies):
        bank = Bank(normalize=False).add(rows)
        squared = np.stack([np.square(rows - query, dtype=np.float64).sum(axis=1) for query in queries])
        np.testing.assert_allclose(
            bank.kth_distance(queries, 7000), np.sqrt(np.sort(squared, axis=1)[:, 6999]), rtol=1e-5
        )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_wrong_guess_is_noticed(threads):
    """Rows that one thread meets first are much nearer than all others, so its bounds are far too high."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(30000, 8)).astype(np.float32)
    count = -(-30000 // tiled.TILE_ROWS)
    rows[::count] += 4
    k = len(rows[::count]) + 500
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = np.full((40, 8), 8**-0.5, np.float32) + 0.01 * rng.normal(size=(40, 8)).astype(np.float32)
    expected = np.sort(queries.astype(np.float64) @ rows.T.astype(np.float64), axis=1)[:, -k]
    values, numbers = np.empty((40, 1), np.float32), np.empty((40, 1), np.int64)
    wrong = tiled.nearest([rows], queries, k, None, threads, values, numbers)
    assert len(wrong) > 0
    right = np.setdiff1d(np.arange(40), wrong)
    np.testing.assert_allclose(values[right, 0], expected[right], rtol=1e-5)
    np.testing.assert_allclose(exact.nearest([rows], queries, k)[0][:, -1], expected, rtol=1e-5)


def test_guesses_are_right_on_rows_in_no_order(large):
    vectors, queries = large
    for k in (1, 50, 1000):
        values, numbers = np.empty((300, k), np.float32), np.empty((300, k), np.int64)
        assert len(tiled.nearest([vectors], queries, k, None, 2, values, numbers)) == 0


def test_the_answer_to_one_query_does_not_depend_on_the_others(large):
    vectors, queries = large
    bank = Bank().add(vectors)
    together = bank.kth_distance(queries, 10)
    alone = np.concatenate([bank.kth_distance(queries[i : i + 1], 10) for i in range(50)])
    np.testing.assert_array_equal(together[:50], alone)


def test_rows_of_the_bank_are_at_distance_zero_from_themselves(large):
    vectors, _ = large
    for normalize in (True, False):
        bank = Bank(normalize).add(vectors)
        assert (bank.kth_distance(vectors[:100], 1) < 1e-6).all()
        distances, numbers = bank.search(vectors[:100], 3)
        np.testing.assert_array_equal(numbers[:, 0], np.arange(100))
        assert (distances[:, 0] < 1e-6).all()


def test_a_large_offset_does_not_drown_the_differences():
    rng = np.random.default_rng(3)
    vectors, queries = rng.normal(size=(9000, 16)) + 1000, rng.normal(size=(40, 16)) + 1000
    vectors, queries = vectors.astype(np.float32), queries.astype(np.float32)
    expected = plain(vectors, queries, 20, False)
    found = Bank(normalize=False).add(vectors).search(queries, 20)[0]
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    np.testing.assert_allclose(Bank(normalize=False).add(vectors).kth_distance(queries, 20), expected[:, -1], rtol=2e-3)


@pytest.mark.parametrize("normalize", [True, False])
def test_rows_that_nearly_coincide_are_ranked_right(normalize):
    """A network that has learned its classes well gives nearly the same features to all inputs of one."""
    rng = np.random.default_rng(3)
    centres = 5 * rng.normal(size=(3, 96))
    rows = (centres[np.arange(330) % 3] + 0.02 * rng.normal(size=(330, 96))).astype(np.float32)
    bank = Bank(normalize=normalize).add(rows[:300])
    kept, asked = bank.vectors.astype(np.float64), rows[300:]
    exact = (unit_and_length(asked)[0] if normalize else asked).astype(np.float64)
    want = np.sort(np.linalg.norm(exact[:, None] - kept[None], axis=2), axis=1)
    assert np.median(want[:, 4]) < (0.07 if normalize else 0.5)

    together = bank.kth_distance(asked, 5)
    np.testing.assert_allclose(together, want[:, 4], rtol=2e-6)
    np.testing.assert_array_equal(together, [bank.kth_distance(row[None], 5)[0] for row in asked])
    np.testing.assert_allclose(bank.search(asked, 5)[0], want[:, :5], rtol=2e-6)


def test_blocks_shards_and_one_go_agree_to_the_bit(large):
    vectors, queries = large
    whole = Bank().add(vectors)
    blocks = Bank()
    for start in range(0, len(vectors), 777):
        blocks.add(vectors[start : start + 777])
    shards = Bank().merge(Bank().add(vectors[:20000])).merge(Bank().add(vectors[20000:])).merge(Bank())
    np.testing.assert_array_equal(whole.vectors, blocks.vectors)
    for other in (blocks, shards):
        np.testing.assert_array_equal(whole.kth_distance(queries, 50), other.kth_distance(queries, 50))


def test_a_query_without_direction_is_infinitely_far():
    bank = Bank().add(np.eye(3))
    queries = np.array([[0.0, 0, 0], [0, 0, 2]])
    np.testing.assert_array_equal(bank.kth_distance(queries, 1), [np.inf, 0])
    np.testing.assert_array_equal(bank.kth_distance(queries, 1, average=True), [np.inf, 0])
    distances, numbers = bank.search(queries, 2)
    assert np.isinf(distances[0]).all()
    assert (numbers[0] == -1).all()


def test_searches_at_the_same_time_leave_the_machine_as_it_was(large):
    vectors, queries = large
    bank = Bank().add(vectors)
    expected = bank.kth_distance(queries, 20)

    def cores():
        return [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]

    before = cores()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: bank.kth_distance(queries, 20), range(12)):
            np.testing.assert_array_equal(found, expected)
    assert cores() == before


def test_extreme_sizes_of_numbers_keep_their_direction():
    bank = Bank().add(np.array([[1e30, 0], [0, 1e-30]], np.float32))
    np.testing.assert_allclose(bank.vectors, np.eye(2))
    np.testing.assert_allclose(bank.kth_distance([[1e-35, 0]], 2), [np.sqrt(2)], rtol=1e-6)


def test_one_row_and_one_query():
    bank = Bank().add([[0, 3.0]])
    np.testing.assert_array_equal(bank.kth_distance([[0, 1.0]], 1), [0])


def test_the_bank_keeps_its_own_copy_and_of_keeps_none():
    rows = np.eye(4, dtype=np.float32)
    bank, wrapped = Bank(normalize=False).add(rows), Bank.of(rows)
    assert wrapped.vectors is rows
    rows[:] = 7
    np.testing.assert_array_equal(bank.vectors, np.eye(4))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Bank().add([[1, 2]]).add([[1, 2, 3]]), "3 columns, but the bank has 2"),
        (lambda: Bank().add([[1, 2], [0, 0]]), "row 1 is all zeros"),
        (lambda: Bank().add([[1, 2], [3, 4], [np.nan, 0]]), "row 2 holds NaN"),
        (lambda: Bank().add([[1, 2], [np.inf, 4]]), "row 1 holds NaN, infinity"),
        (lambda: Bank(False).add([[1e300, 2]]), "beyond float32"),
        (lambda: Bank().add([1, 2]), "rows × columns"),
        (lambda: Bank().add([["a", "b"]]), "rows × columns of numbers"),
        (lambda: Bank().add(np.empty((3, 0))), "at least one column"),
        (lambda: Bank(False, "float16").add([[1, 70000]]), "70000 does not fit float16"),
        (lambda: Bank().add([[1, 2]]).kth_distance([[1, 2]], 2), "k must be from 1 to 1"),
        (lambda: Bank().add([[1, 2]]).search([[1, 2]], 0), "k=0"),
        (lambda: Bank().add([[1, 2]]).search([[1, 2, 3]], 1), "3 columns, but the bank has 2"),
        (lambda: Bank().add([[1, 2]]).search([[np.nan, 2]], 1), "row 0 holds NaN"),
        (lambda: Bank().kth_distance([[1, 2]], 1), "empty"),
        (lambda: Bank(dtype="int8"), "'float32' or 'float16'"),
        (lambda: Bank(engine="magic"), "engines are"),
        (lambda: Bank().merge(Bank(normalize=False)), "agree"),
        (lambda: Bank().add([[1, 2]]).merge(Bank().add([[1, 2, 3]])), "same width"),
        (lambda: Bank.of(np.eye(2)), "float32 or float16"),
    ],
)
def test_broken_rules_are_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_refused_block_leaves_the_bank_as_it_was():
    bank = Bank().add([[1.0, 2.0]])
    with pytest.raises(InputError):
        bank.add([[1.0, 2.0], [0.0, 0.0]])
    assert len(bank) == 1
