"""What banks of a million to a billion rows cost, from the rates that neighbors.py measured.

    python benchmarks/scale_costs.py               # prints the table of docs/scale.md

Prices are assumptions, not measurements: set your own.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WIDTH = 512
QUERIES = 1_000_000


def rates(measured: dict[str, Any]) -> tuple[float, float]:
    """GFLOP/s per core of an exact search at k = 50, and gigabytes per second that one query reads."""
    exact = next(
        row
        for row in measured["many_queries"]
        if row["engine"] == "offmap k-th distance" and row["k"] == 50 and row["bank"].endswith(str(WIDTH))
    )
    single = next(row for row in measured["small_batches"] if row["queries"] == 1 and row["bank"].endswith(str(WIDTH)))
    cores = measured["setting"]["cores"]
    return exact["gflops_of_limit"] * exact["share_of_limit"] / cores, single["gigabytes_per_second"]


def costs(rows: int, gflops: float, reading: float, options: argparse.Namespace) -> dict[str, Any]:
    gigabytes = 4e-9 * rows * WIDTH
    core_hours = 2e-9 * rows * WIDTH * QUERIES / gflops / 3600
    machines = math.ceil(gigabytes / options.memory)
    return {
        "rows": rows,
        "gigabytes": gigabytes,
        "machines": machines,
        "core_hours": core_hours,
        "money": core_hours * options.core_hour,
        "one_query_seconds": gigabytes / reading / machines,
        "keeping_per_month": gigabytes * options.gigabyte_month,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core-hour", type=float, default=0.04, help="price of a core for an hour")
    parser.add_argument("--gigabyte-month", type=float, default=3.0, help="price of a gigabyte of memory for a month")
    parser.add_argument("--memory", type=float, default=64.0, help="gigabytes for the bank per machine")
    options = parser.parse_args()
    gflops, reading = rates(json.loads((RESULTS / "neighbors.json").read_text()))
    print(f"{gflops:.0f} GFLOP/s per core, {reading:.0f} GB/s per machine\n")
    print("| bank rows | memory | machines | core-hours | price | one query | memory, a month |")
    print("|---|---|---|---|---|---|---|")
    for rows in (10_000, 1_000_000, 100_000_000, 1_000_000_000):
        cost = costs(rows, gflops, reading, options)
        print(
            f"| {rows:,} | {cost['gigabytes']:,.3g} GB | {cost['machines']} | {cost['core_hours']:,.3g} "
            f"| {cost['money']:,.2g} | {cost['one_query_seconds']:,.2g} s | {cost['keeping_per_month']:,.2g} |"
        )


if __name__ == "__main__":
    main()
