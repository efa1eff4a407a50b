"""Speed at ImageNet's size: methods on stored features beside pytorch-ood, the whole suite, and extraction.

    OFFMAP_DATA=/path/to/data python benchmarks/imagenet_speed.py methods single-pass suite
    python benchmarks/imagenet_speed.py extraction --pictures FOLDER --onnx resnet50.onnx

``methods``: fitting on 3,000 and scoring 2,000 inputs of 2,048 features and 1,000 classes, in both libraries, each in a
process of its own; pytorch-ood gets batches of 128, since whole sets do not fit in memory. Seconds are CPU seconds of
the better of two turns (of one where it takes more than five); memory is the peak above the idle process, with the
features loaded. ``single-pass``: the same of every method of the suite ``imagenet-resnet50`` that needs nothing but
features, in offmap alone. ``suite``: ``offmap bench imagenet-resnet50`` as it is declared, fitted on 2,500 inputs and
tested on 2,500 and 1,200 textures: its CPU time and the most memory that it held; what it measures goes to
``suite-imagenet-resnet50.json``.
``extraction``: Keras' ResNet-50 in ONNX Runtime over pictures that are decoded meanwhile, beside the bare session on
arrays in memory, turn by turn; by CPU time the share does not depend on what else the machine does. Results go to
``benchmarks/results/imagenet_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import imagenet
import kept
import offmap
import peers
from detect import MEGABYTE, agreement
from offmap.bench.runner import expand_methods
from offmap.bench.suites import load_suite
from offmap.data import ImageFolder, image_folder
from worker import THREADS, Worker

RESULTS = Path(__file__).parent / "results" / "imagenet_speed.json"
SHARED = [
    "msp", "maxlogit", "energy", "gen", "fdbd", "react(90)|energy", "dice(0.7)|energy",
    "ash_s(90)|energy", "scale(85)|energy", "knn(50)", "vim", "kl_matching", "mahalanobis", "rmds",
]  # fmt: skip
PEER_BATCH = 128
LONG = 5.0  # CPU seconds after which one turn is enough
BATCH = 16
TURNS = 4


def write_arrays(folder: Path) -> None:
    """Stored features, three of each class to fit on and two to score, since pytorch-ood needs all; and the head."""
    parts = imagenet.load()[:2]
    head = parts[0].head
    assert head is not None
    features = np.concatenate([np.asarray(part.features) for part in parts])
    labels = np.concatenate([np.asarray(part.labels) for part in parts])
    order = np.argsort(labels, kind="stable").reshape(-1, 5)
    known, test = np.sort(order[:, :3].ravel()), np.sort(order[:, 3:].ravel())
    made = {"known": features[known], "labels": labels[known], "test": features[test]}
    for name, array in (made | {"weight": head.weight, "bias": head.bias}).items():
        np.save(folder / f"{name}.npy", np.asarray(array, np.int64 if name == "labels" else np.float32))


def run(worker: Worker, method: str, above: int, **options: Any) -> dict[str, float]:
    """Fit and score: CPU seconds of the quicker turn, since the first one also imports, and the highest peak."""
    seconds: list[float] = []
    peaks: list[int] = []
    while len(seconds) < 2 and sum(seconds) < LONG:
        peaks.append(worker.peak("fit", above, method=method))
        fitting = worker.cpu
        peaks.append(worker.peak("score", above, method=method, **options))
        seconds.append(fitting + worker.cpu)
    return {"cpu_seconds": round(min(seconds), 3), "peak_megabytes": round(max(peaks) / MEGABYTE, 1)}


def methods(chosen: Sequence[str]) -> None:
    """Shared methods in both libraries, which take turns."""
    python = peers.environment()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Worker(sys.executable, "detect_offmap.py") as ours,
        Worker(python, "detect_pytorch_ood.py") as theirs,
    ):
        folder = Path(scratch)
        write_arrays(folder)
        sides: dict[str, tuple[Worker, dict[str, Any]]] = {
            "offmap": (ours, {}), "pytorch-ood": (theirs, {"batch": PEER_BATCH})
        }  # fmt: skip
        for worker, _ in sides.values():
            worker("load", folder=scratch)
        idle = {name: worker.idle() for name, (worker, _) in sides.items()}
        for method in chosen:
            cells, answers = {}, []
            for name, (worker, options) in sides.items():
                cells[name] = run(worker, method, idle[name], **options)
                worker("write", file=str(folder / "scores.npy"))
                worker("forget", method=method)
                answers.append(np.load(folder / "scores.npy"))
            ratio = cells["pytorch-ood"]["cpu_seconds"] / cells["offmap"]["cpu_seconds"]
            found = {**cells, "ratio_of_cpu_time": round(ratio, 2), "rank": agreement(*answers)["rank"]}
            kept.add(RESULTS, {"methods": {method: found}})
            print(method, found, flush=True)
    kept.add(RESULTS, {"versions": peers.versions(), "threads": THREADS})


def single_pass(chosen: Sequence[str]) -> None:
    """Methods that need nothing but features, each in a process of its own, so that no other one's memory counts."""
    with tempfile.TemporaryDirectory() as scratch:
        write_arrays(Path(scratch))
        for method in chosen:
            with Worker(sys.executable, "detect_offmap.py") as worker:
                worker("load", folder=scratch)
                worker("warm_up")
                found = run(worker, method, worker.idle())
            kept.add(RESULTS, {"single pass": {method: found}})
            print(method, found, flush=True)
    kept.add(RESULTS, {"single pass threads": THREADS})


