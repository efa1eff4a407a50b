"""What ``auto`` could reach at best: for each network one sum, its weights picked in hindsight on the test itself.

A choice made from known inputs gives one sum per network, whatever unknown set that meets later. So the best sum per
network, its weights climbed to the highest mean AUROC over the very sets that are reported, bounds from above what any
rule for the weights can reach with these terms, up to the climb's own imperfection. Beside it stand what ``auto`` chose
(`auto.py` and its results) and the best single method in hindsight, which is picked anew for every *pair*.

``python benchmarks/auto_bound.py`` writes ``results/auto_bound.json``, for the networks of the report that are not
fetched; ``--only NAME`` measures one again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offmap
from auto import SINGLE
from auto_pairs import REPORT, World
from offmap.detection.auto import COMBINE, split_known
from offmap.detection.candidates import list_candidates
from offmap.detection.combination import Combiner, fit_combination
from offmap.errors import OffmapError, OffmapWarning
from offmap.metrics.detection import auroc, fpr_at_tpr

RESULTS = Path(__file__).with_name("results")
ROUNDS = 4  # through all terms, with steps that are halved after each

Array = Any


def term_values(world: World) -> tuple[list[str], Array, dict[str, Array]]:
    """Each candidate as ``auto`` adds it up: bent log p among held-out known inputs. Names, known, unknown sets."""
    fit, held_out = split_known(world.fit, None, 0)
    names, known, unknown = [], [], {name: [] for name in world.unknown}
    for candidate in list_candidates("full", world.fit):
        if candidate.why:
            continue
        try:
            state = fit_combination([offmap.detector(candidate.spec).fit(fit).score(held_out)], COMBINE)
            combiner = Combiner(state, (1.0,), COMBINE)
            made = offmap.detector(candidate.spec).fit(world.fit)
            if not combiner.live:
                continue
        except OffmapError:
            continue
        names.append(candidate.spec)
        known.append(combiner({0: torch.from_numpy(made.score(world.test))}).numpy())
        for name, acts in world.unknown.items():
            unknown[name].append(combiner({0: torch.from_numpy(made.score(acts))}).numpy())
    return names, np.stack(known, axis=1), {name: np.stack(columns, axis=1) for name, columns in unknown.items()}


def climb(start: Array, known: Array, unknown: dict[str, Array]) -> Array:
    """Change one weight at a time, upwards, downwards or to nothing, while the mean AUROC over the sets rises."""

    def reached(weights: Array) -> float:
        return float(np.mean([auroc(known @ weights, rows @ weights) for rows in unknown.values()]))

    weights, step = start / start.sum(), 1 / 8
    best = reached(weights)
    for _ in range(ROUNDS):
        for place in range(len(weights)):
            for change in (step, -step, -1.0):
                tried = weights.copy()
                tried[place] = max(0.0, tried[place] + change)
                if tried.any() and (found := reached(tried)) > best:
                    weights, best = tried, found
        step /= 2
    return weights / weights.sum()


def measure_network(world: World, before: dict[str, Any]) -> dict[str, Any]:
    """Compare the best sum in hindsight with what ``auto`` gave and with single methods, as `auto.py` measured them."""
    names, known, unknown = term_values(world)
    chosen = {trial["spec"]: trial["weight"] for trial in before["auto"]["trials"]}
    weights = climb(np.array([chosen.get(name, 0.0) for name in names]), known, unknown)
    singles = [before[spec]["sets"] for spec in SINGLE if "sets" in before.get(spec, {})]
    pairs = {}
    for name, rows in unknown.items():
        inside, outside = known @ weights, rows @ weights
        pairs[name] = {
            "bound": {"auroc": 100 * auroc(inside, outside), "fpr95": 100 * fpr_at_tpr(inside, outside)},
            "auto": before["auto"]["sets"][name],
            "single": {
                "auroc": max(sets[name]["auroc"] for sets in singles),
                "fpr95": min(sets[name]["fpr95"] for sets in singles),
            },
        }
    return {"weights": {name: round(float(w), 3) for name, w in zip(names, weights, strict=True) if w}, "pairs": pairs}


def summarize(networks: dict[str, Any]) -> dict[str, Any]:
    """Mean and worst AUROC and FPR95 lost against the best single method of each pair."""
    pairs = [pair for network in networks.values() for pair in network["pairs"].values()]
    found = {}
    for name in ("bound", "auto"):
        area = np.array([pair["single"]["auroc"] - pair[name]["auroc"] for pair in pairs])
        rate = np.array([pair[name]["fpr95"] - pair["single"]["fpr95"] for pair in pairs])
        found[name] = {
            "pairs": len(pairs),
            "auroc": float(area.mean()),
            "worst_auroc": float(area.max()),
            "fpr95": float(rate.mean()),
            "worst_fpr95": float(rate.max()),
            "ahead": float((area < 0).mean()),
        }
    return found


def main() -> None:
    """Measure, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="networks to measure again; the others stay as they were")
    parser.add_argument("--out", type=Path, default=RESULTS / "auto_bound.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", OffmapWarning)
    measured = json.loads((RESULTS / "auto.json").read_text())["report"]["networks"]
    kept = json.loads(arguments.out.read_text())["networks"] if arguments.out.exists() else {}
    for name, make in REPORT.items():
        if name in kept if arguments.only is None else name not in arguments.only:
            continue
        kept[name] = measure_network(make(), measured[name]["methods"])
        result = {"networks": {name: kept[name] for name in REPORT if name in kept}}
        result["regrets"] = summarize(result["networks"])
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        print(name, json.dumps(result["regrets"]), flush=True)


if __name__ == "__main__":
    main()
