"""Where the thesis' Mahalanobis figures come from: the distance layer by layer, not at the penultimate one alone.

The baseline that the thesis compares with (Lee et al. 2018) adds up Mahalanobis distances over layers. This script
measures each layer of the two DenseNets by itself, and their plain sum: fitted on one half of some known *test*
pictures (there are no training pictures of CIFAR-100 at hand), measured on the other half against SVHN and Textures.
It answers why the figures differ; it is not a benchmark of the method.

``python benchmarks/mahalanobis_layers.py`` writes ``results/mahalanobis_layers.json``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

import offmap
from offmap.bench.cache import default_cache
from offmap.bench.networks import make_network
from offmap.bench.sets import load_set
from offmap.bench.suites import load_suite
from offmap.metrics.detection import detection_report
from offmap.requests import Layer, Needs

LAYERS = ("conv1", "trans1", "trans2", "block3")
KNOWN, UNKNOWN = 1600, 400
RESULTS = Path(__file__).with_name("results") / "mahalanobis_layers.json"


def layers_of(name: str, data: Path) -> dict[str, dict[str, float]]:
    """FPR95 and AUROC of each layer and of their sum, by unknown set."""
    suite = load_suite(name)
    network = make_network(suite.networks[0], None, data, default_cache())
    needs = Needs(extras=tuple(Layer(layer) for layer in LAYERS))
    sets = {"id": load_set(suite.test, data).part(KNOWN)}
    sets |= {ood.name: load_set(ood, data).part(UNKNOWN) for ood in suite.ood}
    acts = {
        key: network.net.extract(
            network.batches(part, 32), needs, to=default_cache() / f"layers-{name}-{key}-{len(part)}", progress=False
        )
        for key, part in sets.items()
    }
    order = np.random.default_rng(0).permutation(KNOWN)
    fit, test = np.sort(order[: KNOWN // 2]), np.sort(order[KNOWN // 2 :])
    found: dict[str, dict[str, float]] = {}
    total = {key: np.zeros(len(test) if key == "id" else len(part)) for key, part in acts.items()}
    for layer in (*LAYERS, "penultimate"):
        rows = {
            key: part.features if layer == "penultimate" else part.extras[Layer(layer).key]
            for key, part in acts.items()
        }
        labels = acts["id"].labels
        assert labels is not None
        made = offmap.detector("mahalanobis(0.01)").fit(offmap.Activations(rows["id"][fit], labels=labels[fit]))
        scores = {key: made.score(part[test] if key == "id" else part) for key, part in rows.items()}
        scale = -float(np.mean(scores["id"]))
        for key in total:
            total[key] += scores[key] / scale
        found[layer] = measured(scores)
    found["sum of layers"] = measured(total)
    return found


def measured(scores: dict[str, np.ndarray]) -> dict[str, float]:
    """Per cent, by unknown set."""
    out = {}
    for key in scores:
        if key != "id":
            report = detection_report(scores["id"], scores[key])
            out |= {f"{key} fpr95": round(100 * report.fpr95, 2), f"{key} auroc": round(100 * report.auroc, 2)}
    return out


def main() -> None:
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA must name the folder with the data sets")
    suites = ("cifar10-densenet", "cifar100-densenet")
    results = {"inputs": {"fitted": KNOWN // 2, "known": KNOWN // 2, "unknown": UNKNOWN}, "shrinkage": 0.01}
    results |= {name: layers_of(name, Path(data)) for name in suites}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
