"""The report of the demonstration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offmap.plots import activation_pattern, roc_curves, score_histogram
from offmap.report import Page, versions

if TYPE_CHECKING:
    from offmap.bench.demo import Demo

SET = "unseen digits"
HARDEST = 12
CURVES = 8  # more would lie on top of each other


def build_demo_page(demo: Demo) -> Page:
    """Build the report: a summary, the table, the scores, the inside of the network, verdicts, and errors.

    Parameters
    ----------
    demo : Demo
        What `run_demo` found.

    Returns
    -------
    Page
        The report.
    """
    page = Page("Which digits was this network never taught?", _summary(demo))
    _table(page, demo)
    _scores(page, demo)
    _inside(page, demo)
    _verdicts(page, demo)
    return page.settings({**demo.settings, "versions": versions()}, title="Settings and versions")


def _summary(demo: Demo) -> str:
    known = demo.settings["known digits"]
    best = demo.comparison.averages()[0]
    return (
        f"A small network learned the digits {known[0]} to {known[-1]} ({100 * demo.accuracy:.1f} % right on test "
        f"pictures) and then met all ten. The guard, `{demo.guard}`, **flags {100 * demo.flagged:.1f} % of the "
        f"digits it was never taught** and accepts {100 * demo.accepted:.1f} % of those it was; "
        f"{100 * demo.settings['guard']['tpr']:.0f} % were promised.\n\n"
        f"Of all methods below, `{best.shown}` separates the two best on these test "
        f"pictures: it lets in {100 * best.fpr95:.1f} % of the unseen digits at the threshold that accepts "
        "95 % of the known ones."
    )


def _table(page: Page, demo: Demo) -> None:
    rows = [
        [
            row.shown,
            100 * row.fpr95,
            100 * row.auroc,
            100 * row.aupr_in,
            100 * row.aupr_out,
            _accuracy(row.id_accuracy),
        ]
        for row in demo.comparison.averages()
    ]
    names = ["method", "FPR95 ↓", "AUROC ↑", "AUPR in ↑", "AUPR out ↑", "ID accuracy ↑"]
    best = {name: "min" if "↓" in name else "max" for name in names[1:]}
    sizes = demo.comparison.sizes
    page.section("All methods").text(
        "Each method was fitted on the same activations, from one pass of the network. The parameters of ReAct, DICE "
        "and k-NN were chosen on held-out known digits against pure noise; no unseen digit took part. A method that "
        "does well elsewhere can fail on a network as small as this one: compare on your own."
    ).table(
        names,
        rows,
        best=best,  # type: ignore[arg-type]  # the values are "min" and "max"
        caption="Per cent. FPR95: the share of unseen digits taken for known when 95 % of the known are accepted. "
        f"AUPR depends on the sizes of the sets, {sizes['id']} known and {sizes[SET]} unseen. {demo.guard} is "
        f"{demo.guard.chosen}.",
    )
    shown = demo.comparison.averages()[:CURVES]
    curves = {
        row.shown: (demo.comparison.scores[row.method]["id"], demo.comparison.scores[row.method][SET]) for row in shown
    }
    page.figure(
        roc_curves(curves),
        f"Known digits kept against unseen ones let in, at every threshold; the {len(shown)} best methods with AUROC.",
    )


def _scores(page: Page, demo: Demo) -> None:
    page.section("Scores")
    for name in (repr(demo.guard), "energy"):
        made, scores = demo.comparison.detectors[name], demo.comparison.scores[name]
        threshold = made.threshold if made is demo.guard else None
        caption = (
            f"Scores of {made}, the guard. Right of the dashed line an input is taken for known."
            if threshold is not None
            else f"Scores of {made}, for comparison."
        )
        page.figure(score_histogram(scores["id"], {SET: scores[SET]}, threshold), caption)


def _inside(page: Page, demo: Demo) -> None:
    known, unknown = demo.test_acts.features, demo.unknown_acts.features
    page.section("Inside the network").text(
        "Each point along the axis is one unit before the last layer. The line is its mean activation, the band one "
        "standard deviation. Clipping (ReAct) rests on unknown inputs that raise some units far above the others."
    ).figure(activation_pattern(known, unknown), "Activations on known test digits (above) and on unseen ones (below).")


def _verdicts(page: Page, demo: Demo) -> None:
    rows = demo.draw_rows()
    page.section("Verdicts").text(
        "A few test pictures drawn at random: what each shows, and what the guard says. The p-value is the share of "
        f"known digits that look at least as strange; at or below {1 - demo.settings['guard']['tpr']:.2f} a picture is "
        "called unknown."
    ).gallery([demo.picture(row) for row in rows], [demo.describe(row) for row in rows])
    n, scores = len(demo.test), demo.verdicts.score
    lowest = np.argsort(scores[:n], kind="stable")[:HARDEST]
    highest = n + np.argsort(-scores[n:], kind="stable")[:HARDEST]
    page.section("Hardest inputs").gallery(
        [demo.picture(row) for row in highest],
        [demo.describe(row) for row in highest],
        caption="Unseen digits that look most like known ones.",
    ).gallery(
        [demo.picture(row) for row in lowest],
        [demo.describe(row) for row in lowest],
        caption="Known digits that look strangest.",
    )


def _accuracy(share: float | None) -> float | None:
    return None if share is None else 100 * share
