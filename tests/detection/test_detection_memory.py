"""Fitting from a file larger than what may be held: peaks of anonymous memory, measured in a process of its own.

What counts is `RssAnon` in /proc/self/status: pages that belong to the process alone. Pages of the memory-mapped file
are left out, since the kernel can drop them at any time. A thread samples it every 5 ms while `fit` runs; the baseline
is taken after a fit of a few inputs, so that libraries are loaded.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import offmap
from offmap.activation_files import array_file, write_meta

ROWS, WIDTH, CLASSES = 2**20, 512, 100
LIMIT = 500 * 2**20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc/self/status tells RssAnon on Linux only"),
]

SCRIPT = textwrap.dedent("""
    import sys, threading, time
    import offmap

    def anonymous():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

    spec, folder = sys.argv[1:]
    acts = offmap.Activations.open(folder)
    offmap.detector(spec).fit(acts[:2000])
    baseline = anonymous()
    peak, done = [baseline], threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], anonymous())
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    offmap.detector(spec).fit(acts)
    done.set()
    watcher.join()
    print(peak[0] - baseline)
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 GB of features: one block of rows many times, each time stretched a little differently."""
    rng = np.random.default_rng(0)
    small = np.maximum(rng.normal(size=(2**13, WIDTH)), 0).astype(np.float32)
    file = tmp_path_factory.mktemp("large") / "features.npy"
    features = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(ROWS, WIDTH))
    for start in range(0, ROWS, len(small)):
        features[start : start + len(small)] = small * np.float32(1 + start / ROWS)
    features.flush()
    head = offmap.Head(rng.normal(size=(CLASSES, WIDTH)) / 16, rng.normal(size=CLASSES))
    labels = offmap.Activations(small, head).predictions  # so that many inputs are classified rightly
    target = file.parent / "acts"
    target.mkdir()
    file.rename(target / array_file("features"))
    np.save(target / array_file("labels"), np.tile(labels, ROWS // len(small)))
    write_meta(target, {"features": ROWS, "labels": ROWS}, head.arrays())
    return target


@pytest.mark.parametrize(
    "spec", ["react(90)|energy", "dice(0.7)|energy", "mahalanobis", "vim", "rmds", "kl_matching", "she"]
)
def test_peak_of_anonymous_memory(spec: str, folder: Path) -> None:
    acts = offmap.Activations.open(folder)
    assert acts.features.nbytes == 2 * 2**30
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, spec, str(folder)], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout)
    assert peak < LIMIT, f"{spec}: {peak / 2**20:.0f} MB above the baseline"
    print(f"{spec}: {peak / 2**20:.0f} MB")
