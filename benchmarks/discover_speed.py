"""The parts of discover.py with a clock: k-means beside GCD's loop and scikit-learn, and memory on a mapped file."""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offmap.discovery import discover
from offmap.discovery.assign import Rows
from offmap.discovery.estimators import run
from offmap.discovery.kmeans import class_means, lloyd
from offmap.discovery.space import Space

WIDTH, GROUPS, KNOWN = 768, 100, 50
TIMED = 3


def rows_and_labels(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A hundred round classes that overlap a little; half are known, half of their rows labelled."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, GROUPS, n)
    rows = (0.2 * rng.normal(size=(GROUPS, WIDTH))[truth] + rng.normal(size=(n, WIDTH))).astype(np.float32)
    return rows, np.where((truth < KNOWN) & (rng.random(n) < 0.5), truth, -1)


def straight_start(rows: np.ndarray, codes: np.ndarray, seed: int, block: int | None = None) -> Any:
    """GCD's start: means of known classes, then k-means++ over unlabelled rows, one draw per centre.

    With a block size distances are dense differences, as under the clock; without, products.
    """
    import torch

    pool = torch.from_numpy(rows[codes < 0])
    generator = torch.Generator().manual_seed(seed)
    centres = torch.from_numpy(class_means(Rows(rows), codes, KNOWN))
    squares = (pool**2).sum(dim=1)

    def gaps(new: Any) -> Any:
        if block is not None:
            return torch.cat([_gaps(part, new).min(dim=1).values for part in pool.split(block)])
        return (squares[:, None] - 2 * pool @ new.T + (new**2).sum(dim=1)).min(dim=1).values.clamp(min=0)

    nearest = gaps(centres)
    while len(centres) < GROUPS:
        new = pool[torch.multinomial(nearest, 1, generator=generator)]
        centres = torch.cat([centres, new])
        nearest = torch.minimum(nearest, gaps(new))
    return centres


def straight_loop(rows: np.ndarray, codes: np.ndarray, centres: Any, iterations: int, block: int) -> Any:
    """A straight re-implementation of GCD's iterations: dense differences, every row each time; returns centres.

    Its authors take all differences at once, which needs rows × groups × columns in memory; here they come in blocks
    of the size that is fastest.
    """
    import torch

    data, forced = torch.from_numpy(rows), torch.from_numpy(codes)
    for _ in range(iterations):
        found = torch.cat([_gaps(part, centres).min(dim=1).indices for part in data.split(block)])
        found = torch.where(forced >= 0, forced, found)
        centres = torch.stack(
            [data[found == j].mean(dim=0) if (found == j).any() else centres[j] for j in range(GROUPS)]
        )
    return centres


def fastest_block(rows: np.ndarray) -> int:
    """How many rows at a time suit the straight loop best."""
    import torch

    data = torch.from_numpy(rows[:4096])

    def seconds(block: int) -> float:
        return min(timed(lambda: [_gaps(part, data[:GROUPS]) for part in data.split(block)])[1] for _ in range(2))

    return min((8, 32, 128, 512), key=seconds)


def _gaps(block: Any, centres: Any) -> Any:
    return ((block[:, None] - centres[None]) ** 2).sum(dim=2)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the work gives, and the seconds of all cores it took: on one thread, time on a machine of its own."""
    begun = time.process_time()
    return work(), time.process_time() - begun


def speed(n: int, n_init: int) -> dict[str, Any]:
    """All on one thread: threads that wait for one another would count as work."""
    import threadpoolctl
    import torch

    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        return _speed(n, n_init)


def _speed(n: int, n_init: int) -> dict[str, Any]:
    """50k × 768, K=100, ten starts: against GCD's loop and against scikit-learn.

    Three iterations of GCD's loop are timed. How many it needs, and what sum of squares it reaches, is found by our
    iterations from its own starts, with its rule to stop; after three iterations both hold the same centres.
    """
    from sklearn.cluster import KMeans as Theirs

    rows, codes = rows_and_labels(n)
    view = Rows(rows)
    out: dict[str, Any] = {"rows": n, "width": WIDTH, "k": GROUPS, "n_init": n_init, "threads": 1}
    run(Rows(rows[:2000]), GROUPS, 0, codes[:2000], KNOWN)  # a warm-up
    starts = timed(lambda: run(view, GROUPS, 0, codes, KNOWN, init="k-means++", n_init=n_init))
    tree = timed(lambda: run(view, GROUPS, 0, codes, KNOWN, init="ward"))
    block = fastest_block(rows)
    first, preparing = timed(lambda: straight_start(rows, codes, 0, block))
    moved, looping = timed(lambda: straight_loop(rows, codes, first, TIMED, block))
    ours = lloyd(view, first.numpy(), forced=codes, max_iter=TIMED, tol=0).centres
    stop = 1e-4 / float(rows.var(axis=0).mean())  # its rule is absolute, ours relative to the variance
    ends = [lloyd(view, straight_start(rows, codes, seed).numpy(), forced=codes, tol=stop) for seed in range(n_init)]
    best = min(end.inertia for end in ends)
    seconds = sum(preparing + (end.n_iter + 1) * looping / TIMED for end in ends)
    out["semi-supervised, beside the straight loop"] = {
        "iterations timed": TIMED,
        "iterations needed": sum(end.n_iter for end in ends),
        "rows in its block": block,
        "largest difference of centres after those timed": float(np.abs(moved.numpy() - ours).max()),
        "k-means++": _beside(starts, best, seconds),
        "ward": _beside(tree, best, seconds),
    }
    print(out, flush=True)
    other, seconds = timed(lambda: Theirs(GROUPS, n_init=n_init, random_state=0).fit(rows))
    plain = timed(lambda: run(view, GROUPS, 0, init="k-means++", n_init=n_init))
    ward = timed(lambda: run(view, GROUPS, 0, init="ward"))
    out["unsupervised, beside scikit-learn"] = {
        "k-means++": _beside(plain, float(other.inertia_), seconds),
        "ward": _beside(ward, float(other.inertia_), seconds),
    }
    print(out, flush=True)
    return out


def _beside(ours: tuple[Any, float], inertia: float, seconds: float) -> dict[str, float]:
    fit, took = ours
    return {"times faster": round(seconds / took, 2), "sum of squares, of theirs": round(fit.inertia / inertia, 5)}


def memory(n: int) -> dict[str, Any]:
    """1 M × 128 from a memory map, K=200: how much memory k-means and discovery add to what the process had."""
    out: dict[str, Any] = {"rows": n, "width": 128, "k": 200}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npy"
        held = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(n, 128))
        rng = np.random.default_rng(0)
        centres, truth = rng.normal(size=(200, 128)), rng.integers(0, 200, n)
        for start in range(0, n, 50_000):
            part = truth[start : start + 50_000]
            held[start : start + 50_000] = centres[part] + rng.normal(size=(len(part), 128))
        held.flush()
        del held
        rows = np.load(file, mmap_mode="r")
        labels = np.where((truth < 100) & (rng.random(n) < 0.1), truth, -1)
        out["file MB"] = round(file.stat().st_size / 2**20)
        run(Rows(rows[:5000]), 200, 0, max_iter=2)  # what importing takes is not counted
        out["k-means adds MB"], fit = added(lambda: run(Rows(rows), 200, 0, init="k-means++", max_iter=20))
        out["iterations"] = fit.n_iter
        print(out, flush=True)
        out["discovery adds MB"], found = added(lambda: discover(rows, labels, 200, space=Space("cosine", 0.5)))
        out["of it the answer MB"] = round(
            sum(one.nbytes for one in (found.labels, found.given, found.confidence)) / 2**20
        )
        out["rows in the right class"] = round(float((found.labels == truth)[truth < 100].mean()), 4)
    print(out, flush=True)
    return out


def added(work: Callable[[], Any]) -> tuple[int, Any]:
    """The most memory in MB that the work held beyond what there was, and what it gave."""
    before = anonymous_bytes()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak.append(anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        given = work()
    finally:
        done.set()
        watcher.join()
    return round((max(peak) - before) / 2**20), given


def anonymous_bytes() -> int:
    """Memory of this process that is not a mapped file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
