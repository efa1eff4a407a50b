"""Every method on your own data, from one pass of the network: a table that prints, plots and saves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations
from offmap.detection.detectors import Detector, as_activations, detector
from offmap.detection.spec import split
from offmap.errors import InputError
from offmap.metrics.detection import detection_report
from offmap.typing import Array

AVERAGE = "average"
METRICS = ("fpr95", "auroc", "aupr_in", "aupr_out")


@dataclass(frozen=True)
class Row:
    """One method on one set of unknown inputs, or on average.

    Metrics and accuracy are shares in memory and in files of `Comparison`; what is printed or drawn is in per cent.

    Attributes
    ----------
    method, chosen : str
        Text form as asked for, and with the parameters that were chosen for ``auto``.
    ood : str
        Name of the set of unknown inputs.
    fpr95, auroc, aupr_in, aupr_out : float
        Metrics, known inputs being the positives.
    id_accuracy : float or None
        Accuracy of the (shaped) network on the known test inputs; `None` without labels.
    fit_seconds, score_seconds : float
        Time for the whole method.
    """

    method: str
    chosen: str
    ood: str
    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    id_accuracy: float | None
    fit_seconds: float
    score_seconds: float


@dataclass
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    rows
        One per method and set, and one per method for the average.
    detectors
        The fitted detectors, by the text they were asked for.
    scores
        By method: the scores of the known test inputs (``"id"``) and of each set.
    sizes
        How many inputs each set has; AUPR depends on it.
    """

    rows: list[Row] = field(default_factory=list)
    detectors: dict[str, Detector] = field(default_factory=dict)
    scores: dict[str, dict[str, Array]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def averages(self) -> list[Row]:
        """The average rows, the lowest FPR95 first."""
        rows = [row for row in self.rows if row.ood == AVERAGE]
        return sorted(rows, key=lambda row: (row.fpr95, -row.auroc))

    @property
    def best(self) -> Detector:
        """The detector with the lowest average FPR95. Chosen on test data: good to look at, not to report."""
        return self.detectors[self.averages()[0].method]

    def __str__(self) -> str:
        sets = [name for name in self.sizes if name != "id"]
        shown = [*sets, AVERAGE] if len(sets) > 1 else sets
        by_cell = {(row.method, row.ood): row for row in self.rows}
        names = [row.chosen for row in self.averages()]
        width = max(map(len, [*names, "method"]))
        cell = max(13, *(len(name) + 2 for name in shown))
        lines = [
            " " * width + "".join(f"{name:>{cell}}" for name in shown) + f"{'ID acc':>8}{'fit s':>9}{'score s':>9}",
            f"{'method':<{width}}" + f"{'FPR95/AUROC':>{cell}}" * len(shown),
        ]
        for average in self.averages():
            cells = [by_cell[average.method, name] for name in shown]
            numbers = "".join(f"{f'{100 * row.fpr95:.2f}/{100 * row.auroc:.2f}':>{cell}}" for row in cells)
            accuracy = "-" if average.id_accuracy is None else f"{100 * average.id_accuracy:.2f}"
            lines.append(
                f"{average.chosen:<{width}}{numbers}{accuracy:>8}"
                f"{average.fit_seconds:>9.3f}{average.score_seconds:>9.3f}"
            )
        ratio = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        return "\n".join([*lines, f"per cent; FPR95 at 95 % of ID accepted; inputs: {ratio}"])

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """All rows as JSON; written to `path` when given."""
        text = json.dumps(
            {
                "rows": [asdict(row) for row in self.rows],
                "sizes": self.sizes,
                "trials": {name: made.trials for name, made in self.detectors.items() if made.trials},
            },
            indent=1,
        )
        if path is not None:
            store.write_atomically(path, text.encode())
        return text

    def plot(self, metric: str = "fpr95") -> Any:
        """A coloured table of one number by method and set, as a plotly figure.

        Parameters
        ----------
        metric
            ``fpr95``, ``auroc``, ``aupr_in`` or ``aupr_out``.
        """
        from offmap.plots import comparison_heat

        if metric not in METRICS:
            raise InputError(f"plot({metric!r}): the metric is one of {', '.join(METRICS)}")
        values: dict[str, dict[str, float]] = {}
        for row in self.rows:
            values.setdefault(row.chosen, {})[row.ood] = 100 * getattr(row, metric)
        return comparison_heat(values, metric=metric, best="min" if metric == "fpr95" else "max")

    def to_html(self, path: str | os.PathLike[str] | None = None, title: str = "Detectors compared") -> str:
        """A page with the table, the curves and the scores of the best method; written to `path` when given."""
        from offmap.plots import roc_curves, score_histogram
        from offmap.report import Page

        best = self.averages()[0]
        page = Page(
            title,
            f"**{best.chosen}** lets in the fewest unknown inputs here: {100 * best.fpr95:.1f} % when 95 % of the "
            f"known ones are accepted, AUROC {100 * best.auroc:.1f} %.",
        )
        columns = [
            "method",
            "set",
            "FPR95 ↓",
            "AUROC ↑",
            "AUPR-in ↑",
            "AUPR-out ↑",
            "ID accuracy ↑",
            "fit s",
            "score s",
        ]
        page.section("All methods").table(
            columns,
            [
                [row.chosen, row.ood, *(100 * getattr(row, name) for name in METRICS), _percent(row.id_accuracy),
                 row.fit_seconds, row.score_seconds]
                for row in self.rows
            ],
            best={"FPR95 ↓": "min", "AUROC ↑": "max", "AUPR-in ↑": "max", "AUPR-out ↑": "max"},
            caption="Per cent; known inputs are the positives. AUPR depends on how many inputs each set has: "
            + ", ".join(f"{name} {size}" for name, size in self.sizes.items()),
        )  # fmt: skip
        page.figure(self.plot(), "FPR95 by method and set; light is good.")
        page.section("Curves")
        for name in (name for name in self.sizes if name != "id"):
            curves = {
                made.chosen: (self.scores[key]["id"], self.scores[key][name]) for key, made in self.detectors.items()
            }
            page.figure(roc_curves(curves), f"Known against {name}.")
        scores = self.scores[best.method]
        unknown = {name: values for name, values in scores.items() if name != "id"}
        page.section(f"Scores of {best.chosen}").figure(score_histogram(scores["id"], unknown))
        html = page.html()
        if path is not None:
            store.write_atomically(path, html.encode())
        return html


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def compare(
    specs: str | Iterable[str | Detector],
    known: Any,
    id_test: Any,
    ood: Any,
    val: Any = None,
    outliers: Any = None,
    device: str | torch.device = "cpu",
) -> Comparison:
    """Fit each detector on `known` and measure how it tells `id_test` from each OOD set.

    Parameters
    ----------
    specs
        Text forms (or detectors), as a list or as one text with commas.
    known
        Activations to fit on.
    id_test
        Activations of known inputs that were not fitted on.
    ood
        Activations of unknown inputs: by name, or one set.
    val, outliers
        For parameters given as ``auto``, as in `Detector.fit`.
    device
        Where to compute.

    Examples
    --------
    >>> import numpy as np, offmap
    >>> rng = np.random.default_rng(0)
    >>> head = offmap.Head(np.eye(4))
    >>> known = offmap.Activations(rng.normal(size=(150, 4)) + 4 * np.eye(4)[np.arange(150) % 4], head)
    >>> noise = offmap.Activations(rng.normal(size=(50, 4)), head)
    >>> table = offmap.compare("energy, knn(5)", known[:100], known[100:], {"noise": noise})
    >>> table.averages()[0].method
    'energy'
    """
    wanted = [detector(spec) for spec in (split(specs) if isinstance(specs, str) else specs)]
    if not wanted:
        raise InputError("compare: no detectors; give text forms such as ['msp', 'knn(50)']")
    inside, test = as_activations(known), as_activations(id_test)
    sets = {name: as_activations(acts) for name, acts in (ood if isinstance(ood, Mapping) else {"ood": ood}).items()}
    if not sets or min(map(len, [test, *sets.values()])) == 0:
        raise InputError("compare: the known test set and every OOD set must hold at least one input")
    if {"id", AVERAGE} & sets.keys():
        raise InputError(f"compare: an OOD set cannot be named 'id' or '{AVERAGE}'")
    table = Comparison(sizes={"id": len(test), **{name: len(acts) for name, acts in sets.items()}})
    tests = {"id": test, **sets}
    for made in wanted:
        _add(
            table,
            measure(
                made,
                lambda made: made.fit(inside, val=val, outliers=outliers, device=device),
                lambda made: tests,
                device,
            ),
        )
    return table


@dataclass(frozen=True)
class Measurement:
    """One fitted detector, measured on known test inputs and on sets of unknown ones.

    Attributes
    ----------
    method : str
        Text form as asked for.
    detector : Detector
        The fitted detector.
    scores : dict of str to ndarray
        Scores of the known test inputs (``"id"``) and of each set.
    reports : dict of str to dict of str to float
        Metrics by set, as shares.
    id_accuracy : float or None
        Accuracy on the known test inputs; `None` without labels.
    fit_seconds, score_seconds : float
        Time to fit, and to score all sets.
    """

    method: str
    detector: Detector
    scores: dict[str, Array]
    reports: dict[str, dict[str, float]]
    id_accuracy: float | None
    fit_seconds: float
    score_seconds: float

    def rows(self) -> list[Row]:
        """Return one row per set of unknown inputs."""
        common: dict[str, Any] = {
            "method": self.method,
            "chosen": self.detector.chosen,
            "id_accuracy": self.id_accuracy,
            "fit_seconds": self.fit_seconds,
            "score_seconds": self.score_seconds,
        }
        return [Row(**{**common, **report, "ood": name}) for name, report in self.reports.items()]


def measure(
    made: Detector,
    fit: Callable[[Detector], Detector],
    read: Callable[[Detector], Mapping[str, Activations]],
    device: str | torch.device = "cpu",
) -> Measurement:
    """Fit a detector and measure how it tells known test inputs from unknown ones.

    This is the one loop behind `compare` and the benchmark suites.

    Parameters
    ----------
    made : Detector
        The detector as asked for.
    fit : callable
        Fits it and returns the fitted detector.
    read : callable
        Returns the activations that the fitted detector scores: the known test inputs as ``"id"``, and each set of
        unknown inputs by name. Not timed, since it may run the network.
    device : str or torch.device, default="cpu"
        Where to score.

    Returns
    -------
    Measurement

    See Also
    --------
    compare : Measures several detectors on the same activations.
    """
    method = repr(made)
    started = time.perf_counter()
    fitted = fit(made)
    fit_seconds = time.perf_counter() - started
    acts = read(fitted)
    started = time.perf_counter()
    scores = {name: fitted.score(part, device) for name, part in acts.items()}
    score_seconds = time.perf_counter() - started
    test, accuracy = acts["id"], None
    if test.labels is not None and fitted.n_classes is not None:
        accuracy = float(np.mean(fitted.predict_classes(test, device) == test.labels))
    reports = {}
    for name in acts:
        if name != "id":
            report = detection_report(scores["id"], scores[name]).as_dict()
            reports[name] = {metric: report[metric] for metric in METRICS}
    return Measurement(method, fitted, scores, reports, accuracy, fit_seconds, score_seconds)


def _add(table: Comparison, found: Measurement) -> None:
    """Add a measurement to a table: its rows, and their average."""
    rows = found.rows()
    means: dict[str, Any] = {metric: float(np.mean([getattr(row, metric) for row in rows])) for metric in METRICS}
    table.rows += [*rows, replace(rows[0], ood=AVERAGE, **means)]
    table.detectors[found.method], table.scores[found.method] = found.detector, found.scores
