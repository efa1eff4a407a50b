"""Fill the table of settings in docs/howto/serve.md and the measured figures in docs/operations.md.

``python docs/gen_serve.py``; a part stands between ``<!-- name -->`` and ``<!-- end -->``, all else is written by hand.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

from offmap.service.settings import Settings

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"


def settings() -> str:
    """One row per setting."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{json.dumps(field.default)}`"
        rows.append(f"| `OFFMAP_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def load() -> str:
    """Throughput and latency."""
    found = json.loads((RESULTS / "serve.json").read_text())
    rows = ["| requests | inputs per second, over direct calls |", "|---|--:|"]
    rows += [f"| {name} | {case['throughput_over_direct']:.2f} |" for name, case in found["cases"].items()]
    slow = [case["latency"]["p99_over_p50"] for case in found["cases"].values() if case["latency"]["p99_over_p50"]]
    rows += ["", f"With 128 connections at a time, 99 % of answers came within {slow[0]:.1f} times the median time."]
    return "\n".join(rows)


def soak() -> str:
    """Minutes of mixed requests."""
    found = json.loads((RESULTS / "serve-soak.json").read_text())
    requests, growth = found["requests"], found["memory_last_fifth_over_second_fifth"]
    text = f"""
        Over {found["minutes"]:g} minutes, 8 clients sent {requests["good"]:,} good and {requests["bad"]:,} bad requests
        (broken JSON, arrays and pictures, NaN, wrong shapes, bodies too large, clients that are slow, leave or do not
        speak HTTP), with {sum(found["reloads"].values())} reloads of the guard: {len(found["unexpected_answers"])}
        unexpected answers, {found["lost"]} of {found["acknowledged_unknowns"]:,} acknowledged unknown inputs lost, and
        in the last fifth of the time {growth:.2f} times the memory of the second fifth."""
    return textwrap.fill(" ".join(text.split()), 125)


PAGES = {"howto/serve.md": {"settings": settings}, "operations.md": {"load": load, "soak": soak}}


def filled(page: str) -> str:
    """A page with its parts made anew."""
    text = (DOCS / page).read_text()
    for name, made in PAGES[page].items():
        part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert part.search(text), f"{page} has no place for {name}"
        text = part.sub(lambda found, made=made: f"{found[1]}{made()}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(filled(page))
