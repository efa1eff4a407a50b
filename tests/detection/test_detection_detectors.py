"""Detectors as a whole: composition, readings, merging, what is refused, what is saved."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from detection_zoo import World, blobs, rebuilt

import offmap
from offmap import DICE, KNN, Energy, Mahalanobis, ReAct, store
from offmap.detection import Detector, Score, Shaper
from offmap.errors import InputError, MissingError, NotFittedError, StoreError


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_classes_compose_like_their_text() -> None:
    composed = ReAct(90) | DICE(0.7) | Energy()
    assert isinstance(composed, Detector)
    assert composed.components == offmap.detector("react(90)|dice(0.7)|energy").components
    chain = ReAct(90) | DICE(0.7)
    assert repr(chain) == "react(90)|dice(0.7)"
    assert repr(chain | Energy(2.0)) == "react(90)|dice(0.7)|energy(temperature=2.0)"
    assert repr(ReAct(95) | offmap.detector("dice(0.5)|energy")) == "react(95)|dice(0.5)|energy"
    assert repr(offmap.detector(Energy())) == "energy"
    assert repr(Mahalanobis().fit(blobs())) == "mahalanobis"
    with pytest.raises(TypeError):
        chain | 3
    with pytest.raises(TypeError):
        Energy() | ReAct(90)


def test_a_detector_made_from_another_is_unfitted() -> None:
    fitted = offmap.detector("knn(5)").fit(blobs())
    assert fitted.is_fitted
    assert not offmap.detector(fitted).is_fitted


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("dice(0.7)|knn(5)", "dice changes the head, but knn reads features only, so the shaper would do nothing"),
        ("temperature_scaling|mahalanobis", "changes the logits, but mahalanobis reads features only"),
        ("lts|react(90)|energy", "react computes the logits anew.*put lts after react"),
        ("temperature_scaling|dice(0.7)|energy", "put temperature_scaling after dice"),
        ("react(layer=a)|react(layer=b)|energy", "each ask for a pass of their own"),
        ("react(layer=a)|mahalanobis(epsilon=0.1)", "each ask for a pass of their own"),
        ("energy|energy", "energy is a score, and only the last part can be one"),
    ],
)
def test_pairs_that_make_no_sense_are_refused(spec: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        offmap.detector(spec)


def test_other_things_are_no_detectors() -> None:
    for wrong in (3, None, ReAct(90), b"energy", ["energy"]):
        with pytest.raises((InputError, TypeError)):
            offmap.detector(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ends in a score"):
        Detector([])


def test_the_second_reading_for_percentiles_doubles_nothing() -> None:
    known = blobs()
    made = offmap.detector("react(90)|dice(0.5)|energy").fit(known)
    made_knn = offmap.detector("react(90)|knn(7)").fit(known)
    c = np.percentile(known.features.astype(np.float64), 90)
    assert float(made_knn.states[0]["c"]) == pytest.approx(c, rel=1e-12)
    assert len(made_knn.states[1]["vectors"]) == len(known)
    clipped = np.minimum(known.features, np.float32(c))
    unit = clipped / np.linalg.norm(clipped, axis=1, keepdims=True)
    test = blobs(20, seed=1)
    queries = np.minimum(test.features, np.float32(c))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    kth = [np.sort([np.linalg.norm(q - b) for b in unit])[6] for q in queries]
    np.testing.assert_allclose(made_knn.score(test), -np.array(kth), rtol=1e-4, atol=1e-6)
    assert made.is_fitted


def test_dice_after_react_takes_unclipped_activations() -> None:
    known = blobs()
    alone = offmap.detector("dice(0.5)|energy").fit(known)
    after = offmap.detector("react(50)|dice(0.5)|energy").fit(known)
    assert torch.equal(alone.states[0]["mask"], after.states[1]["mask"])


def test_two_shapers_of_a_kind_are_fitted_one_after_the_other() -> None:
    known = blobs()
    made = offmap.detector("react(90)|react(80)|energy").fit(known)
    first = np.percentile(known.features.astype(np.float64), 90)
    clipped = np.minimum(known.features, np.float32(first))
    second = np.percentile(clipped.astype(np.float64), 80)
    assert [float(state["c"]) for state in made.states[:2]] == pytest.approx([first, second], rel=1e-6)
    assert made.get_params()["react-1__percentile"] == 90
    assert made.get_params()["react-2__percentile"] == 80
    twice = offmap.detector("dice(0.5)|dice(0.9)|energy").fit(known)
    masks = [state["mask"] for state in twice.states[:2]]
    assert bool((masks[0] & masks[1]).equal(masks[1])), "the stricter mask is inside the other"


def test_what_streams_twice_says_so() -> None:
    known = blobs()
    made = offmap.detector("react(90)|mahalanobis").update(known[:60]).update(known[60:]).finalize()
    assert not made.is_fitted
    with pytest.raises(NotFittedError, match="read the data once more"):
        made.score(known)
    with pytest.raises(NotFittedError, match="nothing was seen"):
        made.finalize()
    made.update(known).finalize()
    assert made.is_fitted
    exact = offmap.detector("react(90)|mahalanobis").fit(known)
    np.testing.assert_allclose(made.score(known), exact.score(known), rtol=2e-3)


def test_rows_kept_are_not_doubled_by_shards_of_the_second_reading() -> None:
    known = blobs()
    whole = offmap.detector("react(90)|react(80)|knn(5)").update(known).finalize()
    assert not whole.is_fitted
    shards = [copy.deepcopy(whole).update(part) for part in (known[:50], known[50:])]
    merged = shards[0].merge(shards[1]).finalize()
    assert merged.is_fitted
    assert len(merged.states[2]["vectors"]) == len(known)


def test_merging_minds_kind_head_width_and_reading() -> None:
    known = blobs()
    started = offmap.detector("dice(0.5)|energy").update(known)
    with pytest.raises(InputError, match="same text form"):
        started.merge(offmap.detector("dice(0.6)|energy").update(known))
    other_head = offmap.Head(known.head.weight + 1, known.head.bias)
    with pytest.raises(InputError, match="heads differ"):
        started.merge(offmap.detector("dice(0.5)|energy").update(rebuilt(known, head=other_head)))
    with pytest.raises(InputError, match="another head"):
        started.update(rebuilt(known, head=other_head))
    with pytest.raises(InputError, match="same network"):
        started.merge(offmap.detector("dice(0.5)|energy").update(blobs(width=7)))
    half = offmap.detector("react(90)|mahalanobis").update(known)
    done = offmap.detector("react(90)|mahalanobis").update(known).finalize()
    with pytest.raises(InputError, match="one has ended a reading"):
        half.merge(done)
    assert offmap.detector("energy(2)").merge(offmap.detector("energy(2.0)")) is not None
    empty = offmap.detector("dice(0.5)|energy")
    before = len(started.states)
    assert len(started.merge(empty).states) == before
    taken = empty.merge(started)
    started.update(known)
    assert taken.finalize().is_fitted, "what was taken over is a copy"


def test_a_bad_block_leaves_no_trace() -> None:
    known = blobs()
    clean = offmap.detector("dice(0.5)|energy").update(known).finalize()
    tried = offmap.detector("dice(0.5)|energy")
    spoilt = rebuilt(known, features=np.where(np.arange(6) == 2, np.nan, known.features))
    with pytest.raises(InputError, match="row 0"):
        tried.update(spoilt)
    tried.update(known).finalize()
    assert np.array_equal(tried.score(known), clean.score(known))
    mixed = offmap.detector("she").update(known[:30])
    with pytest.raises(InputError, match="labels"):
        mixed.update(rebuilt(known[30:60], labels=np.full(30, -1)))
    mixed.update(known[30:]).finalize()
    np.testing.assert_allclose(mixed.score(known), offmap.detector("she").fit(known).score(known), rtol=1e-6)


def test_nan_is_found_wherever_it_is() -> None:
    known = blobs(500)
    made = offmap.detector("energy").fit(known)
    features = known.features.copy()
    features[321, 4] = np.inf
    with pytest.raises(InputError, match="row 321"):
        made.score(rebuilt(known, features=features))


def test_overflow_in_the_head_is_no_nan() -> None:
    known = blobs()
    known = rebuilt(known, head=offmap.Head(np.abs(known.head.weight) + 1, known.head.bias))
    for spec in ("msp", "entropy", "gen", "gradnorm", "kl_matching"):
        made = offmap.detector(spec).fit(known)
        with pytest.raises(InputError, match="too large for float32"):
            made.score(np.full((2, 6), 3e38, dtype=np.float32))


def test_react_needs_no_head_where_no_logits_are_read() -> None:
    known = blobs()
    bare = offmap.Activations(known.features)
    np.testing.assert_allclose(
        offmap.detector("react(90)|knn(5)").fit(bare).score(bare),
        offmap.detector("react(90)|knn(5)").fit(known).score(known),
    )
    with pytest.raises(MissingError, match=r"react\(90\) needs head|energy needs logits"):
        offmap.detector("react(90)|energy").fit(bare)
    given = offmap.Activations(known.features, logits=known.logits)
    with pytest.raises(MissingError, match="needs head"):
        offmap.detector("react(90)|energy").fit(given)


def test_the_head_of_fitting_serves_scoring() -> None:
    known, test = blobs(), blobs(20, seed=1)
    for spec in ("react(90)|energy", "fdbd", "vim", "msp"):
        made = offmap.detector(spec).fit(known)
        np.testing.assert_allclose(made.score(test.features), made.score(test))
        np.testing.assert_allclose(made.score(torch.from_numpy(test.features)), made.score(test))


def test_needs_before_and_after() -> None:
    made = offmap.detector("react(90)|mahalanobis")
    assert made.requirements.describe() == "features, labels"
    assert made.fit(blobs()).requirements.describe() == "features"
    assert offmap.detector("mc_dropout(5)").requirements.describe() == "passes(5,0)/logits".removesuffix("/logits")
    inner = offmap.detector("react(90, layer='features.5')|energy")
    assert "layer(features.5,sketch)" in inner.requirements.describe()


def test_an_inner_layer_is_fitted_in_two_extractions(world: World) -> None:
    """First the layer's activations for the threshold, then the cut pass for the score behind it."""
    for spec in ("react(90, layer='features.5')|mahalanobis", "react(90, layer='features.5')|knn(5)"):
        made = offmap.detector(spec)
        made.update(world.acts("known", made.requirements)).finalize()
        assert not made.is_fitted
        assert "clamp" in made.requirements.describe(), made.requirements.describe()
        cut = world.acts("known", made.requirements)
        made.update(cut).finalize()
        assert made.is_fitted
        pass_name = next(name for name in cut.extras if name.endswith("/features"))
        plain = offmap.detector(spec.split("|")[1]).fit(
            offmap.Activations(cut.extras[pass_name], cut.head, labels=cut.labels)
        )
        test = world.acts("test", made.requirements)
        np.testing.assert_allclose(
            made.score(test), plain.score(offmap.Activations(test.extras[pass_name], cut.head)), rtol=1e-5, atol=1e-7
        )


