"""What a guard costs inside an exported graph: the guarded model against the plain one in ONNX Runtime.

    python benchmarks/export.py                       # all cases; --show prints the last table
    python benchmarks/export.py --folder F --prepare  # only write the graphs; without --prepare they are then timed

A ResNet-18 for pictures of 32 × 32 (10 classes) and one for 224 × 224 (1000 classes), batches of 1, 8 and 32, one
thread. ONNX Runtime's profiler gives the time of every node; the overhead of a run is the time of the guard's nodes
over that of the model's, both in the same run, and the median over the runs is reported with the range. So the model's
own noise, which is larger than most guards, does not count, and neither does what starting a node costs. Weights are
random and guards are fitted on made-up features: neither changes the work. Every guarded file was compared with Python
by `offmap.export` before the clock started.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import offmap
from offmap.models.resnet import ResNet

RESULTS = Path(__file__).parent / "results" / "export.json"
BANK = 12_800
CALIBRATION = 10_000
BATCHES = (1, 8, 32)
METHODS = (
    "msp", "energy", "react(90)|energy", "dice(0.7)|energy", "ash_s(90)|energy", "scale(85)|energy",
    "react(90)|dice(0.7)|energy", "mahalanobis", "vim", "knn(50)",
)  # fmt: skip
RUNS = 3
MODELS = ((32, "cifar", 10), (224, "imagenet", 1000))


def made_up(head: offmap.Head, rows: int, seed: int) -> offmap.Activations:
    """Rectified features with classes, as a trained network might give them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, head.n_classes, rows)
    features = np.maximum(rng.normal(size=(rows, head.weight.shape[1])) + 20 * head.weight[labels], 0)
    return offmap.Activations(features.astype(np.float32), head, labels=labels)


def overheads(path: Path, inputs: list[Any], runs: int) -> list[list[float]]:
    """Time in the guard's nodes over time in the model's, for every run of every input but its first."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(path.with_suffix(""))
    opened = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = opened.get_inputs()[0].name
    for x in inputs:
        for _ in range(runs + 1):
            opened.run(None, {name: x})
    found: list[float] = []
    guard = model = 0.0
    for event in json.loads(Path(opened.end_profiling()).read_text()):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            if event["name"].startswith("offmap."):
                guard += event["dur"]
            else:
                model += event["dur"]
        elif event.get("name") == "model_run":
            found.append(guard / model)
            guard = model = 0.0
    assert len(found) == len(inputs) * (runs + 1)
    return [found[start + 1 : start + 1 + runs] for start in range(0, len(found), runs + 1)]


def prepare(folder: Path) -> None:
    """Write the plain and the guarded graphs, and how well they agree with Python."""
    facts = []
    for size, stem, classes in MODELS:
        model = ResNet(classes, stem=stem).eval()
        plain = folder / f"plain-{size}.onnx"
        example = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        dynamic = ({0: "batch"},)
        torch.onnx.export(
            model, (example,), plain, dynamo=True, dynamic_shapes=dynamic, verbose=False, external_data=False
        )
        head = offmap.Head(model.fc.weight.detach().numpy(), model.fc.bias.detach().numpy())
        known, held = made_up(head, BANK, 0), made_up(head, CALIBRATION, 1)
        for place, spec in enumerate(METHODS):
            guard = offmap.detector(spec).fit(known).calibrate(held)
            exported = offmap.export(plain, guard, folder / f"guarded-{size}-{place}.onnx", example.numpy())
            more = exported.path.stat().st_size - plain.stat().st_size
            facts.append({"size": size, "method": spec, "more_bytes": more, "difference": exported.difference})
            print(f"{size:4} {spec}: {more:,} bytes more", flush=True)
    (folder / "prepared.json").write_text(json.dumps(facts))


def timed(folder: Path) -> list[dict[str, Any]]:
    """The overhead of every method at every batch size."""
    found = []
    for size, _, classes in MODELS:
        rng = np.random.default_rng(0)
        inputs = [rng.normal(size=(batch, 3, size, size)).astype(np.float32) for batch in BATCHES]
        for place, spec in enumerate(METHODS):
            each = overheads(folder / f"guarded-{size}-{place}.onnx", inputs, RUNS)
            for batch, values in zip(BATCHES, each, strict=True):
                row = {"size": size, "classes": classes, "method": spec, "batch": batch, "runs": RUNS}
                found.append(row | {"overhead": statistics.median(values), "range": [min(values), max(values)]})
                print(f"{size:4} {spec:28} batch {batch:3}: {statistics.median(values):.2%}", flush=True)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """One line per method, one column per picture size and batch."""
    columns = [(size, batch) for size in (32, 224) for batch in BATCHES]
    lines = ["| method | " + " | ".join(f"{size}², {batch}" for size, batch in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for spec in METHODS:
        cells = {(row["size"], row["batch"]): f"{100 * row['overhead']:.2f} %" for row in rows if row["method"] == spec}
        lines.append(f"| `{spec}` | ".replace("|dice", "\\|dice").replace("|energy", "\\|energy"))
        lines[-1] += " | ".join(cells[column] for column in columns) + " |"
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print the last table and stop")
    parser.add_argument("--folder", type=Path, help="keep the graphs here, and use those that are there")
    parser.add_argument("--prepare", action="store_true", help="stop before anything is timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not options.show and not (folder / "prepared.json").exists():
            prepare(folder)
        if options.prepare:
            return
        if not options.show:
            setting = {
                "threads": 1,
                "bank": BANK,
                "calibration": CALIBRATION,
                "versions": {made.__name__: made.__version__ for made in (onnxruntime, torch, offmap)},
            }
            graphs = json.loads((folder / "prepared.json").read_text())
            result = {"setting": setting, "graphs": graphs, "overhead": timed(folder)}
            RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(json.loads(RESULTS.read_text())["overhead"]))


if __name__ == "__main__":
    main()
