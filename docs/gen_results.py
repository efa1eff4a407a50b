"""Fill the tables of docs/results.md from the committed results and check the numbers that its text quotes.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; all else on the page is written by hand, with the
sources of its numbers in comments (see `quotes.py`). ``python docs/gen_results.py`` stops when a number is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from filled import filled
from quotes import check_quotes

PAGE = Path(__file__).with_name("results.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def read(pattern: str) -> list[dict[str, Any]]:
    """The committed results whose file name matches."""
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob(pattern))]


def suite_rows(name: str) -> list[dict[str, Any]]:
    """All rows of a suite; where several runs have one, the run on more inputs counts."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for result in read(f"suite-{name}*.json"):
        for row in result["rows"]:
            key = (row["method"], row["ood"])
            if key not in found or sum(row["inputs"].values()) >= sum(found[key]["inputs"].values()):
                found[key] = row
    return list(found.values())


def suite_table(name: str) -> str:
    """Methods by sets: FPR95 / AUROC, with what the thesis prints."""
    rows = suite_rows(name)
    sets = list(dict.fromkeys(row["ood"] for row in rows))
    cells = {(row["method"], row["ood"]): row for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows))
    methods.sort(key=lambda method: fmean(cells[method, ood]["fpr95"] for ood in sets if (method, ood) in cells))
    printed = any(row["thesis"] for row in rows)
    head = ["method", *(word for ood in sets for word in ([ood, "thesis", "Δ FPR95"] if printed else [ood])), "inputs"]
    lines = [_line(head), _line(["---"] + ["--:"] * (len(head) - 1))]
    for method in methods:
        line, inputs = [f"`{_escaped(method)}`{_chosen(cells, method, sets)}"], set()
        for ood in sets:
            row = cells.get((method, ood))
            line += _cells(row, printed)
            inputs |= {f"{row['inputs']['id']:,}"} if row else set()
        lines.append(_line([*line, ", ".join(sorted(inputs))]))
    return "\n".join(lines)


def _chosen(cells: dict[tuple[str, str], dict[str, Any]], method: str, sets: list[str]) -> str:
    row = next(cells[method, ood] for ood in sets if (method, ood) in cells)
    return f" → `{_escaped(row['chosen'])}`" if "auto" in method else ""


def _cells(row: dict[str, Any] | None, printed: bool) -> list[str]:
    if row is None:
        return ["–"] * (3 if printed else 1)
    unsure = row["std"].get("fpr95") or row.get("error", {}).get("fpr95")
    spread = f" ± {unsure:.1f}" if unsure else ""
    own = f"{row['fpr95']:.2f}{spread} / {row['auroc']:.2f}"
    if not printed:
        return [own]
    thesis = row["thesis"]
    if thesis is None:
        return [own, "", ""]
    return [own, f"{thesis['fpr95']:.2f} / {thesis['auroc']:.2f}", f"{row['fpr95'] - thesis['fpr95']:+.2f}"]


def thesis() -> dict[str, Any]:
    """All runs of thesis-detection as one; each question stands in the run that asked it, on most inputs."""
    whole: dict[str, Any] = {"rows": [], "sweeps": {}, "noise validation": [], "dice mean gap": []}
    for result in sorted(read("suite-thesis-detection*.json"), key=lambda result: -result["notes"]["limit"]):
        whole["rows"] += result["rows"]
        whole["sweeps"] |= result["sweeps"]
        for key in ("noise validation", "dice mean gap"):
            whole[key] = whole[key] or result[key]
    return whole


def sweeps_table(name: str) -> str:
    """Every sweep: the question, what the thesis says, the best and the worst point here."""
    result = thesis()
    lines = [_line(["question", "the thesis", "lowest FPR95 here", "highest"]), _line(["---"] * 4)]
    for key, asked in result["sweeps"].items():
        points: dict[tuple[str, str], list[float]] = {}
        for row in result["rows"]:
            if row["sweep"] == key:
                points.setdefault((row["series"], str(row["x"])), []).append(row["fpr95"])
        means = sorted((sum(values) / len(values), place) for place, values in points.items())
        shown = [f"{mean:.1f} ({_escaped(series)}, {x})" for mean, (series, x) in (means[0], means[-1])]
        lines.append(_line([asked["question"], asked["thesis"], *shown]))
    return "\n".join(lines)


