"""CombOOD replicated: is it better on near unknown inputs than on far ones, as its published figures say?

``python benchmarks/combood.py`` measures it beside the two methods that it is made of, on the DenseNets and the
ResNet-50 of `auto_pairs.py`, and writes ``results/combood.json``: AUROC and FPR95 on a near set and on far ones.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import offmap
from auto_pairs import DEVELOPMENT
from offmap.errors import OffmapError, OffmapWarning
from offmap.metrics.detection import auroc, fpr_at_tpr

RESULTS = Path(__file__).with_name("results") / "combood.json"
METHODS = ("combood", "knn(50)", "mahalanobis", "gmm(1)")
NEAR = {
    "CIFAR-10 DenseNet": "cifar100",
    "CIFAR-100 DenseNet": "cifar10",
    "ImageNet ResNet-50": "other classes",
}


def measure(network: str) -> dict[str, Any]:
    """The figures of every method on every unknown set of a network, near or far."""
    world = DEVELOPMENT[network]()
    found: dict[str, Any] = {}
    for spec in METHODS:
        try:
            made = offmap.detector(spec).fit(world.fit)
        except OffmapError as error:
            found[spec] = {"error": str(error)}
            continue
        known = made.score(world.test)
        scores = {name: made.score(acts) for name, acts in world.unknown.items()}
        found[spec] = {
            name: {"auroc": 100 * auroc(known, unknown), "fpr95": 100 * fpr_at_tpr(known, unknown)}
            for name, unknown in scores.items()
        }
        print(network, spec, {name: round(figures["auroc"], 1) for name, figures in found[spec].items()}, flush=True)
    return {"near": NEAR[network], "methods": found}


def main() -> None:
    """Measure all networks and write the results."""
    warnings.simplefilter("ignore", OffmapWarning)
    found = {network: measure(network) for network in NEAR}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
