"""The promises of a threshold beside crepes, nonconform, MAPIE and TorchCP, on the same scores.

``OFFMAP_DATA=... python benchmarks/guarantees.py --peers ENV/bin/python`` writes ``results/guarantees.json``. The
environment of the peers needs Python 3.12 or later, ``pip install crepes nonconform mapie``; that of TorchCP, named by
``--torchcp``, the same torch as ours and ``pip install --no-deps torchcp`` with what it imports. Scores are those of
``knn(10)`` on sentences of CLINC150; of the known ones, sets for calibration are drawn time after time, and all others
are the future inputs, so that the share of false alarms of each set is measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import offmap
from offmap.detection.calibration import Calibration
from offmap.detection.online_fdr import LORD, SAFFRON
from offmap.detection.p_values import conditional_p_values, p_values, weighted_p_values
from worker import Worker

RESULTS = Path(__file__).with_name("results")
SETS, SIZE, TPR, CONFIDENCE = 300, 1000, 0.95, 0.95
NEW = 1000
STREAM_FDR = 0.2
PEERS = ("crepes", "nonconform", "mapie", "numpy")


def make_scores() -> tuple[Any, Any]:
    """Scores of held-out known sentences, and of those out of scope."""
    with np.load(Path(os.environ["OFFMAP_DATA"]) / "text" / "clinc150_minilm.npz") as held:
        parts = {name: held[name] for name in held.files}
    guard = offmap.detector("knn(10)").fit(parts["train_features"].astype(np.float32))

    def score(*names: str) -> Any:
        return guard.score(np.concatenate([parts[f"{name}_features"] for name in names]).astype(np.float32))

    return score("val", "test"), score("oos_val", "oos_test")


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began


def broken(known: Any, rows: Any, thresholds: Any) -> dict[str, float]:
    """The share of false alarms among the scores outside each set, on average, and how often it is above 1 - tpr."""
    rates = []
    for chosen, threshold in zip(rows, thresholds, strict=True):
        others = np.ones(len(known), bool)
        others[chosen] = False
        rates.append(np.mean(known[others] < threshold))
    return {"false_alarms": float(np.mean(rates)), "sets_above": float(np.mean(np.array(rates) > 1 - TPR))}


class Batch:
    """Judges all p-values at once (Benjamini, Hochberg 1995): what waiting for the whole stream would find."""

    def __init__(self, fdr: float) -> None:
        self.fdr = fdr

    def update(self, values: Any) -> Any:
        """Flag p-values."""
        bounds = self.fdr * np.arange(1, len(values) + 1) / len(values)
        below = np.flatnonzero(np.sort(values) <= bounds)
        return values <= (bounds[below[-1]] if len(below) else -1.0)


def measure_streams(known: Any, unknown: Any, share: float) -> dict[str, Any]:
    """False discovery rate and power over streams of 1,000 sentences, some out of scope, calibrated on 5,000."""
    procedures = {
        f"{name}, {kind}": (make, confidence)
        for name, make in (("LORD++", LORD), ("SAFFRON", SAFFRON), ("one batch", Batch))
        for kind, confidence in (("plain p-values", None), ("given the set, 90 %", 0.9))
    }
    found: dict[str, Any] = {}
    for label, (make, confidence) in procedures.items():
        rng = np.random.default_rng(1)
        shares, power = [], []
        for _ in range(100):
            order = rng.permutation(len(known))
            calibration = np.sort(known[order[:5000]])
            is_unknown = rng.random(1000) < share
            scores = known[order[5000:6000]].copy()
            scores[is_unknown] = rng.choice(unknown, int(is_unknown.sum()), replace=False)
            values = p_values(calibration, scores)
            if confidence is not None:
                values = conditional_p_values(calibration, scores, confidence)
            flagged = make(STREAM_FDR).update(values)
            shares.append((flagged & ~is_unknown).sum() / max(flagged.sum(), 1))
            power.append(flagged[is_unknown].mean())
        found[label] = {"fdr": float(np.mean(shares)), "found": float(np.mean(power))}
    return found


def _ask_torchcp(python: str, sets: list[Any]) -> Any:
    with tempfile.TemporaryDirectory() as scratch, Worker(python, "guarantees_peers.py") as peer:
        file, out = Path(scratch) / "data.npz", str(Path(scratch) / "out.npy")
        np.savez(file, calibration=sets)
        peer("load", file=str(file))
        peer("torchcp", file=out, tpr=TPR)
        return np.load(out)


def measure(python: str, torchcp: str | None) -> dict[str, Any]:
    known, unknown = make_scores()
    rng = np.random.default_rng(0)
    rows = [rng.choice(len(known), SIZE, replace=False) for _ in range(SETS)]
    sets = [known[chosen] for chosen in rows]
    mixed = np.concatenate([rng.choice(known, NEW // 2), rng.choice(unknown, NEW // 2)])
    weights, own = rng.uniform(0.2, 5, (SETS, SIZE)), rng.uniform(0.2, 5, NEW)
    ours: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    ours["p-values"], seconds["p-values"] = timed(lambda: [p_values(np.sort(s), mixed) for s in sets])

    def weigh() -> list[Any]:
        orders = [np.argsort(s) for s in sets]
        parts = zip(sets, weights, orders, strict=True)
        return [weighted_p_values(s[order], mixed, w[order], own) for s, w, order in parts]

    ours["weighted"], seconds["weighted"] = timed(weigh)
    ours["conditional"], seconds["conditional"] = timed(
        lambda: [conditional_p_values(np.sort(s), mixed, CONFIDENCE) for s in sets]
    )
    plain = [Calibration.of(s, TPR).threshold for s in sets]
    confident, seconds["threshold"] = timed(
        lambda: [Calibration.of(s, TPR, confidence=CONFIDENCE).threshold for s in sets]
    )
    with tempfile.TemporaryDirectory() as scratch, Worker(python, "guarantees_peers.py") as peers:
        file, out = Path(scratch) / "data.npz", str(Path(scratch) / "out.npy")
        np.savez(file, calibration=sets, new=mixed, calibration_weights=weights, new_weights=own)
        peers("load", file=str(file))
        compared: dict[str, Any] = {}
        for task, kind, options in (
            ("crepes", "p-values", {}),
            ("nonconform", "p-values", {}),
            ("nonconform weighted", "weighted", {}),
            ("nonconform conditional", "conditional", {"delta": 1 - CONFIDENCE}),
        ):
            peers(task, file=out, **options)
            difference = np.abs(np.load(out) - np.array(ours[kind]))
            compared[task] = {
                "kind": kind,
                "largest_difference": float(difference.max()),
                "equal": float(np.mean(difference < 1e-9)),
                "largest_difference_below_a_tenth": float(difference[np.array(ours[kind]) <= 0.1].max()),
                "seconds": peers.seconds,
                "over_offmap": peers.seconds / seconds[kind],
            }
        thresholds = {"offmap, plain": plain, "offmap, confidence=0.95": confident}
        for method in ("fixed_sequence", "bonferroni_holm"):
            peers("mapie", file=out, tpr=TPR, confidence=CONFIDENCE, method=method)
            thresholds[f"MAPIE, {method}"] = np.load(out)
            compared[f"MAPIE, {method}"] = {
                "kind": "threshold",
                "seconds": peers.seconds,
                "over_offmap": peers.seconds / seconds["threshold"],
            }
    if torchcp is not None:
        thresholds["TorchCP, split"] = _ask_torchcp(torchcp, sets)
        compared["TorchCP, split"] = {
            "kind": "plain threshold",
            "largest_difference": float(np.abs(np.array(plain) - thresholds["TorchCP, split"]).max()),
        }
    flagged = {name: float(np.mean([np.mean(unknown < t) for t in found])) for name, found in thresholds.items()}
    return {
        "what": f"knn(10) on CLINC150, {SETS} calibration sets of {SIZE} of {len(known)} known sentences, tpr={TPR}",
        "load_average": os.getloadavg(),
        "seconds_offmap": seconds,
        "p_values": compared,
        "thresholds": {
            name: broken(known, rows, found) | {"unknown_flagged": flagged[name]} for name, found in thresholds.items()
        },
        "stream_fdr": STREAM_FDR,
        "streams": {f"{share:.0%} unknown": measure_streams(known, unknown, share) for share in (0.1, 0.5)},
        "versions": {"offmap": offmap.__version__, "numpy": importlib.metadata.version("numpy")}
        | _versions(python)
        | ({} if torchcp is None else _versions(torchcp, ("torchcp",))),
    }


def _versions(python: str, names: tuple[str, ...] = PEERS) -> dict[str, str | None]:
    script = (
        "import importlib.metadata as m, json; f = {};\n"
        f"for n in {names}:\n"
        "    try: f['peers: ' + n] = m.version(n)\n"
        "    except m.PackageNotFoundError: f['peers: ' + n] = None\n"
        "print(json.dumps(f))"
    )
    return dict(json.loads(subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="Python of an environment with the peers.")
    parser.add_argument("--torchcp", help="Python of an environment with TorchCP.")
    chosen = parser.parse_args()
    found = measure(chosen.peers, chosen.torchcp)
    (RESULTS / "guarantees.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
