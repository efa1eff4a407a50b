"""Fill the table of settings in docs/howto/serve.md and the figures in docs/operations.md and docs/howto/guarantees.md.

``python docs/gen_serve.py``; a part stands between ``<!-- name -->`` and ``<!-- end -->``, all else is written by hand.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from offmap.service.settings import Settings

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
AIM = 1.5  # times the 99th percentile without learning


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
    """Minutes of mixed requests, the hour before grouping had a process of its own, and repeated rounds."""
    found, before, rounds = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("serve-soak", "serve-soak-hour", "serve-memory")
    )
    requests, growth = found["requests"], found["memory_last_fifth_over_second_fifth"]
    reloads, groupings = found["reloads"]["200"], found["groupings"]["200"]
    text = f"""
        Over {found["minutes"]:g} minutes on a busy machine, {found["clients"]} clients sent
        {requests["good"]:,} good and {requests["bad"]:,} bad requests
        (broken JSON, arrays and pictures, NaN, wrong shapes, bodies too large,
        clients that are slow, leave or do not speak HTTP), with {reloads} reloads of the guard and {groupings}
        groupings of the unknown inputs: {len(found["unexpected_answers"])} unexpected answers, {found["lost"]} of
        {found["acknowledged_unknowns"]:,} acknowledged unknown inputs lost, and in the last fifth of the time
        {growth:.2f} times the memory of the second fifth."""
    thread, done = rounds["grouping_in_a_thread"], rounds["done"]
    kept = thread["after_collection_and_malloc_trim"][-1] - thread["before"]
    more = f"""
        An earlier run of {before["minutes"]:g} minutes, when inputs were grouped in a thread of the service, had
        {before["lost"]} of {before["acknowledged_unknowns"]:,} lost too, but the memory grew by a factor of
        {before["memory_last_fifth_over_second_fifth"]:.2f}. In a thread, {len(thread["after"])} groupings of 1,600
        inputs leave {kept:.0f} MiB behind that neither a garbage collection nor `malloc_trim` gives back. Now that a
        process does it, which ends, {done["group"]} groupings, {done["learn"]} learned versions, each deployed and
        rolled back, and {done["reload"]} reloads leave the service at
        {rounds["memory_last_third_over_second_third"]:.3f} times its memory (the last third of the rounds over the
        second)."""
    return _wrap(text) + "\n\n" + _wrap(more)


def learning() -> str:
    """Latency while the service learns, on a machine with and without other work."""
    found, busy = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("serve-learning", "serve-learning-busy")
    )
    text = f"""
        Grouping and learning run in processes of their own. While the service learned, the 99th percentile of the
        time to an answer was
        {found["p99_while_learning_over_without"]:.2f} times that without, and the median
        {found["p50_while_learning_over_without"]:.2f} times (single inputs of a small network, one client,
        {found["turns"]} turns of each, {found["cores"]} cores without other work). On the same
        machine under a load of {busy["load_average"][0]:.0f}, where the process that learns was stopped and continued
        every 25 requests so that both kinds of time saw the same load, it was
        {busy["p99_while_learning_over_without"]:.2f} times; one half of the times without had
        {busy["p99_second_half_without_over_first"]:.2f} times the 99th percentile of the other.
        {_judge(found, busy)}"""
    return _wrap(text)


def _judge(found: dict[str, Any], busy: dict[str, Any]) -> str:
    """Whether the aim holds, with and without other work."""
    alone, beside = (one["p99_while_learning_over_without"] <= AIM for one in (found, busy))
    if alone and beside:
        return f"The aim of {AIM} holds in both."
    return f"The aim of {AIM} holds where the cores are free." if alone else f"The aim of {AIM} is not reached."


def guarantees() -> str:
    """Promises beside those of peers, and streams."""
    found = json.loads((RESULTS / "guarantees.json").read_text())
    rows = ["| threshold, asked for 5 % | false alarms | sets above 5 % | unknown found |", "|---|--:|--:|--:|"]
    rows += [
        f"| {name} | {one['false_alarms']:.1%} | {one['sets_above']:.1%} | {one['unknown_flagged']:.0%} |"
        for name, one in found["thresholds"].items()
    ]
    compared = found["p_values"]
    text = f"""
        The p-values of crepes and nonconform are the same numbers, and so are nonconform's weighted ones. Of its
        p-values given the set {compared["nonconform conditional"]["equal"]:.0%} are; the others differ by one rank,
        where it rounds. On the same arrays, in one run on a busy machine, crepes took
        {compared["crepes"]["over_offmap"]:.0f} times as long, nonconform {compared["nonconform"]["over_offmap"]:.1f} to
        {compared["nonconform conditional"]["over_offmap"]:.1f} times, and MAPIE's thresholds
        {compared["MAPIE, bonferroni_holm"]["over_offmap"]:.1f} to
        {compared["MAPIE, fixed_sequence"]["over_offmap"]:.1f} times."""
    streams = found["streams"]
    head = "| " + " | ".join(f"{share.replace('%', ' %')}: false, found" for share in streams) + " |"
    table = ["| flagged in a stream " + head, "|---|" + "--:|" * len(streams)]
    for name in next(iter(streams.values())):
        cells = [f"{streams[share][name]['fdr']:.1%}, {streams[share][name]['found']:.1%}" for share in streams]
        table.append(f"| {name} | {' | '.join(cells)} |")
    told = f"""
        Streams of 1,000 sentences with a rate of {found["stream_fdr"]:.0%} asked for and 5,000 calibration inputs: the
        share of false alarms among the flagged, and the share of unknown inputs that was found."""
    parts = ["\n".join(rows), _wrap(text), _wrap(told), "\n".join(table)]
    return "\n\n".join(parts).replace("%", " %").replace("  %", " %")


def _wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 125)


PAGES = {
    "howto/serve.md": {"settings": settings},
    "howto/guarantees.md": {"guarantees": guarantees},
    "operations.md": {"load": load, "soak": soak, "learning": learning},
}


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
