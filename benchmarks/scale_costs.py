"""Bring the tables of docs/scale.md up to date with what neighbors.py measured.

    python benchmarks/scale_costs.py

The costs of large banks are computed from the measured rates. Prices are assumptions, not measurements: set your own.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "neighbors.json"
PAGE = ROOT / "docs" / "scale.md"
WIDTH = 512
QUERIES = 1_000_000


def table(head: str, lines: list[str]) -> str:
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines])


def rounded(number: float) -> str:
    """Two digits that mean something, without exponents."""
    return f"{float(f'{number:.2g}'):,.10g}"


def rates(measured: dict[str, Any]) -> tuple[float, float]:
    """GFLOP/s per core of an exact search at k = 50, and gigabytes per second that one query reads of a large bank.

    A small bank is no measure of that: a float16 copy of it is read instead.
    """
    exact = next(
        row
        for row in measured["many_queries"]
        if row["engine"] == "offmap k-th distance" and row["k"] == 50 and row["bank"].endswith(f" {WIDTH}")
    )
    single = [row for row in measured["small_batches"] if row["queries"] == 1][-1]
    cores = measured["setting"]["cores"]
    return exact["gflops_of_limit"] * exact["share_of_limit"] / cores, single["gigabytes_per_second"]


def costs(measured: dict[str, Any], core_hour: float, gigabyte_month: float, memory: float) -> str:
    gflops, reading = rates(measured)
    lines = []
    for rows in (10_000, 1_000_000, 100_000_000, 1_000_000_000):
        gigabytes = 4e-9 * rows * WIDTH
        hours = 2e-9 * rows * WIDTH * QUERIES / gflops / 3600
        machines = math.ceil(gigabytes / memory)
        cells = [
            gigabytes,
            machines,
            hours,
            hours * core_hour,
            gigabytes / reading / machines,
            gigabytes * gigabyte_month,
        ]
        lines.append(f"| {rows:,} | " + " | ".join(map(rounded, cells)) + " |")
    head = "| bank rows | memory, GB | machines | core-hours | their price | one query, s | memory's price, a month |"
    return f"{table(head, lines)}\n\nThe rates: {gflops:.0f} GFLOP/s per core, {reading:.0f} GB/s per machine."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core-hour", type=float, default=0.04, help="price of a core for an hour")
    parser.add_argument("--gigabyte-month", type=float, default=3.0, help="price of a gigabyte of memory for a month")
    parser.add_argument("--memory", type=float, default=64.0, help="gigabytes for the bank per machine")
    options = parser.parse_args()
    measured = json.loads(RESULTS.read_text())
    tables = {
        "many": table(
            "| bank | k | engine | share of the limit | times the speed of faiss Flat |",
            [
                "| {bank} | {k} | {engine} | {share_of_limit:.2f} | {times_faiss:.2f} |".format(**row)
                for row in measured["many_queries"]
            ],
        ),
        "few": table(
            "| bank | queries at once | times the speed of faiss Flat |",
            ["| {bank} | {queries} | {times_faiss:.1f} |".format(**row) for row in measured["small_batches"]],
        ),
        "verdict": (
            f"One verdict of `knn(10)` with a bank of {measured['verdict']['bank']}, 1 % of ImageNet's training set, "
            f"costs {100 * measured['verdict']['share_of_forward']:.1f} % of a ResNet-50 forward pass;\n"
            f"reading that bank once in float16, at {measured['verdict']['gigabytes_per_second']:.0f} GB/s, is "
            f"{100 * measured['verdict']['reading_float16_alone']:.1f} % by itself."
        ),
        "costs": costs(measured, options.core_hour, options.gigabyte_month, options.memory),
        "approximate": table(
            "| engine | k | recall | times the speed of exact | building |",
            [
                "| {engine} | {k} | {recall:.3f} | {times_exact:.2f} | {build_in_exact_searches_of_1000:.0f} |".format(
                    **row
                )
                for row in measured["approximate"]
            ],
        ),
    }
    page = PAGE.read_text()
    for name, content in tables.items():
        section = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page, found = section.subn(lambda match, text=content: match[1] + text + match[2], page)
        if found != 1:
            raise SystemExit(f"{PAGE.name}: the section {name} stands there {found} times")
        print(f"{content}\n")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
