"""Scores that add up: the text form, what a sum computes, what it shares, and what it refuses."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detection_zoo import World, blobs, rebuilt
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import offmap
from offmap import KNN, MSP, Energy, Mahalanobis, ReAct
from offmap.detection import Score, register
from offmap.detection.combination import COMBINATIONS, Combiner, fit_combination, location_and_scale
from offmap.detection.fitting import Fitting
from offmap.detection.holdout import SEED, SHARE
from offmap.detection.registry import METHODS
from offmap.detection.spec import parse
from offmap.detection.statistics import ClassMoments, RowSample
from offmap.errors import InputError, MissingError, OffmapWarning
from offmap.sampling import priorities


def hidden(acts: offmap.Activations) -> np.ndarray:
    """Which inputs a sum sets aside, computed independently of it."""
    return priorities(np.asarray(acts.features), SEED) < np.uint64(SHARE * 2**64)


# The text form


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("knn(10)+energy", "knn(10) + energy"),
        ("vim + rmds + lts(95)|energy", "vim + rmds + lts(95)|energy"),
        ("lts(95)|energy + vim", "lts(95)|energy + vim"),
        ("0.5*knn(10) + energy", "0.5*knn(10) + energy"),
        ("2 * knn(10) + 1.0*energy", "2*knn(10) + energy"),
        ("1e-3*knn(10) + energy", "0.001*knn(10) + energy"),
        ("0.5*react(90)|energy + msp", "0.5*react(90)|energy + msp"),
        ("react(90)|(energy + msp)", "react(90)|energy + react(90)|msp"),
        ("0.5*(energy + 2*msp)", "0.5*energy + msp"),
        ("react(90)|(energy + dice(0.7)|msp) + vim", "react(90)|energy + react(90)|dice(0.7)|msp + vim"),
        ("(energy + msp) + vim", "energy + msp + vim"),
        ("energy + energy", "2*energy"),
        ("energy + msp + 2*energy", "3*energy + msp"),
        ("fisher(knn(10) + energy)", "fisher(knn(10) + energy)"),
        ("sum(knn(10) + energy)", "knn(10) + energy"),
        ("fisher(energy)", "energy"),
        ("mahalanobis++", "mahalanobis_pp"),
        ("mahalanobis++(0.1) + rmds++ + energy", "mahalanobis_pp(shrinkage=0.1) + rmds_pp + energy"),
        ("rmds+++energy", "rmds_pp + energy"),
        ("react(c=1.0, layer='a+b|c')|energy + msp", "react(c=1.0, layer='a+b|c')|energy + msp"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    made = offmap.detector(text)
    assert repr(made) == canonical
    assert offmap.detector(canonical).spec == made.spec


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("energy +", "is not a detector"),
        ("energy - msp", "'energy - msp' is not a method"),
        ("energy + enrgy", "did you mean energy"),
        ("fischer(energy + msp)", "did you mean fisher"),
        ("0*energy + msp", "is not a weight; write a number above 0"),
        ("-1*energy + msp", "is not a weight"),
        ("true*energy + msp", "is not a weight"),
        ("1e999*energy + msp", "is not a weight"),
        ("energy*0.5 + msp", "is not a weight"),
        ("energy @ msp", "'@' means nothing here"),
        ("(react(90) + vim)|energy", "'react\\(90\\) \\+ vim' is a sum, and only the last part"),
        ("energy + react(90)", "ends in a score, for example react\\(90\\)\\|energy"),
        ("energy + fisher(msp + vim)", "write it around the whole detector"),
        ("fisher(energy, msp)", "combines terms, as in fisher\\(knn\\(10\\) \\+ energy\\)"),
        ("fisher()", "combines terms"),
        ("energy + 3", "'3' is not a method"),
        ("energy++msp", "'\\+msp' is not a method"),
        ("energy++", "did you mean"),
    ],
)
def test_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        offmap.detector(text)


def test_an_unknown_combination_is_refused() -> None:
    with pytest.raises(InputError, match="combine='median': choose one of sum, fisher"):
        offmap.detector("energy + msp", combine="median")


chains = st.sampled_from(["energy", "msp", "knn(5)", "react(90)|energy", "lts(95)|energy", "react(90)|dice(0.7)|msp"])
weights = st.floats(1e-6, 1e6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(weights, chains), min_size=1, max_size=6), st.sampled_from(sorted(COMBINATIONS)))
def test_every_sum_is_read_back_from_its_text(terms: list[tuple[float, str]], combine: str) -> None:
    made = offmap.detector(" + ".join(f"{weight!r}*{chain}" for weight, chain in terms), combine)
    again = parse(repr(made))
    assert again == made.spec
    assert repr(again) == repr(made)
    total: dict[str, float] = {}
    for weight, chain in terms:
        total[chain] = total.get(chain, 0.0) + weight
    assert dict(zip((term.chain for term in made.terms), made.spec.weights, strict=True)) == total


def test_objects_add_up_as_texts_do() -> None:
    assert repr(KNN(10) + Energy()) == "knn(10) + energy"
    assert repr(0.5 * KNN(10) + Energy()) == "0.5*knn(10) + energy"
    assert repr(KNN(10) * np.float32(0.5) + Energy()) == "0.5*knn(10) + energy"
    assert repr((ReAct(90) | Energy()) + MSP()) == "react(90)|energy + msp"
    assert repr(ReAct(90) | (Energy() + MSP())) == "react(90)|energy + react(90)|msp"
    assert repr(ReAct(90) | Energy() + MSP()) == "react(90)|energy + react(90)|msp"  # as Python binds
    assert repr(sum([KNN(10), Energy(), MSP()])) == "knn(10) + energy + msp"
    assert repr(2 * (KNN(10) + 0.5 * Energy())) == "2*knn(10) + energy"
    assert repr((ReAct(90) | Energy()) + (KNN(10) + MSP())) == "react(90)|energy + knn(10) + msp"
    with pytest.raises(InputError, match="a number above 0"):
        -1 * KNN(10)
    with pytest.raises(TypeError):
        KNN(10) + 3
    with pytest.raises(TypeError):
        "0.5" * KNN(10)  # type: ignore[operator]  # on purpose
    with pytest.raises(InputError, match="only sums add up"):
        offmap.detector("fisher(msp + energy)") + KNN(10)


# What a sum computes


def test_a_sum_is_the_sum_of_standardised_scores() -> None:
    known, test = blobs(400), blobs(80, seed=1)
    made = offmap.detector("knn(5) + 0.25*react(90)|energy + mahalanobis").fit(known)
    apart = hidden(known)
    assert 20 <= apart.sum() <= 60
    total = np.zeros(len(test))
    for weight, spec in ((1.0, "knn(5)"), (0.25, "react(90)|energy"), (1.0, "mahalanobis")):
        alone = offmap.detector(spec).fit(known[~apart])
        held_out = alone.score(known[apart])
        spread = stats.iqr(held_out) / (stats.norm.ppf(0.75) - stats.norm.ppf(0.25))
        total += weight * (alone.score(test) - np.median(held_out)) / spread
    np.testing.assert_allclose(made.score(test), total, rtol=1e-6, atol=1e-6)


def test_val_takes_the_place_of_what_is_set_aside() -> None:
    known, val, test = blobs(400), blobs(100, seed=2), blobs(80, seed=1)
    made = offmap.detector("knn(5) + energy").fit(known, val=val)
    total = np.zeros(len(test))
    for spec in ("knn(5)", "energy"):
        alone = offmap.detector(spec).fit(known)
        location, scale = location_and_scale(alone.score(val))
        total += (alone.score(test) - location) / scale
    np.testing.assert_allclose(made.score(test), total, rtol=1e-9)
    with pytest.raises(InputError, match="val holds no inputs"):
        offmap.detector("knn(5) + energy").fit(known, val=val[:0])


@pytest.mark.parametrize("combine", ["fisher", "stouffer", "cauchy", "harmonic"])
def test_combinations_of_p_values_are_scipys(combine: str) -> None:
    rng = np.random.default_rng(0)
    held_out, scores = [rng.normal(size=50), rng.exponential(size=50)], rng.normal(size=(2, 200))
    weights = (0.7, 2.0)
    state = fit_combination(held_out, combine)
    both = {number: torch.from_numpy(row) for number, row in enumerate(scores)}
    found = Combiner(state, weights, combine)(both).numpy()
    p = np.array([(1 + (h[:, None] <= s).sum(axis=0)) / 51 for h, s in zip(held_out, scores, strict=True)])
    capped = np.where(p == 1, 50.5 / 51, p)
    if combine == "stouffer":
        expected = -np.array([stats.combine_pvalues(c, "stouffer", weights).statistic for c in capped.T])
    elif combine == "fisher":
        expected = np.average(np.log(capped), axis=0, weights=weights) * sum(weights)
        plain = Combiner(state, (1.0, 1.0), combine)(both).numpy()
        theirs = [-stats.combine_pvalues(c, "fisher").statistic / 2 for c in capped.T]
        np.testing.assert_allclose(plain, theirs, rtol=1e-9)
    elif combine == "cauchy":
        expected = -np.average(stats.cauchy.isf(capped), axis=0, weights=weights)
    else:
        expected = stats.hmean(capped, axis=0, weights=np.array(weights)[:, None])
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    below = Combiner(state, weights, combine)({number: row - 1e6 for number, row in both.items()})
    assert (below <= torch.from_numpy(found) + 1e-12).all(), "a lower score must not be more known"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_location_and_scale_follow_the_scores(values: list[float], factor: float, shift: float) -> None:
    scores = np.array(values)
    location, scale = location_and_scale(scores)
    assert scale >= 0
    assert scores.min() <= location <= scores.max()
    moved = location_and_scale(factor * scores + shift)
    size = np.abs(factor * scores).max() + abs(shift) + 1e-9
    assert moved[0] == pytest.approx(factor * location + shift, abs=1e-9 * size)
    if factor * scale > 1e-3 * size:
        assert moved[1] == pytest.approx(factor * scale, rel=1e-6, abs=1e-9 * size)


def test_outliers_do_not_move_the_scale() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(5, 2, 2000)
    location, scale = location_and_scale(scores)
    assert (location, scale) == (pytest.approx(5, abs=0.2), pytest.approx(2, abs=0.2))
    spoilt = np.concatenate([scores, np.full(40, -1e9), np.full(5, -np.inf)])
    assert location_and_scale(spoilt) == (pytest.approx(location, abs=0.2), pytest.approx(scale, rel=0.1))
    mostly_equal = np.concatenate([np.ones(90), rng.random(10)])
    assert location_and_scale(mostly_equal)[1] == pytest.approx(mostly_equal.std())


def test_the_guarantee_holds_for_sums() -> None:
    """The share of false alarms among fresh known inputs is at most 1 - tpr, up to chance, for every combination."""
    known, calibration, fresh = blobs(600), blobs(500, seed=1), blobs(4000, seed=2)
    for combine in COMBINATIONS:
        made = offmap.detector("knn(5) + energy + mahalanobis", combine).fit(known).calibrate(calibration, tpr=0.9)
        verdicts = made(fresh)
        # given the calibration set, coverage is Beta(451, 50): three standard deviations
        assert verdicts.known.mean() >= 0.9 - 3 * 0.0134
        assert np.array_equal(verdicts.known, made.score(fresh) >= made.threshold)


def test_one_term_keeps_its_own_scale() -> None:
    known, test = blobs(), blobs(30, seed=1)
    plain = offmap.detector("energy").fit(known).score(test)
    np.testing.assert_array_equal(offmap.detector("sum(energy)").fit(known).score(test), plain)
    np.testing.assert_allclose(offmap.detector("2*energy").fit(known).score(test), 2 * plain)


def test_classes_are_predicted_as_the_terms_shape_them_alike() -> None:
    known, test = blobs(), blobs(60, seed=1)
    shaped = offmap.detector("react(c=0.5)|energy").fit(known).predict_classes(test)
    assert not np.array_equal(shaped, test.predictions)
    alike = offmap.detector("react(c=0.5)|(energy + msp)").fit(known)
    np.testing.assert_array_equal(alike.predict_classes(test), shaped)
    differing = offmap.detector("react(c=0.5)|energy + msp").fit(known)
    np.testing.assert_array_equal(differing.predict_classes(test), test.predictions)


# What is shared


def test_what_terms_have_in_common_is_there_once() -> None:
    plan = parse("react(90)|energy + react(90)|msp + react(90)|dice(0.7)|energy + vim + react(80)|energy")
    assert list(map(repr, plan.components)) == [
        "react(90)", "energy", "msp", "dice(0.7)", "energy", "vim", "react(80)", "energy",
    ]  # fmt: skip
    assert plan.parents == (None, 0, 0, 0, 3, None, None, 6)
    # a part that asks for a pass of its own is seen by its whole chain, so that nothing before it is shared
    plan = parse("scale(85)|energy + scale(85)|react(c=1.0, layer=a)|energy + scale(85)|react(c=1.0, layer=a)|msp")
    assert plan.parents == (None, 0, None, 2, 3, 3)
    assert plan.passes == {0: (), 2: (3,)}


def test_statistics_of_one_family_are_kept_once() -> None:
    fitting = Fitting(parse("mahalanobis + rmds + knn(5) + knn(50) + react(90)|knn(5) + react(90)|mahalanobis"))
    kept = [type(statistic) for each in fitting.statistics for statistic in each.values()]
    assert kept.count(ClassMoments) == 2  # of plain and of rectified features
    assert kept.count(RowSample) == 1
    other = Fitting(parse("knn(5) + knn(5, alpha=0.5) + knn(5, seed=1)"))
    assert [bool(each) for each in other.statistics] == [True, True, True]


def test_sharing_changes_no_score() -> None:
    known, test = blobs(300), blobs(50, seed=1)
    apart = hidden(known)
    made = offmap.detector(
        "mahalanobis + rmds + knn(5) + react(90)|knn(3) + react(90)|react(80)|knn(3) + react(90)|mahalanobis"
    )
    for _ in made.readings():
        for block in known.blocks(70):
            made.update(block)
    fitting = made.fitted
    found = [alone.numpy() for alone in _terms(made, test).values()]
    for term, values in zip(made.terms, found, strict=True):
        alone = offmap.detector(term.chain).fit(known[~apart])
        np.testing.assert_allclose(values, alone.score(test), rtol=1e-5, atol=1e-5, err_msg=term.chain)
    assert fitting.held_out is None


def _terms(made: offmap.Detector, acts: offmap.Activations) -> dict[int, torch.Tensor]:
    from offmap.detection.batch import ActivationBatch

    with torch.no_grad():
        return made.fitted.score_terms(ActivationBatch.of(acts, made.fitted.tensor_head("cpu")))


def test_shared_shapers_run_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    known, test = blobs(), blobs(30, seed=1)
    made = offmap.detector("react(90)|(energy + msp + maxlogit) + react(90)|dice(0.7)|energy").fit(known)
    calls = []
    shape = ReAct.shape
    monkeypatch.setattr(ReAct, "shape", lambda self, batch, ready: (calls.append(1), shape(self, batch, ready))[1])
    made.score(test)
    assert len(calls) == 1


# Streaming, files, passes


def test_blocks_shards_and_order_set_the_same_inputs_aside(tmp_path: Path) -> None:
    known, test = blobs(500), blobs(40, seed=1)
    spec = "knn(5) + energy"
    whole = offmap.detector(spec).fit(known).score(test)
    mixed = known[np.random.default_rng(0).permutation(len(known))]
    np.testing.assert_allclose(offmap.detector(spec).fit(mixed).score(test), whole, rtol=1e-9)
    parts = [offmap.detector(spec).update(known[part]) for part in (slice(0, 7), slice(7, 350), slice(350, 500))]
    joined = offmap.detector(spec)
    for part in reversed(parts):
        part.save(tmp_path / "part.offmap")
        joined.merge(offmap.load(tmp_path / "part.offmap"))
    np.testing.assert_allclose(joined.finalize().score(test), whole, rtol=1e-9)


def test_a_file_holds_no_inputs_but_those_of_banks(tmp_path: Path) -> None:
    made = offmap.detector("energy + msp").fit(blobs(500))
    made.save(tmp_path / "guard.offmap")
    assert (tmp_path / "guard.offmap").stat().st_size < 5000


def test_files_of_single_scores_keep_their_form(tmp_path: Path) -> None:
    from offmap import store

    offmap.detector("react(90)|energy").fit(blobs()).save(tmp_path / "one.offmap")
    stored = store.load(tmp_path / "one.offmap")
    assert set(stored.tensors) == {"0/state/c", "head/weight", "head/bias"}
    older = {**stored.config, "fitting": {k: v for k, v in stored.config["fitting"].items() if k != "refining"}}
    store.save(tmp_path / "old.offmap", "detector", older, stored.tensors)
    assert offmap.load(tmp_path / "old.offmap").is_fitted


def test_a_pass_known_only_after_fitting_takes_one_more_reading() -> None:
    """mahalanobis(epsilon) steps towards fitted means: its pass can be extracted once they are there."""
    world = World()
    made = offmap.detector("mahalanobis(epsilon=0.01) + energy")
    readings = []
    for requirements in made.readings():
        readings.append(requirements.describe())
        acts = world.acts("known", requirements)
        for start in (0, 120):
            made.update(acts[start : start + 120])
    assert len(readings) == 2
    assert "perturbed" in readings[1]
    assert "perturbed" not in readings[0]
    test = world.acts("test", made.requirements)
    apart = hidden(world.acts("known"))
    alone = offmap.detector("mahalanobis(epsilon=0.01)").fit(world.acts("known")[~apart])
    np.testing.assert_allclose(
        _view_scores(made, test), alone.score(world.acts("test", alone.requirements)), rtol=1e-4, atol=1e-4
    )
    plain = world.acts("known")
    with pytest.raises(MissingError, match=r"lack 'perturbed.*requirements=detector.requirements"):
        offmap.detector("mahalanobis(epsilon=0.01) + energy").fit(plain)


def _view_scores(made: offmap.Detector, acts: offmap.Activations) -> np.ndarray:
    from offmap.detection.batch import ActivationBatch

    with torch.no_grad():
        batch = ActivationBatch.of(acts, made.fitted.tensor_head("cpu"), extras=tuple(acts.extras))
        return made.fitted.score_terms(batch)[0].numpy()


def test_readings_are_as_many_as_the_slowest_term_takes() -> None:
    known = blobs(200)
    for spec, expected in {
        "energy + msp": 1,
        "knn(5) + mahalanobis + vim(2)": 1,
        "react(90)|energy + knn(5)": 2,  # the percentile exactly
        "react(90)|knn(5) + msp": 2,
        "react(90)|mahalanobis + knn(5)": 3,
        "react(90)|mahalanobis + react(80)|mahalanobis": 3,
    }.items():
        made = offmap.detector(spec)
        count = 0
        for _ in made.readings():
            count += 1
            made.update(known)
        assert (count, made.is_fitted) == (expected, True), spec


def test_merging_parts_of_different_readings_is_refused() -> None:
    known = blobs(200)
    made = offmap.detector("react(90)|energy + knn(5)")
    readings = made.readings()
    next(readings)
    early = copy.deepcopy(made.update(known))
    next(readings)
    with pytest.raises(InputError, match="ended a reading"):
        made.merge(early)


def test_autos_are_chosen_in_each_term() -> None:
    known, val = blobs(200), blobs(60, seed=1)
    noise = offmap.Activations(np.random.default_rng(0).random((60, 6)).astype(np.float32) * 9, known.head)
    made = offmap.detector("react(auto)|energy + knn(auto)").fit(known, val=val, outliers=noise)
    alone = [offmap.detector(spec).fit(known, val=val, outliers=noise) for spec in ("react(auto)|energy", "knn(auto)")]
    assert made.chosen == " + ".join(one.chosen for one in alone)
    assert made.trials == alone[0].trials + alone[1].trials
    with pytest.raises(InputError, match="auto is chosen from known inputs in hand"):
        offmap.detector("react(auto)|energy + msp").update(known)


# Bad input


def test_a_term_that_lacks_what_it_reads_is_named() -> None:
    known = blobs(100)
    with pytest.raises(MissingError, match=r"^mahalanobis needs labels: pass labels"):
        offmap.detector("energy + mahalanobis").fit(rebuilt(known, labels=None))
    with pytest.raises(MissingError, match=r"^knn\(5\) needs features"):
        offmap.detector("energy + knn(5)").fit(rebuilt(known, features=None, logits=known.logits))
    with pytest.raises(MissingError, match=r"^energy needs logits"):
        offmap.detector("knn(5) + energy").fit(rebuilt(known, head=None))
    made = offmap.detector("knn(5) + energy").fit(known)
    with pytest.raises(MissingError, match=r"^knn\(5\) needs features"):
        made.score(rebuilt(known, features=None, logits=known.logits))


def test_a_constant_score_is_dropped_with_a_warning(tmp_path: Path) -> None:
    known, test = blobs(300), blobs(40, seed=1)
    flat = rebuilt(known, head=offmap.Head(np.zeros((3, 6)), np.arange(3)))
    made = offmap.detector("knn(5) + energy")
    with pytest.warns(OffmapWarning, match=r"^energy: the same for all held-out known inputs.*left out of knn"):
        made.fit(flat)
    moved = rebuilt(test, head=None, logits=1e30 * test.logits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = made.score(moved)
    alone = offmap.detector("knn(5)").fit(known[~hidden(known)])
    assert np.corrcoef(scores, alone.score(test))[0, 1] == pytest.approx(1)
    made.save(tmp_path / "g.offmap")
    np.testing.assert_array_equal(offmap.load(tmp_path / "g.offmap").score(moved), scores)
    with pytest.raises(InputError, match="none of its scores varies"):
        offmap.detector("energy + msp").fit(flat)


def test_infinite_scores_do_not_make_nan() -> None:
    known = blobs(200)
    made = offmap.detector("knn(5) + energy").fit(known)
    nowhere = offmap.Activations(np.zeros((1, 6), np.float32), known.head)
    assert np.isneginf(offmap.detector("knn(5)").fit(known).score(nowhere)).all()
    assert made.score(nowhere) < made.score(known).min()
    assert np.isfinite(made.score(nowhere)).all()


class _Broken(Score):
    """Not a number for some."""

    name = "broken"
    paper = "none"
    reads = ("features",)

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return block.features[:, 0].log()


@pytest.fixture(scope="module")
def broken() -> Iterator[str]:
    """The name of a registered score that is NaN where the first feature is negative."""
    made = register(_Broken)
    yield made.name
    METHODS.remove(made.name)


@pytest.mark.parametrize("combine", sorted(COMBINATIONS))
def test_nan_never_comes_out(combine: str, broken: str) -> None:
    whole = blobs(200)
    known, negative = (rebuilt(whole, features=whole.features + shift) for shift in (1, -3))
    assert not np.isnan(offmap.detector("energy + 0.5*msp", combine).fit(known).score(known)).any()
    made = offmap.detector(f"energy + {broken}", combine).fit(known)
    assert not np.isnan(made.score(known)).any()
    with pytest.raises(InputError, match="gives no number"):
        made.score(negative)
    with pytest.raises(InputError, match="broken gives no number for some held-out inputs"):
        offmap.detector(f"energy + {broken}", combine).fit(negative)


def test_few_and_equal_inputs_are_defined() -> None:
    known = blobs(20)
    made = offmap.detector("energy + knn(3)").fit(known)
    assert np.isfinite(made.score(known)).all()
    one = known[np.zeros(50, int)]
    with pytest.raises(InputError, match=r"none of its scores varies|set aside"):
        offmap.detector("energy + mahalanobis(shrinkage=0.5)").fit(one)


def test_y_gives_the_classes_of_rows_and_is_refused_beside_activations() -> None:
    known = blobs(50)
    assert known.labels is not None
    names = np.array(["ant", "bee", "cat", "dog", "emu"])[known.labels % 5]
    by_name = Mahalanobis().fit(known.features, y=names)
    by_number = Mahalanobis().fit(offmap.Activations(known.features, labels=known.labels % 5))
    np.testing.assert_array_equal(by_name.score(known.features), by_number.score(known.features))
    with pytest.raises(InputError, match=r"Activations\(features, labels=y\).*val="):
        offmap.detector("knn(5)").fit(known, known.labels)
    with pytest.raises(InputError, match=r"given by name, fit\(known, val="):
        offmap.detector("knn(5)").fit(known.features, known.features)


def test_clone_and_set_params_as_scikit_learn_uses_them() -> None:
    from sklearn.base import clone

    known = blobs(50)
    made = offmap.detector("react(90)|knn(5) + 0.5*react(90)|energy").fit(known)
    copy = clone(made)
    assert repr(copy) == repr(made)
    assert not copy.is_fitted
    assert made.is_fitted
    copy.set_params(react__percentile=95, knn__k=2, weights=(1, 2))
    assert repr(copy) == "react(95)|knn(2) + 2*react(95)|energy"
    assert copy.get_params()["knn__k"] == 2
    np.testing.assert_array_equal(
        copy.fit(known).score(known), offmap.detector("react(95)|knn(2) + 2*react(95)|energy").fit(known).score(known)
    )
    assert not made.set_params(knn__k=3).is_fitted
    twice = offmap.detector("react(90)|react(80)|energy").set_params(**{"react-2__percentile": 70})
    assert repr(twice) == "react(90)|react(70)|energy"
    for wrong in ({"knn__radius": 1}, {"weights": (1.0,)}, {"knn__k": -1}):
        with pytest.raises(InputError):
            offmap.detector("knn(5) + energy").set_params(**wrong)
