"""Fill the tables of docs/learning-results.md from the committed results: ``python docs/gen_learning.py``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; all else on the page is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filled import filled

PAGE = Path(__file__).with_name("learning-results.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
GIVEN, ESTIMATED, CHOSEN = "", "K estimated", "chosen"  # what a run's name ends with


def read(name: str) -> dict[str, Any]:
    """A committed result."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def text_runs(data_set: str, kind: str) -> dict[str, dict[int, dict[str, Any]]]:
    """By method and seed."""
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for key, run in read("learn").items():
        name, method, seed, *more = key.split("|")
        if name == data_set and "|".join(more) == kind:
            runs.setdefault(method, {})[int(seed)] = run
    return runs


def text_table(data_set: str, kind: str = GIVEN) -> str:
    """Means over seeds with their standard errors, best first; beside it gcd's on the same seeds."""
    head = ["method", "seeds", "v2 All", "gcd, same seeds", "v2 Known", "v2 Novel", "orca Known", "orca Novel"]
    head += ["classes found"] if kind == ESTIMATED else []
    usual = text_runs(data_set, GIVEN)["gcd"]
    lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    runs = text_runs(data_set, kind)
    for method, by_seed in sorted(runs.items(), key=lambda item: -_mean(item[1], "v2")[0]):
        values = np.array([run["v2"][0] for run in by_seed.values()])
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
        numbers = [*_mean(by_seed, "v2")[1:], *_mean(by_seed, "orca")[1:]]
        same = np.mean([usual[seed]["v2"][0] for seed in by_seed])
        cells = [method, str(len(by_seed)), f"{values.mean():.1f}{error}", f"{same:.1f}"]
        cells += [f"{number:.1f}" for number in numbers]
        if kind == ESTIMATED:
            counts = [run["n_classes"] for run in by_seed.values()]
            cells.append(f"{min(counts)}–{max(counts)}")
        lines.append(_line(cells))
    return "\n".join(lines)


