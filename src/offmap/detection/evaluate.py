"""The one measuring loop: fit a detector, score known and unknown test inputs, and say how well it tells them apart.

`measure` does it for one detector, with whatever fits it and gives the activations; `compare` does it for several on
the same activations and makes a table that prints, plots and saves. The benchmark runner measures with it too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offmap import store
from offmap.activations import Activations
from offmap.detection.calibration import Calibration
from offmap.detection.detectors import Detector, as_activations, detector
from offmap.detection.spec import split
from offmap.errors import InputError
from offmap.metrics.detection import METRICS, STANDARD, detection_report, metric_names
from offmap.typing import Array

if TYPE_CHECKING:
    from offmap.report import Page

KNOWN = "id"
AVERAGE = "average"
LONGEST = 48  # characters of a method in a printed table
COVERED = 0.95  # the share of known inputs that a threshold for `Measurement.coverage` accepts


@dataclass(frozen=True)
class Measurement:
    """One detector measured.

    Attributes
    ----------
    method : str
        Text form as asked for.
    detector : Detector
        Fitted.
    scores : dict of str to ndarray
        Of the known test inputs (``"id"``) and of each unknown set.
    reports : dict of str to dict of str to float
        Metrics by unknown set, as shares.
    id_accuracy : float or None
        The share of known test inputs that get their label after shaping; `None` without labels or classes.
    fit_seconds, score_seconds : float
        Without the passes of the network.
    """

    method: str
    detector: Detector
    scores: dict[str, Array]
    reports: dict[str, dict[str, float]]
    id_accuracy: float | None
    fit_seconds: float
    score_seconds: float

    @property
    def coverage(self) -> float | None:
        """The share of known test inputs accepted at a threshold that should accept 95 %.

        The threshold is calibrated on every other known test input and tried on the rest; `None` where they are fewer
        than 40.
        """
        scores = self.scores[KNOWN]
        if len(scores) < 40:
            return None
        calibration = Calibration.of(scores[::2], COVERED)
        return float(np.mean(scores[1::2] >= calibration.threshold))


def measure(
    made: Detector,
    fit: Callable[[Detector], Detector],
    read: Callable[[Detector], Mapping[str, Activations]],
    device: str | torch.device = "cpu",
) -> Measurement:
    """Fit a detector and measure how it tells known test inputs from unknown ones.

    Parameters
    ----------
    made : Detector
        Not fitted yet.
    fit : callable
        Fits it and gives it back.
    read : callable
        Gives the activations that the fitted detector reads: of the known test inputs as ``"id"``, of unknown sets by
        their names. Not timed, since it may run the network.
    device : str or torch.device, default="cpu"
        Where to score.

    Returns
    -------
    Measurement
        Scores, numbers and times.

    See Also
    --------
    compare : for several detectors on the same activations.
    """
    method = repr(made)
    started = time.perf_counter()
    fitted = fit(made)
    fit_seconds = time.perf_counter() - started
    acts = read(fitted)
    started = time.perf_counter()
    scores = {name: fitted.score(part, device) for name, part in acts.items()}
    score_seconds = time.perf_counter() - started
    test = acts[KNOWN]
    accuracy = None
    if test.labels is not None and fitted.n_classes is not None:
        accuracy = float(np.mean(fitted.predict_classes(test, device) == test.labels))
    reports = {}
    for name in scores:
        if name != KNOWN:
            report = detection_report(scores[KNOWN], scores[name]).as_dict()
            reports[name] = {metric: report[metric] for metric in metric_names()}
    return Measurement(method, fitted, scores, reports, accuracy, fit_seconds, score_seconds)


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
    more : mapping of str to float
        Other metrics that are registered, by name.
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
    more: Mapping[str, float] = field(default_factory=dict)

    def metric(self, name: str) -> float:
        """Return a metric by name, one of the four usual ones or another."""
        value: float = getattr(self, name) if name in STANDARD else self.more[name]
        return value


@dataclass
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    measurements : dict of Measurement
        By the text that was asked for.
    sizes : dict of int
        How many inputs each set has; AUPR depends on it.
    """

    measurements: dict[str, Measurement] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def detectors(self) -> dict[str, Detector]:
        """The fitted detectors, by the text they were asked for."""
        return {method: found.detector for method, found in self.measurements.items()}

    @property
    def scores(self) -> dict[str, dict[str, Array]]:
        """By method: the scores of the known test inputs (``"id"``) and of each set."""
        return {method: found.scores for method, found in self.measurements.items()}

    @property
    def rows(self) -> list[Row]:
        """One row per method and unknown set, and one per method for the average."""
        rows = []
        for method, found in self.measurements.items():
            shares = dict(found.reports)
            if shares:
                names = next(iter(shares.values()))
                shares[AVERAGE] = {m: float(np.mean([each[m] for each in shares.values()])) for m in names}
            rows += [
                Row(
                    method=method,
                    chosen=found.detector.chosen,
                    ood=name,
                    **split_metrics(values),
                    id_accuracy=found.id_accuracy,
                    fit_seconds=found.fit_seconds,
                    score_seconds=found.score_seconds,
                )
                for name, values in shares.items()
            ]
        return rows

    def averages(self) -> list[Row]:
        """Give the average rows, the lowest FPR95 first; none without unknown inputs."""
        rows = [row for row in self.rows if row.ood == AVERAGE]
        return sorted(rows, key=lambda row: (row.fpr95, -row.auroc))

    @property
    def best(self) -> Detector:
        """The detector with the lowest average FPR95. Chosen on test data: good to look at, not to report."""
        averages = self.averages()
        if not averages:
            raise InputError("compare: without unknown inputs nothing says which detector is best; give ood=...")
        return self.detectors[averages[0].method]

    def __str__(self) -> str:
        if not self.averages():
            return self._known_table()
        sets = [name for name in self.sizes if name != "id"]
        shown = [*sets, AVERAGE] if len(sets) > 1 else sets
        by_cell = {(row.method, row.ood): row for row in self.rows}
        names = {row.method: _short(row) for row in self.averages()}
        width = max(map(len, [*names.values(), "method"]))
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
                f"{names[average.method]:<{width}}{numbers}{accuracy:>8}"
                f"{average.fit_seconds:>9.3f}{average.score_seconds:>9.3f}"
            )
        lines += [f"{row.method} is {row.chosen}" for row in self.averages() if names[row.method] != row.chosen]
        ratio = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        return "\n".join([*lines, f"per cent; FPR95 at 95 % of ID accepted; inputs: {ratio}"])

    def _known_table(self) -> str:
        """What known inputs alone say: accuracy after shaping, and how many of them a threshold for 95 % accepts."""
        width = max(map(len, [*(found.detector.chosen for found in self.measurements.values()), "method"]))
        lines = [f"{'method':<{width}}{'ID acc':>8}{'coverage':>10}{'fit s':>9}{'score s':>9}"]
        for found in self.measurements.values():
            accuracy, coverage = ("-" if x is None else f"{100 * x:.2f}" for x in (found.id_accuracy, found.coverage))
            lines.append(
                f"{found.detector.chosen:<{width}}{accuracy:>8}{coverage:>10}"
                f"{found.fit_seconds:>9.3f}{found.score_seconds:>9.3f}"
            )
            lines += [f"  tried: {_trial(trial)}" for trial in found.detector.trials]
        return "\n".join(
            [
                *lines,
                f"per cent of {self.sizes[KNOWN]} known test inputs; coverage at a threshold that should accept 95 %",
            ]
        )

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Give all rows as JSON; write it to `path` when given."""
        known = {
            method: {"id_accuracy": found.id_accuracy, "coverage": found.coverage}
            for method, found in self.measurements.items()
        }
        text = json.dumps(
            {
                "rows": [asdict(row) for row in self.rows],
                "known": known,
                "sizes": self.sizes,
                "trials": {name: made.trials for name, made in self.detectors.items() if made.trials},
            },
            indent=1,
        )
        if path is not None:
            store.write_atomically(path, text.encode())
        return text

    def plot(self, metric: str = "fpr95") -> Any:
        """Draw a coloured table of one number by method and set.

        Parameters
        ----------
        metric : str, default="fpr95"
            ``fpr95``, ``auroc``, ``aupr_in``, ``aupr_out`` or another that is registered.

        Returns
        -------
        plotly.graph_objects.Figure
            The table.
        """
        from offmap.plots import comparison_heat

        if metric not in metric_names():
            raise InputError(f"plot({metric!r}): the metric is one of {', '.join(metric_names())}")
        values: dict[str, dict[str, float]] = {}
        for row in self.rows:
            values.setdefault(row.chosen, {})[row.ood] = 100 * row.metric(metric)
        return comparison_heat(values, metric=metric, best=METRICS.get(metric).best)

    def to_html(self, path: str | os.PathLike[str] | None = None, title: str = "Detectors compared") -> str:
        """Make a page with the table, the curves and the scores of the best method; write it to `path` when given."""
        from offmap.report import Page

        averages = self.averages()
        page = Page(title, _summary(averages[0]) if averages else "Without unknown inputs: what known inputs say.")
        if averages:
            self._add_unknown(page, averages[0])
        else:
            self._add_known(page)
        html = page.html()
        if path is not None:
            store.write_atomically(path, html.encode())
        return html

    def _add_unknown(self, page: Page, best: Row) -> None:
        from offmap.plots import FIGURES, roc_curves

        metrics = {name: METRICS.get(name) for name in metric_names()}
        titles = {name: f"{of.title} {'↑' if of.best == 'max' else '↓'}" for name, of in metrics.items()}
        page.section("All methods").table(
            ["method", "set", *titles.values(), "ID accuracy ↑", "fit s", "score s"],
            [
                [row.chosen, row.ood, *(100 * row.metric(name) for name in metrics), _percent(row.id_accuracy),
                 row.fit_seconds, row.score_seconds]
                for row in self.rows
            ],
            best={titles[name]: of.best for name, of in metrics.items()},
            caption="Per cent; known inputs are the positives. AUPR depends on how many inputs each set has: "
            + ", ".join(f"{name} {size}" for name, size in self.sizes.items()),
        )  # fmt: skip
        page.figure(self.plot(), "FPR95 by method and set; light is good.")
        page.section("Curves")
        for name in (name for name in self.sizes if name != KNOWN):
            curves = {
                made.chosen: (self.scores[key][KNOWN], self.scores[key][name]) for key, made in self.detectors.items()
            }
            page.figure(roc_curves(curves), f"Known against {name}.")
        scores = self.scores[best.method]
        unknown = {name: values for name, values in scores.items() if name != KNOWN}
        page.section(f"Scores of {best.chosen}")
        for name in FIGURES:
            page.figure(FIGURES.get(name)(scores[KNOWN], unknown))

    def _add_known(self, page: Page) -> None:
        page.section("All methods").table(
            ["method", "ID accuracy ↑", "coverage", "fit s", "score s"],
            [
                [found.detector.chosen, _percent(found.id_accuracy), _percent(found.coverage), found.fit_seconds,
                 found.score_seconds]
                for found in self.measurements.values()
            ],
            caption=f"Per cent of {self.sizes[KNOWN]} known test inputs; coverage at a threshold for 95 %.",
        )  # fmt: skip
        for found in self.measurements.values():
            if found.detector.trials:
                page.section(f"What {found.detector} tried").text(
                    "\n".join(f"- {_trial(trial)}" for trial in found.detector.trials)
                )


def split_metrics(values: Mapping[str, float]) -> dict[str, Any]:
    """Arrange metrics by name as the fields of a `Row`.

    Examples
    --------
    >>> split_metrics({"auroc": 0.9, "mine": 0.1})
    {'auroc': 0.9, 'more': {'mine': 0.1}}
    """
    usual = {name: value for name, value in values.items() if name in STANDARD}
    return {**usual, "more": {name: value for name, value in values.items() if name not in STANDARD}}


def _summary(best: Row) -> str:
    return (
        f"**{best.chosen}** lets in the fewest unknown inputs here: {100 * best.fpr95:.1f} % when 95 % of the known "
        f"ones are accepted, AUROC {100 * best.auroc:.1f} %."
    )


def _short(row: Row) -> str:
    """What was asked for where the choice is too long for a table, else what was chosen."""
    return row.method if len(row.chosen) > LONGEST else row.chosen


def _trial(trial: Mapping[str, Any]) -> str:
    """One trial of what was chosen by itself, in a line."""
    rest = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in trial.items()
        if name != "spec"
    )
    return f"{trial.get('spec', '')}: {rest}" if rest else str(trial.get("spec", ""))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def compare(
    specs: str | Iterable[str | Detector],
    known: Any,
    id_test: Any,
    ood: Any = None,
    val: Any = None,
    outliers: Any = None,
    device: str | torch.device = "cpu",
) -> Comparison:
    """Fit each detector on `known` and measure how it tells `id_test` from each unknown set.

    Parameters
    ----------
    specs : str or iterable of str or Detector
        Text forms (or detectors), as a list or as one text with commas.
    known : Activations or array
        To fit on.
    id_test : Activations or array
        Of known inputs that were not fitted on.
    ood : Activations, array or mapping of these, optional
        Of unknown inputs: by name, or one set. Without any, the table says what known inputs say: accuracy after
        shaping, coverage of a threshold, and what was tried where something was chosen.
    val, outliers : Activations or array, optional
        As in `Detector.fit`.
    device : str or torch.device, default="cpu"
        Where to compute.

    Returns
    -------
    Comparison
        A table that prints, plots and saves.

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
    given = {} if ood is None else ood if isinstance(ood, Mapping) else {"ood": ood}
    sets = {KNOWN: test} | {name: as_activations(acts) for name, acts in given.items()}
    if {KNOWN, AVERAGE} & given.keys():
        raise InputError(f"compare: an OOD set cannot be named '{KNOWN}' or '{AVERAGE}'")
    if min(map(len, sets.values())) == 0 or (ood is not None and not given):
        raise InputError("compare: the known test set and every OOD set must hold at least one input")
    table = Comparison(sizes={name: len(acts) for name, acts in sets.items()})
    for made in wanted:
        found = measure(
            made,
            lambda each: each.fit(inside, val=val, outliers=outliers, device=device),
            lambda each: sets,
            device,
        )
        table.measurements[found.method] = found
    return table
