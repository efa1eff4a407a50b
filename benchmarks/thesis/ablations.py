"""`benchmarks/thesis_detection.py`: every declared sweep measured and drawn, with the figures that the thesis shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap.bench.cache import hold_out, locate_cache
from offmap.bench.runner import ENVIRONMENT, Bench, measure_method, prepare
from offmap.bench.suites import NetworkSpec, load_suite
from offmap.detection import detector
from offmap.errors import OffmapError
from offmap.report import Page, versions
from thesis.figures import add_figures, draw_sweep
from thesis.networks import make_variant
from thesis.results import Finding, ThesisResult
from thesis.sweeps import CIFAR10, SWEEPS, Point, Sweep

PROTOCOL = {"limit": 4000, "passes_limit": 400, "seeds": 3, "noise": 500}
VALIDATED = ("react(auto)|energy", "dice(auto)|energy", "knn(auto)")


def run_sweeps(
    names: Sequence[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    on_step: Callable[[str], None] = lambda words: None,
    **protocol: Any,
) -> ThesisResult:
    """Measure sweeps and collect what the thesis' figures are drawn from.

    Parameters
    ----------
    names : sequence of str, optional
        Names of sweeps; all by default.
    data, cache, fresh, on_step
        As in `offmap.bench.runner.run_suite`.
    **protocol
        Fields of `Protocol`: `limit`, `passes_limit`, `seeds`, `noise`.

    Returns
    -------
    ThesisResult
    """
    root = data if data is not None else os.environ.get(ENVIRONMENT)
    folder = None if root is None else Path(root)
    kept = locate_cache() if cache is None else Path(cache)
    changes = {**PROTOCOL, **protocol}
    result = ThesisResult(notes={**changes, "sets": "means over the unknown sets of each suite"})

    def bench_for(sweep: Sweep, options: tuple[tuple[str, str], ...]) -> Bench:
        key = json.dumps([sweep.suite, options])
        if key not in result.benches:
            suite = load_suite(sweep.suite)
            suite = replace(suite, protocol=replace(suite.protocol, **changes))
            spec = suite.networks[0]
            changed = NetworkSpec(spec.name, spec.kind, {**spec.options, **dict(options)})
            result.benches[key] = prepare(suite, changed, folder, kept, fresh, on_step, result.skipped, make_variant)
        return result.benches[key]

    for sweep in SWEEPS:
        if names is not None and sweep.name not in names:
            continue
        on_step(sweep.question)
        try:
            points = [measure_point(bench_for(sweep, point.network), point, sweep.accuracy) for point in sweep.points]
        except OffmapError as error:
            result.skipped[sweep.name] = " ".join(str(error).split())
            continue
        result.sweeps[sweep.name], result.declared[sweep.name] = points, sweep
    first = result.benches.get(json.dumps([CIFAR10, []]))
    if first is not None:
        result.validation, result.gaps = validate_on_noise(first), measure_mean_gaps(first)
    return result


def measure_point(bench: Bench, point: Point, accuracy: bool) -> Finding:
    """Measure one point of a sweep."""
    rows, _ = measure_method(bench, point.method)
    right = 100 * rows[0].id_accuracy if accuracy and rows[0].id_accuracy is not None else None
    fpr95, auroc = (100 * float(np.mean([getattr(row, name) for row in rows])) for name in ("fpr95", "auroc"))
    return Finding(point.series, point.x, point.method, fpr95, auroc, right, tuple(rows))


def validate_on_noise(bench: Bench) -> list[dict[str, Any]]:
    """Measure each candidate parameter on noise and on the unknown test sets (thesis, appendix A.2.2)."""
    rest, val = hold_out(bench.known, bench.protocol.held_out) if bench.val is None else (bench.known, bench.val)
    found = []
    for spec in VALIDATED:
        made = detector(spec).fit(rest, val=val, outliers=bench.load_outliers(0))
        for trial in made.trials:
            rows, _ = measure_method(bench, trial["spec"])
            found.append(
                {
                    "method": spec,
                    "candidate": trial["spec"],
                    "noise fpr95": 100 * trial["fpr95"],
                    "ood fpr95": 100 * float(np.mean([row.fpr95 for row in rows])),
                    "chosen": trial["spec"] == made.chosen,
                }
            )
    return found


def measure_mean_gaps(bench: Bench) -> list[dict[str, float]]:
    """Measure the mean gap and the spread of energy by the sparsity p of DICE.

    The gap is Δ = E_in[max f] − E_out[max f] (thesis, section 4.5, table 4.5), the spread that of energy on unknown
    inputs over the mean energy of known ones (section 4.4, figure 4.3).
    """
    import torch

    from offmap.detection.shapers.dice import contribution, largest, n_kept

    head = bench.known.head
    assert head is not None
    weight = torch.from_numpy(head.weight)
    mean = torch.from_numpy(np.asarray(bench.known.features, np.float64).mean(axis=0))
    values = contribution(mean, weight.double())
    found = []
    for p in (0, 0.1, 0.3, 0.5, 0.7, 0.9):
        kept = (weight * largest(values, n_kept(p, values.numel()))).numpy()
        logits = {name: acts.features @ kept.T + head.bias for name, acts in bench.acts.items()}
        energies = {name: np.logaddexp.reduce(part, axis=1) for name, part in logits.items()}
        outside = [name for name in logits if name != "id"]
        tops = {name: float(part.max(axis=1).mean()) for name, part in logits.items()}
        found.append(
            {
                "p": p,
                "gap": float(np.mean([tops["id"] - tops[name] for name in outside])),
                "spread": float(np.mean([energies[name].std() for name in outside]) / energies["id"].mean()),
            }
        )
    return found


def write_report(result: ThesisResult, out: Path) -> Path:
    """Write ``results.json`` and ``report.html``; returns the report's path."""
    result.to_json(out / "results.json")
    return build_page(result).write(out / "report.html")


def build_page(result: ThesisResult) -> Page:
    """Build the report: a plot per question, what noise validation chooses, the figures of the thesis."""
    asked = len(result.sweeps)
    page = Page(
        "The thesis' questions about detection",
        f"**{asked} questions** of the thesis, asked again of the networks and sets at hand. Each part says what the "
        "thesis found, then shows what is found here; numbers are means over the unknown sets, in per cent.",
    )
    for name, points in result.sweeps.items():
        sweep = result.declared[name]
        page.section(sweep.question).text(f"The thesis: {sweep.says}.").figure(
            draw_sweep(sweep, points), describe_extremes(sweep, points)
        )
    add_figures(page, result)
    if result.skipped:
        page.section("Left out").table(["what", "why"], list(result.skipped.items()))
    return page.settings({**result.notes, "versions": versions()}, title="Settings and versions")


def describe_extremes(sweep: Sweep, points: Sequence[Finding]) -> str:
    """Name the best and the worst point of a sweep, in one sentence."""
    best, worst = min(points, key=lambda point: point.fpr95), max(points, key=lambda point: point.fpr95)
    return (
        f"Lowest FPR95 here: {best.fpr95:.1f} % by {best.method} ({best.series}, {best.x}); highest: "
        f"{worst.fpr95:.1f} % by {worst.method} ({worst.series}, {worst.x}). Suite {sweep.suite}."
    )
