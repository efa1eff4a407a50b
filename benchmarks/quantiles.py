"""The percentile of a stream: offmap's histogram of float bits against the sketches of datasketches (REQ, KLL).

``python benchmarks/quantiles.py`` prints and writes to ``results/quantiles.json``: the error, the speed, and whether
the same numbers give the same answer again, in other blocks, and in shards that are merged.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import peers
from worker import REPEATS, THREADS, Worker, ratio, side_by_side

RESULTS = Path(__file__).with_name("results") / "quantiles.json"
VALUES, BLOCK, RANKS = 10_000_000, 1_000_000, [0.6, 0.9, 0.95, 0.99]


def measure() -> dict[str, Any]:
    """All three, on rectified numbers as networks give them: many exact zeros, a long tail."""
    rng = np.random.default_rng(0)
    values = np.maximum(rng.standard_normal(VALUES, np.float32) ** 3, 0)
    truth = np.quantile(values, RANKS)
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(sys.executable, "quantiles_worker.py") as ours,
        Worker(peers.environment(), "quantiles_worker.py") as theirs,
        Worker(peers.environment(), "quantiles_worker.py") as again,
    ):
        file = str(Path(scratch) / "values.npy")
        np.save(file, values)
        for worker in (ours, theirs, again):
            worker("load", file=file, ranks=RANKS, block=BLOCK)
        kinds: dict[str, Worker] = {"histogram": ours, "req": theirs, "kll": theirs}
        for kind, worker in kinds.items():
            first = worker("stream", kind=kind)
            found[kind] = {
                "relative_error": _relative(first, truth),
                "bytes": worker("sizes", kind=kind),
                "same_when_read_again": worker("stream", kind=kind) == first,
                "same_in_other_blocks": worker("stream", kind=kind, block=BLOCK // 7) == first,
                "same_from_shards": worker("merged", kind=kind, order=[0, 1, 2, 3]) == first,
                "same_from_shards_in_another_order": worker("merged", kind=kind, order=[2, 0, 3, 1]) == first,
            }
            if worker is theirs:
                found[kind]["same_in_another_process"] = again("stream", kind=kind) == theirs("stream", kind=kind)
        found["histogram"]["relative_error_after_second_reading"] = _relative(ours("exact"), truth)
        calls = [(worker, "stream", {"kind": kind}) for kind, worker in kinds.items()]
        times = dict(zip(kinds, side_by_side(calls), strict=True))
        for kind in kinds:
            found[kind] |= {"seconds": times[kind], "time_over_histogram": ratio(times[kind], times["histogram"])}
    return found


def _relative(answers: list[float], truth: np.ndarray) -> dict[str, float]:
    """The error at each rank, relative to the true percentile."""
    return {str(rank): abs(a - t) / t for rank, a, t in zip(RANKS, answers, truth.tolist(), strict=True)}


def main() -> None:
    found = measure()
    results = {
        "what": f"{VALUES:,} float32 numbers, half of them 0, read in blocks of {BLOCK:,}; ranks {RANKS}",
        "threads": THREADS, "repeats": REPEATS, "versions": peers.versions(), "kinds": found,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for kind, values in found.items():
        print(f"{kind}: " + ", ".join(f"{name} {value}" for name, value in values.items() if name != "seconds"))


if __name__ == "__main__":
    main()