def declared() -> list[str]:
    """The methods of the suite that need nothing but features."""
    made = expand_methods(load_suite("imagenet-resnet50").methods)
    return [method for method in made if not offmap.detector(method).requirements.extras]


def suite() -> None:
    """The suite from stored features, as a user starts it."""
    with tempfile.TemporaryDirectory() as scratch:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "offmap", "bench", "imagenet-resnet50", "--out", scratch, "--cache", scratch]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": str(THREADS)}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = (Path(scratch) / "results.json").read_text()
        (RESULTS.parent / "suite-imagenet-resnet50.json").write_text(text)
        found = json.loads(text)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cell = {
        "methods": len({row["method"] for row in found["rows"]}),
        "left out": len(found["skipped"]),
        "cpu_seconds": round(seconds, 1),
        "threads": THREADS,
        "peak_megabytes": round(after.ru_maxrss * 1024 / MEGABYTE),
    }
    kept.add(RESULTS, {"suite": cell})
    print(cell, flush=True)


def prepared(folder: ImageFolder) -> Iterator[np.ndarray]:
    """Batches as docs/howto/photographs.md makes them."""
    means = np.array([103.939, 116.779, 123.68], np.float32)[:, None, None]
    for block in folder.batches(BATCH):
        cut = block[:, 16:240, 16:240, ::-1].transpose(0, 3, 1, 2)
        yield np.subtract(cut, means, dtype=np.float32, order="C")


def extraction(pictures: Path, onnx: Path, count: int) -> None:
    """The share of the bare session's speed that extraction from files keeps."""
    import onnxruntime

    folder = image_folder(sorted(pictures.rglob("*.JPEG"))[:: max(1, 5000 // count)][:count], size=256)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    name, held = session.get_inputs()[0].name, list(prepared(folder))
    net = offmap.Network.onnx(onnx)

    def bare() -> None:
        for batch in held:
            session.run(["features", "logits"], {name: batch})

    def read() -> None:
        for _ in prepared(folder):
            pass

    ways: dict[str, Callable[[], Any]] = {
        "bare session": bare,
        "from arrays": lambda: net.extract(held, progress=False),
        "from files": lambda: net.extract(prepared(folder), progress=False),
        "reading alone": read,
    }
    for way in ways.values():
        way()
    wall: dict[str, list[float]] = {what: [] for what in ways}
    used: dict[str, list[float]] = {what: [] for what in ways}
    for _ in range(TURNS):
        for what, way in ways.items():
            start, cpu = time.perf_counter(), time.process_time()
            way()
            wall[what].append(time.perf_counter() - start)
            used[what].append(time.process_time() - cpu)
    found: dict[str, Any] = {"pictures": len(folder), "batch": BATCH, "threads": THREADS}
    for kind, took in (("wall", wall), ("cpu", used)):
        middle = {what: statistics.median(times) for what, times in took.items()}
        found[f"share by {kind} time"] = {
            what: round(middle["bare session"] / middle[what], 3) for what in ("from arrays", "from files")
        }
        found[f"{kind} seconds"] = {what: [round(value, 3) for value in times] for what, times in took.items()}
    found["load"] = round(os.getloadavg()[0], 1)
    kept.add(RESULTS, {"extraction": found})
    print(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=["methods", "single-pass", "suite", "extraction"])
    parser.add_argument("--methods", nargs="+", help="only these of the part methods or single-pass")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--count", type=int, default=64)
    given = parser.parse_args()
    if "methods" in given.parts:
        methods(given.methods or SHARED)
    if "single-pass" in given.parts:
        single_pass(given.methods or declared())
    if "suite" in given.parts:
        suite()
    if "extraction" in given.parts:
        extraction(given.pictures, given.onnx, given.count)


if __name__ == "__main__":
    main()
