"""The thesis' toy worlds with rendered solids: which labels help which novel classes (section 6.4.2; section 7.4.1;
appendix B.1.4; appendix B.2.5).

``python benchmarks/toy.py`` writes results/toy.json and docs/toy.svg. Smaller than the thesis': a small CNN instead of
a ResNet-18, 150 pictures of each type instead of 2,500, 24 pixels, 15 epochs instead of 40.
``python benchmarks/toy.py --thesis-size --seeds 5`` is the thesis' size: a ResNet-18 with the stem of ImageNet's
networks, 2,500 pictures of 32 pixels of each type (the thesis does not say how many pixels), 40 epochs at a constant
rate of .005, SimSiam's views. It writes results/toy_thesis_size.json after every run, and a run that was stopped goes
on at its last epoch: checkpoints are below ``--work``. ``--workers 2`` learns two toys at a time, one thread each.
``--cost --seeds 5`` measures a step of it, and writes results/toy_cost.json.

NSCL: red and blue cubes and spheres without labels, to be told apart by colour; labelled are red cylinders (case 1) or
grey ones (case 2). SORL: cubes known; spheres share their colours, cylinders are grey; with labels and without.

Whether colour is found without help depends on the views: SimSiam's never turn red into blue, so the two colours are
all but separate parts of the graph; views that shift the hue all round half of the time tie them together. Both are
run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import kept
from offmap.data.views import ImageViews
from offmap.discovery import KMeans
from offmap.learning import OpenWorldModel, learn
from offmap.metrics.clustering import open_world_accuracy
from offmap.models.encoders import remove_last_layer
from offmap.models.resnet import ResNet
from scatter import draw, flat
from thesis.shapes import COLOURS, SHAPES, nscl_toy, sorl_toy
from thesis.small_maps import speed_up

HERE = Path(__file__).parent
VIEWS = {
    "SimSiam's": ImageViews.simsiam(),
    "hue shifted half the time": ImageViews(scale=(0.6, 1.0), jitter=(0.4, 0.4, 0.4, 0.5), jitter_chance=0.5, grey=0.2),
}
Points = tuple[npt.NDArray[Any], list[str]]
Run = tuple[int, str, str, str]  # seed, views, objective, what is labelled
INKS = {
    "red cube": "#c0392b",
    "red sphere": "#f1948a",
    "blue cube": "#1f4e9c",
    "blue sphere": "#85b0ee",
    "red cylinder": "#7b241c",
    "grey cylinder": "#707070",
}
FEW = 3  # principal components that a linear probe may read, as many as the classes of the toys
SHOWN = 45  # points of a type in the picture


def match_groups(features: npt.NDArray[Any], truth: npt.NDArray[Any], k: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows k-means puts into the group matched to their class."""
    found = KMeans(k, random_state=seed).fit(features).labels_
    table = np.zeros((k, k), int)
    np.add.at(table, (found, truth), 1)
    from scipy.optimize import linear_sum_assignment

    groups, classes = linear_sum_assignment(-table)
    return np.asarray(classes[np.argsort(groups)][found] == truth)


def residual(features: npt.NDArray[Any], target: npt.NDArray[Any]) -> float:
    """Share of a target's variance that a linear probe on the first principal components misses (R, section 6.4.1,
    lemma 6.2).
    """
    centred = features.astype(np.float64) - features.mean(axis=0)
    vectors = np.linalg.svd(centred, full_matrices=False)[0][:, :FEW]
    y = target - target.mean()
    return float(((y - vectors @ (vectors.T @ y)) ** 2).sum() / (y**2).sum())