def test_missing_extras_name_the_call(world: World) -> None:
    made = offmap.detector("react(90, layer='features.5')|energy")
    with pytest.raises(MissingError, match=r"net\.extract\(loader, requirements=detector\.requirements\)"):
        made.fit(world.acts("known"))


def test_perturbed_mahalanobis_behind_a_shaper(world: World) -> None:
    made = offmap.detector("react(90)|mahalanobis(epsilon=0.05)")
    made.fit(world.acts("known", made.requirements))
    plain = offmap.detector("react(90)|mahalanobis").fit(world.acts("known"))
    test = world.acts("test", made.requirements)
    assert made.score(test).mean() > plain.score(test).mean(), "the step goes towards the nearest class"


def test_saved_auto_keeps_its_trials(tmp_path: Path) -> None:
    known, val = blobs(), blobs(40, seed=1)
    noise = offmap.Activations(np.abs(np.random.default_rng(0).normal(size=(40, 6))) * 9, known.head)
    made = offmap.detector("knn(auto)").fit(known, val=val, outliers=noise)
    made.save(tmp_path / "a.offmap")
    back = offmap.load(tmp_path / "a.offmap")
    assert (repr(back), back.chosen, back.trials) == ("knn(auto)", made.chosen, made.trials)
    assert np.array_equal(back.score(val), made.score(val))


