"""Open-world learning on real sentences, settings chosen on known classes that are hidden, and the cost of a step.

``python benchmarks/learn.py accuracy --data FOLDER --seeds 5`` writes benchmarks/results/learn.json, and with ``--sets
caltech101 --out benchmarks/results/learn_caltech.json`` what the same objectives do on features of photographs;
``python benchmarks/learn.py step`` writes benchmarks/results/learn_step.json. Finished runs in the file are kept, so a
run that was cut short goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import caltech
import kept
from offmap.discovery import Space, discover
from offmap.learning import learn, tune
from offmap.metrics.clustering import accuracy_by_convention

RESULTS = Path(__file__).parent / "results"
SETS = ("banking77", "clinc150")
BASELINES = ("k-means", "ss-k-means", "whitened ss-k-means", "discover")
OBJECTIVES = (
    "self-training",
    "opencon",
    "gcd",
    "sorl",
    "sorl-spectral",
    "nscl",
    "supcon",
    "orca",
    "uno",
    "autonovel",
    "ce",
    "simclr",
    "scl",
    "fixmatch",
    "ds3l",
    "cgdl",
    "dtc",
    "kcl",
    "mcl",
    "joint",
    "comex",
    "godin",
    "logitnorm",
    "mos",
)
GRIDS: dict[str, list[dict[str, Any]]] = {
    "opencon": [{"shrinkage": 0.5}, {"weight_novel": 0.05}, {"weight_novel": 0.05, "divergence": 0.0}],
    "gcd": [{"shrinkage": 0.5}, {"temperature": 0.2}, {"neighbours": 20}],
    "sorl-spectral": [{"shrinkage": 0.8}, {"neighbours": 15}],
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"opencon, first view": ("opencon", {"gate_views": "first"})}
TRIALS = 2


def training_rows(folder: Path, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Training rows of a set and their classes; all rows of Caltech-101, by the features of a ResNet-50."""
    if name == "caltech101":
        rows, truth = caltech.load(folder)
        return rows, np.unique(truth, return_inverse=True)[1]
    held = np.load(folder / "text" / f"{name}_minilm.npz")
    kept = held["train_labels"] >= 0
    return held["train_features"][kept].astype(np.float32), held["train_labels"][kept].astype(np.int64)


