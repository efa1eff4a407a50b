"""The page that comes with a guard: what was chosen and why, what it promises, what it would flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offmap.deploy.build import GuardEvidence
from offmap.plots.scores import score_histogram
from offmap.report import Page
from offmap.report.page import versions
from offmap.typing import Array

SHOWN = 24
TRIALS = {"spec": "method", "left_out": "AUROC, classes left out", "crossed": "AUROC, crossed inputs"}  # as headings


def write_report(evidence: GuardEvidence, path: Path, graph: str = "") -> Path:
    """Write the page.

    Parameters
    ----------
    evidence : GuardEvidence
        How the guard was made.
    path : Path
        The HTML file.
    graph : str, default ""
        Where the ONNX graph is, or why there is none.

    Returns
    -------
    Path
        The file.
    """
    deployment = evidence.deployment
    calibration = deployment.detector.calibration
    assert calibration is not None
    page = Page("A guard for your model", _summary(evidence))
    page.section("What it promises").text(
        f"The threshold was set on {evidence.n_calibrated} known inputs that nothing was fitted on. Of future known "
        f"inputs drawn like these, on average at most {1 - calibration.tpr:.1%} are called unknown. Inputs whose "
        "distribution has shifted are not covered by this promise."
    )
    _add_scores(page, evidence)
    _add_flagged(page, evidence)
    page.section("How the detector was chosen").text(
        f"The detector is `{deployment.detector.chosen}`. Scores are higher for known inputs; several are standardised "
        "on known inputs and added up. Nothing was chosen on unknown inputs."
    )
    _add_trials(page, deployment.detector.trials)
    page.section("Files").text(
        "`guard.offmap` holds detector, network and class names: `offmap.load` reads it, `offmap serve` runs it. For a "
        "torch module of your own: `Deployment.load(path, network=offmap.Network(model))`, on the command line "
        "`--model package.module:factory`; its weights are in the file.\n\n"
        f"ONNX graph: {graph or 'not asked for'}"
    )
    page.settings({"versions": versions(), "detector": deployment.detector.chosen, "tpr": calibration.tpr})
    return page.write(path)


def _summary(evidence: GuardEvidence) -> str:
    _, *rest = str(evidence).splitlines()
    return "\n".join(f"- {line[0].upper()}{line[1:]}." for line in rest)


def _add_trials(page: Page, trials: Any) -> None:
    """List what was tried, what was taken first."""
    rows = sorted((dict(row) for row in trials or ()), key=lambda row: -(row.get("weight") or 0.0))
    if rows:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        page.table(
            [TRIALS.get(name, name) for name in columns],
            [[row.get(name) for name in columns] for row in rows],
            caption="What was tried, those with a weight in the sum first. AUROC is how well a method tells known "
            "inputs from others that are made of known ones: classes left out of the fitting, and inputs crossed from "
            "two classes (1 is perfect, 0.5 is chance).",
        )


def _add_scores(page: Page, evidence: GuardEvidence) -> None:
    if evidence.checked is None:
        return
    calibration = evidence.deployment.detector.calibration
    assert calibration is not None
    threshold = None if calibration.classes is not None else calibration.threshold
    known = _finite(evidence.checked.score)
    lowest = known.min() - 2 * np.ptp(known)  # noise can be so far away that nothing else would be seen
    unknown = {name: _finite(verdicts.score).clip(lowest) for name, verdicts in evidence.unknown.items()}
    page.figure(
        score_histogram(known, unknown, threshold),
        "Scores of known inputs that the guard has not seen, and of inputs that are surely unknown; very low scores "
        "are drawn at the left edge.",
    )


def _add_flagged(page: Page, evidence: GuardEvidence) -> None:
    """Show which checked known inputs would be flagged: by class, and the least familiar pictures or texts."""
    checked = evidence.checked
    if checked is None:
        return
    page.section("Known inputs that it would flag")
    flagged = int((~checked.known).sum())
    page.text(f"{flagged} of {len(checked)} known inputs that nothing was fitted on are called unknown.")
    if evidence.labels is not None:
        page.table(["class", "inputs", "flagged"], _by_class(evidence, checked.known), digits=0)
    order = [int(place) for place in np.argsort(checked.p_value, kind="stable") if int(place) in evidence.shown]
    if order:
        names = evidence.deployment.class_name
        captions = [
            f"p = {checked.p_value[place]:.3f}"
            + ("" if checked.predicted is None else f", predicted {names(int(checked.predicted[place]))}")
            for place in order[:SHOWN]
        ]
        shown = [evidence.shown[place] for place in order[:SHOWN]]
        page.gallery(shown, captions, caption="The known inputs that look least known, the least known first.")


def _by_class(evidence: GuardEvidence, known: Array) -> list[list[Any]]:
    assert evidence.labels is not None
    rows = [
        [
            str(evidence.deployment.class_name(int(label))),
            int((evidence.labels == label).sum()),
            int((~known[evidence.labels == label]).sum()),
        ]
        for label in np.unique(evidence.labels)
    ]
    return sorted(rows, key=lambda row: -row[2])


def _finite(scores: Array) -> Array:
    return scores[np.isfinite(scores)]
