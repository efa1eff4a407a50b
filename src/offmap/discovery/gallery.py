"""The page on which a person looks at the classes found and decides what to call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offmap.errors import InputError
from offmap.report import Page

if TYPE_CHECKING:
    from offmap.discovery.describe import ClassInfo
    from offmap.discovery.result import Discovery

SHOWN = 10  # novel classes with several rows each; of the others one row each is shown
MORE = 48
TYPICAL, DOUBTFUL = 5, 3
LONGEST = 120  # characters of a text


def page(found: Discovery, items: Any = None) -> Page:
    """Return a page that shows the novel classes first: typical and doubtful rows of each, then tables of all.

    Parameters
    ----------
    found : Discovery
        What was found.
    items : sequence, optional
        One picture (``uint8``) or text per row.
    """
    if items is not None and len(items) != len(found):
        raise InputError(f"to_html: {len(items)} items for {len(found)} rows; give one per row")
    made = Page("Discovered classes", "\n\n".join(found.summary().split("\n")[:2]))
    _add_novel(made, found, items)
    outliers = np.flatnonzero(found.labels < 0)
    if len(outliers):
        made.section("Rows of no class")
        _gallery(made, items, outliers[:12].tolist(), found, caption=f"The first of {len(outliers)} rows of no class.")
    _add_classes(made, found)
    if found.count is not None and found.count.criteria:
        made.section("How many classes").text(f"{found.count}").table(
            ["step", "groups"],
            [[name, value] for name, value in found.count.criteria.items()],
            digits=0,
            caption="Rows are joined over their neighbour graph; finished groups that look like one class are merged.",
        )
    if found.journal:
        made.section("Names and edits").table(
            ["edit", "of"],
            [[entry["action"], describe_edit(entry)] for entry in found.journal],
            caption="What was done to the groups after they were found, in order; classes by number.",
        )
    return made.settings(found.settings)


def describe_edit(entry: Mapping[str, Any]) -> str:
    """Say in words what an entry of the journal changed.

    Examples
    --------
    >>> describe_edit({"action": "rename", "names": {"6": "cash", "7": "transfers"}})
    '6 is called cash; 7 is called transfers'
    >>> describe_edit({"action": "split", "id": 7, "parts": 2})
    '7 into 2 parts'
    >>> describe_edit({"action": "merge", "ids": [5, 6]})
    '5 and 6'
    """
    if "names" in entry:
        return "; ".join(f"{number} is called {name}" for number, name in entry["names"].items())
    if "rows" in entry:
        return f"{entry['rows']} rows"
    ids = [str(number) for number in entry.get("ids", [entry["id"]] if "id" in entry else [])]
    parts = f" into {entry['parts']} parts" if "parts" in entry else ""
    return " and ".join(ids) + parts


def _add_novel(made: Page, found: Discovery, items: Any) -> None:
    """The largest novel classes with several rows each, the next with one each; the rest is in the table."""
    novel = sorted((info for info in found.novel if info.size), key=lambda info: (-info.size, info.id))
    made.section("Novel classes")
    if not novel:
        made.text("None: every row without a label went to a known class, or to none.")
        return
    for info in novel[:SHOWN]:
        like = ", ".join(found.names[j] for j in info.nearest_known)
        near = f", most like the known {like}" if like else ""
        made.text(f"**{info.name}**: {info.size} rows, confidence {info.confidence:.2f}{near}")
        rows = [*info.exemplars[:TYPICAL], *_doubtful(info)]
        kinds = ["typical"] * len(info.exemplars[:TYPICAL]) + ["doubtful"] * len(_doubtful(info))
        _gallery(made, items, rows, found, kinds)
    rest = novel[SHOWN : SHOWN + MORE]
    if rest:
        left = len(novel) - SHOWN - len(rest)
        more = f" {left} smaller ones are in the table only." if left else ""
        _gallery(
            made,
            items,
            [info.exemplars[0] for info in rest],
            found,
            [f"{info.name}, {info.size} rows" for info in rest],
            f"The next {len(rest)} novel classes by size, each by its most typical row.{more}",
        )


def _doubtful(info: ClassInfo) -> list[int]:
    return [row for row in info.boundary if row not in info.exemplars[:TYPICAL]][:DOUBTFUL]


def _add_classes(made: Page, found: Discovery) -> None:
    names = found.names
    order = sorted(found.classes, key=lambda info: (info.known, -info.size, info.id))
    made.section("All classes").table(
        ["class", "number", "known", "rows", "labelled", "confidence", "compactness", "nearest known"],
        [
            [
                info.name,
                info.id,
                info.known,
                info.size,
                info.labelled,
                info.confidence,
                info.compactness,
                ", ".join(names[j] for j in info.nearest_known),
            ]
            for info in order
        ],
        caption="Novel classes first. Confidence near 1: hardly linked to others. Compactness below 1: tighter than "
        "the average class.",
    )


def _gallery(
    made: Page, items: Any, rows: Sequence[int], found: Discovery, lines: Sequence[str] = (), caption: str = ""
) -> None:
    below = [f"row {i}, {found.confidence[i]:.2f}" for i in rows]
    if lines:
        below = [f"{line}: {words}" for line, words in zip(lines, below, strict=True)]
    if items is None:
        made.text("; ".join(below))
    else:
        made.gallery([items[i] for i in rows], below, caption=caption, size=80, longest=LONGEST)
