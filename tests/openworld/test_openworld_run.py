"""Many rounds: what is decided per group, what stays, and what comes out at the end."""

from __future__ import annotations

import numpy as np
import pytest

import offmap
from offmap.errors import InputError
from offmap.metrics.clustering import open_world_accuracy
from offmap.openworld import LabeledInputs, run
from offmap.openworld.decisions import class_offsets, fall_p_value, harmful_groups, match_groups
from offmap.openworld.learners import linear_head
from offmap.openworld.openworld_run import begin_run
from offmap.openworld.preparation import begin

KNOWN, ALL, WIDTH = 4, 7, 12


def stream(n=1200, seed=0):
    """Rows of seven classes around corners."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, ALL, n)
    return (6 * np.eye(WIDTH)[truth] + rng.normal(size=(n, WIDTH))).astype(np.float32), truth


@pytest.fixture(scope="module")
def problem():
    rows, truth = stream()
    labelled = (truth < KNOWN) & (np.arange(len(truth)) < 700)
    test, wanted = stream(600, seed=1)
    return rows[labelled], truth[labelled], rows[~labelled], test, wanted


@pytest.fixture(scope="module")
def done(problem):
    known, labels, unlabelled, _, _ = problem
    return run(known, labels, unlabelled, rounds=3)


def test_new_classes_are_learned_and_known_ones_kept(problem, done):
    known, labels, unlabelled, test, truth = problem
    start = run(known, labels, unlabelled, rounds=0)
    before, after = start.predict(test), done.predict(test)
    inside = truth < KNOWN
    assert done.n_classes == ALL
    assert open_world_accuracy(truth, after, range(KNOWN)).all > 0.93
    assert (after == truth)[inside].mean() > (before == truth)[inside].mean() - 0.02
    assert len(done.rounds) == 3
    assert all(record.deployed for record in done.rounds)
    assert done.rounds[1].considered > done.rounds[1].arrived  # what was kept is grouped again
    far = done.predict(np.full((5, WIDTH), -20.0, np.float32))
    assert (far == -1).all()


def test_the_same_seed_gives_the_same_answer(problem, done):
    known, labels, unlabelled, test, _ = problem
    again = run(known, labels, unlabelled, rounds=3)
    np.testing.assert_array_equal(again.predict(test), done.predict(test))


def test_class_numbers_are_kept_as_given(problem):
    known, labels, unlabelled, test, truth = problem
    numbers = np.array([30, 10, 40, 20])
    found = run(known, numbers[labels], unlabelled, rounds=1).predict(test)
    assert (found[truth == 0] == 30).mean() > 0.9
    assert set(np.unique(found[truth >= KNOWN])) <= {-1, *numbers, *range(41, 41 + ALL)}
    assert (found[truth >= KNOWN] > 40).mean() > 0.9


def test_names_are_labels_too(problem):
    known, labels, unlabelled, test, truth = problem
    names = np.array(["ant", "bee", "cat", "dog"], object)[labels]
    names[0] = None
    found = run(known, names, unlabelled, rounds=1)
    assert found.deployment.class_names[:KNOWN] == ("ant", "bee", "cat", "dog")
    assert (found.predict(test) == truth)[truth < KNOWN].mean() > 0.9


def test_one_known_class_is_enough_and_stays_itself(problem):
    known, labels, unlabelled, test, truth = problem
    found = run(known[labels == 2], labels[labels == 2], unlabelled, rounds=2)
    numbers = found.predict(test)
    assert found.n_classes > 1
    assert (numbers == 2)[truth == 2].mean() > 0.9
    assert (numbers == 2)[truth != 2].mean() < 0.1


@pytest.mark.parametrize("nothing", [[], np.zeros((0, WIDTH))])
def test_an_empty_stream_changes_nothing(problem, nothing):
    known, labels, *_ = problem
    found = run(known, labels, nothing, rounds=2)
    assert found.n_classes == KNOWN
    assert [record.deployed for record in found.rounds] == [False, False]


def test_a_class_keeps_its_name_and_number_over_rounds(done):
    first, last = (record.round.new.known.class_names for record in (done.rounds[0], done.rounds[-1]))
    assert first == last[: len(first)]


def test_texts_of_the_stream_name_new_classes(problem):
    known, labels, unlabelled, _, _ = problem
    words = np.array(["ant", "bee", "cat", "dog", "elk herd", "fox cub", "goat milk"])
    texts = [f"the {word}" for word in words[unlabelled.argmax(axis=1)]]
    found = run(known, labels, unlabelled, rounds=2, texts=texts)
    assert set(found.deployment.class_names[KNOWN:]) == {"elk herd", "cub fox", "goat milk"}
    assert found.store.texts is not None
    with pytest.raises(InputError, match="give one per row"):
        run(known, labels, unlabelled, rounds=1, texts=texts[:-1])


def test_few_inputs_wait_until_there_are_enough(problem):
    known, labels, _, _, _ = problem
    rng = np.random.default_rng(3)
    novel = (6 * np.eye(WIDTH)[5] + rng.normal(size=(60, WIDTH))).astype(np.float32)
    current = run(known, labels, [novel[:4]])
    assert current.n_classes == KNOWN
    assert not current.rounds[0].deployed
    assert len(current.store) == 4
    current = current.step(LabeledInputs.of(novel[4:]), 1)
    assert current.n_classes == KNOWN + 1
    assert current.rounds[-1].considered == 60
    assert (current.predict(novel) == KNOWN).mean() > 0.9


def test_a_run_without_new_classes_learns_none(problem):
    known, labels, _, test, truth = problem
    again = run(known, labels, test[truth < KNOWN], rounds=2)
    found = again.predict(test)
    assert (found == truth)[truth < KNOWN].mean() > 0.93


def test_a_group_that_harms_is_left_out_and_the_rest_is_learned(problem):
    """A group made of known inputs and a true new class, proposed together."""
    from offmap.openworld import learn_classes

    known, labels, _, _, _ = problem
    state = begin("knn(5)", labels, features=known)
    rng = np.random.default_rng(0)
    ants = state.known.train.features[state.known.train.labels == 0]
    false = np.concatenate([ants, ants]) + 0.3 * rng.normal(size=(2 * len(ants), WIDTH)).astype(np.float32)
    true = (6 * np.eye(WIDTH)[6] + rng.normal(size=(80, WIDTH))).astype(np.float32)
    groups = np.repeat([KNOWN, KNOWN + 1], [len(false), len(true)])
    candidates = LabeledInputs.of(np.concatenate([false, true]), groups)
    made = learn_classes(state, candidates, {KNOWN: "false", KNOWN + 1: "true"})
    assert made.accepted, made.reason
    assert made.new_names == ("true",)
    outcomes = {one.name: one.outcome for one in made.groups}
    assert outcomes["true"] == "learned"
    assert outcomes["false"] in ("left out", "merged")


def test_a_new_class_that_was_grouped_with_a_known_one_is_parted_from_it(problem):
    from offmap.openworld.grouping import free_swallowed
    from offmap.openworld.rounds import propose

    known, labels, unlabelled, _, _ = problem
    state = begin("knn(5)", labels, features=known)
    kept = LabeledInputs.of(unlabelled[:300])
    found = propose(state, kept)
    first = len(found) - len(kept)
    novel = found.labels[first:] == found.labels[first:].max()
    wrong = found.labels.copy()
    wrong[first:][novel] = 1
    freed = free_swallowed(state, kept, found.relabel(wrong))
    np.testing.assert_array_equal(freed.labels[first:] == freed.labels.max(), novel)
    assert free_swallowed(state, kept, found) is found


def test_the_run_is_a_deployment_that_comes_back(problem, done, tmp_path):
    _, _, _, test, _ = problem
    done.deployment.save(tmp_path / "d.offmap")
    back = offmap.load(tmp_path / "d.offmap")
    np.testing.assert_array_equal(back.predict(test, "features"), done.predict(test))
    assert back.n_classes == done.n_classes


def test_bad_calls_are_refused(problem):
    known, labels, unlabelled, _, _ = problem
    with pytest.raises(InputError, match="rounds=-1"):
        run(known, labels, unlabelled, rounds=-1)
    with pytest.raises(InputError, match="one whole number or name for each"):
        run(known, labels[:-1], unlabelled)
    with pytest.raises(InputError, match="no row has a label"):
        run(known, np.full(len(known), -1), unlabelled)
    with pytest.raises(InputError, match="the same network or encoder"):
        run(known, labels, unlabelled[:, :5])
    with pytest.raises(InputError, match="level=2"):
        run(known, labels, unlabelled, rounds=1, level=2)


def test_the_exact_test_agrees_with_a_count():
    rng = np.random.default_rng(0)
    draws = rng.binomial(50, 0.1, 200_000)
    for lost in (1, 5, 9):
        assert fall_p_value(lost, 50, 0.1) == pytest.approx((draws >= lost).mean(), abs=0.005)
    assert fall_p_value(-3, 50, 0.1) == 1.0
    assert fall_p_value(0, 0, 0.1) == 1.0


def test_only_groups_that_take_known_inputs_are_harmful():
    truth = np.repeat([0, 1], 40)
    logits = np.zeros((80, 4))
    logits[np.arange(80), truth] = 1
    logits[:30, 2] = 5  # the first new class takes most of class 0
    logits[79, 3] = 5  # the second takes one input of class 1
    found = harmful_groups(logits, truth, np.ones(80, bool), 2, 0.02)
    assert set(found) == {2}
    lost, n, p = found[2]
    assert (lost, n) == (30, 40)
    assert p < 1e-10


def test_offsets_reach_the_accuracy_and_lower_what_takes_most():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 200)
    logits = rng.normal(size=(200, 5))
    logits[np.arange(200), truth] += 2
    logits[:, 4] += 1.5
    best = (logits[:, :3].argmax(axis=1) == truth).mean()
    for least in (0.5, 0.6, best):
        offsets = class_offsets(logits, truth, 3, least)
        shifted = logits.copy()
        shifted[:, 3:] -= offsets + 1e-9
        assert (shifted.argmax(axis=1) == truth).mean() >= least
        assert offsets[1] >= offsets[0] >= 0
    assert not class_offsets(logits, truth, 3, 0.0).any()
    assert class_offsets(logits[:, :3], truth, 3, 1.0).shape == (0,)


def test_one_known_input_does_not_cost_many_of_new_classes():
    logits = np.array([[2.0, 0, 5], [4, 0, 1], [0, 4, 1], [0, 3, 1]])  # a known input that asks for an offset of 3
    truth = np.array([0, 0, 1, 1])
    few, many = (np.tile([[0.0, 0, 2]], (n, 1)) for n in (3, 30))
    assert class_offsets(logits, truth, 2, 1.0, few).tolist() == [3.0]
    assert class_offsets(logits, truth, 2, 1.0, many).tolist() == [0.0]


def test_classes_that_took_nothing_are_held_back_too_as_far_as_that_is_cheap():
    logits = np.array([[2.0, 0, 4, 0], [4, 0, 1, 0], [0, 4, 1, 0], [0, 3, 1, 0]])  # one input asks for 2 of one class
    truth = np.array([0, 0, 1, 1])
    cheap, dear = (np.tile([[0.0, 0, 0, one]], (30, 1)) for one in (3.0, 1.5))  # of the other class
    assert class_offsets(logits, truth, 2, 1.0, cheap).tolist() == [2.0, 2.0]
    assert class_offsets(logits, truth, 2, 1.0, dear).tolist() == [2.0, 1.0]


def test_groups_are_matched_one_to_one():
    groups = np.array([0] * 5 + [1] * 5 + [2] * 3)
    earlier = np.array([7] * 4 + [8] + [7] * 3 + [8] * 2 + [-1] * 3)
    assert match_groups(groups, earlier) == {0: 7, 1: 8}
    assert match_groups(groups, np.full(13, -1)) == {}


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_linear_head_agrees_with_scikit_learn(n_classes):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    labels = np.arange(300) % n_classes
    rows = np.eye(4)[labels] * [1, 10, 100, 1] + rng.normal(size=(300, 4)) * [0.5, 5, 50, 0.5]
    head = linear_head(rows, labels, n_classes)
    scaled = StandardScaler().fit_transform(rows) / 2
    theirs = LogisticRegression(C=10, tol=1e-6, max_iter=1000).fit(scaled, labels)
    logits = head(rows)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(shares / shares.sum(axis=1, keepdims=True), theirs.predict_proba(scaled), atol=0.02)


def test_a_run_begins_with_what_is_known(problem):
    known, labels, _, test, truth = problem
    current = begin_run(begin("knn(5)", labels, features=known))
    assert current.n_classes == KNOWN
    assert len(current.store) == 0
    assert (current.predict(test[truth < KNOWN]) == truth[truth < KNOWN]).mean() > 0.85
