"""Nearest neighbours beside their limit: the matrix product that any exact search must do.

All engines answer the same queries on the same arrays in one run, in turns, and their answers are compared. A
share of the limit is ``time of the product / time of the search``; the median over the rounds is reported. The
vectors are random directions: the worst case, for nothing can be pruned.

    python benchmarks/neighbors.py                 # everything, some minutes
    python benchmarks/neighbors.py --rounds 1 --sizes 50000x512
    python benchmarks/neighbors.py --parts many           # one part anew; the others stay as they were measured
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offmap.neighbors import Bank

RESULTS = Path(__file__).parent / "results" / "neighbors.json"
SIZES = ["50000x512", "200000x2048"]
PARTS = ["few", "verdict", "approximate", "many"]
QUERIES = 2000
NEIGHBOURS = (50, 1000)
PAUSE = 0.05  # seconds
SETTLED = 10  # single queries after which a bank has done for them what it does
STREAM = 8  # small batches that follow each other in one turn


def directions(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


class Turns:
    """Times of several tasks that take turns, so that whatever else the machine does falls on all of them."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def run(self, name: str, task: Callable[[], Any], pause: float = 0.0) -> Any:
        """The task's answer; its time is noted under the name.

        With a pause before it, threads that the last task left spinning have gone to sleep.
        """
        time.sleep(pause)
        start = time.perf_counter()
        answer = task()
        self.times.setdefault(name, []).append(time.perf_counter() - start)
        return answer

    def ratio(self, numerator: str, denominator: str) -> float:
        """The median over the rounds of the ratio within a round."""
        pairs = zip(self.times[numerator], self.times[denominator], strict=True)
        return statistics.median(top / bottom for top, bottom in pairs)


def product(queries: np.ndarray, bank: np.ndarray, rows: int = 4096) -> None:
    out = np.empty((len(queries), rows), np.float32)
    for start in range(0, len(bank), rows):
        block = bank[start : start + rows]
        np.matmul(queries, block.T, out=out[:, : len(block)] if len(block) == rows else None)


def flat_index(bank: np.ndarray) -> Any:
    import faiss

    index = faiss.IndexFlatL2(bank.shape[1])
    index.add(bank)
    return index


def partition_blocks(queries: np.ndarray, bank: np.ndarray, k: int, rows: int = 4096) -> np.ndarray:
    """The plain way: all products of a block, then its k best, on one thread."""
    best = np.empty((len(queries), 0), np.float32)
    for start in range(0, len(bank), rows):
        values = np.concatenate([best, queries @ bank[start : start + rows].T], axis=1)
        best = np.partition(values, values.shape[1] - k, axis=1)[:, -k:]
    return np.sqrt(np.maximum(2 - 2 * best.min(axis=1), 0))


def torch_topk(queries: np.ndarray, bank: np.ndarray, k: int, rows: int = 16384) -> np.ndarray:
    import torch

    asked, best = torch.from_numpy(queries), torch.empty(len(queries), 0)
    for start in range(0, len(bank), rows):
        values = asked @ torch.from_numpy(bank[start : start + rows]).T
        best = torch.cat([best, values], dim=1).topk(k, dim=1).values
    return (2 - 2 * best[:, -1]).clamp(min=0).sqrt().numpy()


