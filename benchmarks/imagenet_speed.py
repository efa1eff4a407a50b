"""Speed at ImageNet's size: methods on stored features beside pytorch-ood, all methods at once, and extraction.

    OFFMAP_DATA=/path/to/data python benchmarks/imagenet_speed.py methods all
    python benchmarks/imagenet_speed.py extraction --pictures FOLDER --onnx resnet50.onnx

``methods``: fitting on 2,500 and scoring 2,500 inputs of 2,048 features and 1,000 classes, in both libraries, each in a
process of its own; pytorch-ood gets batches of 128, since whole sets do not fit in memory. ``all``: the same for every
method of offmap that reads features and logits once. Seconds are CPU seconds of the better of two turns; memory is the
peak above the idle process, with the features loaded. ``extraction``: Keras' ResNet-50 in ONNX Runtime over pictures
that are decoded meanwhile, beside the bare session on arrays in memory, turn by turn. Results go to
``benchmarks/results/imagenet_speed.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import imagenet
import kept
import offmap
import peers
from detect import MEGABYTE, agreement
from offmap.bench.runner import expand_methods
from offmap.data import image_folder
from worker import THREADS, Worker

RESULTS = Path(__file__).parent / "results" / "imagenet_speed.json"
SHARED = [
    "msp", "maxlogit", "energy", "gen", "kl_matching", "she", "fdbd", "react(90)|energy", "dice(0.7)|energy",
    "ash_s(90)|energy", "scale(85)|energy", "knn(50)", "vim", "mahalanobis", "rmds",
]  # fmt: skip
PEER_BATCH = 128
TURNS = 5


def write_arrays(folder: Path) -> None:
    """Both halves of the stored features, and the head."""
    known, test, _ = imagenet.load()
    assert known.head is not None
    made = {"known": known.features, "labels": known.labels, "test": test.features}
    for name, array in (made | {"weight": known.head.weight, "bias": known.head.bias}).items():
        np.save(folder / f"{name}.npy", np.asarray(array, np.int64 if name == "labels" else np.float32))


def run(worker: Worker, method: str, above: int, **options: Any) -> dict[str, float]:
    """Fit and score twice: CPU seconds of the quicker turn, since the first one also imports, and the highest peak."""
    seconds, peaks = [], []
    for _ in range(2):
        peaks.append(worker.peak("fit", above, method=method))
        fitting = worker.cpu
        peaks.append(worker.peak("score", above, method=method, **options))
        seconds.append(fitting + worker.cpu)
    return {"cpu_seconds": round(min(seconds), 3), "peak_megabytes": round(max(peaks) / MEGABYTE, 1)}


def methods() -> None:
    """Shared methods in both libraries."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_arrays(folder)
        for method in SHARED:
            cells, answers = {}, []
            sides = {
                "offmap": (sys.executable, "detect_offmap.py", {}),
                "pytorch-ood": (peers.environment(), "detect_pytorch_ood.py", {"batch": PEER_BATCH}),
            }
            for name, (python, script, options) in sides.items():
                with Worker(python, script) as worker:
                    worker("load", folder=scratch)
                    cells[name] = run(worker, method, worker.idle(), **options)
                    worker("write", file=str(folder / "scores.npy"))
                    answers.append(np.load(folder / "scores.npy"))
            ours, theirs = (cells[name]["cpu_seconds"] for name in sides)
            found = {**cells, "ratio_of_cpu_time": round(theirs / ours, 2), "rank": agreement(*answers)["rank"]}
            kept.add(RESULTS, {"methods": {method: found}})
            print(method, found, flush=True)
    kept.add(RESULTS, {"versions": peers.versions(), "threads": THREADS})


def all_methods() -> None:
    """Every method that reads features and logits once."""
    warnings.simplefilter("ignore")
    specs = [spec for spec in expand_methods(["all"]) if not offmap.detector(spec).requirements.extras]
    with tempfile.TemporaryDirectory() as scratch, Worker(sys.executable, "detect_offmap.py") as worker:
        write_arrays(Path(scratch))
        worker("load", folder=scratch)
        above = worker.idle()
        for spec in specs:
            if not kept.holds(RESULTS, ["all", spec]):
                cell = run(worker, spec, above)
                kept.add(RESULTS, {"all": {spec: cell}})
                print(spec, cell, flush=True)


def extraction(pictures: Path, onnx: Path, count: int) -> None:
    """The share of the bare session's speed that extraction from files keeps."""
    import onnxruntime

    folder = image_folder(sorted(pictures.rglob("*.JPEG"))[:: max(1, 5000 // count)][:count], size=256)

    def batches() -> Iterator[np.ndarray]:
        for block in folder.batches(16):
            cut = block[:, 16:240, 16:240, ::-1].astype(np.float32) - np.float32([103.939, 116.779, 123.68])
            yield np.ascontiguousarray(cut.transpose(0, 3, 1, 2))

    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    name, held = session.get_inputs()[0].name, list(batches())
    net = offmap.Network.onnx(onnx, layer="features")
    net(held[0])
    session.run(["features"], {name: held[0]})
    times: dict[str, list[float]] = {"bare session": [], "from arrays": [], "from files": []}
    for _ in range(TURNS):
        for what, took in times.items():
            start = time.perf_counter()
            if what == "bare session":
                for batch in held:
                    session.run(["features"], {name: batch})
            else:
                net.extract(held if what == "from arrays" else batches(), progress=False)
            took.append(time.perf_counter() - start)
    middle = {what: statistics.median(took) for what, took in times.items()}
    share = {what: round(middle["bare session"] / middle[what], 3) for what in ("from arrays", "from files")}
    kept.add(RESULTS, {"extraction": {"pictures": len(folder), "threads": THREADS, "share": share, "seconds": times}})
    print(share, times, f"load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=["methods", "all", "extraction"])
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--count", type=int, default=64)
    given = parser.parse_args()
    if "methods" in given.parts:
        methods()
    if "all" in given.parts:
        all_methods()
    if "extraction" in given.parts:
        extraction(given.pictures, given.onnx, given.count)


if __name__ == "__main__":
    main()
