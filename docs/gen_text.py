"""Fill the tables of docs/howto/text.md from the committed results: ``python docs/gen_text.py``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; all else on the page is written by hand. Published
figures are those of the result tables in TEXTOIR's repository: all labels used for open intents (KNNCL with all of BERT
trained), K given for new ones.
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
BANKING77 = 9003  # training queries
TPRS = (0.85, 0.9, 0.95)
TRIED = (0.8, 0.85, 0.9, 0.95, 0.975)
PUBLISHED_OPEN = {
    "banking77": {
        "ADB": ((79.94, 71.37, 85.57), (79.52, 81.38, 79.32), (81.35, 86.40, 67.32)),
        "DA-ADB": ((81.09, 72.97, 86.49), (81.64, 82.61, 82.10), (81.18, 85.96, 69.51)),
        "KNNCL": ((86.14, 76.30, 90.55), (82.76, 81.23, 84.28), (77.50, 82.56, 67.01)),
    },
    "clinc150": {
        "ADB": ((88.21, 77.77, 92.30), (86.47, 85.06, 88.54), (86.98, 88.99, 84.81)),
        "DA-ADB": ((89.49, 79.60, 93.20), (87.96, 85.58, 90.14), (87.46, 88.49, 86.09)),
        "KNNCL": ((93.07, 82.10, 95.73), (88.66, 83.89, 91.17), (85.07, 85.11, 84.31)),
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


def triple(runs: dict[str, Any], method: str) -> str:
    """Accuracy, F1 of known intents and of the open one; nothing where no seed has the method."""
    if not any(method in run for run in runs.values()):
        return ""
    return " / ".join(f"{mean(runs, method, one)[0]:.1f}" for one in OPEN)


def choose_share(name: str, ratio: str) -> float:
    """The share of known queries to accept that has the best F1 on validation queries."""
    (run,) = read("text")["threshold"][name][ratio].values()
    return max(TPRS, key=lambda tpr: float(run[f"guard at {tpr}"]["f1"]))


def open_table() -> str:
    """Open intents: ours at the chosen threshold and two more beside published figures."""
    found = read("text")["open"]
    rows = []
    for name, title in SETS.items():
        for place, ratio in enumerate(RATIOS):
            runs, best = found[name][ratio], choose_share(name, ratio)
            cells = [triple(runs, f"guard at {tpr}") for tpr in (best, *TPRS[1:])]
            published = PUBLISHED_OPEN[name].values()
            cells += [" / ".join(f"{value:.1f}" for value in figures[place]) for figures in published]
            splits = str(mean(runs, f"guard at {best}", OPEN[0])[1])
            rows.append([f"{title}, {float(ratio):.0%}", splits, f"{best:.0%}", *cells])
    head = ["known", "splits", "chosen", "at the chosen share", *(f"at {tpr:.0%}" for tpr in TPRS[1:])]
    return table([*head, *PUBLISHED_OPEN["banking77"]], rows)


def tuned_open_table() -> str:
    """Open intents with a fine-tuned encoder, beside the frozen one on the same splits and published figures."""
    frozen, rows = read("text")["open"], []
    for name, ratio in ((name, ratio) for name in SETS for ratio in RATIOS):
        runs = read("text_finetune").get("open", {}).get(name, {}).get(ratio, {})
        if not runs:
            continue
        method = f"guard at {choose_share(name, ratio)}"
        tuned = {seed: run["tuned"] for seed, run in runs.items()}
        same = {seed: frozen[name][ratio][seed] for seed in runs}
        published = [" / ".join(f"{value:.1f}" for value in figures[RATIOS.index(ratio)])
                     for figures in PUBLISHED_OPEN[name].values()]  # fmt: skip
        cells = [
            f"{SETS[name]}, {float(ratio):.0%}",
            str(len(runs)),
            ", ".join({str(r["epochs"]) for r in runs.values()}),
        ]
        rows.append([*cells, triple(tuned, method), triple(same, method), triple(tuned, "guard at 0.9"), *published])
    head = ["known", "splits", "epochs", "fine-tuned", "frozen", "fine-tuned, at 90%"]
    return table([*head, *PUBLISHED_OPEN["banking77"]], rows)


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
            cells = [f"{title}, {float(ratio):.0%}"]
            cells += [summarise(other, one) for one in ("tuned, K given", "tuned, K estimated")]
            cells += [summarise(runs, one) for one in ("learn, K given", "discover, K given", "discover, K estimated")]
            rows.append([*cells, *(f"{figures[place]:.1f}" for figures in PUBLISHED_NEW[name].values())])
    head = ["known", "fine-tuned, `learn`", "K estimated", "`learn`", "`discover`", "K estimated", "MTP-CLNN", "USNID"]
    return table(head, rows)


def threshold_table() -> str:
    """F1 over all classes, the open one among them, on validation queries by the share of known queries accepted."""
    found = read("text")["threshold"]
    rows = []
    for name, ratio in ((name, ratio) for name in SETS for ratio in RATIOS):
        (run,) = found[name][ratio].values()
        each = [run[f"guard at {tpr}"]["f1"] for tpr in TRIED]
        rows.append([f"{SETS[name]}, {float(ratio):.0%}", *(f"{value:.1f}" for value in each)])
    columns = np.array([row[1:] for row in rows], float).mean(axis=0)
    return table(["known", *(f"{tpr:.1%}" for tpr in TRIED)], [*rows, ["mean", *(f"{value:.1f}" for value in columns)]])


def topics_table() -> str:
    """Groups of all training queries beside BERTopic."""
    rows = []
    for name, runs in read("text_topics").items():
        for method, run in runs.items():
            shown = f"`{method}`" if method == "discover" else method.replace("discover,", "`discover`,")
            values = [f"{run[one]:.1f}" for one in ("left_out", "accuracy", "nmi")]
            rows.append([SETS[name], shown, *values, str(run["groups"]), f"{run['cpu_seconds']:.0f}"])
    return table(["texts", "by", "left out, %", "accuracy", "NMI", "groups", "CPU seconds"], rows)


def tuned_scope_table() -> str:
    """Out-of-scope queries with a fine-tuned encoder, beside the frozen one on the same draw."""
    rows = []
    for variant, runs in sorted(read("text_finetune")["oos"]["clinc150"].items()):
        for kind, shown in (("tuned", "fine-tuned"), ("frozen", "frozen")):
            each = [run[kind] for run in runs.values() if kind in run]
            if variant == "full" and kind == "frozen":
                each = list(read("text")["oos"]["full"].values())
            cells = [
                variant,
                shown,
                ", ".join({str(run["epochs"]) for run in runs.values()}) if kind == "tuned" else "",
            ]
            cells.append(f"{np.mean([run['accuracy'] for run in each]):.1f}")
            cells += [
                " / ".join(f"{np.mean([run[method][one] for run in each]):.1f}" for one in ("fpr95", "auroc"))
                for method in ("guard", "auto")
            ]
            rows.append(cells)
    return table(["training set", "encoder", "epochs", "accuracy", "guard", "`auto`"], rows)


def latency_text() -> str:
    """Milliseconds of a guard, and ratios to the bare encoder."""
    found = read("text_latency")
    guard, scope = (found["ratio"][name] for name in ("guard", "scope"))
    took = found["milliseconds"]["guard"]
    return (
        f"One sentence at a time, {found['sentences']} of them with {found['threads']} threads, a guard takes"
        f" {took['p50']:.0f} ms at the median and {took['p99']:.0f} ms at the 99th percentile:\n"
        f"{guard['p50']:.1f} and {guard['p99']:.1f} times as long as the bare encoder. A scope takes"
        f" {scope['p50']:.1f} and {scope['p99']:.1f} times as long."
    )


def rostd_table() -> str:
    """ROSTD's requests against those of known kinds."""
    run = read("text")["rostd"]
    methods = ("guard", "auto", "energy", "rmds", "knn(10)")
    cells = [f"{run[one]['fpr95']:.1f} / {run[one]['auroc']:.1f}" for one in methods]
    head = ["training queries", "accuracy", *(name if name == "guard" else f"`{name}`" for name in methods)]
    return table(head, [[f"{run['queries']:,}", f"{run['accuracy']:.1f}", *cells]])


