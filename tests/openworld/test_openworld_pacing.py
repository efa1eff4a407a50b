"""Rounds cost what is new in them: when inputs are grouped again, and what stays in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offmap.errors import InputError
from offmap.openworld import LabeledInputs, run
from offmap.openworld.pacing import GROWTH, KEPT_PER_CLASS, Pace, thin

KNOWN, ALL, WIDTH = 4, 7, 12


def draw(truth, seed):
    rng = np.random.default_rng(seed)
    return (6 * np.eye(WIDTH)[truth] + rng.normal(size=(len(truth), WIDTH))).astype(np.float32)


def stream(n, n_classes, seed):
    truth = np.random.default_rng([seed, 1]).integers(0, n_classes, n)
    return LabeledInputs.of(draw(truth, seed)), truth


@pytest.fixture(scope="module")
def learned():
    """Return a run that has seen two of three new classes."""
    truth = np.arange(400) % KNOWN
    arriving, _ = stream(400, ALL - 1, 5)
    return run(draw(truth, 0), truth, [arriving.features])


def test_a_few_more_inputs_of_learned_classes_are_judged_and_kept(learned):
    arriving, _ = stream(40, ALL - 1, 6)
    after = learned.step(arriving)
    record = after.rounds[-1]
    assert not record.grouped
    assert not record.deployed
    assert record.round is None
    assert "since 400 were, 40 came in" in record.reason
    assert "as before" in record.summary()
    assert record.to_json()["grouped"] is False
    assert after.deployment.class_names == learned.deployment.class_names
    assert after.state is learned.state
    assert len(after.store) == len(learned.store) + 40
    known = after.predict(arriving.features) >= 0
    assert (after.store.labels[-40:] >= 0)[known].all()  # each with the class that it is taken for
    assert known.mean() > 0.9


def test_a_new_class_is_grouped_at_once(learned):
    """Thirty inputs are far from a quarter of what was grouped, but far too many of them are flagged."""
    after = learned.step(LabeledInputs.of(draw(np.full(30, ALL - 1), 7)))
    assert after.rounds[-1].grouped
    assert after.rounds[-1].deployed
    assert after.n_classes == ALL
    found = after.predict(draw(np.full(50, ALL - 1), 8))
    assert (found == after.class_ids[-1]).mean() > 0.75  # learned from 18 inputs
    assert np.isin(found, [-1, after.class_ids[-1]]).all()


def test_many_rounds_group_only_as_often_as_the_history_grows(learned):
    current, grouped = learned, 0
    for number in range(40):
        current = current.step(stream(40, ALL - 1, 100 + number)[0])
        grouped += current.rounds[-1].grouped
    assert 2 <= grouped <= np.log(2000 / 400) / np.log(GROWTH)  # 400 inputs grow to 2,000 by a quarter at a time
    assert current.n_classes == ALL - 1


def test_growth_1_groups_in_every_round_and_run_at_its_end(learned):
    assert learned.step(stream(10, ALL - 1, 9)[0], growth=1).rounds[-1].grouped
    truth = np.arange(400) % KNOWN
    parts = [stream(n, ALL - 1, n)[0].features for n in (400, 20, 20)]
    assert [record.grouped for record in run(draw(truth, 0), truth, parts).rounds] == [True, False, True]


def test_an_infinite_growth_groups_only_when_something_unusual_comes(learned):
    after = learned.step(stream(500, ALL - 1, 9)[0], growth=np.inf)
    assert not after.rounds[-1].grouped
    assert "grouping waits for significantly more flagged ones" in after.rounds[-1].reason
    assert after.step(LabeledInputs.of(draw(np.full(90, ALL - 1), 7)), growth=np.inf).rounds[-1].grouped


@pytest.mark.parametrize("bad", [{"growth": 0.5}, {"growth": "2"}, {"level": 0}, {"max_forgetting": 9}])
def test_bad_settings_are_refused_in_rounds_that_only_wait_too(learned, bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        learned.step(stream(10, ALL - 1, 9)[0], **bad)


def test_what_is_usual_counts_inputs_as_they_came_not_as_they_are_kept(learned):
    """All inputs without a class are kept, and of each class a sample: their share among the kept ones says nothing."""
    rows = np.concatenate([draw(np.arange(200) % KNOWN, 1), np.full((200, WIDTH), -20.0, np.float32)])
    kept = LabeledInputs.of(rows, np.repeat([0, -1], 200))
    assert Pace(seen=4000).after(learned.state, kept, 0).usual < 0.1
    assert Pace(seen=400).after(learned.state, kept, 0).usual > 0.5


def test_a_number_of_classes_that_is_asked_for_is_looked_for_at_once(learned):
    assert learned.step(stream(20, ALL - 1, 9)[0], n_new=0).rounds[-1].grouped


def test_flagged_inputs_count_only_where_they_are_too_many_to_be_chance():
    usual = Pace(seen=1000, grouped=1000, usual=0.02)
    assert not usual.take_in(200, 8).is_due(GROWTH, 10)  # four per cent are twice the usual share
    assert usual.take_in(200, 20).is_due(GROWTH, 10)
    assert not usual.take_in(20, 9).is_due(GROWTH, 10)  # too few for a group
    assert (
        not Pace(seen=1000, grouped=1000, usual=0.6).take_in(100, 100).is_due(GROWTH, 10)
    )  # nearly all are unknown as it is


def test_a_class_keeps_its_number_when_another_is_given_up(learned):
    names = learned.deployment.class_names
    assert learned.class_ids.tolist() == list(range(len(names)))
    kept = (*names[:KNOWN], names[KNOWN + 1], "another")
    state = replace(learned.state, known=replace(learned.state.known, class_names=kept))
    after = learned._take(state, learned.store)
    assert after.class_ids.tolist() == [*range(KNOWN), KNOWN + 1, len(names)]
    last = after._take(learned.state, learned.store)
    assert last.class_ids.tolist() == [*range(KNOWN), len(names) + 1, KNOWN + 1]  # a number is not used again


def test_a_run_remembers_by_name_which_classes_stayed_apart(learned, monkeypatch):
    """Grouping is told to put both new classes into one group, twice: the first time they stay apart."""
    from offmap.openworld import grouping

    real = grouping.propose

    def heap(origin, kept, *others, **options):
        found = real(origin, kept, *others, **options)
        return found.relabel(np.minimum(found.labels, KNOWN))

    monkeypatch.setattr(grouping, "propose", heap)
    new = learned.deployment.class_names[KNOWN:]
    first = learned.step(stream(40, ALL - 1, 11)[0], growth=1)
    assert first.n_classes == learned.n_classes
    assert {frozenset(pair) for pair in first.kept_apart} == {frozenset(new)}
    second = first.step(stream(40, ALL - 1, 12)[0], growth=1)
    assert second.n_classes == KNOWN + 1
    assert not second.kept_apart


def test_of_a_class_a_sample_is_kept_and_every_input_without_one():
    labels = np.repeat([-1, 0, 1], [300, 500, 50])
    kept = thin(LabeledInputs.of(np.arange(850.0)[:, None], labels), 0)
    assert np.bincount(kept.labels + 1).tolist() == [300, KEPT_PER_CLASS, 50]
