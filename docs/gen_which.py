"""Fill docs/which-method.md and docs/auto-results.md from the committed results: ``python docs/gen_which.py``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``, a sentence after ``<!-- text: name -->``; all else
on the page is written by hand.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from filled import filled

PAGE = Path(__file__).with_name("which-method.md")
DETAILS = PAGE.with_name("auto-results.md")
README = Path(__file__).parents[1] / "README.md"
PAGES = (PAGE, DETAILS, README)
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "auto.json"
COST, COMBOOD = (RESULTS.with_name(f"{name}.json") for name in ("auto_cost", "combood"))
WORDS = {"auto": "`auto`", "auto(fast)": "`auto(fast)`", "noise": "one method, chosen on noise"}
KINDS = {  # by a part of a network's name, the first that fits
    "ResNet-50": "photographs and sounds on a ResNet-50",
    "DenseNet": "DenseNets of CIFAR",
    "CNN": "small networks",
    "MLP": "small networks",
    "": "sentence embeddings",
}
FIXED = 5  # single methods that are listed, the best ones by mean AUROC


def pairs_table(held: dict[str, Any], part: str) -> str:
    """Pairs by what was measured: FPR95 / AUROC."""
    lines = [
        ["network", "unknown inputs", "`auto`", "`auto(fast)`", "best single method in hindsight", "chosen on noise"]
    ]
    for row in held[part]["pairs"]:
        best = row["best"]
        cells = [f"{row[name]['fpr95']:.1f} / {row[name]['auroc']:.2f}" for name in ("auto", "auto(fast)")]
        hindsight = f"{best['fpr95']:.1f} (`{_text(best['by'][1])}`) / {best['auroc']:.2f} (`{_text(best['by'][0])}`)"
        noise = f"{row['noise']['fpr95']:.1f} / {row['noise']['auroc']:.2f} (`{_text(row['noise']['chosen'])}`)"
        lines.append([row["network"], row["unknown"], *cells, hindsight, noise])
    return _table(lines)


def regrets_table(held: dict[str, Any], part: str) -> str:
    """Mean and worst regret of auto, of noise validation and of the best fixed methods."""
    found = held[part]["regrets"]
    pairs = found["auto"]["pairs"]
    single = [name for name, regret in found.items() if name not in WORDS and regret["pairs"] == pairs]
    lines = [["", "mean AUROC lost", "worst", "mean FPR95 lost", "worst", "ahead of hindsight"]]
    for name in [*WORDS, *sorted(single, key=lambda name: found[name]["auroc"])[:FIXED]]:
        regret = found[name]
        numbers = [f"{regret[key]:.2f}" for key in ("auroc", "worst_auroc", "fpr95", "worst_fpr95")]
        lines.append([WORDS.get(name, f"`{_text(name)}`"), *numbers, f"{regret['ahead']:.0%}"])
    return _table(lines)


def kinds_table(held: dict[str, Any], part: str) -> str:
    """What auto loses by kind of network."""
    rows = held[part]["pairs"]
    kinds = [next(kind for word, kind in KINDS.items() if word in row["network"]) for row in rows]
    lines = [["networks", "pairs", "mean AUROC lost", "worst", "mean FPR95 lost", "ahead of hindsight"]]
    for kind in dict.fromkeys(KINDS.values()):
        lost = [row["auto"]["regret"] for row, own in zip(rows, kinds, strict=True) if own == kind]
        area, rate = [one["auroc"] for one in lost], [one["fpr95"] for one in lost]
        numbers = [f"{value:.2f}" for value in (fmean(area), max(area), fmean(rate))]
        lines.append([kind, str(len(lost)), *numbers, f"{fmean(one < 0 for one in area):.0%}"])
    return _table(lines)


def short_table(held: dict[str, Any], part: str) -> str:
    """The first lines for the README: auto, the best fixed methods and the choice on noise, means only."""
    lines = [row.split(" | ") for row in regrets_table(held, part).splitlines()[2:]]
    rows = [[row[0].strip("| "), row[1], row[3]] for row in lines]
    chosen = [row for row in rows if row[0] != WORDS["auto(fast)"]][:4]
    return _table([["", "mean AUROC lost", "mean FPR95 lost"], *chosen])


def _text(spec: str) -> str:
    return spec.replace("|", "\\|")


def _table(lines: list[list[str]]) -> str:
    rows = [lines[0], ["---", *["--:"] * (len(lines[0]) - 1)], *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table(held: dict[str, Any], name: str) -> str:
    """The table of that name: ``pairs-report``, ``regrets-development`` and so on."""
    kind, _, part = name.partition("-")
    makers = {"pairs": pairs_table, "regrets": regrets_table, "kinds": kinds_table, "short": short_table}
    return makers[kind](held, part)


def cost_text() -> str:
    """What both budgets cost at scoring, beside k-NN alone."""
    banks = json.loads(COST.read_text())["banks"]
    sizes = " and ".join(f"{row['bank']:,}" for row in banks)
    fast, full = (" and ".join(f"{row['ratio'][name]:.1f}" for row in banks) for name in ("auto(fast)", "auto"))
    return (
        f"With {sizes} known inputs in the bank, scoring by `auto(fast)` takes {fast} times as long as `knn(10)`\n"
        f"alone, by `auto`, which searches neighbours four times, {full} times."
    )


def combood_text() -> str:
    """CombOOD's AUROC on near and on far inputs, and that of the better of its two parts."""
    parts = []
    for network, found in json.loads(COMBOOD.read_text()).items():
        methods = {name: row for name, row in found["methods"].items() if "error" not in row}
        near = found["near"]
        far = [f"{row['auroc']:.1f}" for name, row in methods["combood"].items() if name != near]
        best = max((name for name in methods if name != "combood"), key=lambda name: methods[name][near]["auroc"])
        parts.append(
            f"{network} {methods['combood'][near]['auroc']:.1f} near (`{best}` {methods[best][near]['auroc']:.1f}), "
            f"{' and '.join(far)} far"
        )
    return "That does not come out here. AUROC of `combood`:\n" + ";\n".join(parts) + "."


def page(path: Path = PAGE) -> str:
    """A page as it should be."""
    texts = {"cost": cost_text, "combood": combood_text}
    makers = {"table": partial(table, json.loads(RESULTS.read_text())), "text": lambda name: texts[name]()}
    return filled(path, makers)


if __name__ == "__main__":
    for made in PAGES:
        made.write_text(page(made))
