"""Splits: labels hide what they should and grow by adding; batches follow from their step number alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.data.mixing import MixedBatches
from offmap.data.samples import Samples
from offmap.data.splits import PUBLISHED, open_world_split, published_split
from offmap.errors import InputError

targets_of = st.lists(st.integers(0, 6), min_size=4, max_size=80).filter(lambda t: len(set(t)) > 1)


@settings(deadline=None, max_examples=60)
@given(targets_of, st.floats(0.05, 1.0), st.integers(0, 5), st.data())
def test_every_sample_is_labelled_with_its_own_known_class_or_not_at_all(targets, ratio, seed, data):
    known = data.draw(st.integers(1, len(set(targets))))
    split = open_world_split(targets, known, ratio, seed, pick=data.draw(st.sampled_from(["first", "random"])))
    true = np.array(targets)
    assert sorted([*split.labelled, *split.unlabelled]) == list(range(len(targets)))
    for i, label in enumerate(split.labels):
        assert label in (-1, true[i])
        assert label == -1 or label in split.known
    for label in split.known:
        members = int((true == label).sum())
        assert int((split.labels == label).sum()) == max(1, int(ratio * members + 1e-9))
    assert set(split.known) | set(split.novel) == set(targets)
    assert not set(split.known) & set(split.novel)
    assert np.array_equal(split.is_known, ~split.is_novel)


def test_more_known_classes_and_more_labels_only_add():
    targets = np.random.default_rng(0).integers(0, 8, 400)
    few = set(open_world_split(targets, 3, 0.1).labelled)
    assert few < set(open_world_split(targets, 3, 0.25).labelled)
    assert few < set(open_world_split(targets, 5, 0.1).labelled)
    assert few != set(open_world_split(targets, 3, 0.1, seed=1).labelled)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_splits_have_the_published_sizes(name):
    recipe = PUBLISHED[name]
    targets = np.arange(recipe.classes * 20) % recipe.classes
    split = published_split(name, targets, seed=3)
    assert split.known.tolist() == list(range(recipe.known))
    assert len(split.labelled) == recipe.known * 20 * recipe.ratio
    assert split.is_novel[split.unlabelled].all() == (recipe.ratio == 1)
    with pytest.raises(InputError, match="classes"):
        published_split(name, [0, 1, 2, 3, 4] * recipe.known)


def test_samples_of_no_class_stay_unlabelled_and_count_as_neither():
    split = open_world_split([0, -1, 1, -1, 0], known=1, ratio=1)
    assert split.labels.tolist() == [0, -1, -1, -1, 0]
    assert split.is_known.tolist() == [True, False, False, False, True]
    assert split.is_novel.tolist() == [False, False, True, False, False]
    assert split.n_classes == 2


def test_names_of_classes_and_data_go_along():
    samples = Samples({"inputs": np.arange(12).reshape(6, 2)}, names=tuple("abcdef"))
    split = open_world_split(["x", "y", "z", "x", "y", "z"], known=(name for name in ["z", "x"]), ratio=0.5)
    seen = split.apply(samples)
    assert split.known.tolist() == [0, 2]
    assert seen.classes == ("x", "y", "z")
    assert seen.names == samples.names
    assert seen.arrays["targets"].tolist() == [0, 1, 2, 0, 1, 2]
    assert sorted(seen.labels.tolist()) == [-1, -1, -1, -1, 0, 2]
    with pytest.raises(InputError, match="the data that was split"):
        split.apply(samples[:3])


def test_pretended_splits_never_touch_what_is_unlabelled():
    targets = np.random.default_rng(1).integers(0, 10, 600)
    split = open_world_split(targets, 6, 0.5, seed=2)
    samples = Samples({"features": np.arange(600)[:, None]})
    part = split.hide_classes(seed=4)
    assert set(part.rows) == set(split.labelled)
    assert np.array_equal(part.targets, targets[part.rows])
    assert len(part.known) == len(part.novel) == 3
    assert part.apply(samples).features[:, 0].tolist() == part.rows.tolist()
    again = part.hide_classes(seed=1)
    assert np.array_equal(again.targets, targets[again.rows])
    assert set(again.rows) == set(part.rows[part.labelled])
    with pytest.raises(InputError, match="two known classes"):
        open_world_split(targets, 1).hide_classes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"known": 0}, "from 1 to 3"),
        ({"known": 4}, "from 1 to 3"),
        ({"known": 1.0}, "share"),
        ({"known": [7]}, r"class \[7\]"),
        ({"known": ["x"]}, "class"),
        ({"known": []}, "any"),
        ({"known": "cat"}, "list of classes"),
        ({"ratio": 0}, "above 0"),
        ({"ratio": 1.5}, "at most 1"),
        ({"seed": -1}, "from 0 on"),
        ({"pick": "last"}, "'random'"),
        ({"targets": [-2, 0]}, "-2"),
        ({"targets": [-1, -1]}, "no sample has a class"),
        ({"targets": [0.5, 1]}, "whole numbers"),
    ],
)
def test_bad_splits_are_refused_with_the_rule(arguments, message):
    with pytest.raises(InputError, match=message):
        open_world_split(**{"targets": [0, 1, 2], "known": 1, **arguments})


def labels_of(counts, unlabelled):
    rows = [label for label, count in enumerate(counts) for _ in range(count)] + [-1] * unlabelled
    return np.random.default_rng(0).permutation(rows)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 12), max_size=5),
    st.integers(0, 60),
    st.integers(2, 24),
    st.integers(0, 3),
    st.integers(0, 200),
)
def test_a_batch_is_whole_and_the_same_from_whichever_object(counts, unlabelled, size, per_class, step):
    labels = labels_of(counts, unlabelled)
    if len(labels) == 0:
        return
    mixed = MixedBatches(labels, size, per_class=per_class, seed=1)
    batch = mixed.batch(step)
    for other in (0, 7, step + 1):
        mixed.batch(other)
    fresh = MixedBatches(labels, size, per_class=per_class, seed=1).batch(step)
    assert np.array_equal(batch.indices, fresh.indices)
    assert np.array_equal(batch.indices, mixed.batch(step).indices)
    assert len(batch.indices) == size
    assert (labels[batch.labelled] >= 0).all()
    assert (labels[batch.unlabelled] < 0).all()
    assert (len(batch.labelled) > 0) == (len(counts) > 0)
    assert (len(batch.unlabelled) > 0) == (unlabelled > 0)


def test_an_epoch_sees_no_sample_twice_and_nearly_all():
    labels = labels_of([20, 30], 153)
    mixed = MixedBatches(labels, 40, seed=5)
    for epoch in range(3):
        steps = range(epoch * mixed.steps, (epoch + 1) * mixed.steps)
        seen = np.concatenate([mixed.batch(step).unlabelled for step in steps])
        assert len(np.unique(seen)) == len(seen) > 153 - mixed.n_unlabelled
    first, second = mixed.batch(0), mixed.batch(mixed.steps)
    assert not np.array_equal(first.indices, second.indices)
    assert mixed.n_labelled == round(40 * 50 / 203)


def test_few_labelled_samples_are_repeated_evenly():
    labels = labels_of([3], 100)
    mixed = MixedBatches(labels, 20, share=0.5)
    counts = np.bincount(np.concatenate([mixed.batch(step).labelled for step in range(3)]), minlength=103)
    assert sorted(counts[labels == 0]) == [10, 10, 10]


def test_classes_take_turns():
    labels = labels_of([50, 2, 9], 200)
    mixed = MixedBatches(labels, 24, share=0.5, per_class=2, seed=3)
    drawn = np.concatenate([mixed.batch(step).labelled for step in range(30)])
    assert np.bincount(labels[drawn]).tolist() == [120, 120, 120]
    assert np.array_equal(labels[drawn][::2], labels[drawn][1::2])
    assert (drawn[::2] != drawn[1::2]).all()  # also where the number of members is odd
    large = np.bincount(drawn, minlength=261)[labels == 0]
    assert large.max() - large.min() <= 1


def test_shards_make_up_the_batch():
    batch = MixedBatches(labels_of([20], 100), 30).batch(2)
    parts = [batch.shard(rank, 3).indices for rank in range(3)]
    assert sorted(np.concatenate(parts)) == sorted(batch.indices)


@pytest.mark.parametrize(
    ("labels", "arguments", "message"),
    [
        ([[0]], {}, "one whole number"),
        ([0.5], {}, "one whole number"),
        ([], {}, "one whole number"),
        ([0, -1], {"size": 1}, "room for at least 2"),
        ([0, 1], {"share": 0.5}, "no unlabelled"),
        ([-1, -1], {"share": 0.5}, "no labelled"),
        ([0, -1], {"share": 2}, "from 0 to 1"),
        ([0, -1], {"per_class": -1}, "below 0"),
    ],
)
def test_bad_batches_are_refused_with_the_rule(labels, arguments, message):
    with pytest.raises(InputError, match=message):
        MixedBatches(labels, **{"size": 4, **arguments})
    with pytest.raises(InputError, match="count from 0"):
        MixedBatches([0, -1], 2).batch(-1)