def split(folder: Path, name: str, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], int]:
    """Training rows of a set; half of the classes known, half of their rows labelled."""
    rows, truth = training_rows(folder, name)
    rng = np.random.default_rng(seed)
    k = int(truth.max()) + 1
    known = np.sort(rng.permutation(k)[: k // 2])
    labels = np.where(np.isin(truth, known) & (rng.random(len(truth)) < 0.5), truth, -1)
    return rows, truth, labels, k


def measured(truth: npt.NDArray[Any], found: npt.NDArray[Any], labels: npt.NDArray[Any]) -> dict[str, list[float]]:
    """All, Known and Novel over unlabelled rows, in percent, by convention."""
    found_by = accuracy_by_convention(truth, found, labels)
    return {name: [round(100 * part, 2) for part in parts.values()] for name, parts in found_by.items()}


def baseline(
    name: str, rows: npt.NDArray[Any], labels: npt.NDArray[Any], k: int | Literal["auto"], seed: int
) -> npt.NDArray[np.int64]:
    """Group without learning."""
    if name == "discover":
        return discover(rows, labels, k, "spectral", seed).labels
    if name == "k-means":
        return discover(rows, labels, k, "kmeans", seed, space=Space("cosine")).labels
    space = Space("cosine", 0.5) if name.startswith("whitened") else Space("cosine")
    return discover(rows, labels, k, "ss-kmeans", seed, space=space).labels


def one(name: str, data: Any, seed: int, tuned: bool, estimate: bool) -> dict[str, Any]:
    """One method on one split: accuracies on unlabelled rows by convention, settings and time."""
    rows, truth, labels, k = data
    start = time.perf_counter()
    name, settings = VARIANTS.get(name, (name, {}))
    if name in BASELINES:
        found = baseline(name, rows, labels, "auto" if estimate else k, seed)
        used = len(np.unique(found))
    else:
        if tuned:
            settings = tune(rows, labels, GRIDS[name], TRIALS, seed, objective=name).settings
        model = learn(rows, labels, None if estimate else k, objective=name, seed=seed, progress=False, **settings)
        found, used = model.predict(rows), model.n_classes
    return {
        "settings": settings,
        "n_classes": used,
        "seconds": time.perf_counter() - start,
        **measured(truth, found, labels),
    }


def accuracy(arguments: argparse.Namespace) -> None:
    done = kept.read(arguments.out)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for data_set in arguments.sets:
            data = split(arguments.data, data_set, seed)
            for name in arguments.methods:
                chosen = arguments.tune and name in GRIDS
                key = f"{data_set}|{name}|{seed}" + "|K estimated" * arguments.estimate + "|chosen" * chosen
                if key not in done:
                    done[key] = one(name, data, seed, chosen, arguments.estimate)
                    kept.add(arguments.out, {key: done[key]})
                    print(key, done[key]["v2"], f"{done[key]['seconds']:.0f} s", flush=True)
    print(table(done))


def table(done: dict[str, Any]) -> str:
    """Means over seeds, All / Known / Novel in the convention v2, and All in orca's."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, value in done.items():
        data_set, name, _, *more = key.split("|")
        groups.setdefault((data_set, " ".join([name, *more])), []).append(value)
    lines = [
        "| set | method | seeds | v2 All | Known | Novel | orca Known | orca Novel |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (data_set, name), runs in sorted(groups.items(), key=lambda item: (item[0][0], -_mean(item[1], "v2")[0])):
        numbers = [*_mean(runs, "v2"), *_mean(runs, "orca")[1:]]
        cells = [data_set, name, str(len(runs)), *(f"{number:.1f}" for number in numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(runs: list[dict[str, Any]], convention: str) -> npt.NDArray[Any]:
    return np.mean([run[convention] for run in runs], axis=0)


def step(arguments: argparse.Namespace) -> None:
    """OpenCon's own work in a step against a ResNet-18's pass, and against a loop over samples; ratios of one run."""
    import torch

    from offmap.learning.objectives import Task, TrainingProgress, objective
    from offmap.models.encoders import make_encoder

    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(512, 128, generator=generator, requires_grad=True) for _ in range(2))
    labels = torch.where(torch.arange(512) < 128, torch.arange(512) % 100, -1)
    kind = objective("opencon")
    loss = kind(Task(128, 200, 100, (0.01,) * 100, 0.25), dict(kind.settings))
    loss.start(first.detach(), labels, torch.randn(200, 128, generator=generator))

    def objective_step() -> None:
        torch.stack(list(loss(first, second, labels, TrainingProgress(0, 1)).values())).sum().backward()
        loss.after_step(first.detach(), second.detach(), labels)

    def sample_loop() -> None:
        vectors = loss.prototypes.vectors.clone()
        rows = torch.nn.functional.normalize(torch.cat([first, second]).detach(), dim=1)
        for row, label in zip(rows, torch.cat([labels, labels]).tolist(), strict=True):
            c = label if label >= 0 else 100 + int((vectors[100:] @ row).argmax())
            vectors[c] = torch.nn.functional.normalize(0.9 * vectors[c] + 0.1 * row, dim=0)

    def update() -> None:
        loss.after_step(first.detach(), second.detach(), labels)

    network, _ = make_encoder("resnet18", (3, 32, 32))
    pictures = torch.randn(arguments.pictures, 3, 32, 32, generator=generator)

    def network_step() -> None:
        network(pictures).square().mean().backward()

    timed = {f.__name__: _best(f, arguments.rounds) for f in (objective_step, sample_loop, update, network_step)}
    whole = timed["network_step"] * 1024 / arguments.pictures  # two views of 512 pictures
    out = {
        "objective share of network pass": timed["objective_step"] / whole,
        "sample loop over vectorised update": timed["sample_loop"] / timed["update"],
        "pictures in the measured pass": arguments.pictures,
        "threads": arguments.threads,
    }
    (RESULTS / "learn_step.json").write_text(json.dumps(out, indent=1) + "\n")
    print(json.dumps(out, indent=1))


def _best(run: Any, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    measure = commands.add_parser("accuracy")
    measure.add_argument("--data", type=Path, default=Path(os.environ.get("OFFMAP_DATA", ".")))
    measure.add_argument("--seeds", type=int, default=5)
    measure.add_argument("--first-seed", type=int, default=2, help="0 and 1 were looked at while settings were chosen")
    measure.add_argument("--sets", nargs="+", default=list(SETS))
    measure.add_argument("--methods", nargs="+", default=[*BASELINES, *OBJECTIVES])
    measure.add_argument("--tune", action="store_true", help="choose settings per seed on hidden known classes")
    measure.add_argument("--estimate", action="store_true", help="estimate the number of classes")
    measure.add_argument("--out", type=Path, default=RESULTS / "learn.json")
    measure.set_defaults(run=accuracy)
    cost = commands.add_parser("step")
    cost.add_argument("--rounds", type=int, default=5)
    cost.add_argument("--pictures", type=int, default=64)
    cost.add_argument("--threads", type=int, default=1)
    cost.set_defaults(run=step)
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
