"""`offmap.discover` with the number of classes unknown beside what it cannot do without, and its growth with the rows.

    python benchmarks/discover_scale.py ratio [--rows 50000] [--seeds 0 1]
    python benchmarks/discover_scale.py growth [--sizes 10000 30000 100000 300000 1000000]

*ratio*: processor time of `discover` on rows × 384, relative to an exact search for the neighbours of all rows plus
one k-means with the true number of classes, on one thread. *growth*: rows × 128 from a memory map, time relative to
the first size, memory beyond what the process held that is no file. Results go to
``benchmarks/results/discover_scale.json``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import kept
from discover_speed import added, timed
from offmap.discovery import discover
from offmap.discovery.assign import Rows
from offmap.discovery.estimators import run
from offmap.graph import nearest_neighbors
from offmap.metrics.clustering import class_count_error

RESULTS = Path(__file__).parent / "results" / "discover_scale.json"
CLASSES = 100
NEIGHBORS = 30


def make_rows(n: int, width: int, seed: int, out: Any = None) -> tuple[Any, np.ndarray, np.ndarray]:
    """A hundred Gaussian classes that touch; half are known, half of their rows labelled."""
    rng = np.random.default_rng(seed)
    centres, truth = rng.normal(size=(CLASSES, width)), rng.integers(0, CLASSES, n)
    rows = np.empty((n, width), np.float32) if out is None else out
    for start in range(0, n, 50_000):
        part = truth[start : start + 50_000]
        rows[start : start + 50_000] = 0.5 * centres[part] + rng.normal(size=(len(part), width))
    return rows, np.where((truth < CLASSES // 2) & (rng.random(n) < 0.5), truth, -1), truth


def ratio(n: int, seeds: list[int]) -> dict[str, Any]:
    """Processor time beside an exact search and k-means."""
    import threadpoolctl
    import torch

    torch.set_num_threads(1)
    found = {}
    with threadpoolctl.threadpool_limits(1):
        for seed in seeds:
            rows, labels, _ = make_rows(n, 384, seed)
            discover(rows[:2000], labels[:2000])  # a warm-up
            searched = timed(lambda rows=rows: nearest_neighbors(rows, NEIGHBORS))[1]
            clustered = timed(lambda rows=rows, seed=seed: run(Rows(rows), CLASSES, seed, init="k-means++"))[1]
            got, took = timed(lambda rows=rows, labels=labels, seed=seed: discover(rows, labels, seed=seed))
            found[str(seed)] = {
                "of search and k-means": round(took / (searched + clustered), 2),
                "of search": round(took / searched, 2),
                "classes found": got.n_classes,
            }
            print(n, seed, found[str(seed)], flush=True)
    return {"rows": n, "width": 384, "classes": CLASSES, "seeds": found}


def growth(sizes: list[int]) -> list[dict[str, Any]]:
    """Time relative to the first size, and memory."""
    lines: list[dict[str, Any]] = []
    first = 0.0
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.npy"
            held = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(n, 128))
            _, labels, _ = make_rows(n, 128, 0, held)
            held.flush()
            del held
            rows = np.load(file, mmap_mode="r")
            (memory, got), took = timed(lambda rows=rows, labels=labels: added(lambda: discover(rows, labels)))
        first = first or took
        lines.append(
            {
                "rows": n,
                "file MB": round(n * 128 * 4 / 2**20),
                "time of the first": round(took / first, 2),
                "adds MB": memory,
                "count error": round(class_count_error(got.n_classes, CLASSES), 4),
            }
        )
        print(lines[-1], flush=True)
        kept.add(RESULTS, {"growth": lines})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("ratio", "growth"))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    given = parser.parse_args()
    if given.part == "ratio":
        kept.add(RESULTS, {"ratio": ratio(given.rows, given.seeds)})
    else:
        growth(given.sizes)


if __name__ == "__main__":
    main()