def training_text() -> str:
    """What fine-tuning costs on BANKING77, with one thread."""
    cost = read("text_finetune")["speed"]["banking77"]["1.0"]["1"]["cpu_milliseconds"]
    minutes = 10 * BANKING77 * cost / 60_000
    return (
        f"Fine-tuning takes {cost:.0f} ms of one core for each labelled query of BANKING77 and epoch.\n"
        f"Ten epochs over all of its {BANKING77:,} training queries are {minutes:.0f} minutes of one core by that;"
        " they were not run through, nor was the time with two threads taken."
    )


def shift_table() -> str:
    """Known queries that a guard flags: of its own held-out ones, and of the set's validation and test queries."""
    parts, rows = ("checked", "validation", "test"), []
    for name, found in read("text_shift").items():
        for part, shown in (("few", "eight intents"), ("all", "all intents")):
            for kind in ("as they are", "dealt anew") if part in found else ():
                run = found[part][kind]
                cells = [f"{run[one]['mean']:.1f} ± {run[one]['error']:.1f} ({run[one]['most']:.1f})" for one in parts]
                rows.append([f"{SETS[name]}, {shown}, {kind}", str(found[part]["draws"]), *cells])
        for kind, run in found.get("tuned", {}).items():
            rows.append([f"{SETS[name]}, eight intents, {kind}", "1", *(f"{run[one]:.1f}" for one in parts)])
    return table(["queries", "draws", "set aside by the guard", "validation", "test"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "open-intents": open_table,
    "tuned-open": tuned_open_table,
    "tuned-scope": tuned_scope_table,
    "out-of-scope": oos_table,
    "new-intents": new_table,
    "rostd": rostd_table,
    "shift": shift_table,
    "topics": topics_table,
    "thresholds": threshold_table,
}
TEXTS: dict[str, Callable[[], str]] = {
    "latency": latency_text,
    "training": training_text,
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
    return filled(PAGE, {"table": lambda name: TABLES[name](), "text": lambda name: TEXTS[name]()})


if __name__ == "__main__":
    PAGE.write_text(page())