def test_files_that_hold_half_a_detector_are_refused(tmp_path: Path) -> None:
    made = offmap.detector("react(90)|mahalanobis").fit(blobs())
    file = tmp_path / "a.offmap"
    made.save(file)
    stored = store.load(file)
    for name in stored.config:
        config = {key: value for key, value in stored.config.items() if key != name}
        store.save(file, stored.kind, config, stored.tensors)
        with pytest.raises(StoreError, match="not a whole detector"):
            offmap.load(file)
    store.save(file, stored.kind, stored.config | {"spec": "nosuch|energy"}, stored.tensors)
    with pytest.raises(InputError, match="no method 'nosuch'"):
        offmap.load(file)
    store.save(file, stored.kind, stored.config | {"spec": "__import__('os')|energy"}, stored.tensors)
    with pytest.raises(InputError):
        offmap.load(file)
    store.save(file, "something", {}, {})
    with pytest.raises(StoreError, match="does not read"):
        offmap.load(file)
    with pytest.raises(StoreError, match="no such file"):
        offmap.load(tmp_path / "absent")


def test_an_unfitted_detector_saves_and_loads(tmp_path: Path) -> None:
    offmap.detector("react(90)|energy").save(tmp_path / "a.offmap")
    back = offmap.load(tmp_path / "a.offmap")
    assert repr(back) == "react(90)|energy"
    assert not back.is_fitted
    assert back.fit(blobs()).is_fitted


def test_public_names() -> None:
    assert issubclass(offmap.ReAct, Shaper)
    assert issubclass(offmap.MSP, Score)
    assert repr(KNN(5)) == "knn(5)"
    assert "Detector" in dir(offmap)
    with pytest.raises(AttributeError, match="NoSuchMethod"):
        offmap.NoSuchMethod  # noqa: B018 - looking it up is the test
    with pytest.raises(AttributeError):
        offmap.nosuch  # noqa: B018 - looking it up is the test


def test_works_on_any_device_name_torch_knows() -> None:
    known = blobs()
    for spec in ("react(90)|energy", "mahalanobis", "knn(5)"):
        made = offmap.detector(spec).fit(known, device="cpu")
        assert np.array_equal(made.score(known, device=torch.device("cpu")), made.score(known))
