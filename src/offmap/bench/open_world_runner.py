"""Open-world suites as measured: every objective and baseline, each seed and convention, resuming after a stop."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap import store
from offmap.bench.open_world import BASELINES, Measure, OpenWorldProtocol, OpenWorldSuite, expand_open_world
from offmap.bench.open_world_apart import predict_apart
from offmap.bench.sets import load_set
from offmap.bench.suites import SetSpec
from offmap.data import OpenWorldSplit, open_world_split, published_split
from offmap.data.images import ENVIRONMENT
from offmap.discovery import Space, discover
from offmap.errors import InputError, StoreError
from offmap.learning import learn
from offmap.learning.closed_form import SPECTRAL
from offmap.metrics.clustering import Convention, open_world_accuracy
from offmap.typing import Array

CONVENTIONS: tuple[Convention, ...] = ("orca", "v1", "v2", "ncd")


@dataclass(frozen=True)
class OpenWorldRow:
    """One method on one split.

    Parameters
    ----------
    method, seed, classes : str and int and str
        What ran, and whether it was told the number of classes.
    n_classes, inputs, labelled : int
        Classes in use, inputs in all, those with a label.
    accuracy : mapping of str to mapping of str to float
        By convention: ``all``, ``known`` and ``novel`` over unlabelled inputs, in per cent; NaN where there are none.
        Of a suite with inputs to test on also ``apart`` and ``test``: told which inputs are novel.
    seconds : float
        Time of learning.
    """

    method: str
    seed: int
    classes: str
    n_classes: int
    inputs: int
    labelled: int
    accuracy: Mapping[str, Mapping[str, float]]
    seconds: float

    @property
    def key(self) -> tuple[str, int, str]:
        """What makes it one run."""
        return self.method, self.seed, self.classes


@dataclass
class OpenWorldResult:
    """All rows of a suite."""

    suite: OpenWorldSuite
    rows: list[OpenWorldRow] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The conventions of every row, and ``apart`` and ``test`` of a suite with inputs to test on."""
        return (*CONVENTIONS, "apart", "test") if self.suite.test is not None else CONVENTIONS

    def summary(self, convention: Measure) -> list[dict[str, Any]]:
        """Return means over seeds with their standard errors, the highest All first.

        Parameters
        ----------
        convention : Measure
            How groups are matched with classes, one of `measures`.

        Returns
        -------
        list of dict
            One for each method and way of counting classes.
        """
        groups: dict[tuple[str, str], list[OpenWorldRow]] = {}
        for row in self.rows:
            groups.setdefault((row.method, row.classes), []).append(row)
        made = []
        for (method, classes), rows in groups.items():
            line: dict[str, Any] = {"method": method, "classes": classes, "seeds": len(rows)}
            for part in ("all", "known", "novel"):
                values = np.array([row.accuracy[convention][part] for row in rows], float)
                line[part] = float(values.mean())
                line[f"{part} error"] = float(values.std(ddof=1) / math.sqrt(len(rows))) if len(rows) > 1 else None
            counts = [row.n_classes for row in rows]
            line["classes found"] = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"
            made.append(line)
        return sorted(made, key=lambda line: -np.nan_to_num(line["all"], nan=line["novel"]))

    def to_json(self) -> str:
        """Return everything as JSON; numbers that are none are null."""
        rows = [_plain(asdict(row)) for row in self.rows]
        about = {"suite": self.suite.name, "about": self.suite.about, "digest": self.suite.digest}
        return json.dumps({**about, "rows": rows, "skipped": self.skipped}, indent=1)

    def __str__(self) -> str:
        lines = [f"{self.suite.name}: {self.suite.about}"]
        for convention in self.measures:
            lines += ["", f"{convention:<28}{'seeds':>6}{'All':>14}{'Known':>14}{'Novel':>14}  classes"]
            for line in self.summary(convention):
                name = line["method"] + ("" if line["classes"] == "given" else ", K estimated")
                cells = "".join(f"{_with_error(line, part):>14}" for part in ("all", "known", "novel"))
                lines.append(f"{name:<28}{line['seeds']:>6}{cells}  {line['classes found']}")
        if self.skipped:
            lines += ["", *(f"left out: {name} ({why})" for name, why in self.skipped.items())]
        return "\n".join([*lines, "", "per cent of unlabelled inputs; ± is the standard error over seeds"])


