"""Runs a suite: every set through the network once, then every method on what the network said."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activations import Activations
from offmap.bench.cache import Extractor, default_cache, held_out
from offmap.bench.networks import BenchNetwork, make_network
from offmap.bench.results import METRICS, Array, Row, SuiteResult
from offmap.bench.sets import LoadedSet, load_set
from offmap.bench.suites import ALL, NetworkSpec, Protocol, Suite
from offmap.detection import Detector, detector
from offmap.detection.base import AUTO
from offmap.detection.registry import example_specs, methods
from offmap.errors import InputError, MissingError, OffmapError
from offmap.metrics.detection import detection_report

ENVIRONMENT = "OFFMAP_DATA"
FEW = 2000  # with no more inputs than this in a set, rows carry standard errors
RESAMPLED = 100


def run_suite(
    suite: Suite,
    *,
    methods: Sequence[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    on_step: Callable[[str], None] = lambda words: None,
    **protocol: Any,
) -> SuiteResult:
    """Measure methods on the sets of a suite.

    Parameters
    ----------
    suite
        From `load_suite`.
    methods
        Text forms, in place of the suite's own.
    data
        The folder that holds its sets; the environment's ``OFFMAP_DATA`` when absent.
    cache
        The folder for activations; by default in the user's cache folder.
    fresh
        Run the network even where the data folder holds its features.
    on_step
        Told in words what begins.
    **protocol
        Fields of `Protocol` to set otherwise than the suite does: `limit`, `passes_limit`, `seeds`, …

    Examples
    --------
    >>> import tempfile
    >>> from offmap.bench.suites import load_suite
    >>> found = run_suite(load_suite("digits"), methods=["energy"], cache=tempfile.mkdtemp(), limit=100)
    >>> found.rows[0].method, found.rows[0].ood
    ('energy', 'unseen digits')
    """
    given = {name: value for name, value in protocol.items() if value is not None}
    suite = replace(suite, protocol=replace(suite.protocol, **given))
    specs = expanded(suite.methods if methods is None else methods)
    root = data if data is not None else os.environ.get(ENVIRONMENT)
    folder = None if root is None else Path(root)
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder of data")
    kept = default_cache() if cache is None else Path(cache)
    result = SuiteResult(suite.name, suite.about)
    for spec in suite.networks:
        _measure_network(suite, spec, specs, folder, kept, fresh, on_step, result)
    result.notes |= {"protocol": asdict(suite.protocol), "methods": list(specs)}
    return result


def expanded(specs: Sequence[str]) -> list[str]:
    """Canonical text forms; ``all`` becomes every method of the registry that is not named beside it.

    Examples
    --------
    >>> found = expanded(["react(auto)|energy", "all"])
    >>> found[0], "msp" in found, "react(90)|energy" in found
    ('react(auto)|energy', True, False)
    """
    own = [repr(detector(spec)) for spec in specs if spec != ALL]
    if ALL not in specs:
        return list(dict.fromkeys(own))
    named = {component.name for spec in own for component in detector(spec).components}
    rest = [
        spec
        for spec, name in zip(example_specs(), methods(), strict=True)
        if name not in named or (name == "energy" and "energy" not in own)
    ]
    return list(dict.fromkeys([*own, *(repr(detector(spec)) for spec in rest)]))


@dataclass(frozen=True)
class Bench:
    """One network with everything that methods are measured on."""

    extractor: Extractor
    protocol: Protocol
    known_set: LoadedSet
    tests: dict[str, LoadedSet]
    known: Activations
    acts: dict[str, Activations]
    val: Activations | None = None
    outliers: Activations | None = None

    @property
    def short(self) -> dict[str, LoadedSet]:
        """The test sets for methods that send inputs through the network again."""
        return {name: loaded.part(self.protocol.passes_limit) for name, loaded in self.tests.items()}

    def fitted(self, made: Detector, seed: int) -> Detector:
        """Fitted on all known inputs; what is given as ``auto`` is chosen on held-out ones against noise first."""
        if any(AUTO in asdict(component).values() for component in made.components):
            rest, val = held_out(self.known, self.protocol.held_out) if self.val is None else (self.known, self.val)
            made = detector(made.fit(rest, val=val, outliers=self.far(seed)).chosen)
        try:
            return made.fit(self.known)
        except MissingError:
            fresh = detector(repr(made))
            if not fresh.requirements.extras:
                raise
            few = self.known_set.part(self.protocol.passes_limit)
            return fresh.fit(self.extractor.with_passes(few, fresh.requirements.extras))

    def far(self, seed: int) -> Activations:
        """Outliers to choose parameters on: declared ones, or noise."""
        if self.outliers is not None:
            return self.outliers
        return self.extractor.noise(self.protocol.noise, self.tests["id"], seed)

    def seen(self, made: Detector) -> dict[str, Activations]:
        """The test activations that a fitted detector reads: the plain ones, or its own passes on fewer inputs."""
        requests = made.requirements.extras
        if not requests:
            return self.acts
        return {name: self.extractor.with_passes(loaded, requests) for name, loaded in self.short.items()}


def _measure_network(
    suite: Suite,
    spec: NetworkSpec,
    specs: Sequence[str],
    data: Path | None,
    kept: Path,
    fresh: bool,
    on_step: Callable[[str], None],
    result: SuiteResult,
) -> None:
    bench = prepare(suite, spec, data, kept, fresh, on_step, result.skipped)
    name = spec.name
    test = bench.acts["id"]
    accuracy = None if test.labels is None else 100 * float(np.mean(test.predictions == test.labels))
    result.notes.setdefault("accuracy", {})[name] = accuracy
    shown = {key: loaded.with_array("predicted", bench.acts[key].predictions) for key, loaded in bench.tests.items()}
    result.sets[name] = shown
    result.short[name] = {key: loaded.part(bench.protocol.passes_limit) for key, loaded in shown.items()}
    result.features[name] = {key: acts.features for key, acts in bench.acts.items()}
    result.scores[name] = {}
    for method in specs:
        on_step(f"measuring {method}")
        try:
            rows, scores = measured(bench, method)
        except OffmapError as error:
            result.skipped[method] = " ".join(str(error).split())
            continue
        result.scores[name][method] = scores
        for row in rows:
            figures = {repr(detector(key)): pair for key, pair in suite.thesis.get(row.ood, {}).items()}
            pair = figures.get(method)
            thesis = None if pair is None else {"fpr95": pair[0], "auroc": pair[1]}
            result.rows.append(replace(row, suite=suite.name, network=name, thesis=thesis))
    if not result.scores[name]:
        reasons = "; ".join(f"{method}: {why}" for method, why in result.skipped.items())
        raise InputError(f"suite {suite.name}: no method could be measured ({reasons})")
    result.notes.setdefault("activations", {})[name] = bench.extractor.log


def prepare(
    suite: Suite,
    spec: NetworkSpec,
    data: Path | None,
    kept: Path,
    fresh: bool = False,
    on_step: Callable[[str], None] = lambda words: None,
    skipped: dict[str, str] | None = None,
    make: Callable[[NetworkSpec, LoadedSet | None, Path | None, Path], BenchNetwork] = make_network,
) -> Bench:
    """Load the sets and the network of a suite and run it over each set once; `make` builds the network."""
    protocol = suite.protocol
    train = None if suite.train is None else load_set(suite.train, data)  # whole: a limit is for measuring
    on_step(f"preparing {spec.name}")
    network = make(spec, train, data, kept)
    extractor = Extractor(network, kept, protocol.batch_size, fresh, on_step)
    tests = {"id": load_set(suite.test, data).part(protocol.limit)}
    for ood in suite.ood:
        try:
            tests[ood.name] = load_set(ood, data).part(protocol.limit)
        except OffmapError as error:
            if skipped is None:
                raise
            skipped[ood.name] = " ".join(str(error).split())
    if len(tests) == 1:
        raise InputError(
            f"suite {suite.name}: none of its unknown sets is here ({'; '.join((skipped or {}).values())})"
        )
    known_set = load_set(suite.known, data)
    known_set = known_set if known_set.stored is not None else known_set.part(protocol.limit)
    val, outliers = (
        None if part is None else extractor.plain(load_set(part, data), tests["id"])
        for part in (suite.val, suite.outliers)
    )
    known = extractor.plain(known_set, tests["id"])
    acts = {name: extractor.plain(loaded, tests["id"]) for name, loaded in tests.items()}
    return Bench(extractor, protocol, known_set, tests, known, acts, val, outliers)


def measured(bench: Bench, spec: str) -> tuple[list[Row], dict[str, Array]]:
    """The rows of one method, means over seeds where random numbers enter, and the scores of the first seed."""
    reports: list[dict[str, dict[str, float]]] = []
    first: dict[str, Array] = {}
    seconds: list[float] = []
    chosen, accuracies = [], []
    for made, seed in _seeded(spec, bench.protocol.seeds):
        if AUTO in spec:
            bench.far(seed)  # its passes are the network's time, not the method's
        started = time.perf_counter()
        fitted = bench.fitted(made, seed)
        took = time.perf_counter() - started
        acts = bench.seen(fitted)
        started = time.perf_counter()
        scores = {name: fitted.score(part) for name, part in acts.items()}
        seconds.append(took + time.perf_counter() - started)
        if first and all(np.allclose(scores[name], first[name], rtol=1e-4) for name in scores):
            break  # the seed changes nothing but rounding
        first = first or scores
        chosen.append(repr(_with_seed(detector(fitted.chosen), None)))
        labels = acts["id"].labels
        if labels is not None and fitted.n_classes is not None:
            accuracies.append(100 * float(np.mean(fitted.predict_classes(acts["id"]) == labels)))
        reports.append({name: _percent(scores["id"], scores[name]) for name in scores if name != "id"})
    rows = []
    for ood in reports[0]:
        values = {metric: [report[ood][metric] for report in reports] for metric in METRICS}
        rows.append(
            Row(
                suite="",
                network="",
                ood=ood,
                method=spec,
                **{metric: float(np.mean(found)) for metric, found in values.items()},
                seconds=float(np.mean(seconds)),
                thesis=None,
                chosen=", ".join(dict.fromkeys(chosen)) if AUTO in spec else spec,
                id_accuracy=float(np.mean(accuracies)) if accuracies else None,
                seeds=len(reports),
                std={metric: float(np.std(found, ddof=1)) for metric, found in values.items()}
                if len(reports) > 1
                else {},
                error=standard_errors(first["id"], first[ood]),
                inputs=(len(first["id"]), len(first[ood])),
                runs_again=bool(fitted.requirements.extras),
            )
        )
    return rows, first


def _seeded(spec: str, seeds: int) -> Iterator[tuple[Detector, int]]:
    """The detector with each seed, where it or the choice of its parameters draws random numbers; else once."""
    made = detector(spec)
    draws = any(field.name == "seed" for component in made.components for field in fields(component))
    for seed in range(seeds if draws or AUTO in spec else 1):
        yield _with_seed(made, seed), seed


def _with_seed(made: Detector, seed: int | None) -> Detector:
    """The detector with its seeds moved on by so many, or all 0."""
    return Detector(
        [
            replace(component, **{"seed": 0 if seed is None else component.seed + seed})
            if hasattr(component, "seed")
            else component
            for component in made.components
        ]
    )


def standard_errors(known: Array, unknown: Array, seed: int = 0) -> dict[str, float]:
    """Bootstrap standard errors in per cent where either set is small; nothing where both are large.

    Examples
    --------
    >>> found = standard_errors(np.arange(100.0), np.arange(-50.0, 50.0))
    >>> 3 < found["fpr95"] < 12
    True
    """
    if min(len(known), len(unknown)) > FEW:
        return {}
    rng = np.random.default_rng(seed)
    drawn = [_percent(rng.choice(known, len(known)), rng.choice(unknown, len(unknown))) for _ in range(RESAMPLED)]
    return {metric: float(np.std([report[metric] for report in drawn])) for metric in ("fpr95", "auroc")}


def _percent(known: Array, unknown: Array) -> dict[str, float]:
    report = detection_report(known, unknown).as_dict()
    return {metric: 100 * report[metric] for metric in METRICS}
