"""What must hold for every method in the registry. Each check fails with a sentence that names the method."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from detection_zoo import World, mapped, rebuilt

import offmap
from offmap import MSP, Energy, activations
from offmap.detection import Detector, Score, Shaper
from offmap.detection.checks import list_required
from offmap.detection.quantiles import Quantile
from offmap.detection.spec import parse
from offmap.errors import InputError, MissingError, NotFittedError, OffmapError, StoreError

Check = Callable[[str, World, Path], None]
CHECKS: list[Check] = []

TOLERANCE = 1e-5  # relative: the same input in another batch
JOINED = 1e-6  # relative: the same data in other blocks, summed in another order
STREAMED = 2e-3  # relative: percentiles from one reading are good to 6e-5 of the threshold


def check(function: Check) -> Check:
    """Add to the list."""
    CHECKS.append(function)
    return function


def assert_close(got: np.ndarray, wanted: np.ndarray, tolerance: float, sentence: str) -> None:
    """Equal up to a share of the value and of the spread of all values, or the sentence."""
    finite = np.isfinite(wanted)
    scale = np.abs(wanted[finite]) + (wanted[finite].std() if finite.any() else 0)
    same = np.array_equal(got[~finite], wanted[~finite]) and bool(
        (np.abs(got[finite] - wanted[finite]) <= tolerance * scale + 1e-12).all()
    )
    if not same:
        worst = np.abs(got[finite] - wanted[finite]).max() if finite.any() else np.nan
        raise AssertionError(f"{sentence} (largest difference {worst:.3g} in scores like {wanted[:3]})")


def scored(made: Detector, acts: offmap.Activations) -> np.ndarray:
    """Scores after the promises that hold for every array of scores."""
    scores = made.score(acts)
    assert isinstance(scores, np.ndarray), f"{made}: score gives {type(scores).__name__}, not an array"
    assert scores.dtype == np.float64, f"{made}: score gives {scores.dtype}, not float64"
    assert scores.shape == (len(acts),), f"{made}: {scores.shape} scores for {len(acts)} inputs"
    assert not np.isnan(scores).any(), f"{made}: score gives NaN"
    return scores


def outcome(act: Callable[[], np.ndarray], sentence: str) -> np.ndarray | str:
    """Scores without NaN, or the words of an error that offmap raises on purpose; anything else is a fault."""
    try:
        scores = act()
    except OffmapError as error:
        if " " not in str(error):
            raise AssertionError(f"{sentence}: an error without a sentence: {error!r}") from error
        return str(error)
    except Exception as error:
        raise AssertionError(
            f"{sentence}: raises {type(error).__name__} ({error}), not one of offmap.errors"
        ) from error
    assert not np.isnan(scores).any(), f"{sentence}: gives NaN"
    return scores


def refused(act: Callable[[], Any], kind: type[OffmapError], sentence: str) -> str:
    """The message of the error that must come."""
    try:
        act()
    except kind as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{sentence}: raises {type(error).__name__} ({error}), not {kind.__name__}") from error
    raise AssertionError(f"{sentence}: nothing is refused")


def learns(made: Detector) -> bool:
    """Whether fitting reads inputs."""
    return len(made.terms) > 1 or any(component.statistics() for component in made.components)


def streamed(spec: str, parts: list[list[offmap.Activations]]) -> Detector:
    """Fitted by shards, each a list of blocks, merged at the end of every reading."""
    whole = offmap.detector(spec)
    while not whole.is_fitted:
        shards = [copy.deepcopy(whole) for _ in parts]
        for shard, blocks in zip(shards, parts, strict=True):
            for block in blocks:
                shard.update(block)
        whole = shards[0]
        for shard in shards[1:]:
            whole.merge(shard)
        whole.finalize()
    return whole


@check
def declares_itself(spec: str, world: World, folder: Path) -> None:
    for component in offmap.detector(spec).components:
        kind, name = type(component), component.name
        assert (kind.__doc__ or "").strip(), f"{name}: no docstring that says what it does"
        assert component.paper, f"{name}: `paper` does not say where the method comes from"
        words = {"features", "logits", "head"}
        assert set(component.reads) <= words, f"{name}: reads {component.reads}, but there is only {sorted(words)}"
        assert set(component.fits) <= words | {"labels"}, (
            f"{name}: fits {component.fits}; labels is the only other word"
        )
        assert not component.statistics() or component.fits, (
            f"{name}: it has statistics, but `fits` does not say what they are made from"
        )
        for field in component.grid:
            assert hasattr(component, field), f"{name}: the grid names {field}, which is no parameter"
        if isinstance(component, Score) and "logits" in component.reads:
            assert component.invariant_to_shift is not None, (
                f"{name}: reads logits; say in `invariant_to_shift` what adding a constant to all of them does"
            )
        if isinstance(component, Shaper):
            assert component.shapes in ("features", "head", "logits"), f"{name}: shapes {component.shapes!r}"


@check
def text_goes_round(spec: str, world: World, folder: Path) -> None:
    made = offmap.detector(spec)
    again = offmap.detector(repr(made))
    assert again.plan == made.plan, f"{spec}: its text {made!r} reads as {again.plan}"
    assert repr(again) == repr(made), f"{spec}: the text of its text is another: {again!r}"
    declared = [field.name for component in made.components for field in fields(component)]
    params = [name.split("__")[1] for name in made.get_params() if "__" in name]
    assert params == declared, f"{spec}: get_params() gives {params}, the parameters are {declared}"
    assert parse(spec) == parse(spec), f"{spec}: equal parameters are not equal"
    assert len({made.plan, again.plan}) == 1, f"{spec}: equal parameters hash differently"


@check
def same_data_same_bits(spec: str, world: World, folder: Path) -> None:
    one, test = world.fitted(spec, fresh=True)
    other, _ = world.fitted(spec, fresh=True)
    assert np.array_equal(scored(one, test), scored(other, test)), f"{spec}: two fits of the same data differ"
    assert np.array_equal(one.score_samples(test), one.score(test)), f"{spec}: two scorings of the same data differ"


@check
def leaves_its_input_alone(spec: str, world: World, folder: Path) -> None:
    made = offmap.detector(spec)
    known = mapped(world.acts("known", made.requirements), np.array)
    before = mapped(known, np.array)
    made.fit(known)
    made.score(mapped(world.acts("test", made.requirements), lambda a: a))
    for name, array in known._arrays().items():
        assert np.array_equal(array, before._arrays()[name]), f"{spec}: fitting changes the given {name}"


@check
def blocks_do_not_matter(spec: str, world: World, folder: Path) -> None:
    whole, test = world.fitted(spec)
    usual = activations.BLOCK_BYTES
    activations.BLOCK_BYTES = 1  # blocks of 64 rows
    try:
        cut, _ = world.fitted(spec, fresh=True)
    finally:
        activations.BLOCK_BYTES = usual
    assert_close(cut.score(test), whole.score(test), JOINED, f"{spec}: fit in small blocks differs from fit in one go")


@check
def streams_and_shards_agree(spec: str, world: World, folder: Path) -> None:
    whole, test = world.fitted(spec)
    known = world.acts("known", offmap.detector(spec).requirements)
    percentiles = any(
        isinstance(statistic, Quantile)
        for component in whole.components
        for statistic in component.statistics().values()
    )
    one_by_one = streamed(spec, [[known[start : start + 33] for start in range(0, len(known), 33)]])
    shards = streamed(spec, [[known[150:], known[:0]], [], [known[:20], known[20:70]], [known[70:150]]])
    tolerance = STREAMED if percentiles else JOINED
    assert_close(
        one_by_one.score(test), whole.score(test), tolerance, f"{spec}: fit in blocks differs from fit in one go"
    )
    assert_close(
        shards.score(test), one_by_one.score(test), JOINED, f"{spec}: shards merged differ from one stream of blocks"
    )


@check
def comes_back_from_a_file(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    made.calibrate(test, tpr=0.9).save(folder / "a.offmap")
    back = offmap.load(folder / "a.offmap")
    assert repr(back) == repr(made), f"{spec}: comes back from a file as {back!r}"
    assert np.array_equal(back.score(test), made.score(test)), f"{spec}: scores differ after save and load"
    assert back.threshold == made.threshold, f"{spec}: the threshold is lost in the file"
    assert np.array_equal(back.predict(test), made.predict(test)), f"{spec}: verdicts differ after save and load"
    assert back.requirements.describe() == made.requirements.describe(), f"{spec}: needs differ after save and load"
    back.save(folder / "b.offmap")
    same = (folder / "a.offmap").read_bytes() == (folder / "b.offmap").read_bytes()
    assert same, f"{spec}: saving what was loaded gives another file"


@check
def comes_back_half_way(spec: str, world: World, folder: Path) -> None:
    made = offmap.detector(spec)
    known = world.acts("known", made.requirements)
    straight = streamed(spec, [[known[:90], known[90:]]])
    broken = offmap.detector(spec)
    while not broken.is_fitted:
        broken.update(known[:90]).save(folder / "half.offmap")
        broken = offmap.load(folder / "half.offmap").update(known[90:])
        broken.save(folder / "half.offmap")
        broken = offmap.load(folder / "half.offmap").finalize()
    test = world.acts("test", straight.requirements)
    assert np.array_equal(broken.score(test), straight.score(test)), (
        f"{spec}: a detector saved in the middle of its data goes on differently"
    )


@check
def damaged_files_are_refused(spec: str, world: World, folder: Path) -> None:
    made, _ = world.fitted(spec)
    file = folder / "whole.offmap"
    made.save(file)
    content = file.read_bytes()
    for name, damaged in {
        "cut in the middle": content[: len(content) // 2],
        "less its last byte": content[:-1],
        "with its last byte changed": content[:-1] + bytes([content[-1] ^ 1]),
        "with a byte too many": content + b"\0",
    }.items():
        file.write_bytes(damaged)
        refused(lambda: offmap.load(file), StoreError, f"{spec}: a file {name}")


@check
def batches_do_not_matter(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    whole = scored(made, test)
    for size in (1, 7):
        parts = np.concatenate([made.score(part) for part in test.blocks(size)])
        assert_close(parts, whole, TOLERANCE, f"{spec}: scores depend on the batch: in batches of {size} they differ")
    mixed = np.random.default_rng(0).permutation(len(test))
    assert_close(made.score(test[mixed]), whole[mixed], TOLERANCE, f"{spec}: scores depend on the order of inputs")


@check
def shifted_logits(spec: str, world: World, folder: Path) -> None:
    if len(offmap.detector(spec).terms) > 1:
        for term in offmap.detector(spec).terms:
            shifted_logits(term.chain, world, folder)
        return
    *shapers, score = offmap.detector(spec).components
    cases = [Detector((*shapers, MSP()))] if shapers else [Detector((score,))]
    if shapers and shapers[-1].shapes != "logits":
        cases.append(Detector((*shapers, Energy())))
    for made in cases:
        declared = made.components[-1].invariant_to_shift
        scores = []
        for shift in (0.0, 7.0):
            fitted = Detector(made.components)
            fitted.fit(_shifted(world.acts("known", fitted.requirements), shift))
            scores.append(fitted.score(_shifted(world.acts("test", fitted.requirements), shift)))
        if shapers and not declared:  # the bias goes through any change of features or weights
            scores[0], declared = scores[0] + 7.0, True
        if declared is False:
            moved = not np.allclose(scores[0], scores[1], rtol=1e-3)
            assert moved, f"{made}: says it is not invariant to a shift of the logits, but is"
        elif declared or not {"logits", "head"} & {*score.reads, *score.fits}:
            sentence = f"{made}: a constant added to all logits does not do what `invariant_to_shift` says"
            assert_close(scores[1], scores[0], 10 * TOLERANCE, sentence)  # float32 logits lose a digit to it


def _shifted(acts: offmap.Activations, shift: float) -> offmap.Activations:
    assert acts.head is not None
    extras = {name: array + shift if name.endswith("/logits") else array for name, array in acts.extras.items()}
    return rebuilt(acts, head=offmap.Head(acts.head.weight, acts.head.bias + shift), extras=extras)


@check
def unfitted_use_is_refused(spec: str, world: World, folder: Path) -> None:
    made = offmap.detector(spec)
    test = world.acts("test", made.requirements)
    message = refused(lambda: made.score(test), NotFittedError, f"{spec}: scoring before fitting")
    assert "fit" in message, f"{spec}: {message!r} does not say to fit"
    refused(lambda: made.verdicts(test), NotFittedError, f"{spec}: verdicts before calibration")
    if len(made.terms) > 1 or any(component.fits for component in made.components):
        refused(made.finalize, NotFittedError, f"{spec}: finalize before any data")
    fitted, test = world.fitted(spec, fresh=True)
    refused(lambda: fitted.predict(test), NotFittedError, f"{spec}: predictions before calibration")


@check
def missing_parts_are_named(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    known = world.acts("known", offmap.detector(spec).requirements)
    ways = {
        "features": lambda acts: rebuilt(acts, features=None, logits=acts.logits),
        "logits": lambda acts: rebuilt(acts, head=None),
        "head": lambda acts: rebuilt(acts, head=None, logits=acts.logits),
        "labels": lambda acts: rebuilt(acts, labels=None),
    }
    for word, without in ways.items():
        if word in list_required(made.plan.chains, fitting=True):
            poor = without(known)
            message = refused(
                lambda poor=poor: offmap.detector(spec).fit(poor), MissingError, f"{spec}: fit without {word}"
            )
            assert "pass" in message, f"{spec}: {message!r} does not say how to give {word}"
    if "features" in list_required(made.plan.chains, fitting=False):
        refused(lambda: made.score(ways["features"](test)), MissingError, f"{spec}: scoring without features")
    if made.requirements.extras:
        message = refused(
            lambda: made.score(rebuilt(test, extras={})), MissingError, f"{spec}: scoring without its extras"
        )
        assert "requirements=detector.requirements" in message, (
            f"{spec}: {message!r} does not name the call that makes extras"
        )


@check
def wrong_widths_are_refused(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    narrower = rebuilt(test, features=test.features[:, :-1], head=None, logits=test.logits)
    message = refused(lambda: made.score(narrower), InputError, f"{spec}: one feature too few")
    assert str(narrower.features.shape[1]) in message, f"{spec}: {message!r} does not name the width"
    few = rebuilt(test, head=None, logits=test.logits[:, :-1])
    refused(lambda: made.score(few), InputError, f"{spec}: one logit too few")
    started = offmap.detector(spec).update(world.acts("known", offmap.detector(spec).requirements)[:50])
    if learns(started):
        refused(lambda: started.update(narrower), InputError, f"{spec}: another width in a later block")


@check
def bad_numbers_are_refused(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    known = world.acts("known", offmap.detector(spec).requirements)
    for value in (np.nan, np.inf, -np.inf):

        def spoil(array: np.ndarray, value: float = value) -> np.ndarray:
            spoilt = np.array(array)
            spoilt[3].reshape(-1)[0] = value
            return spoilt

        refused(lambda: made.score(mapped(test, spoil)), InputError, f"{spec}: scoring {value}")
        if learns(made):
            refused(lambda: offmap.detector(spec).fit(mapped(known, spoil)), InputError, f"{spec}: fit on {value}")


@check
def empty_input_is_defined(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    assert scored(made, test[:0]).shape == (0,), f"{spec}: no inputs, but scores"
    known = world.acts("known", offmap.detector(spec).requirements)
    refused(lambda: offmap.detector(spec).fit(known[:0]), InputError, f"{spec}: fit on nothing")
    if len(made.terms) > 1 or any(component.fits for component in made.components):
        started = offmap.detector(spec).update(known[:0])
        refused(started.finalize, NotFittedError, f"{spec}: finalize after an empty block")
    verdicts = made.calibrate(test, tpr=0.5).verdicts(test[:0])
    assert len(verdicts) == 0, f"{spec}: verdicts on nothing"


@check
def labels_are_minded(spec: str, world: World, folder: Path) -> None:
    made = offmap.detector(spec)
    known = world.acts("known", made.requirements)
    assert known.labels is not None
    fewer = known[known.labels != 2]
    fitted = offmap.detector(spec).fit(fewer)
    test = world.acts("test", fitted.requirements)
    outcome(lambda: fitted.score(test), f"{spec}: a class missing from the data")
    unlabelled = rebuilt(known, labels=np.full(len(known), -1))
    beyond = rebuilt(known, labels=np.full(len(known), 9))
    if "labels" in list_required(made.plan.chains, fitting=True):
        message = refused(lambda: offmap.detector(spec).fit(unlabelled), InputError, f"{spec}: labels of -1")
        assert "labels >= 0" in message, f"{spec}: {message!r} does not say how to leave out unlabelled inputs"
        refused(lambda: offmap.detector(spec).fit(beyond), InputError, f"{spec}: a label beyond the classes")
    else:
        for labels in (unlabelled, beyond):
            outcome(lambda labels=labels: offmap.detector(spec).fit(labels).score(test[:0]), f"{spec}: odd labels")


@check
def kinds_of_arrays_do_not_matter(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    whole = made.score(test)
    known = world.acts("known", offmap.detector(spec).requirements)

    def frozen(array: np.ndarray) -> np.ndarray:
        copied = array.copy()
        copied.flags.writeable = False
        return copied

    def strided(array: np.ndarray) -> np.ndarray:
        return np.repeat(array, 2, axis=-1)[..., ::2]

    ways: dict[str, Callable[[np.ndarray], Any]] = {
        "float64": lambda a: a.astype(np.float64),
        "read-only": frozen,
        "strided": strided,
        "column-major": np.asfortranarray,
        "a torch tensor": torch.from_numpy,
        "a torch tensor with gradients": lambda a: torch.from_numpy(a).requires_grad_(),
        "big-endian": lambda a: a.astype(">f4"),
    }
    for name, change in ways.items():
        sentence = f"{spec}: scores differ when activations are {name}"
        assert_close(made.score(mapped(test, change)), whole, TOLERANCE, sentence)
    for name in ("read-only", "a torch tensor"):
        refitted = offmap.detector(spec).fit(mapped(known, ways[name]))
        assert_close(refitted.score(test), whole, TOLERANCE, f"{spec}: fit differs when activations are {name}")
    half = mapped(test, lambda a: a.astype(np.float16))
    upcast = mapped(half, lambda a: a.astype(np.float32))
    assert_close(
        made.score(half), made.score(upcast), TOLERANCE, f"{spec}: float16 is not read as the numbers it holds"
    )
    given = rebuilt(test, logits=test.logits)
    assert_close(made.score(given), whole, TOLERANCE, f"{spec}: given logits score unlike those of the head")


@check
def strange_data_is_defined(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    known = world.acts("known", offmap.detector(spec).requirements)
    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "all zeros": np.zeros_like,
        "all the same": np.ones_like,
        "one row many times": lambda a: np.repeat(a[:1], len(a), axis=0),
        "negative": lambda a: -np.abs(a) - 1,
        "tiny": lambda a: a * np.float32(1e-30),
        "large": lambda a: a * np.float32(1e12),
        "huge": lambda a: a * np.float32(1e30),
        "half dead units": lambda a: a * (np.arange(a.shape[-1]) % 2).astype(np.float32),
    }
    for name, change in ways.items():
        outcome(lambda change=change: made.score(mapped(test, change)), f"{spec}: scoring what is {name}")

        def fitted(change: Any = change) -> np.ndarray:
            again = offmap.detector(spec).fit(mapped(known, change))
            return again.score(mapped(world.acts("test", again.requirements), change))

        if (
            not made.requirements.extras
            or made.requirements.describe() == offmap.detector(spec).requirements.describe()
        ):
            outcome(fitted, f"{spec}: fit on what is {name}")
    for rows in (1, 2, 3):
        outcome(lambda rows=rows: offmap.detector(spec).fit(known[:rows]).score(test[:3]), f"{spec}: fit on {rows}")
    assert known.head is not None
    single = offmap.Head(known.head.weight[:1], known.head.bias[:1])

    def one_class(acts: offmap.Activations) -> offmap.Activations:
        extras = {k: a[..., :1] if k.endswith("/logits") else a for k, a in acts.extras.items()}
        return rebuilt(acts, head=single, labels=np.zeros(len(acts), int), extras=extras)

    outcome(lambda: offmap.detector(spec).fit(one_class(known)).score(one_class(test)), f"{spec}: a single class")


@check
def copies_and_threads(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    whole = made.score(test)
    for name, twin in {"deepcopy": copy.deepcopy(made), "pickle": pickle.loads(pickle.dumps(made))}.items():  # noqa: S301 - our own bytes
        assert np.array_equal(twin.score(test), whole), f"{spec}: scores differ after {name}"
    fresh = copy.deepcopy(made)
    fresh.fitting._ready.clear()  # so that the threads also race for the preparation
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(fresh.score(test))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4, f"{spec}: scoring fails when several threads score"
    for scores in found:
        assert_close(scores, whole, TOLERANCE, f"{spec}: scores differ when several threads score")


@check
def verdicts_follow(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec)
    verdicts = made.calibrate(test, tpr=0.8)(test)
    assert len(verdicts) == len(test), f"{spec}: {len(verdicts)} verdicts on {len(test)} inputs"
    assert verdicts.known.mean() >= 0.8, f"{spec}: fewer than tpr of the calibration inputs are known"
    assert np.array_equal(verdicts.known, made.score(test) >= made.threshold), f"{spec}: verdicts and threshold differ"
    assert set(made.predict(test)) <= {1, -1}, f"{spec}: predict gives other than 1 and -1"
    assert np.array_equal(verdicts.predicted, test.predictions), f"{spec}: verdicts change the predicted class"


@check
def starts_anew(spec: str, world: World, folder: Path) -> None:
    made, test = world.fitted(spec, fresh=True)
    known = world.acts("known", offmap.detector(spec).requirements)
    before = made.score(test)
    made.calibrate(test, tpr=0.5)
    assert made.fit(known) is made, f"{spec}: fit does not return the detector"
    again = made.score(world.acts("test", made.requirements))
    assert np.array_equal(again, before), f"{spec}: a second fit is not like the first"
    assert made.calibration is None, f"{spec}: a second fit keeps the first one's threshold"
    if learns(made):
        refused(lambda: made.update(known), InputError, f"{spec}: an update after the end")
        refused(lambda: made.merge(offmap.detector(spec).update(known)), InputError, f"{spec}: a merge after the end")
