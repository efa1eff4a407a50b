"""``auto``: what it chooses, on what evidence, on data of every kind, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_zoo import World

import offmap
from offmap.detection.auto import Trials, doubt_answers, favour_directions, weigh
from offmap.detection.candidates import (
    CORES,
    DISTANCES,
    FAMILIES,
    READING_ROOTS,
    ROOT,
    SEARCHING,
    has_rectified_features,
    has_wide_features,
    list_candidates,
    list_core,
    list_distances,
)
from offmap.detection.combination import LOWEST, TAIL, Combiner, fit_combination
from offmap.detection.evidence import Evidence
from offmap.detection.pseudo_unknowns import cross_inputs, fit_head, group_inputs, leave_classes_out, make_trials
from offmap.errors import InputError, OffmapWarning
from offmap.metrics.detection import auroc

CLASSES, WIDTH = 5, 12


def clouds(count: int, classes: int = CLASSES, seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Points around one centre per class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = 4 * np.random.default_rng(99).random((classes, WIDTH))
    return (centres[labels] + spread * rng.normal(size=(count, WIDTH))).astype(np.float32), labels


def head_of(classes: int = CLASSES) -> offmap.Head:
    features, labels = clouds(600, classes, seed=5)
    return fit_head(features, labels, classes)


def known(count: int = 300, seed: int = 0, **without: bool) -> offmap.Activations:
    """Known activations, some parts left out."""
    features, labels = clouds(count, seed=seed)
    return offmap.Activations(
        features,
        head=None if without.get("head") else head_of(),
        labels=None if without.get("labels") else labels,
    )


def unknown(count: int = 200, head: offmap.Head | None = None) -> offmap.Activations:
    """Points around the middle of all classes, where no class is."""
    rng = np.random.default_rng(3)
    return offmap.Activations((2 + 2 * rng.normal(size=(count, WIDTH))).astype(np.float32), head=head)


def test_it_chooses_a_sum_and_shows_why() -> None:
    acts = known()
    made = offmap.detector("auto").fit(acts)
    assert repr(made) == "auto"
    assert made.chosen.startswith("root(")
    weights = {trial["spec"]: trial["weight"] for trial in made.trials if trial["weight"]}
    assert set(list_core("full", acts)) <= set(weights)
    assert sum(weights.values()) == pytest.approx(2 * len(list_core("full", acts)))
    assert {repr(term.components[-1]) for term in made.plan.terms} <= {
        repr(offmap.detector(spec).components[-1]) for spec in weights
    }
    lines = str(made.trials).splitlines()
    assert len(lines) == 1 + len(made.trials)
    assert lines[0].split() == ["spec", "family", "left_out", "crossed", "weight", "why"]
    assert all(trial["why"] for trial in made.trials)


def test_it_tells_known_from_unknown_as_well_as_the_best_candidate_nearly() -> None:
    acts, test, far = known(), known(200, seed=1), unknown(head=head_of())
    made = offmap.detector("auto").fit(acts)
    area = auroc(made.score(test), made.score(far))
    single = [offmap.detector(trial["spec"]).fit(acts) for trial in made.trials if trial["left_out"] is not None]
    areas = [auroc(each.score(test), each.score(far)) for each in single]
    assert area > np.median(areas)
    assert area > max(areas) - 0.06


def test_the_chosen_text_gives_the_same_scores() -> None:
    acts, test = known(), known(50, seed=1)
    made = offmap.detector("auto").fit(acts)
    again = offmap.detector(made.chosen).fit(acts)
    np.testing.assert_array_equal(again.score(test), made.score(test))


def test_the_same_seed_gives_the_same_bits_and_another_may_not() -> None:
    acts, test = known(), known(50, seed=1)
    one, two = (offmap.detector("auto").fit(acts) for _ in range(2))
    assert one.chosen == two.chosen
    assert one.trials == two.trials
    np.testing.assert_array_equal(one.score(test), two.score(test))
    assert repr(offmap.detector("auto(seed=3)")) == "auto(seed=3)"
    assert offmap.detector("auto(seed=3)").fit(acts).trials != one.trials


def test_it_comes_back_from_a_file_with_its_evidence(tmp_path: Path) -> None:
    acts, test = known(), known(50, seed=1)
    made = offmap.detector("auto").fit(acts).calibrate(known(100, seed=2))
    made.save(tmp_path / "guard.offmap")
    back = offmap.load(tmp_path / "guard.offmap")
    assert (repr(back), back.chosen, back.trials) == (repr(made), made.chosen, made.trials)
    assert str(back.trials) == str(made.trials)
    np.testing.assert_array_equal(back.score(test), made.score(test))
    np.testing.assert_array_equal(back(test).p_value, made(test).p_value)


def test_fast_searches_no_neighbours() -> None:
    made = offmap.detector("auto(fast)").fit(known())
    assert repr(made) == "auto(fast)"
    assert not {trial["spec"] for trial in made.trials} & set(SEARCHING)
    assert not {"knn", "nnguide", "grood"} & {component.name for component in made.plan.components}


def test_every_candidate_of_every_family_can_be_made() -> None:
    specs = [spec for family in FAMILIES.values() for spec in family]
    assert len(specs) == len(set(specs))
    assert {spec for core in CORES.values() for spec in core} <= set(specs)
    for spec in specs:
        assert len(offmap.detector(spec).terms) == 1


def test_held_out_inputs_given_are_used() -> None:
    acts = known()
    own = offmap.detector("auto").fit(acts)
    given = offmap.detector("auto").fit(acts, val=known(80, seed=4))
    assert own.trials != given.trials


@pytest.mark.parametrize(
    ("without", "families"),
    [
        ({"labels": True}, {"logits", "gaussians", "neighbours", "subspaces", "geometry", "gradients"}),
        ({"head": True}, {"gaussians", "neighbours", "subspaces", "gradients"}),
        ({"head": True, "labels": True}, {"gaussians", "neighbours", "subspaces"}),
    ],
)
def test_what_is_missing_is_left_out_and_said(without: dict[str, bool], families: set[str]) -> None:
    acts = known(**without)
    with pytest.warns(OffmapWarning, match="auto: without"):
        made = offmap.detector("auto").fit(acts)
    tried = {trial["family"] for trial in made.trials if not trial["why"].startswith("needs")}
    assert tried == families
    head = None if without.get("head") else head_of()
    assert auroc(made.score(known(100, seed=1, **without)), made.score(unknown(head=head))) > 0.8


def test_logits_alone_are_enough() -> None:
    head = head_of()
    acts = offmap.Activations(None, logits=known().logits, labels=clouds(300)[1])
    with pytest.warns(OffmapWarning, match="without features"):
        made = offmap.detector("auto").fit(acts)
    assert {trial["family"] for trial in made.trials if trial["weight"]} == {"logits"}
    far = offmap.Activations(None, logits=unknown(head=head).logits)
    assert auroc(made.score(offmap.Activations(None, logits=known(100, seed=1).logits)), made.score(far)) > 0.55


def test_features_and_logits_without_a_head() -> None:
    whole = known()
    acts = offmap.Activations(whole.features, logits=whole.logits, labels=whole.labels)
    made = offmap.detector("auto").fit(acts)
    assert "needs head" in {trial["spec"]: trial["why"] for trial in made.trials}["vim"]
    far = unknown(head=head_of())
    assert len(made.score(offmap.Activations(far.features, logits=far.logits))) == len(far)


def test_two_classes() -> None:
    features, labels = clouds(200, classes=2)
    made = offmap.detector("auto").fit(offmap.Activations(features, head=head_of(2), labels=labels))
    assert all(trial["left_out"] is None for trial in made.trials)
    assert any(trial["crossed"] is not None for trial in made.trials)


@pytest.mark.parametrize("count", [3, 5, 20])
def test_very_few_inputs_give_a_guard_and_a_sentence(count: int) -> None:
    with pytest.warns(OffmapWarning, match="compared on 40 inputs or more"):
        made = offmap.detector("auto").fit(known(count))
    scores = made.score(known(30, seed=1))
    assert scores.shape == (30,)
    assert not np.isnan(scores).any()
    if count == 20:
        assert auroc(scores, made.score(unknown(head=head_of()))) > 0.7


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_inputs_are_scored_or_refused_with_a_sentence(count: int) -> None:
    with pytest.warns(OffmapWarning, match="compared on 40 inputs or more"):
        outcome = _scores_or_sentence(count)
    assert "fit on more" in outcome if isinstance(outcome, str) else not np.isnan(outcome).any()


def _scores_or_sentence(count: int) -> np.ndarray | str:
    try:
        return offmap.detector("auto").fit(known(count)).score(known(10, seed=1))
    except InputError as error:
        return str(error)


def test_one_kind_of_inputs_without_labels() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(OffmapWarning):
        made = offmap.detector("auto").fit(rng.normal(size=(300, 6)).astype(np.float32))
    assert auroc(made.score(rng.normal(size=(100, 6))), made.score(rng.normal(size=(100, 6)) + 4)) > 0.95


def test_inputs_of_one_class_are_said_to_leave_nothing_to_compare() -> None:
    features, labels = clouds(100, classes=1)
    with pytest.warns(OffmapWarning, match="100 inputs of one class leave nothing to compare"):
        offmap.detector("auto").fit(offmap.Activations(features, head=head_of(1), labels=labels))


def test_numbers_that_are_not_finite_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="auto: the inputs to choose on hold NaN or infinity"):
        offmap.detector("auto").fit(np.full((50, 4), np.nan))


def test_passes_that_were_asked_for_and_are_not_there_are_named() -> None:
    with pytest.warns(OffmapWarning, match="odin and mc_dropout were asked for, but their passes are not there"):
        offmap.detector("auto(passes=true)").fit(known(20))


def test_equal_inputs_are_refused_without_warnings_of_other_libraries() -> None:
    with pytest.raises(InputError, match="fit on more"), pytest.warns() as found:
        offmap.detector("auto").fit(np.ones((100, 4)))
    assert {each.category for each in found} == {OffmapWarning}


def test_many_classes_with_few_inputs_each() -> None:
    rng = np.random.default_rng(0)
    classes, width = 60, 40
    centres = rng.normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), 4)
    features = (centres[labels] + 0.3 * rng.normal(size=(len(labels), width))).astype(np.float32)
    head = fit_head(features, labels, classes)
    made = offmap.detector("auto").fit(offmap.Activations(features, head=head, labels=labels))
    test = (centres[labels] + 0.3 * rng.normal(size=(len(labels), width))).astype(np.float32)
    far = rng.normal(size=(200, width)).astype(np.float32)
    assert auroc(made.score(test), made.score(far)) > 0.95


def test_columns_of_different_units() -> None:
    """One loud column that says nothing must not drown the others."""
    rng = np.random.default_rng(0)
    units = np.array([1e4, 1.0, 0.01, 1.0])
    labels = np.arange(300) % 3
    centres = 5 * np.eye(4)[1:]
    rows = (centres[labels] + rng.normal(size=(300, 4))) * units
    far = (np.array([0.0, 5, 5, 5]) + rng.normal(size=(200, 4))) * units
    with pytest.warns(OffmapWarning):
        made = offmap.detector("auto").fit(offmap.Activations(rows.astype(np.float32), labels=labels))
    test = (centres[labels] + rng.normal(size=(300, 4))) * units
    assert auroc(made.score(test), made.score(far)) > 0.95


def test_a_row_of_zeros_does_not_stop_it() -> None:
    acts = known()
    features = acts.features.copy()
    features[7] = 0
    made = offmap.detector("auto").fit(offmap.Activations(features, head=acts.head, labels=acts.labels))
    assert not np.isnan(made.score(unknown(head=head_of()))).any()


def test_data_in_blocks_are_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"auto.*fit\(known\) on a sample.*fitted\.chosen"):
        offmap.detector("auto").update(known())
    chosen = offmap.detector("auto").fit(known()).chosen
    streamed = offmap.detector(chosen)
    for _ in streamed.readings():
        for part in known().blocks(100):
            streamed.update(part)
    assert streamed.is_fitted


def test_a_wrong_width_is_refused() -> None:
    made = offmap.detector("auto").fit(known())
    with pytest.raises(InputError, match="features"):
        made.score(np.zeros((3, WIDTH + 1), np.float32))


@pytest.mark.parametrize("spec", ["auto + msp", "react(90)|auto", "0.5*auto + knn(5)"])
def test_it_stands_by_itself(spec: str) -> None:
    with pytest.raises(InputError, match="write it by itself"):
        offmap.detector(spec)


@pytest.mark.parametrize(
    ("spec", "words"), [("auto(slow)", "full or fast|fast"), ("auto(passes=3)", "true or false"), ("autto", "auto")]
)
def test_nonsense_is_refused(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        offmap.detector(spec)


def test_further_passes_only_where_asked_and_extracted() -> None:
    world = World()
    asked = offmap.detector("auto(passes=true)")
    assert repr(asked) == "auto(passes=true)"
    wanted = asked.requirements
    assert {name for request in wanted.extras for name in request.outputs}
    assert not offmap.detector("auto").requirements.extras
    asked.fit(world.acts("known", wanted))
    assert {"odin", "mc_dropout"} <= {component.name for component in asked.plan.components}
    assert len(asked.score(world.acts("test", asked.requirements))) == 40
    without = offmap.detector("auto(passes=true)").fit(world.acts("known"))
    assert {trial["spec"]: trial["why"] for trial in without.trials}["odin"].startswith("its pass is not there")


def test_compare_takes_it() -> None:
    table = offmap.compare("auto, msp", known(), known(100, seed=1), {"far": unknown(head=head_of())})
    assert {row.method for row in table.rows} == {"auto", "msp"}
    assert "root(" in str(table)


def test_weights_follow_the_evidence() -> None:
    judged = [
        Evidence("knn(10)", "neighbours", 0.99, 0.97),
        Evidence("knn(50)", "neighbours", 0.95, 0.97),
        Evidence("knn(1)", "neighbours", 0.94, 0.97),
        Evidence("msp", "logits", 0.97, 0.95),
        Evidence("rmds", "gaussians", 0.14, 0.3),
        Evidence("vim", "subspaces", why="needs head, which is not there"),
    ]
    found = {each.spec: each for each in weigh(judged, core=["knn(1)", "msp", "vim"])}
    assert {spec: each.weight for spec, each in found.items() if each.weight} == {"knn(10)": 1, "knn(1)": 1, "msp": 2}
    assert found["knn(50)"].why == "knn(10) is better in its family"
    assert found["msp"].why == "always in the sum, and the best of its family"
    assert found["vim"].why == "needs head, which is not there"
    area = 0.75 * 0.97 + 0.25 * 0.95
    assert found["msp"].separation == pytest.approx(np.sqrt(2) * _probit(area))
    alone = {each.spec: each.weight for each in weigh(judged, core=["knn(1)", "msp"], compare=False) if each.weight}
    assert alone == {"knn(1)": 1, "msp": 1}


def test_of_many_families_the_best_four_speak() -> None:
    judged = [
        Evidence(name, f"family {name}", area, area)
        for name, area in zip("abcdef", (0.9, 0.8, 0.7, 0.95, 0.6, 0.85), strict=True)
    ]
    found = {each.spec: each for each in weigh(judged, core=["c", "e"])}
    assert {spec: each.weight for spec, each in found.items()} == {
        "a": 0.5,
        "b": 0.5,
        "c": 1,
        "d": 0.5,
        "e": 1,
        "f": 0.5,
    }
    assert {each.spec: each.why for each in weigh(judged, core=["e"])}["c"] == "its family is behind four others"


def test_of_areas_beyond_all_measure_the_larger_wins() -> None:
    near = [Evidence("msp", "logits", 1.0, 0.997), Evidence("vim", "subspaces", 1.0, 0.998)]
    further = [Evidence(name, f"family {name}", 1.0, 1.0) for name in "abc"]
    assert near[0].separation == near[1].separation
    found = {each.spec: each.weight for each in weigh([*near, *further], core=["a"])}
    assert (found["msp"], found["vim"]) == (0, 0.25)


def rectified(count: int = 300, beside: int = 0) -> offmap.Activations:
    """Known activations of rectified units, with more of them that say nothing."""
    features, labels = clouds(count)
    further = np.random.default_rng(2).random((count, beside), dtype=np.float32)
    features = np.concatenate([np.maximum(features, 0), further], axis=1)
    return offmap.Activations(features, head=fit_head(features, labels, CLASSES), labels=labels)


def test_some_methods_read_the_root_of_rectified_features() -> None:
    acts = rectified()
    plain, roots = (set(list_core("full", each)) for each in (known(), acts))
    assert plain - roots == set(READING_ROOTS)
    assert roots - plain == {ROOT + spec for spec in READING_ROOTS}
    assert {ROOT + spec if spec in READING_ROOTS else spec for spec in DISTANCES} == set(list_distances("full", acts))
    for spec in ("auto", "auto(fast)"):
        made = offmap.detector(spec).fit(acts)
        weights = {trial["spec"]: trial["weight"] for trial in made.trials}
        assert weights["power(0.5)|plda"] >= 1
        assert "power(0.5)|plda" in made.chosen
        assert "plda" in weights  # may be chosen, too
    assert not any(spec.startswith(ROOT) for spec in (each.spec for each in list_candidates("full", known())))


def test_features_with_a_negative_number_without_logits_or_wide_ones_are_read_as_they_are() -> None:
    acts = rectified()
    assert has_rectified_features(acts)
    lower = acts.features.copy()
    lower[5, 3] = -0.1
    assert not has_rectified_features(offmap.Activations(lower, head=acts.head, labels=acts.labels))
    assert not has_rectified_features(offmap.Activations(acts.features, labels=acts.labels))
    assert not has_rectified_features(offmap.Activations(None, logits=acts.logits))
    assert not has_rectified_features(rectified(beside=1100))


def _probit(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


def test_a_network_that_cannot_tell_its_classes_is_guarded_by_distances() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % CLASSES
    mixed = rng.normal(size=(400, WIDTH)).astype(np.float32)  # no class can be told from another
    acts = offmap.Activations(mixed, head=fit_head(mixed, labels, CLASSES), labels=labels)
    for budget, spec in (("full", "auto"), ("fast", "auto(fast)")):
        made = offmap.detector(spec).fit(acts)
        chosen = {trial["spec"] for trial in made.trials if trial["weight"]}
        assert chosen == set(list_distances(budget, acts))  # type: ignore[arg-type]
        assert all("hardly told" in trial["why"] for trial in made.trials if trial["weight"])
    assert list_distances("full", acts) == DISTANCES
    assert list_distances("full", acts[:40]) == ()  # eight of each class: the evidence may be what is weak
    wide = np.concatenate([mixed, rng.normal(size=(400, 400)).astype(np.float32)], axis=1)
    beside = offmap.Activations(wide, head=fit_head(wide, labels, CLASSES), labels=labels)
    assert list_distances("full", beside) == ()  # fewer inputs than features: the same


def test_the_doubt_grows_as_classes_left_out_get_harder_to_tell() -> None:
    def shares(area: float) -> list[float]:
        near, far = Evidence("msp", "logits", area, 0.9, weight=2.0), Evidence("pca", "subspaces", 0.5, 0.8)
        return [each.weight for each in doubt_answers([near, far], ["pca"])]

    assert shares(0.9) == [2.0, 0.0]
    assert shares(0.8) == [1.0, 1.0]
    assert shares(0.7) == [0.0, 2.0]


def test_directions_count_more_in_wide_features_where_they_tell_classes_left_out() -> None:
    def weight(area: float | None, wide: bool = True, spec: str = "mahalanobis_pp") -> float:
        return favour_directions([Evidence(spec, "gaussians", area, 0.9, weight=1.0)], wide)[0].weight

    assert weight(0.9) == 5.0
    assert [weight(0.8), weight(None), weight(0.9, wide=False), weight(0.9, spec="plda")] == [1.0] * 4


def test_features_are_wide_from_a_thousand_columns_and_ten_inputs_a_class_on() -> None:
    features, labels = clouds(100)
    beside = np.random.default_rng(1).normal(scale=0.1, size=(100, 1100)).astype(np.float32)
    wide = np.concatenate([features, beside], axis=1)
    acts = offmap.Activations(wide, head=fit_head(wide, labels, CLASSES), labels=labels)
    assert has_wide_features(acts)
    assert not has_wide_features(acts[:45])  # nine of each class
    assert not has_wide_features(offmap.Activations(wide, labels=labels))  # no logits
    assert not has_wide_features(known())
    chosen = {trial["spec"]: trial for trial in offmap.detector("auto(fast)").fit(acts).trials}
    assert "features are wide" in chosen["mahalanobis_pp"]["why"]


def test_candidates_that_nothing_speaks_for_get_no_weight() -> None:
    judged = [Evidence("msp", "logits", 0.4, 0.5), Evidence("knn(1)", "neighbours")]
    assert [each.weight for each in weigh(judged, core=["msp"])] == [0, 0]


def test_candidates_say_what_they_lack() -> None:
    lacking = {each.spec: each.why for each in list_candidates("full", offmap.Activations(np.ones((3, 2))))}
    assert lacking["msp"] == "needs logits, which is not there"
    assert lacking["rmds"] == "needs labels, which is not there"
    assert lacking["knn(1, normalize=false)"] == ""
    table = np.random.default_rng(0).normal(size=(20, 3)) * [1, 1, 1000]
    lacking = {each.spec: each.why for each in list_candidates("full", offmap.Activations(table))}
    assert lacking["knn(1)"].startswith("columns have different units")


def test_trials_print_as_a_table() -> None:
    trials = Trials([{"spec": "msp", "auroc": 0.5}, {"spec": "knn(10)", "auroc": None}])
    assert str(trials).splitlines() == ["spec     auroc", "msp      0.500", "knn(10)  -"]
    assert str(Trials()) == "[]"


def test_crossed_inputs_take_every_feature_from_one_of_two_classes() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    features = 10.0 * labels[:, None] + np.arange(5)[:, None] + np.zeros((5, 8))
    acts = offmap.Activations(features)
    crossed = cross_inputs(acts, labels, np.random.default_rng(0)).features
    for row in crossed:
        parents = np.unique(row)
        assert np.isin(parents, features).all()
        assert len(parents) <= 2
        assert len(np.unique(parents // 10)) == len(parents)
    share = np.mean([len(np.unique(row)) == 2 for row in crossed])
    assert share == pytest.approx(1 - 2**-7, abs=0.03)


def test_crossed_inputs_keep_given_logits_in_line() -> None:
    whole = known()
    given = offmap.Activations(whole.features, logits=whole.logits)
    crossed = cross_inputs(given, whole.predictions, np.random.default_rng(0))
    np.testing.assert_allclose(crossed.logits, whole.head(crossed.features), atol=1e-3)


def test_classes_left_out_are_nowhere_in_what_is_fitted_on() -> None:
    fit, val = known(200), known(100, seed=1)
    trial = leave_classes_out(fit, val, fit.labels, val.labels, np.array([0, 2, 4]))
    assert trial.fit.n_classes == 3
    assert set(trial.fit.labels) == {0, 1, 2}
    inside = {row.tobytes() for row in fit.features[np.isin(fit.labels, [0, 2, 4])]}
    assert {row.tobytes() for row in trial.fit.features} == inside
    assert len(trial.known) + len(trial.unknown) == 100 + 80
    np.testing.assert_array_equal(trial.unknown.features[:40], val.features[np.isin(val.labels, [1, 3])])
    assert np.mean(trial.fit.predictions == trial.fit.labels) > 0.9


def test_trials_differ_and_do_not_depend_on_the_order_of_calls() -> None:
    fit, val = known(200), known(100, seed=1)
    one, two = list(make_trials(fit, val, rounds=2)), list(make_trials(fit, val, rounds=2))
    assert [trial.kind for trial in one] == ["crossed", "left out", "left out"]
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first.unknown.features, second.unknown.features)


def test_groups_without_labels_and_logits_are_clusters() -> None:
    fit, val = known(200, head=True, labels=True), known(100, seed=1, head=True, labels=True)
    groups, others = group_inputs(fit, val)
    assert len(np.unique(groups)) == 10
    assert set(others) <= set(groups)


def test_the_head_is_that_of_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    features, labels = clouds(400, classes=3, spread=2.5)
    found = fit_head(features, labels, 3, steps=500)
    scaled = (features - features.mean(axis=0)) / features.std(ddof=1)
    # scikit-learn's C weighs the sum of losses against half the squared norm
    other = LogisticRegression(C=1 / (2 * 1e-4 * len(features)), tol=1e-10, max_iter=5000).fit(scaled, labels)
    wanted = other.predict_proba(scaled)
    logits = found(features)
    got = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(got / got.sum(axis=1, keepdims=True), wanted, atol=0.02)


def test_the_tail_goes_on_where_fishers_ends() -> None:
    held_out = np.sort(np.random.default_rng(0).normal(size=200))
    state = fit_combination([held_out], "tail")
    combine = Combiner(state, (1.0,), "tail")
    import torch

    queries = np.array([-np.inf, -9.0, -4.0, held_out[0], 0.3, 5.0, np.inf])
    got = combine({0: torch.from_numpy(queries)}).numpy()
    count = int(200 * TAIL)
    threshold = held_out[count - 1]
    scale = np.mean(threshold - held_out[:count])

    values = np.log(np.arange(1, 201) / 201)

    def expected(score: float) -> float:
        if score < threshold:
            return max(values[count - 1] - (threshold - score) / scale, LOWEST)
        return float(np.interp(score, held_out, values))

    np.testing.assert_allclose(got, [expected(score) for score in queries])
    assert got[0] == LOWEST
    assert got[1] < got[2] < got[3] < got[4] < got[5]
    near = combine({0: torch.from_numpy(held_out - 1e-9)}).numpy()
    np.testing.assert_allclose(near, combine({0: torch.from_numpy(held_out)}).numpy(), atol=1e-4)  # no steps


def test_the_root_bends_the_tail() -> None:
    import torch

    held_out = np.random.default_rng(0).normal(size=200)
    queries = {0: torch.tensor([-torch.inf, -9.0, -1.0, 0.3, 5.0])}
    straight, bent = (Combiner(fit_combination([held_out], name), (2.0,), name)(queries) for name in ("tail", "root"))
    torch.testing.assert_close(bent, -2 * (-straight / 2).sqrt())


def test_a_tail_of_ties_is_as_unlikely_as_can_be() -> None:
    import torch

    held_out = np.concatenate([np.zeros(50), np.arange(1.0, 51.0)])
    combine = Combiner(fit_combination([held_out], "tail"), (1.0,), "tail")
    assert combine({0: torch.tensor([-1.0])}).item() == LOWEST


@pytest.mark.parametrize("normalize", [True, False])
def test_standardized_neighbours(normalize: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3)) * [1e3, 1.0, 1e-3]
    queries = rng.normal(size=(7, 3)) * [1e3, 1.0, 1e-3]
    made = offmap.detector(f"knn(4, normalize={normalize}, standardize=true)").fit(rows.astype(np.float32))
    bank, asked = ((each - rows.mean(axis=0)) / rows.std(axis=0) for each in (rows, queries))
    if normalize:
        bank, asked = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (bank, asked))
    wanted = -np.sort(np.linalg.norm(asked[:, None] - bank, axis=2), axis=1)[:, 3]
    np.testing.assert_allclose(made.score(queries.astype(np.float32)), wanted, rtol=1e-4)


class TestParameters:
    """Single parameters left to ``auto``."""

    def collapsing(self) -> offmap.Activations:
        """A network that reads one feature per class: of its weights few can be spared, and not these."""
        rng = np.random.default_rng(0)
        labels = np.arange(400) % CLASSES
        features = (3 * np.eye(WIDTH)[labels] + 0.3 * rng.random((400, WIDTH))).astype(np.float32)
        weight = np.eye(CLASSES, WIDTH) + 0.02 * rng.random((CLASSES, WIDTH))
        return offmap.Activations(features, head=offmap.Head(weight), labels=labels)

    def test_a_choice_that_costs_accuracy_is_refused(self) -> None:
        acts = self.collapsing()
        made = offmap.detector("dice(auto)|energy").fit(acts[:300], val=acts[300:])
        by_spec = {trial["spec"]: trial for trial in made.trials}
        assert by_spec["dice(0.99)|energy"]["refused"]
        assert by_spec["dice(0.99)|energy"]["lost_accuracy"] > 0.01
        plain = np.mean(acts[300:].predictions == acts[300:].labels)
        shaped = np.mean(made.predict_classes(acts[300:]) == acts[300:].labels)
        assert plain - shaped <= 0.01
        assert not by_spec[made.chosen]["refused"]

    def test_without_outliers_it_is_chosen_on_pseudo_unknown_inputs(self) -> None:
        made = offmap.detector("react(auto)|energy").fit(known())
        assert made.chosen != "react(auto)|energy"
        assert len(made.trials) == 7
        assert str(made.trials).startswith("spec")

    def test_without_a_second_class_there_is_nothing_to_choose_on(self) -> None:
        one = offmap.Activations(known().features, labels=np.zeros(300, int))
        with pytest.raises(InputError, match="nothing to choose auto on"):
            offmap.detector("knn(auto)").fit(one)

    def test_when_every_value_costs_accuracy_it_says_so(self, monkeypatch: Any) -> None:
        acts = self.collapsing()
        kind = type(offmap.detector("dice(0.9)|energy").components[0])
        monkeypatch.setattr(kind, "grid", {"p": (0.99,)})
        with pytest.raises(InputError, match="every value that auto tries costs more than 1%"):
            offmap.detector("dice(auto)|energy").fit(acts[:300], val=acts[300:])
