"""The report of a suite: a recommendation, every number, the curves, and the hardest inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offmap.bench.results import SuiteResult, SuiteRow
from offmap.bench.sets import LoadedSet
from offmap.metrics.detection import threshold_at_tpr
from offmap.plots import activation_pattern, comparison_heat, paired_dots, roc_curves, score_histogram
from offmap.report import Page, versions
from offmap.typing import Array

CURVES = 6
HARDEST = 12
NEAR = 0.005  # methods whose FPR95 is within half a point of the best are named with it
BASELINES = ("msp", "energy")
COLUMNS: dict[str, Callable[[SuiteRow], Any]] = {
    "method": lambda row: row.method,
    "set": lambda row: row.ood,
    "FPR95 ↓": lambda row: 100 * row.fpr95,
    "AUROC ↑": lambda row: 100 * row.auroc,
    "thesis FPR95": lambda row: _percent(row.thesis, "fpr95"),
    "difference": lambda row: None if row.thesis is None else 100 * (row.fpr95 - row.thesis["fpr95"]),
    "thesis AUROC": lambda row: _percent(row.thesis, "auroc"),
    "± seeds": lambda row: _percent(row.std, "fpr95"),
    "± inputs": lambda row: _percent(row.error, "fpr95"),
    "AUPR in ↑": lambda row: 100 * row.aupr_in,
    "AUPR out ↑": lambda row: 100 * row.aupr_out,
    "full-spectrum FPR95": lambda row: _percent(row.full_spectrum, "fpr95"),
    "full-spectrum AUROC": lambda row: _percent(row.full_spectrum, "auroc"),
    "chosen": lambda row: row.chosen if row.chosen != row.method else None,
    "inputs": lambda row: f"{row.inputs[0]}\u00a0+\u00a0{row.inputs[1]}",
    "seconds": lambda row: row.seconds,
}


def _percent(shares: Mapping[str, float] | None, name: str) -> float | None:
    return None if shares is None or name not in shares else 100 * shares[name]


def build_suite_page(result: SuiteResult) -> Page:
    """Build the report: a summary, a part for each network, settings and versions.

    Parameters
    ----------
    result : SuiteResult
        What was measured.

    Returns
    -------
    Page
        The report.
    """
    page = Page(f"{result.suite}: {result.about}", "\n\n".join(_summary(result, name) for name in result.networks))
    for network in result.networks:
        _table(page, result, network)
        _shifted(page, result, network)
        _against_thesis(page, result, network)
        _curves(page, result, network)
        _inside(page, result, network)
        _hardest(page, result, network)
    _groups(page, result)
    if result.skipped:
        page.section("Left out").table(["what", "why"], list(result.skipped.items()))
    return page.settings({**result.notes, "versions": versions()}, title="Settings and versions")


def _summary(result: SuiteResult, network: str) -> str:
    ranked = result.rank_methods(network)
    best = recommend(result, network)
    ((fpr95, auroc),) = [numbers for method, *numbers in ranked if method == best]
    rows = result.of(network)
    near = [method for method, mean, _ in ranked if method != best and mean - fpr95 <= NEAR]
    sets = list(dict.fromkeys(row.ood for row in rows))
    words = [
        f"For the network *{network}*, use `{best}`: at the threshold that accepts 95 % of known inputs, **it lets "
        f"in {100 * fpr95:.1f} % of the unknown ones**, on average over {' and '.join(sets)} "
        f"(AUROC {100 * auroc:.1f} %)."
    ]
    base = [(method, mean) for method, mean, _ in ranked if method in BASELINES and method != best]
    if base:
        words.append(
            "For comparison: " + ", ".join(f"`{method}` lets in {100 * mean:.1f} %" for method, mean in base) + "."
        )
    seconds = {row.method: row.seconds for row in rows}
    words.append(f"Fitting and scoring took it {seconds[best]:.2g} s here, after one pass of the network.")
    if _runs_again(result, network, best):
        words.append("It sends every input through the network again, which costs more than all the rest.")
    if near:
        words.append("As good, within half a point: " + ", ".join(f"`{method}`" for method in near) + ".")
    worst = max((row for row in rows if row.method == best), key=lambda row: row.fpr95)
    if len(sets) > 1:
        words.append(f"Its hardest set is {worst.ood}, {100 * worst.fpr95:.1f} %.")
    words.append(
        "The order of methods was seen on these test sets, so expect the best to do a little worse on others; "
        "parameters were never chosen on them."
    )
    return " ".join(words)


def recommend(result: SuiteResult, network: str) -> str:
    """Choose the method with the lowest FPR95; of those within half a point, the best that needs no second pass.

    Parameters
    ----------
    result : SuiteResult
        What was measured.
    network : str
        One of its networks.

    Returns
    -------
    str
        A text form.
    """
    ranked = result.rank_methods(network)
    near = [method for method, mean, _ in ranked if mean - ranked[0][1] <= NEAR]
    return next((method for method in near if not _runs_again(result, network, method)), near[0])


def _runs_again(result: SuiteResult, network: str, method: str) -> bool:
    """Return True if a method sends every input through the network again."""
    return any(row.runs_again for row in result.of(network) if row.method == method)


def _table(page: Page, result: SuiteResult, network: str) -> None:
    order = {method: place for place, (method, _, _) in enumerate(result.rank_methods(network))}
    rows = sorted(result.of(network), key=lambda row: order[row.method])
    sets = list(dict.fromkeys(row.ood for row in rows))
    values = {name: [of(row) for row in rows] for name, of in COLUMNS.items()}
    shown = [name for name, found in values.items() if any(value is not None for value in found)]
    shown = [name for name in shown if name != "set" or len(sets) > 1]
    accuracy = result.notes.get("accuracy", {}).get(network)
    right = "" if accuracy is None else f" The network is right on {accuracy:.2f} % of the known test inputs."
    against = f" The unknown inputs are {sets[0]}." if len(sets) == 1 else ""
    page.section(f"All methods, {network}").text(
        "Every method was fitted on the same activations. What a method's name leaves as *auto* was chosen on held-out "
        f"known inputs against Gaussian noise.{against}{right}"
    ).table(
        shown,
        [list(cells) for cells in zip(*(values[name] for name in shown), strict=True)],
        best={"FPR95 ↓": "min", "AUROC ↑": "max", "AUPR in ↑": "max", "AUPR out ↑": "max"},
        digits={"seconds": 3},
        caption="Per cent. FPR95: the share of unknown inputs taken for known when 95 % of the known are accepted. "
        "± are of FPR95: the standard deviation over seeds, where random numbers enter, and the standard error where "
        "a set is small. Methods that run the network again may be measured on fewer inputs. AUPR depends on how many "
        "inputs each set has. Click a column to sort.",
    )
    heat: dict[str, dict[str, float]] = {}
    for row in rows:
        heat.setdefault(row.method, {})[row.ood] = 100 * row.fpr95
    page.figure(comparison_heat(heat, metric="FPR95", best="min"), "FPR95 by method and set; light is good.")


def _groups(page: Page, result: SuiteResult) -> None:
    if not result.groups:
        return
    printed = any(row.published is not None for row in result.groups)
    rows = sorted(result.groups, key=lambda row: (row.group, -row.auroc))
    page.section("Groups of unknown sets").table(
        ["network", "group", "method", "AUROC", "FPR95", "FPR95, unknown", *(["published AUROC"] if printed else [])],
        [
            [row.network, row.group, row.method]
            + [100 * value for value in (row.auroc, row.fpr95, row.fpr95_unknown)]
            + ([None if row.published is None else 100 * row.published] if printed else [])
            for row in rows
        ],
        caption="Means over the sets of a group, in per cent. *FPR95, unknown*: known inputs flagged when 95 % of the "
        "unknown are, as OpenOOD counts. The full spectrum counts shifted known inputs as known.",
    )


def _shifted(page: Page, result: SuiteResult, network: str) -> None:
    rows = [row for row in result.shifted if row.network == network]
    if not rows:
        return
    accepted: dict[str, dict[str, float]] = {}
    for row in rows:
        accepted.setdefault(row.method, {})[row.ood] = 100 * row.fpr95
    page.section(f"Known inputs that look otherwise, {network}").text(
        "These inputs show known classes, so a detector should accept them: of plain ones it accepts 95 %. The "
        "full-spectrum columns above count them as known."
    ).figure(comparison_heat(accepted, metric="accepted", best="max"), "Share of them accepted, in per cent.")


def _against_thesis(page: Page, result: SuiteResult, network: str) -> None:
    rows = [row for row in result.of(network) if row.thesis is not None]
    if not rows:
        return
    pairs = {f"{row.method}, {row.ood}": (100 * row.fpr95, 100 * (row.thesis or {})["fpr95"]) for row in rows}
    page.section(f"Beside the thesis, {network}").figure(
        paired_dots(pairs, names=("here", "thesis"), x="FPR95"),
        "FPR95 here and as printed in the thesis for this network.",
    )


def _curves(page: Page, result: SuiteResult, network: str) -> None:
    scores = result.scores[network]
    best = recommend(result, network)
    ranked = [method for method, _, _ in result.rank_methods(network)[:CURVES]]
    shown = list(dict.fromkeys([best, *ranked, *(method for method in BASELINES if method in scores)]))
    page.section(f"Curves and scores, {network}")
    for ood in [name for name in scores[best] if name != "id"]:
        curves = {method: (scores[method]["id"], scores[method][ood]) for method in shown if ood in scores[method]}
        page.figure(roc_curves(curves), f"Known inputs kept against {ood} let in; the best methods, with AUROC.")
    for method in dict.fromkeys([best, *(name for name in BASELINES if name in scores)]):
        unknown = {name: values for name, values in scores[method].items() if name != "id"}
        page.figure(
            score_histogram(scores[method]["id"], unknown, threshold_at_tpr(scores[method]["id"])),
            f"Scores of {method}; right of the dashed line lie 95 % of the known inputs.",
        )


def _inside(page: Page, result: SuiteResult, network: str) -> None:
    features = result.features[network]
    page.section(f"Inside the network, {network}").text(
        "Each point along the axis is one unit before the last layer: the line is its mean, the band one standard "
        "deviation. Clipping (ReAct) rests on unknown inputs that raise some units far above the others."
    )
    for ood in [name for name in features if name != "id"]:
        page.figure(activation_pattern(features["id"], features[ood]), f"Known test inputs (above), {ood} (below).")


def _hardest(page: Page, result: SuiteResult, network: str) -> None:
    best = recommend(result, network)
    scores = result.scores[network][best]
    sets = result.short[network] if _runs_again(result, network, best) else result.sets[network]
    if not all(loaded.has_inputs for loaded in sets.values()):
        return
    page.section(f"Hardest inputs, {network}").text(
        f"By `{best}`. Under each picture: what it shows, and what the network takes it for."
    )
    names = sets["id"].samples.classes
    for name, loaded in sets.items():
        order = np.argsort(scores[name] if name == "id" else -scores[name], kind="stable")[:HARDEST]
        what = (
            "Known inputs that look strangest." if name == "id" else f"Inputs of {name} that look most like known ones."
        )
        page.gallery(
            [to_picture(loaded.samples.inputs[row]) for row in order],
            [_words(loaded, int(row), names) for row in order],
            caption=what,
        )


def _words(loaded: LoadedSet, row: int, names: tuple[str, ...]) -> str:
    """Name what an input shows and what the network takes it for."""
    labels, predicted = loaded.samples.labels, loaded.samples.arrays.get("predicted")
    shown = "" if labels is None else _named(int(labels[row]), loaded.samples.classes)
    return shown if predicted is None else f"{shown} → {_named(int(predicted[row]), names)}".strip()


def _named(label: int, names: tuple[str, ...]) -> str:
    return names[label] if 0 <= label < len(names) else f"class {label}"


def to_picture(values: Array) -> Array:
    """Convert an input to ``uint8`` pixels: pictures as they are, floats scaled from their own range.

    Parameters
    ----------
    values : ndarray
        One input.

    Returns
    -------
    ndarray of uint8
        Pixels.

    Examples
    --------
    >>> to_picture(np.array([[[0.0, 0.5], [1.0, 0.25]]])).tolist()
    [[0, 127], [255, 63]]
    """
    if values.dtype == np.uint8:
        return values
    pixels = np.moveaxis(values, 0, -1) if values.ndim == 3 and values.shape[0] in (1, 3) else values
    low, high = float(pixels.min()), float(pixels.max())
    scaled = (255 * (pixels - low) / ((high - low) or 1.0)).astype(np.uint8)
    return scaled[..., 0] if scaled.ndim == 3 and scaled.shape[-1] == 1 else np.atleast_2d(scaled)