@dataclass(frozen=True)
class Size:
    """How large the toy is and how its network learns."""

    per_type: int = 150
    epochs: int = 15
    pixels: int = 24
    network: str = "cnn"
    learning_rate: float = 0.03
    schedule: str = "cosine"
    batch_size: int = 100
    projection: int = 64

    def learn(self, toy: Any, seed: int, views: ImageViews, out: Path, **given: Any) -> OpenWorldModel:
        """Learn a toy; the same call resumes one that was stopped."""
        network: str | nn.Module = self.network
        if self.network == "resnet18":
            network = speed_up(remove_last_layer(ResNet(1, depth=18, stem="imagenet", seed=seed))[0])
        own = {
            name: getattr(self, name) for name in ("epochs", "learning_rate", "schedule", "batch_size", "projection")
        }
        return learn(toy.inputs, toy.labels, 3, network, seed, out, views=views, progress=False, **own, **given)


THESIS = Size(2500, 40, 32, "resnet18", learning_rate=0.005, schedule="constant", batch_size=512, projection=1000)


def nscl(case: int, size: Size, seed: int, views: ImageViews, out: Path) -> tuple[dict[str, float], Points]:
    """Colour and shape of the unlabelled solids after learning with red (1) or grey (2) cylinders labelled."""
    toy = nscl_toy(case, size.per_type, pixels=size.pixels, seed=seed)
    model = size.learn(toy, seed, views, out, objective="nscl", alpha=0.04, beta=1.0)
    unlabelled = np.flatnonzero(toy.labels < 0)
    features = model.transform(toy.inputs[unlabelled])
    colour = (toy.arrays["colour"][unlabelled] > 0).astype(int)
    shape = toy.arrays["shape"][unlabelled]
    shape = (shape == shape.max()).astype(int)
    found = {
        "2-means by colour": 100 * float(match_groups(features, colour, 2, seed).mean()),
        "2-means by shape": 100 * float(match_groups(features, shape, 2, seed).mean()),
        "residual of colour": residual(features, colour),
        "residual of shape": residual(features, shape),
    }
    return found, points(model.transform(toy.inputs), toy)


def sorl(weight: float, size: Size, seed: int, views: ImageViews, out: Path) -> tuple[dict[str, float], Points]:
    """How well three-means finds cubes, spheres and cylinders with labels on cubes that weigh so much."""
    toy = sorl_toy(0.5, size.per_type, pixels=size.pixels, seed=seed)
    truth = toy.arrays["targets"]
    model = size.learn(toy, seed, views, out, objective="sorl", eta_l=weight, eta_u=1.0)
    features = model.transform(toy.inputs)
    right = match_groups(features, truth, 3, seed)
    free = toy.labels < 0
    whole = open_world_accuracy(truth[free], model.predict(toy.inputs[free]), [0])
    found = {
        "3-means": 100 * float(right.mean()),
        **{f"3-means {kind}": 100 * float(right[truth == c].mean()) for c, kind in enumerate(toy.classes)},
        **{f"residual of {kind}": residual(features, (truth == c) * 1.0) for c, kind in enumerate(toy.classes)},
        "ss-k-means, v2 All": 100 * whole.all,
    }
    return found, points(features, toy)


RUNS: dict[tuple[str, str], Callable[[Size, int, ImageViews, Path], tuple[dict[str, float], Points]]] = {
    ("nscl", "red cylinders labelled"): lambda *given: nscl(1, *given),
    ("nscl", "grey cylinders labelled"): lambda *given: nscl(2, *given),
    ("sorl", "no labels"): lambda *given: sorl(0.0, *given),
    ("sorl", "cubes labelled"): lambda *given: sorl(0.2, *given),
}


def points(features: npt.NDArray[Any], toy: Any) -> Points:
    """The first two principal components of some pictures of every type, and their types."""
    kinds = [
        f"{list(COLOURS)[colour]} {list(SHAPES)[shape]}"
        for colour, shape in zip(toy.arrays["colour"], toy.arrays["shape"], strict=True)
    ]
    names = np.array(kinds)
    few = np.concatenate([np.flatnonzero(names == kind)[:SHOWN] for kind in dict.fromkeys(kinds)])
    return flat(features)[few], names[few].tolist()


