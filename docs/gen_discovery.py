"""Fill the tables of docs/discovery-results.md from the committed results: ``python docs/gen_discovery.py``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; all else on the page is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from filled import filled

PAGE = Path(__file__).with_name("discovery-results.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "discover.json"
UNEVEN = RESULTS.with_name("uneven.json")
SCALE = RESULTS.with_name("discover_scale.json")
PARTS = ("all", "known", "novel")
GRAPH_ROWS = 30_000  # as in offmap.discovery.graph_groups


def accuracy_table(held: dict[str, Any]) -> list[list[str]]:
    """Methods by sets: All / Known / Novel, means over splits, with the standard deviation of All."""
    sets = held["accuracy"]
    methods = list(dict.fromkeys(method for cells in sets.values() for method in cells))
    lines = ([f"`{method}`", *(_accuracy(cells.get(method, {})) for cells in sets.values())] for method in methods)
    return [["method", *(f"{name}, splits {_splits(cells['kmeans'])}" for name, cells in sets.items())], *lines]


def _accuracy(runs: dict[str, dict[str, float]]) -> str:
    if not runs:
        return "–"
    values = [run["all"] for run in runs.values()]
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    first, *others = (f"{mean(run[part] for run in runs.values()):.1f}" for part in PARTS)
    return f"**{first}**{spread} / {' / '.join(others)}"


def _splits(runs: dict[str, Any]) -> str:
    seeds = sorted(map(int, runs))
    return f"{seeds[0]}–{seeds[-1]}" if len(seeds) > 1 else str(seeds[0])


def losses_table(held: dict[str, Any]) -> list[list[str]]:
    """How often a method was below plain k-means on the same split, and by how much at worst."""
    lines = [["method", "splits", "below k-means", "worst difference", "mean difference"]]
    sets = held["accuracy"].values()
    for method in dict.fromkeys(method for cells in sets for method in cells):
        if method == "kmeans":
            continue
        runs = ((cells["kmeans"][seed], run) for cells in sets for seed, run in cells.get(method, {}).items())
        gains = [run["all"] - plain["all"] for plain, run in runs]
        below = sum(gain < 0 for gain in gains)
        lines.append([f"`{method}`", f"{len(gains)}", f"{below}", f"{min(gains):+.1f}", f"{mean(gains):+.1f}"])
    return lines


def count_table(held: dict[str, Any]) -> list[list[str]]:
    """The estimate on each split, its error and whether the interval covers."""
    lines = [["set", "true", "found", "mean error", "intervals", "cover"]]
    for name, runs in held["count"].items():
        lines.append([name, *_counts(list(runs.values()))])
    return lines


def _counts(runs: list[dict[str, Any]]) -> list[str]:
    true = ", ".join(dict.fromkeys(str(run["true"]) for run in runs))
    found = ", ".join(str(run["found"]) for run in runs)
    intervals = ", ".join(f"{run['interval'][0]}–{run['interval'][1]}" for run in runs)
    covered = f"{sum(run['covers'] for run in runs)} of {len(runs)}"
    return [true, found, f"{100 * mean(run['error'] for run in runs):.1f} %", intervals, covered]


def criteria_table(held: dict[str, Any]) -> list[list[str]]:
    """What single criteria say on the first split."""
    firsts = {name: next(iter(runs.values())) for name, runs in held["count"].items()}
    names = list(dict.fromkeys(key for first in firsts.values() for key in first["criteria"]))
    lines = [["criterion", *(f"{name} ({first['true']})" for name, first in firsts.items())]]
    for key in names:
        said = (first["criteria"].get(key) for first in firsts.values())
        lines.append([key, *("–" if value is None else f"{value:.0f}" for value in said)])
    return lines


def uneven_table(held: dict[str, Any]) -> list[list[str]]:
    """Uneven problems: what `auto` finds with the number of classes estimated, beside k-means that is told it."""
    lines = [["problem", "1-NN", "true", "found", "All", "k-means, number given", "classes alike", "small found"]]
    for name, runs in json.loads(UNEVEN.read_text()).items():
        ours = [run["auto"] for run in runs.values()]
        theirs = [run["kmeans"]["all"] for run in runs.values()]
        small = sum(one["small"] for one in ours)
        lines.append(
            [
                name,
                f"{mean(run['separable'] for run in runs.values()):.2f}",
                str(ours[0]["true"]),
                ", ".join(str(one["found"]) for one in ours),
                f"{mean(one['all'] for one in ours):.1f}",
                f"{mean(theirs):.1f}",
                f"{mean(one['macro'] for one in ours):.1f}",
                f"{sum(one['small found'] for one in ours)} of {small}" if small else "",
            ]
        )
    return lines


def noise_table(held: dict[str, Any]) -> list[list[str]]:
    """Strange rows in the pile: recall / precision / real rows lost, by how many may be lost."""
    cells = [(name, title, runs) for name, kinds in held["outliers"].items() for title, runs in kinds.items()]
    limits = list(next(iter(cells[0][2].values())))
    lines = [["set", "strange rows", *(f"{100 * float(limit):g} % may be lost" for limit in limits)]]
    for name, title, runs in cells:
        shown = (
            [
                f"{mean(run[limit][key] for run in runs.values()):.1f}"
                for key in ("recall", "precision", "real rows lost")
            ]
            for limit in limits
        )
        lines.append([name, title, *(" / ".join(three) for three in shown)])
    return lines


def speed_table(held: dict[str, Any]) -> list[list[str]]:
    """Times faster, and the sum of squares as a part of theirs."""
    lines = [["beside", "ours", "times faster", "sum of squares, of theirs"]]
    for key, peer in (
        ("semi-supervised, beside the straight loop", "a straight loop like GCD's"),
        ("unsupervised, beside scikit-learn", "scikit-learn's `KMeans`"),
    ):
        for init, starts in (("k-means++", held["speed"]["n_init"]), ("ward", 1)):
            cell = held["speed"][key][init]
            word = f'`init="{init}"`, {starts} start{"s" if starts > 1 else ""}'
            lines.append([peer, word, f"{cell['times faster']:.1f}", f"{cell['sum of squares, of theirs']:.4f}"])
    return lines


def memory_table(held: dict[str, Any]) -> list[list[str]]:
    """Memory that is no file, beyond what the process had before."""
    cell = held["memory"]
    rows = f"{cell['rows']:,} × {cell['width']}, {cell['file MB']} MB"
    parts = {"k-means adds MB": "k-means", "discovery adds MB": "`discover`"}
    lines = [[name, rows, str(cell["k"]), f"{cell[key]} MB"] for key, name in parts.items() if key in cell]
    return [["what", "rows × columns, in a file of", "groups", "adds"], *lines]


def ratio_table(held: dict[str, Any]) -> list[list[str]]:
    """What `discover` takes beside an exact search and k-means, split by split."""
    cell = json.loads(SCALE.read_text())["ratio"]
    shape = f"{cell['rows']:,} × {cell['width']}"
    lines = [
        [shape, seed, f"{run['of search and k-means']:.2f}", f"{run['of search']:.2f}", str(run["classes found"])]
        for seed, run in cell["seeds"].items()
    ]
    return [["rows × columns", "seed", "of search and k-means", "of the search alone", "classes found"], *lines]


def growth_table(held: dict[str, Any]) -> list[list[str]]:
    """Time and memory of `discover` by the number of rows."""
    lines = json.loads(SCALE.read_text())["growth"]
    first = lines[0]["rows"]
    head = ["rows × 128", "in a file of", "graph over", f"time, of {first:,} rows'", "adds", "error of the class count"]
    return [
        head,
        *(
            [
                f"{line['rows']:,}",
                f"{line['file MB']} MB",
                "all rows" if line["rows"] <= GRAPH_ROWS else f"a sample of {GRAPH_ROWS:,}",
                f"{line['time of the first']:.1f}",
                f"{line['adds MB']} MB",
                f"{100 * line['count error']:.0f} %",
            ]
            for line in lines
        ),
    ]


KINDS: dict[str, Callable[[dict[str, Any]], list[list[str]]]] = {
    "accuracy": accuracy_table,
    "losses": losses_table,
    "count": count_table,
    "criteria": criteria_table,
    "uneven": uneven_table,
    "noise": noise_table,
    "speed": speed_table,
    "memory": memory_table,
    "ratio": ratio_table,
    "growth": growth_table,
}


def table(name: str) -> str:
    """The table of that name, as Markdown."""
    head, *lines = KINDS[name](json.loads(RESULTS.read_text()))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def page() -> str:
    """The page with its tables filled in."""
    return filled(PAGE, {"table": table})


if __name__ == "__main__":
    PAGE.write_text(page())
