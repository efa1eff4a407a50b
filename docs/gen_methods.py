"""Write docs/reference/methods.md from the registry: one row per method, with what it needs and its paper.

Run by `make docs`; a test checks that the committed page is what this makes.
"""

from __future__ import annotations

from pathlib import Path

from offmap.detection import Score, methods
from offmap.detection.base import Component
from offmap.detection.registry import describe_signature

PAGE = Path(__file__).parent / "reference" / "methods.md"


def table(kinds: list[type[Component]]) -> str:
    """One row per method."""
    lines = ["| text form | what it does | reads | fits on | paper |", "|---|---|---|---|---|"]
    for kind in kinds:
        summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        fits = kind.fits if isinstance(kind.fits, tuple) else ("features",)
        cells = [f"`{describe_signature(kind)}`", summary, ", ".join(kind.reads), ", ".join(fits) or "–", kind.paper]
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    own = [kind for kind in methods().values() if kind.__module__.startswith("offmap.")]
    scores = [kind for kind in own if issubclass(kind, Score)]
    shapers = [kind for kind in own if not issubclass(kind, Score)]
    return f"""# Methods

A detector is any number of shapers and one score: `react(90)|dice(0.7)|energy`. Parameters are given by position or by
name, and have the defaults shown; those with a grid take `auto`. `offmap methods` prints this list. *Reads* is what
scoring needs, *fits on* what fitting needs.

## Scores

{table(scores)}

## Shapers

{table(shapers)}
"""


if __name__ == "__main__":
    PAGE.write_text(page())
