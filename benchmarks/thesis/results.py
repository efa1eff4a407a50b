"""What the sweeps found: points, and everything that the report is drawn from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from offmap import store
from offmap.bench.results import SuiteRow
from offmap.bench.runner import Bench
from thesis.sweeps import Sweep


@dataclass(frozen=True)
class Finding:
    """One point of a sweep: means over the unknown sets, in per cent, and each set's row."""

    series: str
    x: Any
    method: str
    fpr95: float
    auroc: float
    id_accuracy: float | None
    rows: tuple[SuiteRow, ...] = field(repr=False)


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
        """Return every point with its rows as JSON, and write it to `path` when given."""
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