def run_open_world(
    suite: OpenWorldSuite,
    out: Path,
    *,
    methods: Sequence[str] | None = None,
    data: Path | None = None,
    device: str | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    **changes: Any,
) -> OpenWorldResult:
    """Run a suite; ``results.json`` in `out` is written after every run, and runs that it holds are not repeated.

    Parameters
    ----------
    suite : OpenWorldSuite
        What to measure.
    out : Path
        Folder of the results.
    methods : sequence of str, optional
        In place of the suite's own.
    data : Path, optional
        The data folder; the environment's ``OFFMAP_DATA`` by default.
    device : str, optional
        Where networks learn, such as ``"cuda"``; the CPU by default.
    on_step : callable, optional
        Called with a short text when a run begins.
    **changes : Any
        `OpenWorldProtocol` in place of the suite's own, `None` to keep a value.

    Returns
    -------
    OpenWorldResult

    Raises
    ------
    StoreError
        If `out` holds results of another declaration.
    """
    kept = {name: value for name, value in changes.items() if value is not None}
    suite = replace(suite, protocol=replace(suite.protocol, **kept))
    names = expand_open_world(methods or suite.methods)
    out.mkdir(parents=True, exist_ok=True)
    result = _resume(suite, out / "results.json")
    done = {row.key for row in result.rows}
    place = data or _environment_folder()
    learned = _load(suite, suite.data, place)
    tested = None if suite.test is None else _load(suite, suite.test, place)
    for seed, name in _runs(suite.protocol, names):
        if (name, seed, suite.protocol.classes) in done:
            continue
        on_step(f"{name}, seed {seed}")
        try:
            result.rows.append(_measure(suite, name, seed, learned, tested, device))
        except InputError as error:
            result.skipped[name] = str(error)
        store.write_atomically(out / "results.json", result.to_json().encode() + b"\n")
    return result


def _environment_folder() -> Path | None:
    named = os.environ.get(ENVIRONMENT)
    return None if named is None else Path(named)


def _load(suite: OpenWorldSuite, spec: SetSpec, data: Path | None) -> tuple[Array, Array]:
    """Return the inputs, or features where there are none, and their classes."""
    samples = load_set(spec, data).samples
    if samples.labels is None:
        raise InputError(f"suite {suite.name}: its {spec.name} have no classes to hide; give labels beside them")
    inputs = np.asarray(samples.inputs if "inputs" in samples.arrays else samples.features)
    return inputs, np.asarray(samples.labels)


