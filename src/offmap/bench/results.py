"""Results of a suite: rows with the thesis' figures beside them, as a table and as JSON in per cent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offmap import store
from offmap.bench.groups import GroupRow, list_groups
from offmap.bench.sets import LoadedSet
from offmap.detection.comparison import Row
from offmap.metrics.detection import STANDARD
from offmap.typing import Array


@dataclass(frozen=True)
class SuiteRow(Row):
    """A row of a suite: means over seeds, with what the thesis prints beside them. Shares, as in `Row`.

    Attributes
    ----------
    suite, network : str
        Where it was measured.
    thesis : mapping or None
        FPR95 and AUROC as printed for this network and set.
    seeds : int
        Number of runs, more than one where random numbers enter.
    std : mapping of str to float
        Standard deviations over the seeds.
    error : mapping of str to float
        Bootstrap standard errors where the sets are small: FPR95 hangs on few scores around its threshold.
    inputs : tuple of int
        Known and unknown test inputs.
    runs_again : bool
        True if the method sends every input through the network once more.
    full_spectrum : mapping of str to float
        FPR95 and AUROC when known inputs under a covariate shift count as known, where the suite has any.
    """

    suite: str = ""
    network: str = ""
    thesis: Mapping[str, float] | None = None
    seeds: int = 1
    std: Mapping[str, float] = field(default_factory=dict)
    error: Mapping[str, float] = field(default_factory=dict)
    inputs: tuple[int, int] = (0, 0)
    runs_again: bool = False
    full_spectrum: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time for fitting and scoring, without the network's passes."""
        return self.fit_seconds + self.score_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values in per cent, rounded to what means anything."""
        return {
            "suite": self.suite,
            "network": self.network,
            "ood": self.ood,
            "method": self.method,
            **_percent({name: self.metric(name) for name in (*STANDARD, *self.more)}),
            "seconds": round(self.seconds, 4),
            "thesis": None if self.thesis is None else _percent(self.thesis),
            "chosen": self.chosen,
            "id_accuracy": None if self.id_accuracy is None else round(100 * self.id_accuracy, 3),
            "seeds": self.seeds,
            "std": _percent(self.std),
            "error": _percent(self.error),
            "inputs": {"id": self.inputs[0], "ood": self.inputs[1]},
            "runs_again": self.runs_again,
            **({"full_spectrum": _percent(self.full_spectrum)} if self.full_spectrum else {}),
        }


def _percent(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 3) for name, value in shares.items()}


@dataclass
class SuiteResult:
    """All rows of a suite, and what its report shows beside them.

    Attributes
    ----------
    shifted : list of SuiteRow
        Known inputs under a covariate shift against plain ones: an AUROC of 50 % and an FPR95 (here the share of them
        that is accepted) of 95 % mean that a method takes no notice.
    groups : list of GroupRow
        Means over groups of unknown sets, where the suite names any: the scores of the first seed.
    skipped : dict of str to str
        Methods that could not run, each with the reason.
    scores : dict of str to dict of str to dict of str to ndarray
        By network and method: scores of the known test inputs (``"id"``) and of each unknown set.
    sets : dict of str to dict of str to LoadedSet
        By network: the test sets as they were measured, the known one as ``"id"``; `short` those that methods with
        passes of their own were measured on.
    notes : dict of str to Any
        Settings, where activations came from, accuracies.
    """

    suite: str
    about: str
    rows: list[SuiteRow] = field(default_factory=list)
    shifted: list[SuiteRow] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    scores: dict[str, dict[str, dict[str, Array]]] = field(default_factory=dict)
    sets: dict[str, dict[str, LoadedSet]] = field(default_factory=dict)
    short: dict[str, dict[str, LoadedSet]] = field(default_factory=dict)
    features: dict[str, dict[str, Array]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def networks(self) -> list[str]:
        """The networks that were measured."""
        return list(dict.fromkeys(row.network for row in self.rows))

    def of(self, network: str) -> list[SuiteRow]:
        """Return the rows of one network."""
        return [row for row in self.rows if row.network == network]

    def rank_methods(self, network: str) -> list[tuple[str, float, float]]:
        """Return methods with their mean FPR95 and AUROC over the unknown sets, the lowest FPR95 first."""
        by_method: dict[str, list[SuiteRow]] = {}
        for row in self.of(network):
            by_method.setdefault(row.method, []).append(row)
        means = [
            (method, float(np.mean([r.fpr95 for r in rows])), float(np.mean([r.auroc for r in rows])))
            for method, rows in by_method.items()
        ]
        return sorted(means, key=lambda mean: (mean[1], -mean[2]))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return everything but scores and inputs as JSON, and write it to `path` when given."""
        text = json.dumps(
            {
                "suite": self.suite,
                "about": self.about,
                "rows": [row.as_dict() for row in self.rows],
                **({"shifted": [row.as_dict() for row in self.shifted]} if self.shifted else {}),
                **({"groups": [row.as_dict() for row in self.groups]} if self.groups else {}),
                "skipped": self.skipped,
                "notes": self.notes,
            },
            indent=1,
        )
        if path is not None:
            store.write_atomically(path, text.encode() + b"\n")
        return text

    def __str__(self) -> str:
        lines: list[str] = []
        for network in self.networks:
            sets = list(dict.fromkeys(row.ood for row in self.of(network)))
            cells = {(row.method, row.ood): row for row in self.of(network)}
            printed = any(row.thesis for row in cells.values())
            cell, words = (
                (51, "FPR95        AUROC         thesis         (Δ)") if printed else (29, "FPR95        AUROC      ")
            )
            ranked = self.rank_methods(network)
            width = max(len(method) for method, _, _ in ranked) + 2
            lines += ["", f"{self.suite}, {network}", f"{'':<{width}}" + "".join(f"{name:>{cell}}" for name in sets)]
            lines.append(f"{'method':<{width}}" + f"{words:>{cell}}" * len(sets))
            for method, _, _ in ranked:
                found = (_cell(cells.get((method, ood)), printed) for ood in sets)
                lines.append(f"{method:<{width}}" + "".join(f"{text:>{cell}}" for text in found))
            lines += list_full_spectrum(
                [method for method, _, _ in ranked],
                self.of(network),
                [row for row in self.shifted if row.network == network],
            )
        lines += list_groups(self.groups)
        if self.groups:
            lines.append("FPR95, unknown: known inputs flagged when 95 % of the unknown are, as OpenOOD counts")
        if self.skipped:
            lines += ["", f"left out: {', '.join(self.skipped)}; results.json says why"]
        told = "per cent; FPR95 at 95 % of known inputs accepted; ± over seeds, where random numbers enter"
        return "\n".join([*lines, told]).lstrip()