def many_queries(rows: int, width: int, rounds: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    vectors, queries = directions(rng, rows, width), directions(rng, QUERIES, width)
    bank, index = Bank.of(vectors), flat_index(vectors)
    engines: dict[str, Callable[[int], np.ndarray]] = {
        "offmap k-th distance": lambda k: bank.kth_distance(queries, k),
        "offmap search": lambda k: bank.search(queries, k)[0][:, -1],
        "faiss Flat": lambda k: np.sqrt(np.maximum(index.search(queries, k)[0][:, -1], 0)),
        "NumPy product + partition": lambda k: partition_blocks(queries, vectors, k),
        "torch product + topk": lambda k: torch_topk(queries, vectors, k),
    }
    turns = Turns()
    for number in range(rounds):
        for k in NEIGHBOURS:
            turns.run(f"limit before {k}", lambda: product(queries, vectors), PAUSE)
            order = [*engines][number % len(engines) :] + [*engines][: number % len(engines)]  # each is first once
            answers = {name: turns.run(f"{name} {k}", lambda n=name, k=k: engines[n](k), PAUSE) for name in order}
            turns.run(f"limit after {k}", lambda: product(queries, vectors), PAUSE)
            for name, answer in answers.items():
                np.testing.assert_allclose(answer, answers["faiss Flat"], rtol=1e-4, err_msg=name)
    for k in NEIGHBOURS:  # the limit of a round: the better of the two around it
        pairs = zip(turns.times[f"limit before {k}"], turns.times[f"limit after {k}"], strict=True)
        turns.times[f"limit {k}"] = [min(pair) for pair in pairs]
    return [
        {
            "bank": f"{rows} × {width}",
            "k": k,
            "engine": name,
            "share_of_limit": round(turns.ratio(f"limit {k}", f"{name} {k}"), 3),
            "times_faiss": round(turns.ratio(f"faiss Flat {k}", f"{name} {k}"), 3),
            "gflops_of_limit": round(2e-9 * rows * width * QUERIES / min(turns.times[f"limit {k}"]), 1),
        }
        for k in NEIGHBOURS
        for name in engines
    ]


def small_batches(rows: int, width: int, rounds: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    vectors = directions(rng, rows, width)
    bank, index = Bank.of(vectors), flat_index(vectors)
    table = []
    for batch in (1, 8, 32, 128):
        turns = Turns()
        for _ in range(SETTLED):
            bank.kth_distance(directions(rng, batch, width), 50)
        for _ in range(2 * rounds):
            stream = [directions(rng, batch, width) for _ in range(STREAM)]
            ours = turns.run("offmap", lambda s=stream: [bank.kth_distance(q, 50) for q in s], PAUSE)
            theirs = turns.run("faiss", lambda s=stream: [index.search(q, 50)[0][:, -1] for q in s], PAUSE)
            np.testing.assert_allclose(ours, np.sqrt(theirs), rtol=1e-4)
        table.append(
            {
                "bank": f"{rows} × {width}",
                "queries": batch,
                "times_faiss": round(turns.ratio("faiss", "offmap"), 2),
                "gigabytes_per_second": round(
                    1e-9 * STREAM * vectors.nbytes / statistics.median(turns.times["offmap"]), 1
                ),
            }
        )
    return table


def approximate(rounds: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Approximate engines on clustered vectors (random directions would leave them no chance)."""
    centers = directions(rng, 500, 512)
    vectors, queries = (
        centers[rng.integers(500, size=rows)] + 0.7 * directions(rng, rows, 512) for rows in (50_000, 1000)
    )
    exact, table = Bank().add(vectors), []
    for engine in ("hnsw", "ivf"):
        bank, turns = Bank(engine=engine).add(vectors), Turns()
        turns.run("exact once", lambda: exact.kth_distance(queries, 50))
        turns.run("build", lambda b=bank: b.search(queries[:1], 1))
        for k in NEIGHBOURS:
            for _ in range(rounds):
                turns.run(f"exact {k}", lambda k=k: exact.search(queries, k))
                turns.run(f"approximate {k}", lambda b=bank, k=k: b.search(queries, k))
            table.append(
                {
                    "bank": "50000 × 512, clustered",
                    "engine": engine,
                    "k": k,
                    "recall": round(bank.recall(k, queries), 3),
                    "times_exact": round(turns.ratio(f"exact {k}", f"approximate {k}"), 2),
                    "build_in_exact_searches_of_1000": round(turns.ratio("build", "exact once"), 1),
                }
            )
    return table


def verdict(rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    """One verdict of KNN with 1 % of 1.28 M rows, beside a forward pass of ResNet-50 (random weights)."""
    import torch

    import offmap
    from offmap.models.resnet import ResNet

    network, image = ResNet(1000, depth=50, stem="imagenet").eval(), torch.randn(1, 3, 224, 224)
    known = np.abs(rng.standard_normal((12_800, 2048), dtype=np.float32))
    guard = offmap.detector("knn(10)").fit(known).calibrate(known[:1000])
    halves, half = torch.from_numpy(known).half(), torch.zeros(2048, dtype=torch.float16)
    turns = Turns()
    feature = np.abs(rng.standard_normal((1, 2048), dtype=np.float32))
    with torch.inference_mode():
        for _ in range(SETTLED):
            network(image)
            guard(feature)
        for _ in range(10 * rounds):
            turns.run("forward", lambda: network(image))
            turns.run("verdict", lambda: guard(feature))  # at once, as in use
            network(image)
            turns.run("reading", lambda: torch.mv(halves, half))
    return {
        "bank": "12800 × 2048",
        "share_of_forward": round(turns.ratio("verdict", "forward"), 4),
        "reading_float16_alone": round(turns.ratio("reading", "forward"), 4),
        "gigabytes_per_second": round(1e-9 * 2 * known.size / statistics.median(turns.times["reading"]), 1),
    }


def rounds_of(rows: int, width: int, rounds: int) -> int:
    """Fewer rounds of what takes long, which the machine disturbs less."""
    return rounds if rows * width < 10**8 else max(1, rounds // 2)


def few_table(rows: list[dict[str, Any]]) -> None:
    print("| bank | queries at once | times the speed of faiss Flat |\n|---|---|---|")
    for row in rows:
        print(f"| {row['bank']} | {row['queries']} | {row['times_faiss']:.2f} |")


def approximate_table(rows: list[dict[str, Any]]) -> None:
    print("| bank | engine | k | recall | times exact | building |\n|---|---|---|---|---|---|")
    for row in rows:
        print(
            "| {bank} | {engine} | {k} | {recall:.3f} | {times_exact:.2f} | {build:.0f} |".format(
                **row, build=row["build_in_exact_searches_of_1000"]
            )
        )


def many_table(rows: list[dict[str, Any]]) -> None:
    print("| bank | k | engine | share of the limit | times faiss Flat |\n|---|---|---|---|---|")
    for row in rows:
        print("| {bank} | {k} | {engine} | {share_of_limit:.2f} | {times_faiss:.2f} |".format(**row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="others stay as they were measured")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes]
    banks = [f"{rows} × {width}" for rows, width in sizes]
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def renewed(part: str, measured: list[dict[str, Any]]) -> None:
        kept = [row for row in report.get(part, []) if row["bank"] not in banks]
        order = [size.replace("x", " × ") for size in SIZES]
        report[part] = sorted(kept + measured, key=lambda row: order.index(row["bank"]) if row["bank"] in order else 9)

    if "few" in options.parts:
        rng = np.random.default_rng(0)
        batches = [row for size in sizes for row in small_batches(*size, options.rounds, rng)]
        few_table(batches)
        renewed("small_batches", batches)
    if "verdict" in options.parts:
        report["verdict"] = verdict(options.rounds, np.random.default_rng(1))
        one = report["verdict"]
        print(f"\none verdict / one ResNet-50 forward pass: {one['share_of_forward']:.2%}")
        print(f"reading the bank once in float16, nothing else: {one['reading_float16_alone']:.2%}\n")
    if "approximate" in options.parts:
        report["approximate"] = approximate(options.rounds, np.random.default_rng(2))
        approximate_table(report["approximate"])
    if "many" in options.parts:
        rng = np.random.default_rng(3)
        many = [row for size in sizes for row in many_queries(*size, rounds_of(*size, options.rounds), rng)]
        many_table(many)
        renewed("many_queries", many)
    if not options.no_write:
        report["setting"] = {"cores": len(os.sched_getaffinity(0)), "rounds": options.rounds, "numpy": np.__version__}
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
