"""Files whose checksum is right but whose parts are not: refused when loaded, never an odd error when used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_zoo import World, blobs

import offmap
from offmap import store
from offmap.detection.registry import example_specs
from offmap.errors import OffmapError, StoreError

Parts = tuple[dict[str, Any], dict[str, np.ndarray]]


def change_tensors(tensors: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Each tensor left out, renamed, cut, widened, flattened, emptied, of another type, or of other numbers."""
    for name, array in tensors.items():
        others = {key: value for key, value in tensors.items() if key != name}
        yield others
        yield others | {name + "x": array}
        yield others | {name: array.reshape(-1)}
        yield others | {name: array[None]}
        yield others | {name: np.zeros(0, array.dtype)}
        yield others | {name: array.astype(np.int8)}
        if array.ndim and len(array) > 1:
            yield others | {name: array[:-1]}
            yield others | {name: np.concatenate([array, array[:1]])}
        if array.ndim > 1:
            yield others | {name: array[:, :-1]}
            yield others | {name: np.swapaxes(array, 0, 1)}
        if array.dtype.kind in "iu":
            yield others | {name: array + np.array(10**6).astype(array.dtype)}


def change_config(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each value, at any depth, left out or replaced by one of another type."""
    for path in walk(config):
        for value in (None, "text", -1, 10**4, [], {}, ...):
            changed = copy.deepcopy(config)
            *above, last = path
            place: Any = changed
            for key in above:
                place = place[key]
            if value is ...:
                del place[last]
            else:
                place[last] = value
            yield changed


def walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from walk(inner, (*path, key))


def tampered(file: Path, step: int) -> Iterator[Path]:
    """The file with one thing changed and the checksum made right again, time after time; of all changes every n-th."""
    whole = store.load(file)
    other = file.with_name("tampered.offmap")
    changes: list[Parts] = [(whole.config, tensors) for tensors in change_tensors(whole.tensors)]
    changes += [(config, whole.tensors) for config in change_config(whole.config)]
    for config, tensors in changes[::step]:
        store.save(other, whole.kind, config, tensors)
        yield other


def check_use(use: Callable[[], Any]) -> None:
    """What was loaded works, or says what it minds about the input; that the file is broken was to be said before."""
    try:
        use()
    except StoreError:
        raise AssertionError("a broken file is named when it is loaded") from None
    except OffmapError:
        pass


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand small files need not survive a loss of power."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


SUMS = ["react(90)|mahalanobis", "0.5*knn(5) + react(90)|energy", "fisher(knn(5) + energy)"]


STEPS = [pytest.param(11, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spec", [*example_specs(), *SUMS])
def test_a_tampered_detector_is_refused_when_loaded(spec: str, step: int, world: World, tmp_path: Path) -> None:
    made, test = world.fitted(spec)
    file = tmp_path / "made.offmap"
    made.calibrate(test, tpr=0.9).save(file)
    for other in tampered(file, step):
        try:
            loaded = offmap.load(other)
        except OffmapError:
            continue
        if not loaded.is_fitted or loaded.calibration is None:
            continue  # the file says so
        check_use(lambda loaded=loaded: loaded.verdicts(test))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spec", ["react(90)|mahalanobis", "knn(5)", "dice(0.7)|energy", "she", "nac"])
def test_a_tampered_half_way_detector_is_refused(spec: str, step: int, tmp_path: Path) -> None:
    known = blobs(60)
    file = tmp_path / "part.offmap"
    offmap.detector(spec).update(known).save(file)
    for other in tampered(file, step):
        try:
            loaded = offmap.load(other)
            loaded.update(known)
            loaded.finalize()
        except OffmapError:
            continue


@pytest.mark.parametrize("step", STEPS)
def test_tampered_discoveries_models_and_deployments(step: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(3), 20)
    rows = (3 * np.eye(3, 5)[truth] + 0.1 * rng.normal(size=(60, 5))).astype(np.float32)
    labels = np.where((truth < 2) & (rng.random(60) < 0.5), truth, -1)
    offmap.discover(rows, labels).save(tmp_path / "discovery.offmap")
    offmap.learn("sorl-spectral", rows, labels, 3).save(tmp_path / "model.offmap")
    known = blobs(80)
    guard = offmap.detector("energy").fit(known[:40]).calibrate(known[40:], tpr=0.9)
    offmap.openworld.Deployment(guard, None, ("a", "b", "c")).save(tmp_path / "deployment.offmap")
    uses = {
        "discovery": lambda found: (found.names, found.summary(), repr(found)),
        "model": lambda model: (model.predict(rows), model.novelty(rows), repr(model)),
        "deployment": lambda deployment: deployment.verdicts(known.features, "features"),
    }
    for name, use in uses.items():
        for other in tampered(tmp_path / f"{name}.offmap", step):
            try:
                loaded = offmap.load(other)
            except OffmapError:
                continue
            check_use(lambda use=use, loaded=loaded: use(loaded))