def points_table(name: str) -> str:
    """One sweep, point by point."""
    result = thesis()
    sweep = name.removeprefix("sweep:")
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        if row["sweep"] == sweep:
            points.setdefault((row["series"], str(row["x"])), []).append(row)
    lines = [_line(["series", "at", "FPR95", "AUROC", "ID accuracy"]), _line(["---", "---", "--:", "--:", "--:"])]
    for (series, x), rows in points.items():
        fpr95, auroc = (sum(row[key] for row in rows) / len(rows) for key in ("fpr95", "auroc"))
        accuracy = rows[0]["id_accuracy"]
        right = "" if accuracy is None else f"{accuracy:.1f}"
        lines.append(_line([_escaped(series), x, f"{fpr95:.2f}", f"{auroc:.2f}", right]))
    return "\n".join(lines)


def validation_table(name: str) -> str:
    """What noise chooses, and what would have been best on the unknown sets."""
    result = thesis()
    lines = [_line(["method", "noise chooses", "FPR95 there", "best candidate", "FPR95"]), _line(["---"] * 5)]
    trials = result["noise validation"]
    for method in dict.fromkeys(trial["method"] for trial in trials):
        own = [trial for trial in trials if trial["method"] == method]
        chosen = next(trial for trial in own if trial["chosen"])
        best = min(own, key=lambda trial: trial["ood fpr95"])
        words = [f"`{_escaped(text)}`" for text in (method, chosen["candidate"], best["candidate"])]
        numbers = [f"{trial['ood fpr95']:.1f}" for trial in (chosen, best)]
        lines.append(_line([words[0], words[1], numbers[0], words[2], numbers[1]]))
    return "\n".join(lines)


def gaps_table(name: str) -> str:
    """DICE: the gap of mean outputs and the spread on unknown inputs, by sparsity."""
    result = thesis()
    lines = [_line(["p", "Δ", "spread"]), _line(["--:"] * 3)]
    lines += [_line([str(row["p"]), f"{row['gap']:.2f}", f"{row['spread']:.3f}"]) for row in result["dice mean gap"]]
    return "\n".join(lines)


def inverted_table(name: str) -> str:
    """Mahalanobis by how many directions of the covariance are kept."""
    return _by_network("mahalanobis_layers.json", lambda case: {
        f"{row['cut']:.0e}" if row["cut"] else "0": (f"{row['directions']}", row) for row in case["inverted"]
    }, ["left out below", "directions"])  # fmt: skip


def layers_table(name: str) -> str:
    """Mahalanobis layer by layer, and weighed."""
    return _by_network("mahalanobis_layers.json", lambda case: {
        layer: (f"{case['weights'][layer]:.2f}" if layer in case["weights"] else "", row)
        for layer, row in case["layers"].items()
    }, ["layer", "weight"])  # fmt: skip


def odin_table(name: str) -> str:
    """ODIN by the length of its step."""
    (result,) = read("odin.json")
    suites = sorted((key for key in result if key.startswith("cifar")), key=len)
    columns = ("svhn", "textures", "noise")
    head = ["ε", *(f"{suite.partition('-')[0]}, {ood}" for suite in suites for ood in columns)]
    lines = [_line(head), _line(["--:"] * len(head))]
    for epsilon in result[suites[0]]["by epsilon"]:
        cells = [f"{float(epsilon):g}"]
        for suite in suites:
            found = {**result[suite]["by epsilon"][epsilon], "noise": result[suite]["on noise"][epsilon]}
            cells += [f"{found[c]['fpr95']:.1f} ± {found[c]['error']:.1f} / {found[c]['auroc']:.1f}" for c in columns]
        lines.append(_line(cells))
    return "\n".join(lines)


def _by_network(file: str, of: Callable[[Any], dict[str, tuple[str, dict[str, float]]]], first: list[str]) -> str:
    """Rows of both networks side by side: a name, a remark, FPR95 / AUROC on each unknown set."""
    (result,) = read(file)
    sides = {key.partition("-")[0]: of(result[key]) for key in sorted(result) if key.startswith("cifar")}
    sides = dict(sorted(sides.items(), key=lambda side: len(side[0])))
    sets = ("svhn", "textures")
    head = [first[0], *(f"{key}, {word}" for key in sides for word in (first[1], *sets))]
    lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    for name in next(iter(sides.values())):
        cells = [name]
        for side in sides.values():
            remark, row = side[name]
            cells += [remark, *(f"{row[f'{ood} fpr95']:.1f} / {row[f'{ood} auroc']:.1f}" for ood in sets)]
        lines.append(_line(cells))
    return "\n".join(lines)


