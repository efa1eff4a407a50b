"""Running a suite: every set goes through the network once, then every method is measured on its activations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activations import Activations
from offmap.bench.cache import Extractor, hold_out, locate_cache
from offmap.bench.full_spectrum import separate_shifted
from offmap.bench.groups import summarise_groups
from offmap.bench.networks import BenchNetwork, make_network
from offmap.bench.results import SuiteResult, SuiteRow
from offmap.bench.sets import LoadedSet, load_set
from offmap.bench.suites import ALL, NetworkSpec, Protocol, Suite
from offmap.detection import Detector, detector
from offmap.detection.base import AUTO, Component
from offmap.detection.comparison import split_metrics
from offmap.detection.evaluate import Measurement, measure
from offmap.detection.registry import example_specs, methods
from offmap.errors import InputError, MissingError, OffmapError
from offmap.metrics.detection import detection_report
from offmap.typing import Array

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
    device: str | None = None,
    on_step: Callable[[str], None] = lambda words: None,
    **protocol: Any,
) -> SuiteResult:
    """Measure methods on the sets of a suite.

    Parameters
    ----------
    suite : Suite
        From `load_suite`.
    methods : sequence of str, optional
        Text forms, in place of the suite's own.
    data : path, optional
        Folder that holds its sets; the environment's ``OFFMAP_DATA`` by default.
    cache : path, optional
        Folder for activations; by default in the user's cache folder.
    fresh : bool, default=False
        Run the network even where the data folder holds its features.
    device : str, optional
        Where the networks run, such as ``"cuda"``; the CPU by default.
    on_step : callable, optional
        Called with a short text when a step begins.
    **protocol : Any
        Fields of `Protocol` to set otherwise than the suite does: `limit`, `passes_limit`, `seeds`, …

    Returns
    -------
    SuiteResult

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
    specs = expand_methods(suite.methods if methods is None else methods)
    root = data if data is not None else os.environ.get(ENVIRONMENT)
    folder = None if root is None else Path(root)
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder of data")
    kept = locate_cache() if cache is None else Path(cache)
    result = SuiteResult(suite.name, suite.about)
    for spec in suite.networks:
        _measure_network(suite, spec, specs, folder, kept, fresh, on_step, result, device)
    result.groups = summarise_groups(
        result.scores,
        {part.name: part.group for part in suite.ood if part.group},
        [part.name for part in suite.shifted],
        {group: {repr(detector(m)): v / 100 for m, v in found.items()} for group, found in suite.published.items()},
    )
    result.notes |= {"protocol": asdict(suite.protocol), "methods": list(specs)}
    return result


