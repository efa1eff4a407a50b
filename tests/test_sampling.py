"""Samples: the lowest priorities, whichever way the rows arrive."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.sampling import Reservoir, Sample, priorities


def by_sorting(rows, labels, count, seed):
    """What the sample should be, from the definition: sort by priority, equal rows by nothing but content."""
    order = np.argsort(priorities(rows, seed), kind="stable")[:count]
    return rows[order], labels[order]


@given(
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1, 7, 300, 2999, 5000]),
    alpha=st.sampled_from([0.004, 0.05, 0.3, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_any_cut_gives_the_same_bits(cuts, seed, size, alpha):
    rows = np.random.default_rng(1).normal(size=(3000, 5)).astype(np.float32)
    labels = np.arange(3000)
    edges = [0, *sorted(cuts), 3000]
    for make, count in [
        (lambda: Reservoir(size, seed), min(size, 3000)),
        (lambda: Sample(alpha, seed), round(alpha * 3000)),
    ]:
        streamed, merged = make(), make()
        for start, stop in itertools.pairwise(edges):
            streamed.update(rows[start:stop], label=labels[start:stop])
        for start, stop in reversed(list(itertools.pairwise(edges))):
            merged.merge(make().update(rows[start:stop], label=labels[start:stop]))
        expected_rows, expected_labels = by_sorting(rows, labels, count, seed)
        for sample in (streamed, merged, type(merged).from_state(merged.state())):
            assert sample.seen == 3000
            np.testing.assert_array_equal(sample.rows, expected_rows)
            np.testing.assert_array_equal(sample.companions["label"], expected_labels)


def test_a_long_stream_of_small_blocks_stays_exact():
    rows = np.random.default_rng(2).normal(size=(20000, 3)).astype(np.float32)
    held = Reservoir(50, 4)
    share = Sample(0.02, 4)
    for start in range(0, 20000, 37):
        held.update(rows[start : start + 37])
        share.update(rows[start : start + 37])
        assert sum(len(part[0]) for part in held._parts) <= 1200
    np.testing.assert_array_equal(held.rows, by_sorting(rows, rows, 50, 4)[0])
    np.testing.assert_array_equal(share.rows, by_sorting(rows, rows, 400, 4)[0])


def test_equal_rows_with_different_companions_do_not_depend_on_arrival():
    rows = np.ones((40, 2), np.float32)
    labels = np.arange(40)
    logits = np.random.default_rng(0).normal(size=(40, 3))
    forward = Reservoir(7, 0).update(rows, label=labels, logits=logits)
    backward = Reservoir(7, 0).update(rows, label=labels[::-1], logits=logits[::-1])
    np.testing.assert_array_equal(forward.companions["label"], backward.companions["label"])
    np.testing.assert_array_equal(forward.companions["logits"], backward.companions["logits"])


def test_the_sample_is_uniform():
    rows = np.arange(2000, dtype=np.float32)[:, None]
    drawn = np.concatenate([Sample(0.1, seed).update(rows).rows[:, 0] for seed in range(60)])
    low = (drawn < 1000).mean()
    assert abs(low - 0.5) < 4 * np.sqrt(0.25 / len(drawn))


def test_changing_the_given_array_later_changes_nothing():
    rows = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    sample = Reservoir(10, 0).update(rows)
    before = sample.rows.copy()
    rows[:] = 0
    np.testing.assert_array_equal(sample.rows, before)


def test_nothing_seen_is_an_empty_sample():
    assert Reservoir(3, 0).rows.shape == (0, 0)
    assert Sample(0.1, 0).companions == {}
    assert len(Sample.from_state(Sample(0.1, 0).state()).rows) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Reservoir(0), "at least 1"),
        (lambda: Sample(0.0), "above 0"),
        (lambda: Sample(1.5), "at most 1"),
        (lambda: Reservoir(3).update(np.ones((2, 2)), label=np.ones(3)), "one per row"),
        (lambda: Reservoir(3).update(np.ones((2, 2))).update(np.ones((2, 3))), "2 columns"),
        (lambda: Reservoir(3).update(np.ones((2, 2))).update(np.ones((2, 2)), label=[1, 2]), "label"),
        (lambda: Reservoir(3, 0).merge(Reservoir(3, 1)), "same parameters"),
        (lambda: Reservoir(3, 0).update(np.ones(3)), "rows × columns"),
    ],
)
def test_broken_rules_are_named(call, words):
    with pytest.raises(InputError, match=words):
        call()
