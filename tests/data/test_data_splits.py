"""Splits: labels hide what they should and grow by adding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    part = split.split_validation(seed=4)
    assert set(part.rows) == set(split.labelled)
    assert np.array_equal(part.targets, targets[part.rows])
    assert len(part.known) == len(part.novel) == 3
    assert part.apply(samples).features[:, 0].tolist() == part.rows.tolist()
    again = part.split_validation(seed=1)
    assert np.array_equal(again.targets, targets[again.rows])
    assert set(again.rows) == set(part.rows[part.labelled])
    with pytest.raises(InputError, match="two known classes"):
        open_world_split(targets, 1).split_validation()


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