def expand_methods(specs: Sequence[str]) -> list[str]:
    """Make text forms canonical; ``all`` becomes every method of the registry that is not named beside it.

    Parameters
    ----------
    specs : sequence of str
        Text forms.

    Returns
    -------
    list of str
        Without repetitions.

    Examples
    --------
    >>> found = expand_methods(["react(auto)|energy", "all"])
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

    def fit(self, made: Detector, seed: int) -> Detector:
        """Fit on all known inputs; what is given as ``auto`` is chosen on held-out ones against noise first.

        Parameters
        ----------
        made : Detector
            Not fitted.
        seed : int
            Seed of everything random in it.

        Returns
        -------
        Detector
            Fitted.
        """
        if any(AUTO in asdict(component).values() for component in made.components):
            rest, val = hold_out(self.known, self.protocol.held_out) if self.val is None else (self.known, self.val)
            made = detector(made.fit(rest, val=val, outliers=self.load_outliers(seed)).chosen)
        try:
            return made.fit(self.known)
        except MissingError:
            fresh = detector(repr(made))
            if not fresh.requirements.extras:
                raise
            few = self.known_set.part(self.protocol.passes_limit)
            return fresh.fit(self.extractor.extract_passes(few, fresh.requirements.extras))

    def load_outliers(self, seed: int) -> Activations:
        """Return outliers to choose parameters on: declared ones, or noise."""
        if self.outliers is not None:
            return self.outliers
        return self.extractor.extract_noise(self.protocol.noise, self.tests["id"], seed)

    def read_tests(self, made: Detector) -> dict[str, Activations]:
        """Return the test activations that a detector reads: the plain ones, or its own passes on fewer inputs."""
        requests = made.requirements.extras
        if not requests:
            return self.acts
        return {name: self.extractor.extract_passes(loaded, requests) for name, loaded in self.short.items()}


def _measure_network(
    suite: Suite,
    spec: NetworkSpec,
    specs: Sequence[str],
    data: Path | None,
    kept: Path,
    fresh: bool,
    on_step: Callable[[str], None],
    result: SuiteResult,
    device: str | None,
) -> None:
    bench = prepare(suite, spec, data, kept, fresh, on_step, result.skipped, device=device)
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
            rows, scores = measure_method(bench, method)
        except OffmapError as error:
            result.skipped[method] = " ".join(str(error).split())
            continue
        result.scores[name][method] = scores
        rows, shifted = separate_shifted(rows, scores, [part.name for part in suite.shifted])
        result.shifted += [replace(row, suite=suite.name, network=name) for row in shifted]
        for row in rows:
            figures = {repr(detector(key)): pair for key, pair in suite.thesis.get(row.ood, {}).items()}
            printed = [value / 100 for value in figures.get(method, ())]
            thesis = dict(zip(("fpr95", "auroc"), printed, strict=False)) or None
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
    device: str | None = None,
) -> Bench:
    """Load the sets and the network of a suite and run it over each set once.

    Parameters
    ----------
    suite : Suite
        What to measure.
    spec : NetworkSpec
        One of its networks.
    data : Path or None
        The data folder.
    kept : Path
        The folder of the cache.
    fresh : bool, default=False
        Whether to ignore the cache.
    on_step : callable, optional
        Called with a text when a step begins.
    skipped : dict of str to str or None, default=None
        Filled with the sets that could not be loaded, and why.
    make : callable, optional
        Builds the network.
    device : str, optional
        Where the network runs; the CPU by default.

    Returns
    -------
    Bench
        Ready to fit and score.
    """
    protocol = suite.protocol
    train = None if suite.train is None else load_set(suite.train, data)  # whole: a limit is for measuring
    on_step(f"preparing {spec.name}")
    network = make(spec, train, data, kept)
    if device is not None:
        network.net.to(device)
    extractor = Extractor(network, kept, protocol.batch_size, fresh, on_step)
    tests = {"id": load_set(suite.test, data).part(protocol.limit)}
    for part in (*suite.ood, *suite.shifted):
        try:
            tests[part.name] = load_set(part, data).part(protocol.limit)
        except OffmapError as error:
            if skipped is None:
                raise
            skipped[part.name] = " ".join(str(error).split())
    if not any(ood.name in tests for ood in suite.ood):
        raise InputError(
            f"suite {suite.name}: none of its unknown sets is here ({'; '.join((skipped or {}).values())})"
        )
    known_set = load_set(suite.known, data)
    known_set = known_set if known_set.stored is not None else known_set.part(protocol.limit)
    val, outliers = (
        None if part is None else extractor.extract_plain(load_set(part, data), tests["id"])
        for part in (suite.val, suite.outliers)
    )
    known = extractor.extract_plain(known_set, tests["id"])
    acts = {name: extractor.extract_plain(loaded, tests["id"]) for name, loaded in tests.items()}
    return Bench(extractor, protocol, known_set, tests, known, acts, val, outliers)


def measure_method(bench: Bench, spec: str) -> tuple[list[SuiteRow], dict[str, Array]]:
    """Measure one method, over several seeds where random numbers enter.

    Parameters
    ----------
    bench : Bench
        Network, sets and protocol.
    spec : str
        Text form of the method.

    Returns
    -------
    rows : list of SuiteRow
        One per unknown set; means over the seeds.
    scores : dict of str to ndarray
        Scores of the first seed, by set.
    """
    runs: list[Measurement] = []
    for made, seed in _seeded(spec, bench.protocol.seeds):
        if AUTO in spec:
            bench.load_outliers(seed)  # its passes are the network's time, not the method's
        found = measure(made, partial(bench.fit, seed=seed), bench.read_tests)
        if runs and all(np.allclose(found.scores[name], runs[0].scores[name], rtol=1e-4) for name in found.scores):
            break  # the seed changes nothing but rounding
        runs.append(found)
    return [_average(spec, runs, ood) for ood in runs[0].reports], runs[0].scores


def _average(spec: str, runs: Sequence[Measurement], ood: str) -> SuiteRow:
    """One row from the runs of a method over seeds."""
    first = runs[0]
    values = {metric: [run.reports[ood][metric] for run in runs] for metric in first.reports[ood]}
    chosen = [repr(_with_seed(detector(run.detector.chosen), None)) for run in runs]
    right = [run.id_accuracy for run in runs if run.id_accuracy is not None]
    means = split_metrics({metric: float(np.mean(found)) for metric, found in values.items()})
    return SuiteRow(
        method=spec,
        chosen=", ".join(dict.fromkeys(chosen)) if AUTO in spec else spec,
        ood=ood,
        **means,
        id_accuracy=float(np.mean(right)) if right else None,
        fit_seconds=float(np.mean([run.fit_seconds for run in runs])),
        score_seconds=float(np.mean([run.score_seconds for run in runs])),
        seeds=len(runs),
        std={metric: float(np.std(found, ddof=1)) for metric, found in values.items()} if len(runs) > 1 else {},
        error=bootstrap_errors(first.scores["id"], first.scores[ood]),
        inputs=(len(first.scores["id"]), len(first.scores[ood])),
        runs_again=bool(first.detector.requirements.extras),
    )


def _seeded(spec: str, seeds: int) -> Iterator[tuple[Detector, int]]:
    """Return the detector with each seed, where it or the choice of its parameters draws random numbers; else once."""
    made = detector(spec)
    draws = any(field.name == "seed" for component in made.components for field in fields(component))
    for seed in range(seeds if draws or AUTO in spec else 1):
        yield _with_seed(made, seed), seed


def _with_seed(made: Detector, seed: int | None) -> Detector:
    """Return the detector with its seeds moved on by so many, or all 0."""

    def change(component: Component) -> Component:
        if not hasattr(component, "seed"):
            return component
        return replace(component, **{"seed": 0 if seed is None else component.seed + seed})

    return Detector(made.spec.replace(change))


def bootstrap_errors(known: Array, unknown: Array, seed: int = 0) -> dict[str, float]:
    """Estimate standard errors of FPR95 and AUROC by the bootstrap where a set is small.

    Parameters
    ----------
    known, unknown : ndarray
        Scores of known and unknown inputs.
    seed : int, default=0
        Seed of the resampling.

    Returns
    -------
    dict of str to float
        Errors as shares; empty where both sets are large.

    Examples
    --------
    >>> found = bootstrap_errors(np.arange(100.0), np.arange(-50.0, 50.0))
    >>> 0.03 < found["fpr95"] < 0.12
    True
    """
    if min(len(known), len(unknown)) > FEW:
        return {}
    rng = np.random.default_rng(seed)
    drawn = [
        detection_report(rng.choice(known, len(known)), rng.choice(unknown, len(unknown))) for _ in range(RESAMPLED)
    ]
    return {name: float(np.std([getattr(report, name) for report in drawn])) for name in ("fpr95", "auroc")}
