"""How far ``auto`` is from the best single method in hindsight, on networks and unknown sets of many kinds.

For every pair of a network and an unknown set: AUROC and FPR95 of ``auto`` and ``auto(fast)``, of every single method,
of the best of these in hindsight (for each figure its own), and of the single method that validation on noise would
choose: features drawn independently with the mean and the spread of the known ones. The regret is what ``auto`` loses
against hindsight. Networks that ``auto`` was developed on and others stand apart; see `auto_pairs.py`, `auto_small.py`
and, for sets that are fetched, `auto_public.py`.

``python benchmarks/auto.py`` writes ``results/auto.json``; ``--only NAME`` measures one network again, ``--auto`` only
what ``auto`` gives on it, ``--again`` only what the present rule makes of the evidence that is there, with evidence on
candidates that are new since.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import offmap
from auto_pairs import DEVELOPMENT, REPORT, World
from auto_public import PUBLIC, PUBLIC_DEVELOPMENT
from auto_small import SMALL
from offmap import Activations
from offmap.detection.auto import combine_chosen, weigh_evidence
from offmap.detection.candidates import SEARCHING, Budget, list_candidates
from offmap.detection.evidence import Evidence, gather_evidence, split_known
from offmap.errors import OffmapError, OffmapWarning
from offmap.metrics.detection import auroc, fpr_at_tpr

RESULTS = Path(__file__).with_name("results") / "auto.json"
SINGLE = (
    "msp", "maxlogit", "energy", "entropy", "gen", "kl_matching", "openmax", "react(90)|energy", "react(95)|energy",
    "react(99)|energy", "dice(0.7)|energy", "ash_s(90)|energy", "scale(85)|energy", "lts(95)|energy", "vra|energy",
    "mahalanobis", "mahalanobis(0.1)", "mahalanobis_pp", "rmds", "rmds_pp", "plda", "gmm(1)", "knn(1)", "knn(10)",
    "knn(50)", "slof(20)", "knn(10, normalize=false)", "nnguide(10, alpha=1.0)", "vim", "residual", "pca",
    "pnml", "neco", "she", "fdbd", "nci", "cadref", "nac", "grood", "gradnorm",
)  # fmt: skip
FAST = "auto(fast)"
AUTO = ("auto", FAST)
BUDGETS: dict[str, Budget] = {"auto": "full", FAST: "fast"}
NOISE = 1000

Figures = dict[str, dict[str, float]]


def noise_like(known: Activations) -> Activations:
    """Features drawn independently with the mean and the spread of the known ones, not negative where those are not."""
    features = known.features
    drawn = np.random.default_rng(0).normal(features.mean(axis=0), features.std(axis=0), (NOISE, features.shape[1]))
    kept = np.maximum(drawn, 0) if features.min() >= 0 else drawn
    return Activations(kept.astype(np.float32), head=known.head)


def plan_from(trials: list[dict[str, Any]], known: Activations, budget: Budget) -> str:
    """What ``auto`` chooses from evidence that was gathered before; ``auto(fast)`` does without methods that search."""
    evidence = [Evidence(**{**trial, "weight": 0.0, "why": ""}) for trial in trials]
    tried = [each for each in evidence if each.left_out is not None or each.crossed is not None]
    usable = [each for each in tried if budget == "full" or each.spec not in SEARCHING]
    return repr(combine_chosen(weigh_evidence(usable, known, budget)))


def complete(trials: list[dict[str, Any]], known: Activations) -> list[dict[str, Any]]:
    """Add evidence on candidates that there is none on, and leave out those that are candidates no more."""
    before = {trial["spec"]: trial for trial in trials}
    now = list_candidates("full", known)
    new = gather_evidence([each for each in now if each.spec not in before], *split_known(known, None, 0))
    return [before.get(each.spec) or asdict(next(one for one in new if one.spec == each.spec)) for each in now]


def measure(spec: str, world: World, noise: Activations) -> dict[str, Any]:
    """Fit one method and measure it on every set, noise among them."""
    started = time.perf_counter()
    made = offmap.detector(spec).fit(world.fit)
    fitted = time.perf_counter()
    known = made.score(world.test)
    found: Figures = {}
    for name, acts in {**world.unknown, "noise": noise}.items():
        unknown = made.score(acts)
        found[name] = {"auroc": 100 * auroc(known, unknown), "fpr95": 100 * fpr_at_tpr(known, unknown)}
    seconds = {"fit": fitted - started, "score": time.perf_counter() - fitted}
    return {"sets": found, "seconds": seconds, "chosen": made.chosen, "trials": list(made.trials)}


def measure_network(
    world: World, single: dict[str, Any] | None = None, trials: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """All methods on one network; what cannot be fitted says why.

    Figures of single methods can be given, and the evidence that ``auto`` chooses on.
    """
    noise = noise_like(world.fit)
    trials = complete(trials, world.fit) if trials else None
    found: dict[str, Any] = {}
    for spec in (*AUTO, *SINGLE):
        if single is not None and spec in single:
            found[spec] = single[spec]
            continue
        try:
            evidence = trials if spec == "auto" else found["auto"]["trials"] if spec == FAST else None
            if evidence and any(trial["left_out"] or trial["crossed"] for trial in evidence):
                found[spec] = measure(plan_from(evidence, world.fit, BUDGETS[spec]), world, noise)
                found[spec]["trials"] = evidence if spec == "auto" else []
            else:
                found[spec] = measure(spec, world, noise)
        except OffmapError as error:
            found[spec] = {"error": str(error)}
    sizes = {"fit": len(world.fit), "test": len(world.test)} | {name: len(acts) for name, acts in world.unknown.items()}
    classes = world.fit.n_classes if world.fit.has_logits else 0
    return {"sizes": sizes, "features": world.fit.features.shape[1], "classes": classes, "methods": found}


def summarize(networks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per pair: the figures, the best in hindsight, and the regret."""
    rows = []
    for network, result in networks.items():
        singles = {spec: result["methods"][spec] for spec in SINGLE if "sets" in result["methods"].get(spec, {})}
        on_noise = min(singles, key=lambda spec: _noise_rank(singles[spec]["sets"]["noise"]))
        for name in (name for name in result["sizes"] if name not in ("fit", "test")):
            area = max(singles, key=lambda spec: singles[spec]["sets"][name]["auroc"])
            rate = min(singles, key=lambda spec: singles[spec]["sets"][name]["fpr95"])
            best = {"auroc": singles[area]["sets"][name]["auroc"], "fpr95": singles[rate]["sets"][name]["fpr95"]}
            row: dict[str, Any] = {"network": network, "unknown": name, "best": best | {"by": [area, rate]}}
            for spec in (*AUTO, on_noise):
                figures = result["methods"][spec]["sets"][name]
                regret = {"auroc": best["auroc"] - figures["auroc"], "fpr95": figures["fpr95"] - best["fpr95"]}
                row["noise" if spec == on_noise else spec] = figures | {"regret": regret, "chosen": spec}
            row["single"] = {spec: singles[spec]["sets"][name] for spec in singles}
            rows.append(row)
    return rows


