"""The sentences of docs/results.md that state measured numbers: each takes them from the committed results.

`gen_results.py` puts a function's text between ``<!-- text: name -->`` and ``<!-- end -->``. A sentence that says more
than its numbers (that something holds, that one is larger) stands behind `claim`, which fails when the results say
otherwise, so that a page never goes on claiming what a later run did not find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
C10, C100 = "cifar10-densenet", "cifar100-densenet"
NAMES = {C10: "CIFAR-10", C100: "CIFAR-100"}
ODIN = {C10: "odin(epsilon=0.01)", C100: "odin(epsilon=0.04)"}
SPREAD = {C10: (5.10, 1.08), C100: (4.94, 0.39)}  # DICE's five runs on SVHN, thesis l.3663, l.3689


@dataclass(frozen=True)
class Results:
    """What the sentences read: rows of suites by method and set, and whole files by name."""

    rows: Callable[[str], Rows]
    read: Callable[[str], Any]
    thesis: Callable[[], Mapping[str, Any]]


def claim(holds: bool, what: str) -> None:
    """Refuse a sentence that the results do not bear out."""
    if not holds:
        raise SystemExit(f"docs/results_words.py: no longer so, rewrite it: {what}")


def networks(results: Results) -> str:
    """How good the classifiers are, and what carries an error."""
    right = [results.read(f"suite-{name}.json")["notes"]["accuracy"]["densenet"] for name in (C10, C100)]
    return (
        f"DenseNet-BC-100-12, the DICE authors' own weights: {right[0]:.2f} % and {right[1]:.2f} % of test pictures "
        "right. Fitted on 10,000 training features of each network. The features of all pictures come from the "
        "data folder, where they are kept for exactly these weights and pictures (checksums of weights, pictures and "
        "features must agree, and 16 pictures of each set are sent through the network to compare); `--fresh` runs the "
        "network over everything instead. Methods that send inputs through the network again are measured on fewer "
        "pictures, drawn by a fixed seed; the last column says how many. ± beside a number is the standard deviation "
        "over seeds where random numbers enter, else the standard error where a set has at most 2,000 pictures."
    )


def holds(results: Results) -> str:
    """What of the thesis is found again."""
    rows = {name: results.rows(name) for name in (C10, C100)}
    plain = [rows[name][method, "svhn"] for name in rows for method in ("msp", "energy")]
    fpr95, auroc = (max(abs(row[key] - row["thesis"][key]) for row in plain) for key in ("fpr95", "auroc"))
    claim(fpr95 <= 0.6 and auroc <= 0.2, "MSP and energy are within 0.6 points of FPR95 and 0.2 of AUROC")
    pruned = max(abs(_off(rows[name]["weight_pruning(0.9)|energy", "svhn"])) for name in rows)
    claim(pruned < 3, "weight pruning is within 3 points")
    dice = {name: rows[name]["dice(0.9)|energy", "svhn"] for name in rows}
    over = {name: abs(_off(dice[name])) - SPREAD[name][0] for name in dice}
    claim(over[C10] <= 0, "DICE on CIFAR-10 lies within the printed spread")
    claim(0 < over[C100] < 0.6, "DICE on CIFAR-100 lies at the edge of the printed spread")
    authors = results.read("react_dice.json")[C100]["dice"]["the authors' mean activations"]["svhn fpr95"]
    return (
        f"**What holds.** On SVHN, MSP and energy are within {fpr95:.2f} points of FPR95 and {auroc:.2f} of AUROC for "
        f"both networks, weight pruning within {pruned:.2f} of FPR95. DICE at the thesis' p = 0.9 gives "
        f"{_pair(dice[C10])} on CIFAR-10 (printed {_printed(dice[C10])}, ± {SPREAD[C10][0]:.2f} / "
        f"{SPREAD[C10][1]:.2f}) and {_pair(dice[C100])} on CIFAR-100, {over[C100]:.2f} points outside the printed "
        f"{_printed(dice[C100])}, ± {SPREAD[C100][0]:.2f} / {SPREAD[C100][1]:.2f}; with the authors' own file of "
        f"mean activations it is {authors:.2f}. The thesis' spread is over five trainings; these are the weights of "
        "one."
    )


def react(results: Results) -> str:
    """Which threshold c."""
    found = results.read("react_dice.json")
    rows = {name: results.rows(name) for name in (C10, C100)}
    printed = {name: rows[name]["react(c=1.0)|energy", "svhn"]["thesis"]["fpr95"] for name in rows}
    at = {name: next(row for row in found[name]["react"] if row["percentile"] == 96) for name in rows}
    for name in rows:
        claim(abs(at[name]["svhn fpr95"] - printed[name]) < 1, f"the 96th percentile gives the printed figure, {name}")
    words = " and ".join(
        f"{at[name]['svhn fpr95']:.2f} / {at[name]['svhn auroc']:.2f} on {NAMES[name]} (c = {at[name]['c']:.2f}; "
        f"printed {_printed(rows[name]['react(c=1.0)|energy', 'svhn'])})"
        for name in rows
    )
    auto = {name: rows[name]["react(auto)|energy", "svhn"] for name in rows}
    one = {name: rows[name]["react(c=1.0)|energy", "svhn"] for name in rows}
    noise = [trial for trial in results.thesis()["noise validation"] if trial["method"] == "react(auto)|energy"]
    claim(sum(trial["noise fpr95"] == 0 for trial in noise) > 1, "several percentiles reject all noise")
    best = {name: min(found[name]["react"], key=lambda row: row["svhn fpr95"] + row["textures fpr95"]) for name in rows}
    ninety = {name: next(row for row in found[name]["react"] if row["percentile"] == 90) for name in rows}
    return (
        "**ReAct: the threshold.** Both printed figures are those of *one* rule, a cut at the 96th percentile of the "
        f"training activations: {words}. The constant c = 1.0 of the authors' code is about that percentile on "
        f"CIFAR-10 ({one[C10]['fpr95']:.2f}) and far below it on CIFAR-100 ({one[C100]['fpr95']:.2f}). Validation on "
        f"Gaussian noise, the thesis' own rule, chooses among fewer candidates: {_code(auto[C10]['chosen'])} and "
        f"{_code(auto[C100]['chosen'])}, {auto[C10]['fpr95']:.2f} and {auto[C100]['fpr95']:.2f}, because several "
        "percentiles reject all noise and noise cannot tell them apart. The 90th percentile, right for ImageNet's "
        f"ResNets, cuts too deep here ({ninety[C10]['svhn fpr95']:.1f} and {ninety[C100]['svhn fpr95']:.1f}); on "
        f"these sets the {best[C10]['percentile']:g}th and the {best[C100]['percentile']:g}th would be best, "
        "which is hindsight; so is the 96th, found by looking for the printed figures."
    )


def pruning(results: Results) -> str:
    """The sparsifiers that do not fit."""
    rows = {name: results.rows(name)["unit_pruning(0.9)|energy", "svhn"] for name in (C10, C100)}
    found = results.read("react_dice.json")
    tenth = {name: next(row for row in found[name]["unit pruning"] if row["p"] == 0.1) for name in rows}
    claim(_off(rows[C10]) > 10, "unit pruning at p = 0.9 is far from the printed figure")
    for name in rows:
        off = tenth[name]["svhn fpr95"] - rows[name]["thesis"]["fpr95"]
        claim(abs(off) < 0.6, f"unit pruning at p = 0.1 is near the printed figure, {name}")
    words = " and ".join(
        f"{tenth[name]['svhn fpr95']:.2f} / {tenth[name]['svhn auroc']:.2f} (printed {_printed(rows[name])})"
        for name in rows
    )
    return (
        "**Unit pruning: the share of units.** It is printed as almost exactly energy. At the p = 0.9 of the other "
        f"sparsifiers it gives {rows[C10]['fpr95']:.2f} and {rows[C100]['fpr95']:.2f} on SVHN, at p = 0.1 {words}: it "
        "was run at a small p, which the thesis does not say. Its rows “Random-k” and “(Top+Bottom)-k” (l.1481) carry "
        "the very averages of weight dropout and weight pruning (l.3672); measured, they differ from them. What "
        "dropping at random does depends on the seed: see the ± beside those rows."
    )


def best(results: Results) -> str:
    """Which method to use."""
    rows = {name: results.rows(name) for name in (C10, C100)}
    words = []
    for name, found in rows.items():
        compared = [key for key, row in found.items() if key[1] == "svhn" and row["thesis"] and key[0] != "knn(auto)"]
        near = min(found[key]["fpr95"] for key in compared)
        claim(found["knn(auto)", "svhn"]["fpr95"] < near, f"k-NN is best on SVHN, {name}")
        words.append(f"{found['knn(auto)', 'svhn']['fpr95']:.2f} on {NAMES[name]} (the next: {near:.2f})")
    return (
        "**Which method to use.** Nothing the thesis compares on these two networks comes near k-NN on the same "
        f"features, on SVHN {' and '.join(words)}; the thesis prints k-NN only as an average over other sets."
    )


def _off(row: Mapping[str, Any]) -> float:
    return float(row["fpr95"] - row["thesis"]["fpr95"])


def _pair(row: Mapping[str, Any]) -> str:
    return f"{row['fpr95']:.2f} / {row['auroc']:.2f}"


def _printed(row: Mapping[str, Any]) -> str:
    return f"{row['thesis']['fpr95']:.2f} / {row['thesis']['auroc']:.2f}"


def _code(text: str) -> str:
    return f"`{text}`"
