"""`offmap demo`: the whole job on built-in data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from offmap.cli.options import Json, say, show


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the report, the numbers and the guard.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    as_json: Json = False,
) -> None:
    """Train a small network on some digits, find the ones it was never taught, write a report."""
    from offmap.bench.demo import run_demo, write_demo
    from offmap.cli.checks import check_folder, check_page

    check_page(None)
    check_folder(out)
    done = run_demo(seed, on_step=say if sys.stderr.isatty() else lambda words: None)
    report = write_demo(done, out)
    result = {
        "report": str(report),
        "guard": str(out / "guard.offmap"),
        "results": str(out / "results.json"),
        "detector": done.guard.chosen,
        "accuracy": done.accuracy,
        "accepted": done.accepted,
        "flagged": done.flagged,
    }
    lines = [
        str(done.comparison),
        "",
        f"{done.guard!r} accepts {done.accepted:.1%} of known digits and flags {done.flagged:.1%} of unseen ones:",
        *(f"  {done.describe(int(row))}" for row in done.draw_rows()),
        "",
        f"The report is {report}",
    ]
    show(result, as_json, "\n".join(lines))