def seeds_table() -> str:
    """Self-training beside the training-free discovery it starts from, split by split."""
    lines = [_line(["set", "split", "discover", "self-training", "gain"]), _line(["---", *["--:"] * 4])]
    for data_set in ("banking77", "clinc150"):
        runs = text_runs(data_set, GIVEN)
        for seed, run in sorted(runs["self-training"].items()):
            before, after = runs["discover"][seed]["v2"][0], run["v2"][0]
            lines.append(_line([data_set, str(seed), f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"]))
    return "\n".join(lines)


def toy_table(kind: str) -> str:
    """Means over seeds, by views and by what is labelled."""
    seeds = list(read("toy")["seeds"].values())
    first = next(iter(seeds[0].values()))[kind]
    measures = list(next(iter(first.values())))
    lines = [_line(["views", "labels", *measures]), _line(["---", "---", *["--:"] * len(measures)])]
    for views in seeds[0]:
        for labels in seeds[0][views][kind]:
            cells = []
            for measure in measures:
                values = [run[views][kind][labels][measure] for run in seeds]
                digits = 2 if measure.startswith("residual") else 1
                each = f" ({', '.join(f'{v:.{digits}f}' for v in values)})" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.{digits}f}{each}")
            lines.append(_line([views, labels, *cells]))
    return "\n".join(lines)


def images_table() -> str:
    """Every set and method."""
    head = ["set", "method", "v2 All", "v2 Known", "v2 Novel", "orca Known", "orca Novel"]
    lines = [_line(head), _line(["---", "---", *["--:"] * 5])]
    for name, found in read("learn_images").items():
        for method, run in found["results"].items():
            lines.append(_line([name, method, *(f"{number:.1f}" for number in [*run["v2"], *run["orca"][1:]])]))
    return "\n".join(lines)


def ablations_table() -> str:
    """Means over seeds, and how far All is from the unchanged run's on the same seeds."""
    found = read("learn_ablations")
    unchanged = found["all as it is"][""]
    head = ["question", "changed", "seeds", "v2 All", "Known", "Novel", "Δ All"]
    lines = [_line(head), _line(["---", "---", *["--:"] * 5])]
    for question, changes in found.items():
        for name, runs in changes.items():
            mean = np.mean(list(runs.values()), axis=0)
            whole = np.mean([unchanged[seed][0] for seed in runs])
            cells = [question, name, str(len(runs)), *(f"{number:.1f}" for number in mean)]
            lines.append(_line([*cells, f"{mean[0] - whole:+.1f}" if name else ""]))
    return "\n".join(lines)


def sensitivity_table() -> str:
    """Every parameter that was changed, with All at each of its values; means over seeds."""
    runs = read("learn_sensitivity")["runs"]
    means = {key: float(np.mean([run[0] for run in by_seed.values()])) for key, by_seed in runs.items()}
    head = ["objective", "parameter", "unchanged", "changed to: v2 All", "largest change"]
    lines = [_line(head), _line(["---", "---", "--:", "---", "--:"])]
    for name in dict.fromkeys(key.partition("|")[0] for key in runs):
        whole = means[f"{name}|as it is"]
        changed: dict[str, dict[float, float]] = {}
        for key, mean in means.items():
            kind, _, change = key.partition("|")
            parameter, mark, value = change.partition("=")
            if kind == name and mark:
                changed.setdefault(parameter, {})[float(value)] = mean
        for parameter, by_value in changed.items():
            tried = ", ".join(f"{value:g}: {mean:.1f}" for value, mean in sorted(by_value.items()))
            far = max((mean - whole for mean in by_value.values()), key=abs)
            lines.append(_line([name, f"`{parameter}`", f"{whole:.1f}", tried, f"{far:+.1f}"]))
    return "\n".join(lines)


def gate_table() -> str:
    """Detectors of novel rows among unlabelled ones, on OpenCon's features; means over seeds."""
    seeds = list(read("learn_sensitivity")["gate"].values())
    measures = list(next(iter(seeds[0]["detectors"].values())))
    lines = [_line(["score", "seeds", *measures]), _line(["---", *["--:"] * (len(measures) + 1)])]
    for name in seeds[0]["detectors"]:
        values = [np.mean([seed["detectors"][name][measure] for seed in seeds]) for measure in measures]
        lines.append(_line([name, str(len(seeds)), *(f"{value:.1f}" for value in values)]))
    return "\n".join(lines)


def speed_table() -> str:
    """Ratios of one run each."""
    step, views = read("learn_step"), read("views")
    lines = [_line(["what", "measured"]), _line(["---", "--:"])]
    share = step["objective share of network pass"]
    lines.append(_line(["OpenCon's own work as a share of ResNet-18's pass", f"{share:.1%}"]))
    times = step["sample loop over vectorised update"]
    lines.append(_line(["prototype loop over samples, in times of the vectorised update", f"{times:.0f}×"]))
    for threads, case in sorted(views.items()):
        rate = case["views_per_second"]["batched"]
        words = f"views of 32×32 a second, {threads}, by wall clock and by processor time"
        lines.append(_line([words, f"{rate['wall']:,.0f} and {rate['cpu']:,.0f}"]))
    return "\n".join(lines)


KINDS: dict[str, Callable[[], str]] = {
    "banking77": lambda: text_table("banking77"),
    "clinc150": lambda: text_table("clinc150"),
    "banking77-estimated": lambda: text_table("banking77", ESTIMATED),
    "banking77-chosen": lambda: text_table("banking77", CHOSEN),
    "clinc150-chosen": lambda: text_table("clinc150", CHOSEN),
    "clinc150-estimated": lambda: text_table("clinc150", ESTIMATED),
    "self-training": seeds_table,
    "toy-nscl": lambda: toy_table("nscl"),
    "toy-sorl": lambda: toy_table("sorl"),
    "images": images_table,
    "ablations": ablations_table,
    "sensitivity": sensitivity_table,
    "gate": gate_table,
    "speed": speed_table,
}


def page() -> str:
    """The page with its tables filled in."""
    return filled(PAGE, {"table": lambda name: KINDS[name]()})


def _mean(by_seed: dict[int, dict[str, Any]], convention: str) -> Any:
    return np.mean([run[convention] for run in by_seed.values()], axis=0)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
