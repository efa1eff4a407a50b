"""How fast random views of pictures are made: ours in batches, ours one picture at a time, kornia's if it is there.

    python benchmarks/views.py            # 32×32 pictures in batches of 512; --threads 1 or 2
    PYTHONPATH=... python benchmarks/views.py    # a folder that holds kornia, which is no dependency of the project

All take turns in one run, SimCLR's settings: crop (.2–1), mirror, jitter (.4, .4, .4, .1) with chance .8, grey .2.
``cpu`` counts the seconds of all threads, which other programs disturb less than ``wall``. Writes
results/views.json, what was measured with another number of threads beside it. On a busy machine threads wait for each
other: one thread and its processor time are the numbers to trust there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from offmap.data.views import ImageViews, step_generator

RESULTS = Path(__file__).parent / "results" / "views.json"
BATCH, PIXELS, REPEATS = 512, 32, 7


def one_by_one(views: ImageViews, pictures: torch.Tensor) -> Callable[[], Any]:
    """The same steps for one picture after another, as a data loader's worker would."""

    def run() -> None:
        generator = step_generator(0, 0)
        for place in range(len(pictures)):
            views(pictures[place : place + 1], generator)

    return run


def of_kornia(pictures: torch.Tensor) -> Callable[[], Any] | None:
    """Kornia's modules with the same settings, or `None` where it is not installed."""
    try:
        kornia = importlib.import_module("kornia.augmentation")
    except ImportError:
        return None
    chain = torch.nn.Sequential(
        kornia.RandomResizedCrop((PIXELS, PIXELS), scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3)),
        kornia.RandomHorizontalFlip(p=0.5),
        kornia.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        kornia.RandomGrayscale(p=0.2),
    )
    return lambda: (chain(pictures), chain(pictures))


def measure(threads: int) -> dict[str, Any]:
    """Views per second of each way, turn by turn."""
    torch.set_num_threads(threads)
    pictures = torch.rand((BATCH, 3, PIXELS, PIXELS), generator=step_generator(0, 0))
    views = ImageViews.simclr()
    few = pictures[: BATCH // 16]
    ways: dict[str, tuple[Callable[[], Any], int]] = {
        "batched": (lambda: views(pictures, step_generator(0, 1)), 2 * BATCH),
        "one at a time": (one_by_one(views, few), 2 * len(few)),
    }
    peer = of_kornia(pictures)
    if peer is not None:
        ways["kornia"] = (peer, 2 * BATCH)
    seconds: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in ways}
    for turn in range(REPEATS + 1):
        for name, (run, _) in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            if turn:  # the first warms up
                seconds[name]["wall"].append(time.perf_counter() - wall)
                seconds[name]["cpu"].append(time.process_time() - cpu)
    rates = {
        name: {clock: ways[name][1] / statistics.median(taken) for clock, taken in clocks.items()}
        for name, clocks in seconds.items()
    }
    ratios = {
        f"batched over {name}": {clock: rates["batched"][clock] / rates[name][clock] for clock in ("wall", "cpu")}
        for name in rates
        if name != "batched"
    }
    setting = {"batch": BATCH, "pixels": PIXELS, "repeats": REPEATS, "torch": torch.__version__}
    return {
        "setting": setting | {"load_average": os.getloadavg()[0]},
        "views_per_second": rates,
        "ratios": ratios,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    found = measure(threads)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**before, f"threads={threads}": found}, indent=1) + "\n")
    for name, rate in found["views_per_second"].items():
        print(f"{name:>14}: {rate['wall']:>9,.0f} views a second, {rate['cpu']:>9,.0f} per second of processor time")
    for name, ratio in found["ratios"].items():
        print(f"{name}: {ratio['wall']:.1f}× by wall clock, {ratio['cpu']:.1f}× by processor time")


if __name__ == "__main__":
    main()
