"""Open-world learning on pictures from scratch, small enough for a CPU: one pre-training, then each objective from it.

``python benchmarks/learn_images.py fashion`` reads Fashion-MNIST (Debian's dataset-fashion-mnist, or the folder
fashion-mnist of --data), the first five classes known. ``python benchmarks/learn_images.py cifar10 --data FOLDER``
reads cifar10_train.npz (arrays images and labels), else the test pictures or the published archive of the data folder,
with --split C10-5 or ORCA-C10. Both write
results/learn_images.json, what was measured on other sets kept, and docs/learned-<set>.svg. --network resnet18 and
more --epochs are for those who have a GPU (--device cuda).
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kept
from learn import measured
from offmap.bench.sets import load_set
from offmap.bench.suites import SetSpec
from offmap.data import open_world_split, published_split
from offmap.data.views import ImageViews
from offmap.discovery import Space, discover
from offmap.learning import learn
from scatter import draw
from thesis.figures import project_to_plane

HERE = Path(__file__).parent
FASHION = Path("/usr/share/datasets/fashion-mnist")
OBJECTIVES = ("opencon", "gcd", "sorl", "nscl")
FASHION_CLASSES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]
CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
INKS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000", "#999933", "#882255", "#44AA99")
SHOWN = 400


def fashion(data: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    from offmap.data.idx import read_idx

    folder = data / "fashion-mnist" if (data / "fashion-mnist").is_dir() else FASHION
    files = (folder / f"train-{kind}" for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    images, labels = (read_idx(f if f.is_file() else f.with_name(f.name + ".gz")) for f in files)
    return images, labels.astype(np.int64)


def cifar10(data: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    file = data / "cifar10_train.npz"
    if file.is_file():
        held = np.load(file)
        return held["images"], held["labels"].astype(np.int64)
    published = {"cifar": "cifar10", "part": "train"}
    found = load_set(SetSpec("known", {"tiles": "cifar10_test", "otherwise": published}), data).samples
    assert found.labels is not None
    return np.asarray(found.inputs), found.labels.astype(np.int64)


def run(given: argparse.Namespace) -> dict[str, Any]:
    images, truth = (fashion if given.set == "fashion" else cifar10)(given.data)
    chosen = np.sort(np.random.default_rng(given.seed).permutation(len(images))[: given.pictures])
    images, truth = images[chosen], truth[chosen]
    split = open_world_split(truth, known=5, seed=given.seed)
    if given.split:
        split = published_split(given.split, truth, given.seed)
    labels = split.labels
    views = ImageViews(scale=(0.4, 1.0)) if given.set == "fashion" else ImageViews.simclr()
    common: dict[str, Any] = {
        "seed": given.seed,
        "batch_size": 256,
        "optimizer": "adamw",
        "learning_rate": 2e-3,
        "schedule": "cosine",
        "weight_decay": 1e-4,
        "projection": 128,
        "device": given.device,
        "views": views,
        "progress": False,
    }
    out: dict[str, Any] = {}

    def note(name: str, found: npt.NDArray[Any], seconds: float) -> None:
        out[name] = {**measured(truth, found, labels), "seconds": seconds}
        print(name, out[name], flush=True)

    start = time.perf_counter()
    pixels = images.reshape(len(images), -1).astype(np.float32)
    note("pixels, ss-k-means", discover(pixels, labels, 10, "ss-kmeans", 0, space=Space("cosine")).labels, 0.0)
    first = learn(images, labels, 10, given.network, objective="simclr", epochs=given.pretrain_epochs, **common)
    note("SimCLR alone, ss-k-means", first.predict(images), time.perf_counter() - start)
    few = np.random.default_rng(1).permutation(len(images))[:SHOWN]
    names = np.array(FASHION_CLASSES if given.set == "fashion" else CIFAR_CLASSES)
    groups = [f"{name}{'' if c in split.known else ' (novel)'}" for c, name in enumerate(names.tolist())]
    shown = {"pixels": pixels[few], "SimCLR alone": first.transform(images[few])}
    for name in given.objectives:
        start = time.perf_counter()
        body = copy.deepcopy(first.net.encoder.body)[1].requires_grad_(True)
        model = learn(images, labels, 10, body, objective=name, epochs=given.epochs, **common)
        note(name, model.predict(images), time.perf_counter() - start)
        if name == "opencon":
            shown["then OpenCon"] = model.transform(images[few])
    flat = {name: project_to_plane(rows) for name, rows in shown.items()}  # by UMAP where umap-learn is installed
    panels = {name: (points, [groups[c] for c in truth[few]]) for name, (points, _) in flat.items()}
    draw(
        HERE.parent / "docs" / f"learned-{given.set}.svg",
        f"{len(few)} pictures by {next(iter(flat.values()))[1]}",
        panels,
        dict(zip(groups, INKS, strict=True)),
    )
    setting = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(given).items()
        if key not in ("data", "set", "objectives")
    }
    return {"setting": setting | {"labelled": int((labels >= 0).sum())}, "results": out}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=["fashion", "cifar10"])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("OFFMAP_DATA", ".")))
    parser.add_argument(
        "--split", choices=["C10-5", "ORCA-C10"], help="half of the first five classes labelled otherwise"
    )
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--network", default="cnn")
    parser.add_argument("--pretrain-epochs", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    name = f"{given.set} {given.split or ''}".strip() + f", {given.pictures:,} pictures"
    kept.add(HERE / "results" / "learn_images.json", {name: run(given)})


if __name__ == "__main__":
    main()
