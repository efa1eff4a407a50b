"""`offmap bench thesis-detection`: every declared sweep measured and drawn, with the figures that the thesis shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from offmap import store
from offmap.bench.cache import default_cache, held_out
from offmap.bench.results import Row
from offmap.bench.runner import ENVIRONMENT, Bench, measured, prepared
from offmap.bench.suites import NetworkSpec, load_suite
from offmap.bench.sweeps import CIFAR10, SWEEPS, Point, Sweep
from offmap.detection import detector
from offmap.errors import OffmapError
from offmap.report import Page, versions

ABOUT = (
    "The thesis' own questions about ReAct, DICE and k-NN: every ablation as one sweep and one plot, and its figures"
)
LIMIT = 4000
PASSES_LIMIT = 400
VALIDATED = ("react(auto)|energy", "dice(auto)|energy", "knn(auto)")


@dataclass(frozen=True)
class Finding:
    """One point of a sweep: means over the unknown sets, in per cent, and each set's row."""

    series: str
    x: Any
    method: str
    fpr95: float
    auroc: float
    id_accuracy: float | None
    rows: tuple[Row, ...] = field(repr=False)


@dataclass
class ThesisResult:
    """All sweeps that could be measured, those that could not with the reason, and what the figures are drawn from."""

    sweeps: dict[str, list[Finding]] = field(default_factory=dict)
    declared: dict[str, Sweep] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    validation: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[dict[str, float]] = field(default_factory=list)
    benches: dict[str, Bench] = field(default_factory=dict, repr=False)
    notes: dict[str, Any] = field(default_factory=dict)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Every point with its rows as JSON; written to `path` when given."""
        rows = [
            {**row.as_dict(), "sweep": name, "series": found.series, "x": found.x}
            for name, points in self.sweeps.items()
            for found in points
            for row in found.rows
        ]
        asked = {
            name: {"question": sweep.question, "thesis": sweep.says, "suite": sweep.suite}
            for name, sweep in self.declared.items()
        }
        content = {
            "suite": "thesis-detection", "rows": rows, "sweeps": asked, "noise validation": self.validation,
            "dice mean gap": self.gaps, "skipped": self.skipped, "notes": self.notes,
        }  # fmt: skip
        text = json.dumps(content, indent=1)
        if path is not None:
            store.write_atomically(path, text.encode() + b"\n")
        return text

    def __str__(self) -> str:
        lines = []
        for name, points in self.sweeps.items():
            lines += ["", f"{name}: {self.declared[name].question}", f"  the thesis: {self.declared[name].says}"]
            for found in points:
                accuracy = "" if found.id_accuracy is None else f"  ID accuracy {found.id_accuracy:.2f}"
                lines.append(
                    f"  {found.series:<18}{found.x!s:>12}  FPR95 {found.fpr95:6.2f}  AUROC {found.auroc:6.2f}{accuracy}"
                )
        if self.skipped:
            lines += ["", "left out:", *(f"  {name}: {why}" for name, why in self.skipped.items())]
        return "\n".join(lines).lstrip()


def run_thesis(
    *,
    methods: Sequence[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    on_step: Callable[[str], None] = lambda words: None,
    seeds: int | None = None,
    limit: int | None = None,
    passes_limit: int | None = None,
    noise: int = 500,
) -> ThesisResult:
    """Measure the sweeps; `methods` names some of them, by default all. Other parameters as in `run_suite`."""
    root = data if data is not None else os.environ.get(ENVIRONMENT)
    folder = None if root is None else Path(root)
    kept = default_cache() if cache is None else Path(cache)
    changes = {
        "limit": limit or LIMIT,
        "passes_limit": passes_limit or PASSES_LIMIT,
        "seeds": seeds or 3,
        "noise": noise,
    }
    result = ThesisResult(notes={**changes, "sets": "means over the unknown sets of each suite"})

    def bench_of(sweep: Sweep, options: tuple[tuple[str, str], ...]) -> Bench:
        key = json.dumps([sweep.suite, options])
        if key not in result.benches:
            suite = load_suite(sweep.suite)
            suite = replace(suite, protocol=replace(suite.protocol, **changes))
            spec = suite.networks[0]
            changed = NetworkSpec(spec.name, spec.kind, {**spec.options, **dict(options)})
            result.benches[key] = prepared(suite, changed, folder, kept, fresh, on_step, result.skipped)
        return result.benches[key]

    for sweep in SWEEPS:
        if methods is not None and sweep.name not in methods:
            continue
        on_step(sweep.question)
        try:
            points = [found_at(bench_of(sweep, point.network), point, sweep.accuracy) for point in sweep.points]
        except OffmapError as error:
            result.skipped[sweep.name] = " ".join(str(error).split())
            continue
        result.sweeps[sweep.name], result.declared[sweep.name] = points, sweep
    first = result.benches.get(json.dumps([CIFAR10, []]))
    if first is not None:
        result.validation, result.gaps = validation(first), mean_gaps(first)
    return result


def found_at(bench: Bench, point: Point, accuracy: bool) -> Finding:
    """Measure one point of a sweep."""
    rows, _ = measured(bench, point.method)
    right = rows[0].id_accuracy if accuracy else None
    fpr95, auroc = (float(np.mean([getattr(row, name) for row in rows])) for name in ("fpr95", "auroc"))
    return Finding(point.series, point.x, point.method, fpr95, auroc, right, tuple(rows))


def validation(bench: Bench) -> list[dict[str, Any]]:
    """What noise says of each candidate parameter, beside what the unknown test sets say (thesis, appendix A.2.2)."""
    rest, val = held_out(bench.known, bench.protocol.held_out) if bench.val is None else (bench.known, bench.val)
    found = []
    for spec in VALIDATED:
        made = detector(spec).fit(rest, val=val, outliers=bench.far(0))
        for trial in made.trials:
            rows, _ = measured(bench, trial["spec"])
            found.append(
                {
                    "method": spec,
                    "candidate": trial["spec"],
                    "noise fpr95": 100 * trial["fpr95"],
                    "ood fpr95": float(np.mean([row.fpr95 for row in rows])),
                    "chosen": trial["spec"] == made.chosen,
                }
            )
    return found


def mean_gaps(bench: Bench) -> list[dict[str, float]]:
    """By sparsity p: Δ = E_in[max f] − E_out[max f] (thesis, section 4.5, table 4.5) and the spread of energy on
    unknown inputs, over the mean energy of known ones (section 4.4, figure 4.3).
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


