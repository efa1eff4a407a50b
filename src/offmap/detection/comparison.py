"""Several detectors measured on the same activations, as a table that prints, plots and saves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from offmap import store
from offmap.detection.comparison_page import AVERAGE, format_table, make_page
from offmap.detection.detectors import Detector, detector
from offmap.detection.evaluate import KNOWN, Measurement, measure, short_name
from offmap.detection.plan_fitter import as_activations
from offmap.detection.spec import split
from offmap.errors import InputError
from offmap.metrics.detection import METRICS, STANDARD, metric_names
from offmap.progress import show_progress
from offmap.typing import Array


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

    @property
    def shown(self) -> str:
        """The name in tables and figures: what was chosen, or what was asked for where that is too long."""
        return short_name(self.method, self.chosen)

    def metric(self, name: str) -> float:
        """Return a metric by name, one of the four usual ones or another."""
        value: float = getattr(self, name) if name in STANDARD else self.more[name]
        return value


@dataclass
class Comparison:
    """Several detectors measured on the same activations, as made by `compare`.

    Attributes
    ----------
    measurements : dict of Measurement
        By the text that was asked for.
    sizes : dict of int
        How many inputs each set has; AUPR depends on it.
    """

    measurements: dict[str, Measurement] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Comparison({len(self.measurements)} methods on {', '.join(self.sizes)}; print it for the table)"

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
        return format_table(self)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Give all rows as JSON; write it to `path` when given.

        Parameters
        ----------
        path : str, path or None, default=None
            The file to write.

        Returns
        -------
        str
            The JSON text.
        """
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
            values.setdefault(row.shown, {})[row.ood] = 100 * row.metric(metric)
        measure = METRICS.get(metric)
        return comparison_heat(values, metric=measure.title, best=measure.best)

    def to_html(self, path: str | os.PathLike[str] | None = None, title: str = "Detectors compared") -> str:
        """Make a page with the table, the curves and the scores of the best method; write it to `path` when given.

        Parameters
        ----------
        path : str, path or None, default=None
            The file to write.
        title : str, default="Detectors compared"
            Heading of the page.

        Returns
        -------
        str
            Self-contained HTML.
        """
        html = make_page(self, title).html()
        if path is not None:
            store.write_atomically(path, html.encode())
        return html


def split_metrics(values: Mapping[str, float]) -> dict[str, Any]:
    """Arrange metrics by name as the fields of a `Row`.

    Parameters
    ----------
    values : mapping of str to float
        Metrics by name.

    Returns
    -------
    dict of str to Any
        The four usual metrics by name, and ``"more"`` with the others.

    Examples
    --------
    >>> split_metrics({"auroc": 0.9, "mine": 0.1})
    {'auroc': 0.9, 'more': {'mine': 0.1}}
    """
    usual = {name: value for name, value in values.items() if name in STANDARD}
    return {**usual, "more": {name: value for name, value in values.items() if name not in STANDARD}}


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
        Activations of known inputs that were not fitted on.
    ood : Activations, array or mapping of these, optional
        Activations of unknown inputs: by name, or one set. Without any, the table says what known inputs say:
        accuracy after shaping, coverage of a threshold, and what was tried where something was chosen.
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
    with show_progress("comparing, method", len(wanted)) as advance:
        for made in wanted:
            found = measure(
                made,
                lambda each: each.fit(inside, val=val, outliers=outliers, device=device),
                lambda each: sets,
                device,
            )
            table.measurements[found.method] = found
            advance(note=found.method)
    return table