def _noise_rank(figures: Mapping[str, float]) -> tuple[float, float]:
    return figures["fpr95"], -figures["auroc"]


def regrets(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst regret of ``auto``, of noise validation and of each single method, and how often auto is ahead."""
    found = {}
    for spec in (*AUTO, "noise"):
        found[spec] = _regret([row[spec]["regret"] for row in rows])
    for spec in SINGLE:
        if not any(spec in row["single"] for row in rows):
            continue
        found[spec] = _regret(
            [
                {
                    "auroc": row["best"]["auroc"] - row["single"][spec]["auroc"],
                    "fpr95": row["single"][spec]["fpr95"] - row["best"]["fpr95"],
                }
                for row in rows
                if spec in row["single"]
            ]
        )
    return found


def _regret(each: list[dict[str, float]]) -> dict[str, float]:
    area, rate = np.array([regret["auroc"] for regret in each]), np.array([regret["fpr95"] for regret in each])
    return {
        "pairs": len(each),
        "auroc": float(area.mean()),
        "worst_auroc": float(area.max()),
        "fpr95": float(rate.mean()),
        "worst_fpr95": float(rate.max()),
        "ahead": float((area < 0).mean()),
    }


def main() -> None:
    """Measure, print the regrets, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="networks to measure again; the others stay as they were")
    parser.add_argument("--auto", action="store_true", help="keep the figures of single methods")
    parser.add_argument("--again", action="store_true", help="keep the evidence, too, and choose by the present rule")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", OffmapWarning)
    result: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for part, networks in (("development", DEVELOPMENT | SMALL | PUBLIC_DEVELOPMENT), ("report", REPORT | PUBLIC)):
        kept = result.setdefault(part, {}).setdefault("networks", {})
        for name in networks:
            if name in PUBLIC | PUBLIC_DEVELOPMENT and "OFFMAP_PUBLIC" not in os.environ:
                print(f"{name}: left as it was; OFFMAP_PUBLIC does not name the folder of its sets")
            elif arguments.only is None or name in arguments.only:
                before = kept[name]["methods"] if (arguments.auto or arguments.again) and name in kept else {}
                single = {spec: before[spec] for spec in SINGLE if spec in before}
                trials = before["auto"]["trials"] if arguments.again and before else None
                kept[name] = measure_network(networks[name](), single, trials)
                print(f"{name}: {kept[name]['methods']['auto'].get('chosen')}", flush=True)
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        result[part]["networks"] = {name: kept[name] for name in networks if name in kept}
        if kept:
            result[part]["pairs"] = summarize(result[part]["networks"])
            result[part]["regrets"] = regrets(result[part]["pairs"])
            print(part, json.dumps({spec: result[part]["regrets"][spec] for spec in (*AUTO, "noise")}, indent=1))
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