def write_thesis(result: ThesisResult, out: Path) -> Path:
    """Write ``results.json`` and ``report.html``; returns the report's path."""
    result.to_json(out / "results.json")
    return thesis_page(result).write(out / "report.html")


def thesis_page(result: ThesisResult) -> Page:
    """One part per question with its plot, then what noise validation chooses, then the figures of the thesis."""
    from offmap.bench.thesis_figures import add_figures, sweep_figure

    asked = len(result.sweeps)
    page = Page(
        "The thesis' questions about detection",
        f"**{asked} questions** of the thesis, asked again of the networks and sets at hand. Each part says what the "
        "thesis found, then shows what is found here; numbers are means over the unknown sets, in per cent.",
    )
    for name, points in result.sweeps.items():
        sweep = result.declared[name]
        page.section(sweep.question).text(f"The thesis: {sweep.says}.").figure(
            sweep_figure(sweep, points), answer(sweep, points)
        )
    add_figures(page, result)
    if result.skipped:
        page.section("Left out").table(["what", "why"], list(result.skipped.items()))
    return page.settings({**result.notes, "versions": versions()}, title="Settings and versions")


def answer(sweep: Sweep, points: Sequence[Finding]) -> str:
    """The sentence under a sweep's plot: its best and its worst point."""
    best, worst = min(points, key=lambda point: point.fpr95), max(points, key=lambda point: point.fpr95)
    return (
        f"Lowest FPR95 here: {best.fpr95:.1f} % by {best.method} ({best.series}, {best.x}); highest: "
        f"{worst.fpr95:.1f} % by {worst.method} ({worst.series}, {worst.x}). Suite {sweep.suite}."
    )