def react_table(name: str) -> str:
    """ReAct by percentile, on both networks."""
    (result,) = read("react_dice.json")
    suites = [key for key in result if key.startswith("cifar")]
    head = [
        "percentile",
        *(f"{suite.partition('-')[0]}, {word}" for suite in suites for word in ("c", "svhn", "textures")),
    ]
    lines = [_line(head), _line(["--:"] * len(head))]
    for rows in zip(*(result[suite]["react"] for suite in suites), strict=True):
        cells = [f"{rows[0]['percentile']:g}"]
        for row in rows:
            cells.append(f"{row['c']:.2f}")
            cells += [f"{row[f'{ood} fpr95']:.1f} / {row[f'{ood} auroc']:.1f}" for ood in ("svhn", "textures")]
        lines.append(_line(cells))
    return "\n".join(lines)


def peers_table(name: str) -> str:
    """Beside pytorch-ood: by how much the AUROCs differ, method by method."""
    (result,) = read("suite.json")
    suites = result["suites"]
    lines = [_line(["method", *suites, "why"]), _line(["---", *["--:"] * len(suites), "---"])]
    for method in next(iter(suites.values()))["methods"]:
        reasons = [case["reasons"].get(method, "") for case in suites.values()]
        differences = [f"{case['auroc_difference'][method]:.0e}" for case in suites.values()]
        lines.append(_line([f"`{_escaped(method)}`", *differences, next(filter(None, reasons), "")]))
    return "\n".join(lines)


KINDS: dict[str, Callable[[str], str]] = {
    "sweeps": sweeps_table,
    "validation": validation_table,
    "gaps": gaps_table,
    "inverted": inverted_table,
    "layers": layers_table,
    "odin": odin_table,
    "react": react_table,
    "peers": peers_table,
}


def table(name: str) -> str:
    """The table of that name."""
    if name.startswith("sweep:"):
        return points_table(name)
    return KINDS.get(name, suite_table)(name)


def find(place: Sequence[str]) -> list[float]:
    """Return the numbers that stand at a place of the committed results.

    Places are ``suite > method > set`` (FPR95 and AUROC), followed by ``thesis`` (as printed), ``error`` (FPR95, its
    standard error, AUROC), ``fpr95 and error``, ``fpr95`` or ``auroc``; ``suite > method`` (mean FPR95 over the sets);
    ``sweep > name > series > x`` (mean FPR95), and ``file.json > key > key``, where ``name=value`` picks from a list.
    Settings of a run and figures printed in the thesis alone are stated: ``setting > 0.002``, ``thesis > 5.10``.
    """
    first, *rest = place
    if first in ("setting", "thesis"):
        return [float(text) for text in rest]
    if first == "sweep":
        name, series, x = rest
        return [fmean(row["fpr95"] for row in sweep_rows(name) if (row["series"], str(row["x"])) == (series, x))]
    if first.endswith(".json"):
        value: Any = json.loads((RESULTS / first).read_text())
        for key in rest:
            value = _pick(value, key)
        return [float(value)]
    rows = [row for row in suite_rows(first) if row["method"] == rest[0]]
    if len(rest) == 1:
        return [fmean(row["fpr95"] for row in rows)]
    (row,) = [row for row in rows if row["ood"] == rest[1]]
    what = rest[2] if len(rest) > 2 else ""
    if what == "error":
        return [row["fpr95"], row["error"]["fpr95"], row["auroc"]]
    if what == "fpr95 and error":
        return [row["fpr95"], row["error"]["fpr95"]]
    if what in ("fpr95", "auroc"):
        return [row[what]]
    of = row["thesis"] if what == "thesis" else row
    return [of["fpr95"], of["auroc"]]


def _pick(value: Any, key: str) -> Any:
    if isinstance(value, list):
        name, _, wanted = key.partition("=")
        return next(row for row in value if row[name] == float(wanted))
    return value[key]


def sweep_rows(name: str) -> list[dict[str, Any]]:
    """The rows of one sweep."""
    return [row for row in thesis()["rows"] if row["sweep"] == name]


def page() -> str:
    """The page with its tables filled in; stops with what is wrong when its text quotes a number that is not so."""
    made = filled(PAGE, {"table": table})
    faults = check_quotes(made, find)
    if faults:
        raise SystemExit("docs/results.md:\n" + "\n".join(faults))
    return made


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
