"""The page on which a person looks at the classes found and decides what to call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offmap.errors import InputError
from offmap.report import Page

if TYPE_CHECKING:
    from offmap.discovery.result import Discovery

GALLERIES = 100


def page(found: Discovery, items: Any = None) -> Page:
    """Return a page with the summary, a table of classes and, per novel class, what is typical and what is doubtful."""
    if items is not None and len(items) != len(found):
        raise InputError(f"to_html: {len(items)} items for {len(found)} rows; give one per row")
    lines = found.summary().split("\n")
    made = Page("Discovered classes", lines[0])
    made.text("\n".join(f"- {line.strip()}" for line in lines[1:]))
    names = found.names
    made.section("Classes").table(
        ["class", "name", "known", "rows", "labelled", "confidence", "compactness", "nearest known"],
        [
            [
                info.id,
                info.name,
                info.known,
                info.size,
                info.labelled,
                info.confidence,
                info.compactness,
                ", ".join(names[j] for j in info.nearest_known),
            ]
            for info in found.classes
        ],
        caption="Confidence near 1: hardly linked to others. Compactness below 1: tighter than the average class.",
    )
    if found.count is not None and found.count.criteria:
        made.section("How many classes").table(
            ["step", "groups"],
            [[name, value] for name, value in found.count.criteria.items()],
            digits=0,
            caption="Rows are joined over their neighbour graph; finished groups that look like one class are merged.",
        )
    novel = [info for info in found.novel if info.size]
    made.section("Novel classes")
    for info in novel[:GALLERIES]:
        made.text(f"**{info.name}** (class {info.id}, {info.size} rows)")
        _gallery(made, items, info.exemplars, found, "Typical rows, the most typical first.")
        if info.boundary:
            _gallery(made, items, info.boundary, found, "Doubtful rows, the most doubtful first.")
    if len(novel) > GALLERIES:
        made.text(f"{len(novel) - GALLERIES} smaller classes are in the table only.")
    outliers = np.flatnonzero(found.labels < 0)
    if len(outliers):
        made.section("Rows of no class")
        _gallery(made, items, outliers[:24].tolist(), found, f"The first of {len(outliers)} rows of no class.")
    if found.journal:
        made.section("Journal").table(
            ["action", "details"],
            [[entry["action"], str({k: v for k, v in entry.items() if k != "action"})] for entry in found.journal],
        )
    return made.settings(found.settings)


def _gallery(made: Page, items: Any, rows: Any, found: Discovery, caption: str) -> None:
    shown = [f"row {i}" if items is None else _item(items[i]) for i in rows]
    made.gallery(shown, [f"row {i}, {found.confidence[i]:.2f}" for i in rows], caption=caption)


def _item(item: Any) -> Any:
    return str(item) if isinstance(item, str | np.str_) else np.asarray(item)
