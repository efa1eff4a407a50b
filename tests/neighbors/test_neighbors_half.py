"""Single queries through the float16 copy: the same answers as comparing everything in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.neighbors import Bank, half
from offmap.neighbors.half import HalfCopy, slack
from offmap.neighbors.vectors import unit_and_length


def directions(seed, rows, width, spread):
    """Unit vectors around one direction: the smaller the spread, the more of them float16 cannot tell apart."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(width) + spread * rng.standard_normal((rows, width))
    return unit_and_length(made.astype(np.float32))[0]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 400),
    width=st.integers(1, 80),
    spread=st.sampled_from([1e-4, 1e-2, 0.1, 1.0, 10.0]),
    data=st.data(),
)
def test_the_copy_finds_the_true_neighbours_or_says_that_it_cannot(seed, rows, width, spread, data):
    bank, query = directions(seed, rows, width, spread), directions(seed + 1, 1, width, spread)[0]
    k = data.draw(st.integers(1, rows))
    found = HalfCopy([bank[: rows // 2], bank[rows // 2 :]]).nearest(query, k)
    if found is None:
        return
    truth = np.sort(bank.astype(np.float64) @ query)[::-1][:k]
    np.testing.assert_allclose(found[0][0], truth, atol=1e-6)
    np.testing.assert_allclose(bank[found[1][0]].astype(np.float64) @ query, truth, atol=1e-6)
    assert len(set(found[1][0])) == k


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 3000), scale=st.sampled_from([1.0, 5.0, 40.0]))
def test_no_product_of_unit_vectors_moves_further_than_the_slack(seed, width, scale):
    import torch

    rng = np.random.default_rng(seed)
    # powers make a few large and many tiny entries, among them some below what float16 holds
    made = (rng.standard_normal((2, width)) * rng.random((2, width)) ** scale).astype(np.float32)
    first, second = unit_and_length(made)[0]
    product = torch.mv(torch.from_numpy(first.astype(np.float16))[None], torch.from_numpy(second.astype(np.float16)))
    assert abs(float(product) - float(first.astype(np.float64) @ second)) <= slack(width)


def test_equal_rows_by_the_thousand_are_left_to_float32():
    bank = np.repeat(directions(0, 2, 16, 1.0), 1000, axis=0)
    assert HalfCopy([bank]).nearest(bank[0], 5) is None


@pytest.mark.parametrize("k", [1, 10, 300])
def test_a_bank_answers_the_same_before_and_after_it_made_a_copy(monkeypatch, k):
    monkeypatch.setattr(half, "SMALLEST", 0)
    vectors, queries = directions(1, 3000, 24, 1.0), directions(2, half.PATIENCE + 5, 24, 1.0)
    bank = Bank.of(vectors)
    at_once, together = Bank.of(vectors).kth_distance(queries, k), Bank.of(vectors).search(queries, k)
    for place, query in enumerate(queries):
        assert bank.kth_distance(query[None], k)[0] == at_once[place]
    assert bank._half is not None
    found, rows = bank.search(queries[:1], k)
    np.testing.assert_allclose(found, together[0][:1], atol=1e-6)
    np.testing.assert_array_equal(rows, together[1][:1])


def test_added_rows_are_found_by_single_queries_too(monkeypatch):
    monkeypatch.setattr(half, "SMALLEST", 0)
    bank, query = Bank.of(directions(3, 100, 8, 1.0)), directions(4, 1, 8, 1.0)
    for _ in range(half.PATIENCE + 1):
        bank.kth_distance(query, 1)
    assert bank.add(query).kth_distance(query, 1)[0] == 0


def test_only_banks_that_gain_are_copied(tmp_path):
    large = np.zeros((2**13, 2**8), np.float32)
    assert HalfCopy.pays([large])
    assert not HalfCopy.pays([large[:10]])
    assert not HalfCopy.pays([large.astype(np.float16)])
    mapped = np.lib.format.open_memmap(tmp_path / "bank.npy", "w+", np.float32, large.shape)
    assert not HalfCopy.pays([mapped])