def _runs(protocol: OpenWorldProtocol, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    for seed in range(protocol.first_seed, protocol.first_seed + protocol.seeds):
        for name in names:
            yield seed, name


def _measure(
    suite: OpenWorldSuite,
    name: str,
    seed: int,
    learned: tuple[Array, Array],
    tested: tuple[Array, Array] | None,
    device: str | None,
) -> OpenWorldRow:
    inputs, targets = _draw(learned, suite.protocol.limit, seed)
    split = _make_split(suite, targets, seed)
    k = split.n_classes if suite.protocol.classes == "given" else None
    start = time.perf_counter()
    transform: Callable[[Array], Array] = _flatten
    if name in BASELINES:
        found = _baseline(name, _flatten(inputs), split, k, seed)
    else:
        model = learn(
            inputs, split.labels, k, objective=name, seed=seed, progress=False, **_settings(suite, name, device)
        )
        found, transform = model.predict(inputs), model.transform
    seconds = time.perf_counter() - start
    accuracy = _accuracies(split, found)
    if tested is not None:
        others, classes = _draw(tested, suite.protocol.limit, seed)
        accuracy |= _apart(split, transform(inputs), transform(others), classes, seed)
    return OpenWorldRow(
        name,
        seed,
        suite.protocol.classes,
        len(np.unique(found)),
        len(targets),
        len(split.labelled),
        accuracy,
        round(seconds, 2),
    )


def _draw(labelled: tuple[Array, Array], limit: int | None, seed: int) -> tuple[Array, Array]:
    inputs, targets = labelled
    if limit is None or limit >= len(targets):
        return inputs, targets
    rows = np.sort(np.random.default_rng(seed).permutation(len(targets))[:limit])
    return inputs[rows], targets[rows]


def _flatten(inputs: Array) -> Array:
    return inputs.reshape(len(inputs), -1).astype(np.float32)


def _make_split(suite: OpenWorldSuite, targets: Array, seed: int) -> OpenWorldSplit:
    options = dict(suite.split)
    published = options.pop("published", None)
    if published is not None:
        return published_split(published, targets, seed)
    return open_world_split(targets, seed=seed, **options)


def _settings(suite: OpenWorldSuite, name: str, device: str | None) -> dict[str, Any]:
    """Return the suite's settings; the closed form trains nothing and takes none of them."""
    if name == SPECTRAL:
        return {}
    place = {} if device is None else {"device": device}
    return place | {key: tuple(value) if isinstance(value, list) else value for key, value in suite.settings.items()}


def _baseline(name: str, rows: Array, split: OpenWorldSplit, k: int | None, seed: int) -> Array:
    method = {"k-means": "kmeans", "ss-k-means": "ss-kmeans", "discover": "auto"}[name]
    space = None if name == "discover" else Space("cosine")
    return discover(rows, split.labels, "auto" if k is None else k, method, seed, space=space).labels


def _accuracies(split: OpenWorldSplit, found: Array) -> dict[str, dict[str, float]]:
    hidden = split.unlabelled
    made: dict[str, dict[str, float]] = {}
    for convention in CONVENTIONS:
        parts = open_world_accuracy(split.targets[hidden], found[hidden], split.known, convention)._asdict()
        made[convention] = {part: round(100 * float(value), 3) for part, value in parts.items()}
    return made


def _apart(split: OpenWorldSplit, fitted: Array, features: Array, targets: Array, seed: int) -> dict[str, Any]:
    """Return the accuracies of section 6.5: Known and Novel by themselves, All by one assignment, as in ``orca``."""
    hidden, made = split.unlabelled, {}
    sets = {"apart": (fitted[hidden], split.targets[hidden]), "test": (features, targets)}
    for name, (rows, classes) in sets.items():
        found = predict_apart(fitted, split.labels, rows, classes, split.known, seed)
        parts = open_world_accuracy(classes, found, split.known, "orca")._asdict()
        made[name] = {part: round(100 * float(value), 3) for part, value in parts.items()}
    return made


def _resume(suite: OpenWorldSuite, file: Path) -> OpenWorldResult:
    result = OpenWorldResult(suite)
    if not file.is_file():
        return result
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        rows = [OpenWorldRow(**_numbers(row)) for row in held["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file}: not results of an open-world suite ({error}); choose another --out") from error
    if held.get("digest") != suite.digest:
        raise StoreError(f"{file}: results of another declaration or limit; choose another --out, or delete the file")
    result.rows += rows
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = {
        convention: {part: math.nan if value is None else float(value) for part, value in parts.items()}
        for convention, parts in row["accuracy"].items()
    }
    return {**row, "accuracy": accuracy}


def _with_error(line: Mapping[str, Any], part: str) -> str:
    if math.isnan(line[part]):
        return "–"
    error = line[f"{part} error"]
    return f"{line[part]:.1f}" + ("" if error is None else f" ± {error:.1f}")
