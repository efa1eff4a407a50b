"""The report of an open-world suite: who finds most, every convention, and the thesis' figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from offmap.bench.open_world import Measure
from offmap.bench.open_world_runner import OpenWorldResult
from offmap.report import Page, versions

Figures = Mapping[str, Mapping[str, float]]
WORDS: dict[Measure, str] = {
    "orca": "All by one assignment of groups to classes; Known is plain accuracy; Novel has an assignment of its own.",
    "v1": "Known and novel inputs are matched apart.",
    "v2": "One assignment serves all three.",
    "ncd": "Novel inputs only, as in novel class discovery.",
    "apart": "Told which inputs are novel: those are grouped alone by k-means, known ones named by a linear head.",
    "test": "The same on inputs that were not there in learning.",
}


def build_open_world_page(result: OpenWorldResult) -> Page:
    """Build the report.

    Parameters
    ----------
    result : OpenWorldResult
        What was measured.

    Returns
    -------
    Page
        The report.
    """
    suite = result.suite
    page = Page(f"{suite.name}: {suite.about}", _summary(result))
    for convention in result.measures:
        page.section(f"Accuracy by the convention {convention}").text(WORDS[convention])
        page.table(
            ["method", "classes", "seeds", "All", "±", "Known", "Novel", "± Novel", "classes found"],
            [
                [
                    line["method"],
                    line["classes"],
                    line["seeds"],
                    _number(line["all"]),
                    line["all error"],
                    _number(line["known"]),
                    _number(line["novel"]),
                    line["novel error"],
                    line["classes found"],
                ]
                for line in result.summary(convention)
            ],
        )
    if suite.thesis:
        _against_thesis(page, result, suite.convention, suite.thesis)
    if suite.thesis_test:
        _against_thesis(page, result, "test", suite.thesis_test)
    if result.skipped:
        page.section("Left out").table(["what", "why"], list(result.skipped.items()))
    return page.settings({**_settings(result), "versions": versions()}, title="Settings and versions")


def _summary(result: OpenWorldResult) -> str:
    lines = result.summary("v2")
    if not lines:
        return "Nothing could be measured; see below why."
    best, row = lines[0], result.rows[0]
    words = [
        f"Of {row.inputs:,} inputs {row.labelled:,} have a label. `{best['method']}` puts most of the others into the "
        f"right class: **{best['all']:.1f} %** by one assignment (v2), {_percent(best['known'])} of those of known and "
        f"{_percent(best['novel'])} of those of novel classes, over {best['seeds']} seeds."
    ]
    words += [
        f"Without any training, `{line['method']}` reaches {line['all']:.1f} %."
        for line in lines
        if line["method"] == "discover" and line is not best
    ]
    words.append("Methods were ranked on these very inputs, so the best will do a little worse on others.")
    return " ".join(words)


def _against_thesis(page: Page, result: OpenWorldResult, convention: Measure, figures: Figures) -> None:
    rows = []
    for line in result.summary(convention):
        printed = figures.get(line["method"])
        if printed is not None:
            pairs = [(_number(line[part]), printed.get(part)) for part in ("all", "known", "novel")]
            rows.append([line["method"], *(value for pair in pairs for value in pair)])
    page.section(f"Beside the thesis, {convention}").text(
        f"Per cent by the convention {convention}. The thesis trains a ResNet for hundreds of epochs; what was "
        "done here is in the settings below."
    ).table(["method", "All", "thesis", "Known", "thesis Known", "Novel", "thesis Novel"], rows)


def _settings(result: OpenWorldResult) -> dict[str, Any]:
    suite = result.suite
    return {
        "data": dict(suite.data.source),
        "split": dict(suite.split),
        "settings": dict(suite.settings),
        "seeds": sorted({row.seed for row in result.rows}),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _percent(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.1f} %"
