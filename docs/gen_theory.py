"""Fill the table of docs/theory/rectified.md from the committed results: ``python docs/gen_theory.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from filled import filled

PAGE = Path(__file__).parent / "theory" / "rectified.md"
FILE = Path(__file__).parents[1] / "benchmarks" / "results" / "thesis_activations.json"
NETWORKS = {
    "batchnorm": "DenseNet, BatchNorm",
    "noise": "DenseNet, BatchNorm",
    "batch normalisation, the same CNN": "small CNN, BatchNorm",
    "weight normalisation": "small CNN, WeightNorm",
    "group normalisation": "small CNN, GroupNorm",
}
MEASURES = ("mean", "spread of unit means", "mean deviation", "largest unit mean")


def activations_table(name: str = "activations") -> str:
    """A row for each network and kind of inputs, then inner layers; numbers are over units."""
    found = json.loads(FILE.read_text())
    lines = [_line(["network", "inputs", *MEASURES]), _line(["---", "---", *["--:"] * len(MEASURES)])]
    shown = set()
    for part, network in NETWORKS.items():
        for inputs, values in found[part].items():
            if isinstance(values, dict) and (network, inputs) not in shown:
                shown.add((network, inputs))
                lines.append(_row(network, inputs, values))
    for layer, parts in found["layers"].items():
        if layer != "penultimate":
            lines += [_row(f"DenseNet, after `{layer}`", inputs, values) for inputs, values in parts.items()]
    return "\n".join(lines)


def page() -> str:
    """The page with its table filled in."""
    return filled(PAGE, {"table": activations_table})


def _row(network: str, inputs: str, values: dict[str, Any]) -> str:
    return _line([network, inputs, *(f"{values[measure]:.2f}" for measure in MEASURES)])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
