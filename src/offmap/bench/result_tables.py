"""Results of a suite as tables for other programs and papers: CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from offmap.bench.results import SuiteResult, SuiteRow
from offmap.store import write_atomically

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "|": r"$|$"}
_COLUMNS = ("suite", "network", "ood", "method", "chosen", "fpr95", "auroc", "seeds", "fpr95_std", "auroc_std")


def to_csv(result: SuiteResult) -> str:
    """Give one line per network, unknown set and method, in per cent."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in result.rows:
        spread = ["" if row.std.get(name) is None else f"{100 * row.std[name]:.3f}" for name in ("fpr95", "auroc")]
        means = [f"{100 * row.fpr95:.3f}", f"{100 * row.auroc:.3f}"]
        writer.writerow([row.suite, row.network, row.ood, row.method, row.chosen, *means, row.seeds, *spread])
    return stream.getvalue()


def to_markdown(result: SuiteResult) -> str:
    """Give one table per network: a row per method, the best mean FPR95 first, FPR95 and AUROC per unknown set."""
    parts = []
    for network in result.networks:
        names, rows = _cells(result, network)
        head = ["method", *(f"{name} {metric}" for name in names for metric in ("FPR95", "AUROC"))]
        named = [["`" + method.replace("|", r"\|") + "`", *cells] for method, *cells in rows]  # | ends a cell
        lines = [head, ["---", *["--:"] * (len(head) - 1)], *named]
        parts.append("\n".join([f"**{result.suite}, {network}**", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def to_latex(result: SuiteResult) -> str:
    """Give one tabular per network, with rules of booktabs, laid out as in `to_markdown`."""
    parts = []
    for network in result.networks:
        names, rows = _cells(result, network)
        groups = " & ".join(rf"\multicolumn{{2}}{{c}}{{{_escape(name)}}}" for name in names)
        body = [rf"{_escape(method)} & {' & '.join(cells)} \\" for method, *cells in rows]
        parts.append(
            "\n".join(
                [
                    f"% {result.suite}, {network}; per cent",
                    rf"\begin{{tabular}}{{l{'rr' * len(names)}}}",
                    r"\toprule",
                    rf" & {groups} \\",
                    rf"method{' & FPR95 & AUROC' * len(names)} \\",
                    r"\midrule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def write_tables(result: SuiteResult, folder: Path) -> list[Path]:
    """Write ``results.csv``, ``results.md`` and ``results.tex`` and return their paths."""
    made = {"results.csv": to_csv(result), "results.md": to_markdown(result), "results.tex": to_latex(result)}
    for name, text in made.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in made]


def _cells(result: SuiteResult, network: str) -> tuple[list[str], list[list[str]]]:
    """Names of the unknown sets, and per method its name and two numbers a set."""
    found = {(row.method, row.ood): row for row in result.of(network)}
    names = list(dict.fromkeys(row.ood for row in result.of(network)))
    ranked = [method for method, _, _ in result.rank_methods(network)]
    return names, [[method, *_numbers([found.get((method, name)) for name in names])] for method in ranked]


def _numbers(rows: Sequence[SuiteRow | None]) -> list[str]:
    return [
        "–" if row is None else f"{100 * getattr(row, metric):.2f}" for row in rows for metric in ("fpr95", "auroc")
    ]


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
