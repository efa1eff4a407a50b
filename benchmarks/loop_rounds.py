"""Ten rounds on a stream: what is forgotten of known and of earlier learned classes, and what a round costs.

    OFFMAP_DATA=/path/to/data python benchmarks/loop_rounds.py [--sets digits banking77 clinc150] [--seeds 10 11]

The streams are those of ``loop.py``. After every round test inputs are classified; *earlier* is the accuracy on the
new classes that the round before had right for most of their inputs: as it was then, as it is now by the numbers that
they had then, and as it is now with groups matched to classes anew. Cost is processor time, relative to the first round
that learned. Results go to ``benchmarks/results/loop_rounds.json``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import kept
import offmap
from loop import SETS, make_stream
from offmap.metrics.clustering import match_clusters, open_world_accuracy
from offmap.openworld.inputs import LabeledInputs

RESULTS = Path(__file__).parent / "results" / "loop_rounds.json"
ROUNDS = 10


def match(truth: np.ndarray, found: np.ndarray, n_known: int) -> dict[int, int]:
    """The number that each new class is mostly found under, one to one."""
    new = (truth >= n_known) & (found >= n_known)
    return {c: int(group) for group, c in match_clusters(truth[new], found[new]).items()} if new.any() else {}


def shares(truth: np.ndarray, found: np.ndarray, number: dict[int, int]) -> dict[int, float]:
    """Accuracy per new class, found under these numbers."""
    return {c: float((found[truth == c] == group).mean()) for c, group in number.items()}


def measure(name: str, seed: int) -> dict[str, Any]:
    """Run the rounds of one stream."""
    made = make_stream(name, seed)
    n_known = int(made.labels.max()) + 1
    current = offmap.openworld.run(made.known, made.labels, made.stream, rounds=0, seed=seed)
    known = made.wanted < n_known
    start = float((current.predict(made.test) == made.wanted)[known].mean())
    before: dict[int, float] = {}
    number: dict[int, int] = {}
    rounds = []
    for part in np.array_split(made.stream, ROUNDS):
        begun = time.process_time()
        current = current.step(LabeledInputs.of(part), seed=seed)
        took = time.process_time() - begun
        found = current.predict(made.test)
        got = open_world_accuracy(made.wanted, found, range(n_known))
        again = match(made.wanted, found, n_known)
        now, kept_numbers = shares(made.wanted, found, again), shares(made.wanted, found, number)
        earlier = [c for c, share in before.items() if share > 0.5]
        record = current.rounds[-1]

        def mean(values: dict[int, float], classes: list[int] = earlier) -> float | None:
            return round(float(np.mean([values.get(c, 0.0) for c in classes])), 4) if classes else None

        rounds.append(
            {
                "arrived": record.arrived,
                "considered": record.considered,
                "grouped": record.grouped,
                "deployed": record.deployed,
                "n_classes": record.n_classes,
                "known": round(float((found == made.wanted)[known].mean()), 4),  # by name, as at the start
                "all": round(got.all, 4),
                "earlier then": mean(before),
                "earlier now": mean(kept_numbers),
                "earlier matched anew": mean(now),
                "cost": took,
            }
        )
        print(name, seed, rounds[-1], flush=True)
        before, number = now, again
    first = next((one["cost"] for one in rounds if one["deployed"]), rounds[0]["cost"])
    for one in rounds:
        one["cost"] = round(one["cost"] / first, 2)
    return {"classes": int(made.wanted.max()) + 1, "start_known": round(start, 4), "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[10])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    for name in given.sets:
        for seed in given.seeds:
            kept.add(given.out, {name: {str(seed): measure(name, seed)}})


if __name__ == "__main__":
    main()