def run_one(size: Size, seed: int, views: str, kind: str, labels: str, work: Path) -> tuple[dict[str, float], Points]:
    """One toy; the same call resumes one that was stopped."""
    place = work / size.network / f"{seed}-{list(VIEWS).index(views)}-{kind}-{labels.replace(' ', '-')}"
    return RUNS[kind, labels](size, seed, VIEWS[views], place)


def run_all(size: Size, seeds: int, kinds: list[str], file: Path, work: Path, workers: int = 1) -> dict[str, Points]:
    """Run what the file lacks; return what seed 0 looks like with its hue shifted, where that was run just now."""
    setting = asdict(size)
    if kept.read(file).get("setting", setting) != setting:
        raise SystemExit(f"{file}: results of another size; choose another --out")
    wanted = [(seed, views, *names) for seed in range(seeds) for views in kinds for names in RUNS]
    missing = [run for run in wanted if not kept.holds(file, ["seeds", str(run[0]), *run[1:]])]
    shown = {}
    for (seed, views, kind, labels), (found, drawn) in _results(size, missing, work, workers):
        kept.add(file, {"setting": setting, **kept.nest(["seeds", str(seed), views, kind, labels], found)})
        print(seed, views, labels, found, flush=True)
        if not seed and "hue" in views:
            shown[f"{kind.upper()}, {labels}"] = drawn
    return shown


def _results(size: Size, missing: list[Run], work: Path, workers: int) -> Iterator[tuple[Run, Any]]:
    """Yield every run with what came of it, as they end."""
    if workers == 1:
        for run in missing:
            yield run, run_one(size, *run, work)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        started = {pool.submit(run_one, size, *run, work): run for run in missing}
        for done in as_completed(started):
            yield started[done], done.result()


def cost(size: Size, seeds: int, file: Path) -> None:
    """Measure the network's part of a step by processor time, plain and faster, and what all runs take by that."""
    torch.set_num_threads(1)
    views = torch.rand(2 * size.batch_size, 3, size.pixels, size.pixels, generator=torch.Generator().manual_seed(0))
    took = {}
    for name, change in {"plain": nn.Module.train, "fast": speed_up}.items():
        network = change(remove_last_layer(ResNet(1, depth=18, stem="imagenet", seed=0))[0])
        ends = []
        for _ in range(2):
            start = time.process_time()
            network(views).square().mean().backward()
            ends.append(time.process_time() - start)
        took[name] = min(ends)
    steps = 5 * size.per_type // size.batch_size * size.epochs
    hours = len(RUNS) * seeds * steps * took["fast"] / 3600
    found = {"processor seconds of a step": took, "steps of a training": steps, "trainings": len(RUNS) * seeds}
    kept.add(file, {**found, "hours of one core": hours, "hours of two cores": hours / 2})
    print(kept.read(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--thesis-size", action="store_true")
    parser.add_argument("--workers", type=int, default=1, help="toys to learn at a time, one thread each")
    parser.add_argument("--cost", action="store_true", help="measure a step at the thesis' size, and stop")
    parser.add_argument("--per-type", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--views", nargs="+", choices=list(VIEWS), help="all; SimSiam's, as the thesis, at its size")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, default=Path("out/toy"), help="folder of checkpoints")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "toy.svg")
    given = parser.parse_args()
    changes = {name: value for name in ("per_type", "epochs") if (value := getattr(given, name)) is not None}
    size = replace(THESIS if given.thesis_size else Size(), **changes)
    if given.cost:
        cost(THESIS, given.seeds, given.out or HERE / "results" / "toy_cost.json")
        return
    file = given.out or HERE / "results" / ("toy_thesis_size.json" if given.thesis_size else "toy.json")
    views = given.views or list(VIEWS)[: 1 if given.thesis_size else None]
    shown = run_all(size, given.seeds, views, file, given.work, given.workers)
    if len(shown) == len(RUNS) and not given.thesis_size:
        draw(given.picture, "What the toys' features look like, first two principal components", shown, INKS)


if __name__ == "__main__":
    main()
