"""The printed table and the HTML page of a `Comparison`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offmap.detection.evaluate import KNOWN
from offmap.metrics.detection import METRICS, metric_names

if TYPE_CHECKING:
    from offmap.detection.comparison import Comparison, Row
    from offmap.report import Page

AVERAGE = "average"


def format_table(comparison: Comparison) -> str:
    """Format a comparison as a table of text, the lowest FPR95 first.

    Parameters
    ----------
    comparison : Comparison
        What `offmap.detection.comparison.compare` found.

    Returns
    -------
    str
        Per cent; without unknown inputs, what known inputs say.
    """
    if not comparison.averages():
        return _known_table(comparison)
    sets = [name for name in comparison.sizes if name != KNOWN]
    shown = [*sets, AVERAGE] if len(sets) > 1 else sets
    by_cell = {(row.method, row.ood): row for row in comparison.rows}
    names = {row.method: row.shown for row in comparison.averages()}
    width = max(map(len, [*names.values(), "method"]))
    cell = max(13, *(len(name) + 2 for name in shown))
    lines = [
        " " * width + "".join(f"{name:>{cell}}" for name in shown) + f"{'ID acc':>8}{'fit s':>9}{'score s':>9}",
        f"{'method':<{width}}" + f"{'FPR95/AUROC':>{cell}}" * len(shown),
    ]
    for average in comparison.averages():
        cells = [by_cell[average.method, name] for name in shown]
        numbers = "".join(f"{f'{100 * row.fpr95:.2f}/{100 * row.auroc:.2f}':>{cell}}" for row in cells)
        accuracy = "-" if average.id_accuracy is None else f"{100 * average.id_accuracy:.2f}"
        lines.append(
            f"{names[average.method]:<{width}}{numbers}{accuracy:>8}"
            f"{average.fit_seconds:>9.3f}{average.score_seconds:>9.3f}"
        )
    lines += [f"{row.method} is {row.chosen}" for row in comparison.averages() if names[row.method] != row.chosen]
    ratio = ", ".join(f"{name} {size}" for name, size in comparison.sizes.items())
    return "\n".join([*lines, f"per cent; FPR95 at 95 % of ID accepted; inputs: {ratio}"])


def _known_table(comparison: Comparison) -> str:
    """Format what known inputs say: accuracy after shaping, and how many of them a threshold for 95 % accepts."""
    measured = comparison.measurements.values()
    width = max(map(len, [*(found.shown for found in measured), "method"]))
    lines = [f"{'method':<{width}}{'ID acc':>8}{'coverage':>10}{'fit s':>9}{'score s':>9}"]
    tried: list[str] = []
    for found in measured:
        accuracy, coverage = ("-" if x is None else f"{100 * x:.2f}" for x in (found.id_accuracy, found.coverage))
        lines.append(
            f"{found.shown:<{width}}{accuracy:>8}{coverage:>10}{found.fit_seconds:>9.3f}{found.score_seconds:>9.3f}"
        )
        if found.shown != found.detector.chosen:
            tried.append(f"{found.method} is {found.detector.chosen}")
        tried += [f"  tried: {_trial(trial)}" for trial in found.detector.trials]
    return "\n".join(
        [
            *lines,
            *tried,
            f"per cent of {comparison.sizes[KNOWN]} known test inputs; coverage at a threshold that should accept 95 %",
        ]
    )


def make_page(comparison: Comparison, title: str) -> Page:
    """Make a page with the table, the curves and the scores of the best method.

    Parameters
    ----------
    comparison : Comparison
        What `offmap.detection.comparison.compare` found.
    title : str
        Heading of the page.

    Returns
    -------
    Page
        Self-contained HTML is what its ``html()`` gives.
    """
    from offmap.report import Page

    averages = comparison.averages()
    page = Page(title, _summary(averages[0]) if averages else "Without unknown inputs: what known inputs say.")
    if averages:
        _add_unknown(comparison, page, averages[0])
    else:
        _add_known(comparison, page)
    return page


def _add_unknown(comparison: Comparison, page: Page, best: Row) -> None:
    from offmap.plots import FIGURES, roc_curves

    _add_averages(comparison, page)
    sets = [name for name in comparison.sizes if name != KNOWN]
    if len(sets) > 1:
        for metric in ("fpr95", "auroc"):
            _add_by_set(comparison, page, metric, sets)
    page.figure(comparison.plot(), "FPR95 by method and set; light is good.")
    page.section("Curves")
    for name in sets:
        curves = {
            row.shown: (comparison.scores[row.method][KNOWN], comparison.scores[row.method][name])
            for row in comparison.averages()
        }
        page.figure(roc_curves(curves), f"Known against {name}.")
    scores = comparison.scores[best.method]
    unknown = {name: values for name, values in scores.items() if name != KNOWN}
    page.section(f"Scores of {best.shown}")
    for name in FIGURES:
        page.figure(FIGURES.get(name)(scores[KNOWN], unknown))


def _add_averages(comparison: Comparison, page: Page) -> None:
    """One row per method, the best first: the mean of every metric over the unknown sets."""
    metrics = {name: METRICS.get(name) for name in metric_names()}
    titles = {name: _title(name) for name in metrics}
    rows = comparison.averages()
    of_sets = f", means over {len(comparison.sizes) - 1} unknown sets" if len(comparison.sizes) > 2 else ""
    page.section("All methods").table(
        ["method", *titles.values(), "ID accuracy ↑", "seconds"],
        [
            [row.shown, *(100 * row.metric(name) for name in metrics), _percent(row.id_accuracy),
             row.fit_seconds + row.score_seconds]
            for row in rows
        ],
        best={titles[name]: of.best for name, of in metrics.items()},
        caption=f"Per cent{of_sets}; the lowest FPR95 first; known inputs are the positives. AUPR depends on how many "
        "inputs each set has. Seconds are those of fitting and scoring. Inputs: "
        + ", ".join(f"{name} {size}" for name, size in comparison.sizes.items()),
    )  # fmt: skip
    long = [f"- `{row.method}` is `{row.chosen}`" for row in rows if row.shown != row.chosen]
    if long:
        page.text("\n".join(long))


def _add_by_set(comparison: Comparison, page: Page, metric: str, sets: list[str]) -> None:
    """One row per method, one column per unknown set."""
    by_cell = {(row.method, row.ood): row for row in comparison.rows}
    best = METRICS.get(metric).best
    page.table(
        ["method", *sets],
        [
            [average.shown, *(100 * by_cell[average.method, name].metric(metric) for name in sets)]
            for average in comparison.averages()
        ],
        best=dict.fromkeys(sets, best),
        caption=f"{_title(metric)} by unknown set, in per cent.",
    )


def _title(metric: str) -> str:
    of = METRICS.get(metric)
    return f"{of.title} {'↑' if of.best == 'max' else '↓'}"


def _add_known(comparison: Comparison, page: Page) -> None:
    page.section("All methods").table(
        ["method", "ID accuracy ↑", "coverage", "fit s", "score s"],
        [
            [found.shown, _percent(found.id_accuracy), _percent(found.coverage), found.fit_seconds,
             found.score_seconds]
            for found in comparison.measurements.values()
        ],
        caption=f"Per cent of {comparison.sizes[KNOWN]} known test inputs; coverage at a threshold for 95 %.",
    )  # fmt: skip
    for found in comparison.measurements.values():
        if found.detector.trials:
            page.section(f"What {found.detector} tried").text(
                "\n".join(
                    [f"Chosen: `{found.detector.chosen}`", "", *(f"- {_trial(each)}" for each in found.detector.trials)]
                )
            )


def _summary(best: Row) -> str:
    return (
        f"`{best.shown}` lets in the fewest unknown inputs here: {100 * best.fpr95:.1f} % when 95 % of the known "
        f"ones are accepted, AUROC {100 * best.auroc:.1f} %."
    )


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
