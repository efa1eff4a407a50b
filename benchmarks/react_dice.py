"""Why ReAct's and DICE's figures differ from the printed ones: which threshold c, which mean activations.

On the stored features of both DenseNets of the thesis, so it takes seconds. ReAct is measured for many thresholds c,
each with the percentile of the training activations that it is; DICE with the contribution matrix from the 10,000
training features at hand and from the authors' own file of mean activations; unit pruning for several shares of units,
because the thesis does not say which it used. An explanation of printed figures, on the
unknown test sets: nothing is chosen by it.

``python benchmarks/react_dice.py`` writes ``results/react_dice.json``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import offmap
from offmap.bench.cache import locate_cache
from offmap.bench.runner import prepare
from offmap.bench.suites import load_suite
from offmap.detection.shapers.dice import contribution, largest, n_kept
from offmap.metrics.detection import detection_report

RESULTS = Path(__file__).with_name("results") / "react_dice.json"
SUITES = ("cifar10-densenet", "cifar100-densenet")
PERCENTILES = (90, 95, 95.5, 96, 96.5, 97, 98, 99, 99.9)
SPARSITY = 0.9
PRUNED = (0.01, 0.05, 0.1, 0.3, 0.5, 0.9)


def report_scores(scores: dict[str, Any]) -> dict[str, float]:
    """Per cent, by unknown set."""
    out = {}
    for key in scores:
        if key != "id":
            report = detection_report(scores["id"], scores[key])
            out |= {f"{key} fpr95": round(100 * report.fpr95, 2), f"{key} auroc": round(100 * report.auroc, 2)}
    return out


def react(known: offmap.Activations, acts: dict[str, offmap.Activations]) -> list[dict[str, float]]:
    """FPR95 and AUROC by percentile."""
    found = []
    for percentile in PERCENTILES:
        made = offmap.detector(f"react({percentile})|energy").fit(known)
        c = float(np.percentile(known.features, percentile))
        scores = {name: made.score(part) for name, part in acts.items()}
        found.append({"percentile": percentile, "c": round(c, 3), **report_scores(scores)})
    return found


def dice(mean: Any, acts: dict[str, offmap.Activations]) -> dict[str, float]:
    """DICE at the thesis' sparsity, from given mean activations."""
    import torch

    head = acts["id"].head
    assert head is not None
    weight = torch.from_numpy(head.weight).double()
    values = contribution(torch.as_tensor(mean, dtype=torch.float64), weight)
    kept = (weight * largest(values, n_kept(SPARSITY, values.numel()))).numpy()
    logits = {name: part.features @ kept.T + head.bias for name, part in acts.items()}
    return report_scores({name: np.logaddexp.reduce(part, axis=1) for name, part in logits.items()})


def pruned(known: offmap.Activations, acts: dict[str, offmap.Activations]) -> list[dict[str, float]]:
    """FPR95 and AUROC by the share of units that are dropped."""
    found = []
    for p in PRUNED:
        made = offmap.detector(f"unit_pruning({p})|energy").fit(known)
        found.append({"p": p, **report_scores({name: made.score(part) for name, part in acts.items()})})
    return found


def main() -> None:
    data = os.environ.get("OFFMAP_DATA")
    if data is None:
        raise SystemExit("OFFMAP_DATA must name the folder with the data sets")
    results: dict[str, Any] = {"sparsity": SPARSITY}
    for name in SUITES:
        suite = load_suite(name)
        bench = prepare(suite, suite.networks[0], Path(data), locate_cache())
        weights = Path(data) / suite.networks[0].options["weights"]
        authors = np.load(weights.with_name(f"{weights.stem}_mean_activation.npy"))
        results[name] = {
            "react": react(bench.known, bench.acts),
            "dice": {
                "10,000 training features": dice(bench.known.features.astype(np.float64).mean(axis=0), bench.acts),
                "the authors' mean activations": dice(authors, bench.acts),
            },
            "unit pruning": pruned(bench.known, bench.acts),
        }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
