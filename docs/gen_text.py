"""Fill the tables of docs/howto/text.md from the committed results: ``python docs/gen_text.py``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; all else on the page is written by hand. Published
figures are those of the result tables in TEXTOIR's repository: all labels used for open intents, K given for new ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filled import filled

PAGE = Path(__file__).parent / "howto" / "text.md"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SETS = {"banking77": "BANKING77", "clinc150": "CLINC150"}
RATIOS = ("0.25", "0.5", "0.75")
OPEN = ("accuracy", "f1_known", "f1_open")
PUBLISHED_OPEN = {
    "banking77": {
        "ADB": ((79.94, 71.37, 85.57), (79.52, 81.38, 79.32), (81.35, 86.40, 67.32)),
        "DA-ADB": ((81.09, 72.97, 86.49), (81.64, 82.61, 82.10), (81.18, 85.96, 69.51)),
    },
    "clinc150": {
        "ADB": ((88.21, 77.77, 92.30), (86.47, 85.06, 88.54), (86.98, 88.99, 84.81)),
        "DA-ADB": ((89.49, 79.60, 93.20), (87.96, 85.58, 90.14), (87.46, 88.49, 86.09)),
    },
}
PUBLISHED_NEW = {
    "banking77": {"MTP-CLNN": (65.06, 70.97, 77.22), "USNID": (65.85, 73.27, 78.36)},
    "clinc150": {"MTP-CLNN": (83.26, 86.18, 89.46), "USNID": (83.12, 87.28, 90.36)},
}


def read(name: str) -> dict[str, Any]:
    """A committed result."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def line(cells: Sequence[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is words."""
    return "\n".join([line(head), line(["---", *["--:"] * (len(head) - 1)]), *map(line, rows)])


def mean(runs: dict[str, Any], method: str, measure: str) -> tuple[float, int]:
    """Mean over the seeds that have this method, and how many they are."""
    values = [run[method][measure] for run in runs.values() if method in run]
    return float(np.mean(values)), len(values)


def open_table() -> str:
    """Open intents: ours at two thresholds beside published figures."""
    found = read("text")["open"]
    methods = ("guard at 0.9", "guard at 0.95")
    rows = []
    for name, title in SETS.items():
        for place, ratio in enumerate(RATIOS):
            runs = found[name][ratio]
            cells = [" / ".join(f"{mean(runs, method, one)[0]:.1f}" for one in OPEN) for method in methods]
            published = PUBLISHED_OPEN[name].values()
            cells += [" / ".join(f"{value:.1f}" for value in figures[place]) for figures in published]
            rows.append([f"{title}, {float(ratio):.0%}", str(mean(runs, methods[0], OPEN[0])[1]), *cells])
    return table(["known", "splits", "at 90 %", "at 95 %", "ADB", "DA-ADB"], rows)


def oos_table() -> str:
    """Out-of-scope queries by training set and method: means over draws."""
    found = read("text")["oos"]
    methods = ("guard", "auto", "energy", "rmds", "knn(10)")
    rows = []
    for variant, runs in found.items():
        cells = [variant, str(len(runs)), f"{np.mean([run['accuracy'] for run in runs.values()]):.1f}"]
        cells += [f"{mean(runs, one, 'fpr95')[0]:.1f} / {mean(runs, one, 'auroc')[0]:.1f}" for one in methods]
        rows.append(cells)
    head = ["training set", "draws", "accuracy", *(name if name == methods[0] else f"`{name}`" for name in methods)]
    return table(head, rows)


def summarise(runs: dict[str, Any], method: str) -> str:
    """Mean accuracy over splits with its standard error and the number of splits; nothing where there are none."""
    each = np.array([run[method]["accuracy"] for run in runs.values() if method in run])
    if not len(each):
        return ""
    error = f" ± {each.std(ddof=1) / np.sqrt(len(each)):.1f}" if len(each) > 1 else ""
    return f"{each.mean():.1f}{error} ({len(each)})"


def new_table() -> str:
    """New intents, K given and estimated: means over splits."""
    frozen, tuned = read("text")["discover"], read("text_finetune")["discover"]
    rows = []
    for name, title in SETS.items():
        for place, ratio in enumerate(RATIOS):
            runs, other = (found.get(name, {}).get(ratio, {}) for found in (frozen, tuned))
            cells = [f"{title}, {float(ratio):.0%}", summarise(other, "tuned, K given")]
            cells += [summarise(runs, one) for one in ("learn, K given", "discover, K given", "discover, K estimated")]
            rows.append([*cells, *(f"{figures[place]:.1f}" for figures in PUBLISHED_NEW[name].values())])
    head = ["known", "fine-tuned, `learn`", "`learn`", "`discover`", "`discover`, K estimated", "MTP-CLNN", "USNID"]
    return table(head, rows)


def latency_text() -> str:
    """Ratios to the bare encoder."""
    guard, scope = (read("text_latency")["ratio"][name] for name in ("guard", "scope"))
    return (
        f"One sentence at a time, a guard takes {guard['p50']:.1f} times as long as the bare encoder at the median\n"
        f"and {guard['p99']:.1f} times at the 99th percentile, a scope {scope['p50']:.1f} and {scope['p99']:.1f} times."
    )


TABLES: dict[str, Callable[[], str]] = {
    "open-intents": open_table,
    "out-of-scope": oos_table,
    "new-intents": new_table,
}


def find(place: Sequence[str]) -> list[float]:
    """Return the number at a place of a committed result, ``file.json > key > key``; see ``quotes.py``."""
    first, *rest = place
    value: Any = read(first.removesuffix(".json"))
    for key in rest:
        value = value[key]
    return [float(value)]


def page() -> str:
    """The page with its tables made anew."""
    return filled(PAGE, {"table": lambda name: TABLES[name](), "text": lambda _: latency_text()})


if __name__ == "__main__":
    PAGE.write_text(page())
