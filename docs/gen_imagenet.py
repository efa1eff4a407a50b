"""Fill the tables of docs/imagenet-results.md from the committed results: ``python docs/gen_imagenet.py``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; all else on the page is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from filled import filled

PAGE = Path(__file__).with_name("imagenet-results.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
Table = list[list[str]]


def read(name: str) -> dict[str, Any]:
    """One committed file of results."""
    held: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return held


def code(method: str) -> str:
    """A text form as code in a cell."""
    return f"`{method}`".replace("|", "\\|")


def pair(numbers: dict[str, float]) -> str:
    """FPR95 / AUROC."""
    return f"{numbers['fpr95']:.1f} / {numbers['auroc']:.1f}"


def by_method(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by method, then by set; the lowest mean FPR95 first."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["method"], {})[row["ood"]] = row
    return dict(sorted(found.items(), key=lambda item: fmean(row["fpr95"] for row in item[1].values())))


def features_table() -> Table:
    """Stored features against textures, with the thesis beside them."""
    lines = []
    for method, sets in by_method(read("suite-imagenet-resnet50")["rows"]).items():
        row = sets["textures"]
        error = f" ± {row['error']['fpr95']:.1f}" if row["error"] else ""
        thesis = "" if row["thesis"] is None else pair(row["thesis"])
        lines.append([code(method), f"{row['fpr95']:.1f}{error} / {row['auroc']:.1f}", thesis])
    return [["method", "textures (10 of 47)", "thesis (all 47)"], *lines]


def near_table() -> Table:
    """Classes left out of the head, against the others: the suites whose results are there."""
    words = {"hide100": "100 left out", "hide200": "200 left out", "pairs": "100 similar left out"}
    suites = [name for name in words if (RESULTS / f"suite-imagenet-resnet50-{name}.json").is_file()]
    held = {name: by_method(read(f"suite-imagenet-resnet50-{name}")["rows"]) for name in suites}
    lines = []
    for method, sets in held["hide100"].items():
        lines.append([code(method), *(pair(held[name][method]["left out"]) for name in suites), pair(sets["textures"])])
    lines.sort(key=lambda line: -float(line[1].rpartition(" ")[2]))
    return [["method", *(words[name] for name in suites), "textures, 100 left out"], *lines]


def pictures_table() -> Table:
    """From pictures: three unknown sets, corrupted known pictures accepted, and the full spectrum."""
    held = read("suite-imagenet-resnet50-pictures")
    found = by_method(held["rows"])
    sets = list(next(iter(found.values())))
    lines = []
    for method, rows in found.items():
        accepted = [row["fpr95"] for row in held["shifted"] if row["method"] == method]
        whole = [row["full_spectrum"] for row in rows.values()]
        mean = {name: fmean(part[name] for part in whole) for name in ("fpr95", "auroc")}
        lines.append([code(method), *(pair(rows[name]) for name in sets), f"{fmean(accepted):.1f}", pair(mean)])
    return [["method", *sets, "corrupted accepted", "full spectrum, mean"], *lines]


def shifts_table() -> Table:
    """How many corrupted known pictures are accepted, by corruption and strength: mean over methods, and extremes."""
    rows = read("suite-imagenet-resnet50-pictures")["shifted"]
    kinds = list(dict.fromkeys(row["ood"].partition(" ")[0] for row in rows))
    lines = []
    for kind in kinds:
        cells = [kind]
        for strength in range(1, 6):
            values = {row["method"]: row["fpr95"] for row in rows if row["ood"] == f"{kind} {strength}"}
            cells.append(f"{fmean(values.values()):.0f} ({min(values.values()):.0f}–{max(values.values()):.0f})")
        lines.append(cells)
    return [["corruption", *(f"strength {k}" for k in range(1, 6))], *lines]


def sweep_table(name: str) -> Table:
    """One sweep of benchmarks/imagenet.py."""
    rows = read("imagenet")["sweeps"][name]
    return [["method", "FPR95 / AUROC", "accuracy"]] + [
        [code(row["method"]), pair(row), f"{row['accuracy']:.2f}"] for row in rows
    ]


def tables_table() -> Table:
    """ADBench: mean AUROC and rank."""
    held = sorted(read("tables")["summary"].items(), key=lambda item: item[1]["rank"])
    lines = [[code(name.removeprefix("offmap ")) if name.startswith("offmap ") else name,
              f"{numbers['auroc']:.1f}", f"{numbers['rank']:.1f}"] for name, numbers in held]  # fmt: skip
    return [["detector", "mean AUROC", "mean rank"], *lines]


def discovery_table(runs_by_method: dict[str, Any], classes: int) -> Table:
    """Discovery: means over splits."""
    lines = []
    for name, runs in runs_by_method.items():
        means = [f"{fmean(run[part] for run in runs.values()):.1f}" for part in ("all", "known", "novel")]
        lines.append([f"`{name}`", str(len(runs)), *means, f"{fmean(run['classes'] for run in runs.values()):.0f}"])
    return [["method", "splits", "all", "known", "novel", f"classes found ({classes})"], *lines]


def learned_table() -> Table:
    """Objectives on features of Caltech-101, the best first: means over splits, beside `discover` on the same ones."""
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for key, cell in read("learn_caltech").items():
        _, name, seed, *estimated = key.split("|")
        runs.setdefault(name + ", number estimated" * bool(estimated), {})[seed] = cell
    lines = []
    for name, found in runs.items():
        means = [fmean(run["v2"][part] for run in found.values()) for part in range(3)]
        start = read("caltech")["auto, number estimated" if name.endswith("estimated") else "auto"]
        same = fmean(start[seed]["all"] for seed in found)
        classes = f"{fmean(run['n_classes'] for run in found.values()):.0f}"
        lines.append((means[0] - same, [f"`{name}`", ", ".join(sorted(found)), classes], [*means, same]))
    lines.sort(key=lambda line: -line[0])
    head = ["objective", "splits", "classes", "all", "known", "novel", "`discover` on these, all", "gain"]
    return [head, *([*first, *(f"{value:.1f}" for value in rest), f"{gain:+.1f}"] for gain, first, rest in lines)]


def loop_table() -> Table:
    """Pictures in the loop: one split, each method with its time."""
    lines = []
    for name, runs in read("caltech_pictures")["runs"].items():
        objective, _, trained = name.partition(", ")
        how = trained or ("nothing" if objective == "discover" else "adapter")
        parts = [f"{fmean(run['v2'][part] for run in runs.values()):.1f}" for part in range(3)]
        lines.append([f"`{objective}`", how, *parts])
    return [["method", "what is trained", "all", "known", "novel"], *lines]


def extraction_table() -> Table:
    """Extraction's share of the bare session's speed, by wall and by CPU time."""
    found = read("imagenet_speed")["extraction"]
    shares = [found[f"share by {kind} time"] for kind in ("wall", "cpu")]
    lines = [[way, *(f"{share[way]:.2f}" for share in shares)] for way in ("from arrays", "from files")]
    parts = []
    for kind in ("wall", "cpu"):
        middle = {way: median(times) for way, times in found[f"{kind} seconds"].items()}
        parts.append(f"{100 * middle['reading alone'] / middle['bare session']:.0f} %")
    turns = len(found["wall seconds"]["bare session"])
    head = f"{found['pictures']} pictures, {turns} turns, load of the machine {found['load']:.0f}"
    lines.append(["reading and cutting alone, of the session's time", *parts])
    return [[head, "share of the bare session's speed, wall time", "CPU time"], *lines]


def speed_table() -> Table:
    """Shared methods beside pytorch-ood."""
    lines = []
    for method, cell in read("imagenet_speed")["methods"].items():
        sides = [cell[name] for name in ("offmap", "pytorch-ood")]
        seconds = [f"{side['cpu_seconds']:.2f}" for side in sides]
        peaks = [f"{side['peak_megabytes']:.0f}" for side in sides]
        ratio, rank = f"{cell['ratio_of_cpu_time']:.1f}", f"{cell['rank']:.3f}"
        lines.append([code(method), *seconds, ratio, *peaks, rank])
    head = ["offmap, s", "pytorch-ood, s", "ratio", "offmap, MB", "pytorch-ood, MB", "rank correlation of scores"]
    return [["method", *head], *lines]


def single_pass_table() -> Table:
    """Methods at size that take long, all together, and the suite."""
    held = read("imagenet_speed")
    costs, suite = held["single pass"], held["suite"]
    slow = sorted((name for name in costs if costs[name]["cpu_seconds"] > 2), key=lambda n: -costs[n]["cpu_seconds"])

    def line(words: str, names: Sequence[str]) -> list[str]:
        seconds, most = ([costs[name][key] for name in names] for key in ("cpu_seconds", "peak_megabytes"))
        return [words, f"{sum(seconds):.1f}", f"{max(most):.0f}"]

    others = [name for name in costs if name not in slow]
    words = f"`offmap bench imagenet-resnet50`, {suite['methods']} methods"
    return [
        ["method", "CPU seconds", "MB at most"],
        *(line(code(name), [name]) for name in slow),
        line(f"the other {len(others)} together", others),
        line(f"all {len(costs)} together", list(costs)),
        [words, f"{suite['cpu_seconds']:.1f}", str(suite["peak_megabytes"])],
    ]


def means_table(file: str, key: str) -> Table:
    """Methods with FPR95 and AUROC, from one part of a file."""
    rows = sorted(read(file)[key].items(), key=lambda item: -item[1]["auroc"])
    return [["method", "FPR95 / AUROC"], *([code(name), pair(numbers)] for name, numbers in rows)]


KINDS: dict[str, Callable[[], Table]] = {
    "features": features_table,
    "near": near_table,
    "pictures": pictures_table,
    "shifts": shifts_table,
    "tables": tables_table,
    "caltech": lambda: discovery_table(read("caltech"), 101),
    "caltech-learned": learned_table,
    "caltech-pictures": loop_table,
    "sound-discovery": lambda: discovery_table(read("sound")["discovery"], read("sound")["classes"]),
    "extraction": extraction_table,
    "speed": speed_table,
    "single-pass": single_pass_table,
    "sound": lambda: means_table("sound", "mean"),
    "twin": lambda: means_table("imagenet_twin", "methods"),
    "layers": lambda: means_table("imagenet_twin", "energy cut at the 90th percentile after"),
}


def table(name: str) -> str:
    """The table of that name, as Markdown."""
    head, *lines = KINDS[name]() if name in KINDS else sweep_table(name.replace("-", " "))
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])


def page() -> str:
    """The page with its tables filled in."""
    return filled(PAGE, {"table": table})


if __name__ == "__main__":
    PAGE.write_text(page())
