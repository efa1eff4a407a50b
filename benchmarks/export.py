"""What a guard costs inside an exported graph: the guarded model against the plain one in ONNX Runtime.

    python benchmarks/export.py            # all cases; --show prints the last table

A ResNet-18 for pictures of 32 × 32 (10 classes) and one for 224 × 224 (1000 classes), batches of 1, 8 and 32, one
thread. Plain and guarded graph take turns in one process; a turn's ratio is that of their CPU times, and the median of
the ratios is reported with their quartiles. Weights are random and guards are fitted on made-up features: neither
changes the work. Every guarded file was compared with Python by `offmap.export` before the clock started.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import offmap
from offmap.nets import resnet18

RESULTS = Path(__file__).parent / "results" / "export.json"
BANK = 12_800
CALIBRATION = 10_000
BATCHES = (1, 8, 32)
METHODS = (
    "msp", "energy", "react(90)|energy", "dice(0.7)|energy", "ash_s(90)|energy", "scale(85)|energy",
    "react(90)|dice(0.7)|energy", "mahalanobis", "vim", "knn(50)",
)  # fmt: skip
TURN = 0.05  # seconds of CPU time that one side of a turn takes at least
BUDGET = 6.0  # seconds of CPU time for the turns of one case
FEWEST, MOST = 7, 61


def made_up(head: offmap.Head, rows: int, seed: int) -> offmap.Activations:
    """Rectified features with classes, as a trained network might give them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, head.n_classes, rows)
    features = np.maximum(rng.normal(size=(rows, head.weight.shape[1])) + 20 * head.weight[labels], 0)
    return offmap.Activations(features.astype(np.float32), head, labels=labels)


def session(path: Path) -> Callable[[Any], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    opened = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = opened.get_inputs()[0].name
    return lambda x: opened.run(None, {name: x})


def cpu_time(run: Callable[[Any], Any], x: Any, repeats: int) -> float:
    started = time.process_time()
    for _ in range(repeats):
        run(x)
    return (time.process_time() - started) / repeats


def measured(plain: Callable[[Any], Any], guarded: Callable[[Any], Any], x: Any) -> dict[str, Any]:
    """The ratio of CPU times, turn by turn; who goes first changes."""
    once = min(cpu_time(plain, x, 1) for _ in range(3))
    cpu_time(guarded, x, 2)
    repeats = max(1, round(TURN / once))
    turns = int(min(MOST, max(FEWEST, BUDGET / (2 * repeats * once))))
    ratios = []
    for turn in range(turns):
        order = (plain, guarded) if turn % 2 else (guarded, plain)
        times = {run: cpu_time(run, x, repeats) for run in order}
        ratios.append(times[guarded] / times[plain])
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"overhead": median - 1, "quartiles": [low - 1, high - 1], "turns": turns, "plain_seconds": once}


def cases(folder: Path) -> list[dict[str, Any]]:
    found = []
    for size, stem, classes in ((32, "cifar", 10), (224, "imagenet", 1000)):
        model = resnet18(classes, stem=stem).eval()
        plain = folder / f"plain{size}.onnx"
        example = torch.randn(2, 3, size, size)
        dynamic = ({0: "batch"},)
        torch.onnx.export(model, (example,), plain, dynamo=True, dynamic_shapes=dynamic, verbose=False)
        head = offmap.Head(model.fc.weight.detach().numpy(), model.fc.bias.detach().numpy())
        known, held = made_up(head, BANK, 0), made_up(head, CALIBRATION, 1)
        run_plain = session(plain)
        for spec in METHODS:
            guard = offmap.detector(spec).fit(known).calibrate(held)
            exported = offmap.export(plain, guard, folder / "guarded.onnx", example.numpy())
            run_guarded = session(exported.path)
            more = exported.path.stat().st_size - plain.stat().st_size
            for batch in BATCHES:
                x = np.random.default_rng(0).normal(size=(batch, 3, size, size)).astype(np.float32)
                row = {"size": size, "classes": classes, "method": spec, "batch": batch}
                row |= measured(run_plain, run_guarded, x) | {"more_bytes": more, "difference": exported.difference}
                print(f"{size:4} {spec:28} batch {batch:3}: {row['overhead']:+.2%} in {row['turns']} turns", flush=True)
                found.append(row)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """One line per method, one column per picture size and batch."""
    columns = [(size, batch) for size in (32, 224) for batch in BATCHES]
    lines = ["| method | " + " | ".join(f"{size}², {batch}" for size, batch in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for spec in METHODS:
        cells = {(row["size"], row["batch"]): f"{100 * row['overhead']:.1f} %" for row in rows if row["method"] == spec}
        lines.append(f"| `{spec}` | ".replace("|dice", "\\|dice").replace("|energy", "\\|energy"))
        lines[-1] += " | ".join(cells[column] for column in columns) + " |"
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the last table and stop")
    if not parser.parse_args().show:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            rows = cases(Path(folder))
        setting = {
            "threads": 1,
            "bank": BANK,
            "calibration": CALIBRATION,
            "machine": platform.machine(),
            "versions": {made.__name__: made.__version__ for made in (onnxruntime, torch, offmap)},
        }
        RESULTS.write_text(json.dumps({"setting": setting, "overhead": rows}, indent=1) + "\n")
    print(table(json.loads(RESULTS.read_text())["overhead"]))


if __name__ == "__main__":
    main()