def list_full_spectrum(methods: Sequence[str], rows: Sequence[SuiteRow], shifted: Sequence[SuiteRow]) -> list[str]:
    """List, for each method, how many shifted known inputs it accepts and its full-spectrum figures.

    Parameters
    ----------
    methods : sequence of str
        Text forms, in the order to list them in.
    rows, shifted : sequence of SuiteRow
        Rows of unknown sets and of known inputs under a covariate shift, of one network.

    Returns
    -------
    list of str
        Lines of a table; none without shifted inputs.
    """
    if not shifted:
        return []
    width = max(map(len, methods)) + 2
    lines = ["", "covariate shift: known inputs accepted, mean over shifts; full spectrum: mean over unknown sets"]
    lines.append(f"{'method':<{width}}{'accepted':>10}{'FPR95':>10}{'AUROC':>10}")
    for method in methods:
        accepted = [row.fpr95 for row in shifted if row.method == method]
        whole = [row.full_spectrum for row in rows if row.method == method and row.full_spectrum]
        if accepted and whole:
            numbers = (accepted, [part["fpr95"] for part in whole], [part["auroc"] for part in whole])
            lines.append(f"{method:<{width}}" + "".join(f"{100 * float(np.mean(found)):10.2f}" for found in numbers))
    return lines


def _cell(row: SuiteRow | None, printed: bool) -> str:
    if row is None:
        return "–"
    own = " ".join(f"{100 * getattr(row, name):6.2f}{_spread(row.std.get(name)):<6}" for name in ("fpr95", "auroc"))
    if row.thesis is None:
        return own + " " * 21 * printed
    fpr95 = 100 * row.thesis["fpr95"]
    auroc = f"{100 * row.thesis['auroc']:6.2f}" if "auroc" in row.thesis else "     –"
    return f"{own} {fpr95:6.2f} {auroc} ({100 * row.fpr95 - fpr95:+5.1f})"


def _spread(std: float | None) -> str:
    return "" if std is None else f" ±{100 * std:.1f}"
