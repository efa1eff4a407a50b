"""Learning with pictures in the loop: Caltech-101 through Keras' ResNet-50, frozen, with an adapter, last block free.

    python benchmarks/caltech_pictures.py --pictures 101_ObjectCategories --onnx resnet50.onnx [--classes 15]

Some classes at 128 pixels, half of them known, half of the pictures of those labelled. Compared are `discover` on the
frozen network's features, `learn` with an adapter on them, and `learn` with the network's last stage trained. The
stages before that are frozen, so what they give for each picture and for some random crops of it is computed once and
kept in a file: training then runs the last stage alone. Nothing was chosen on these pictures; the learning rate is that
of texts' encoders. ``--gallery classes.html`` writes a page of the classes that `discover` finds, with the pictures.
Results go to ``benchmarks/results/caltech_pictures.json``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kept
from discover import split
from learn import measured
from offmap.data import image_folder
from offmap.data.views import ImageViews, step_generator
from offmap.discovery import discover
from offmap.learning import learn
from offmap.models.resnet_keras import load_keras_resnet50

RESULTS = Path(__file__).parent / "results" / "caltech_pictures.json"
SIDE = 128
CROPS = 4
DRAWN = (50, 24)  # classes, and pictures of each at most, that go through the network once
MEANS = torch.tensor([123.68, 116.779, 103.939])[:, None, None]  # of red, green, blue, as the network was trained
ADAPTERS = ("gcd", "opencon", "self-training")
BLOCKS = ("gcd, last stage", "opencon, last stage")
BLOCK = {"epochs": 3, "batch_size": 64, "learning_rate": 1e-4, "weight_decay": 1e-2, "shrinkage": None}


class KeptViews:
    """Two of the crops that were kept of each picture, different ones."""

    def __init__(self, crops: Tensor) -> None:
        self.crops = crops

    def __repr__(self) -> str:
        return f"KeptViews({tuple(self.crops.shape)})"

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Two places among the crops for each sample."""
        first = torch.randint(self.crops.shape[1], (count,), generator=generator)
        step = torch.randint(1, self.crops.shape[1], (count,), generator=generator)
        return torch.stack([first, (first + step) % self.crops.shape[1]], dim=1)

    def apply(self, batch: Tensor, numbers: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The crops that the numbers stand for."""
        assert rows is not None
        return self.crops[rows, numbers[:, 0]].float(), self.crops[rows, numbers[:, 1]].float()

    def __call__(self, batch: Tensor, generator: torch.Generator, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw and apply."""
        return self.apply(batch, self.draw(len(batch), generator), rows)


class LastStage(nn.Module):
    """The last stage of a ResNet and the average over positions, on flattened maps of the stage before."""

    def __init__(self, stage: nn.Module, channels: int) -> None:
        super().__init__()
        self.stage, self.channels = stage, channels

    def forward(self, maps: Tensor) -> Tensor:
        """Features, rows × width."""
        side = round((maps.shape[1] / self.channels) ** 0.5)
        features: Tensor = self.stage(maps.view(len(maps), self.channels, side, side)).mean(dim=(2, 3))
        return features


def choose(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of some classes drawn by a fixed seed, and their classes."""
    classes, each = DRAWN
    found = image_folder(folder, size=SIDE)
    assert found.labels is not None
    rng = np.random.default_rng(0)
    shown = [label for label, name in enumerate(found.classes) if name != "BACKGROUND_Google"]
    drawn = np.sort(rng.permutation(shown)[:classes])
    rows = [rng.permutation(np.flatnonzero(found.labels == label))[:each] for label in drawn]
    pictures = np.stack([found[int(row)] for row in np.concatenate(rows)])
    return pictures, np.repeat(np.arange(classes), [len(part) for part in rows])


def extract(given: argparse.Namespace) -> dict[str, np.ndarray]:
    """Maps before the last stage, of whole pictures and of crops, in 16 bits; from the file if it is there."""
    if not given.maps.is_file():
        pictures, labels = choose(given.pictures)
        model = load_keras_resnet50(given.onnx, channels="rgb").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        front = nn.Sequential(
            model.conv1, model.bn1, nn.ReLU(), model.maxpool, model.layer1, model.layer2, model.layer3
        )
        views = ImageViews.simclr()
        whole, crops = [], []
        for at in range(0, len(pictures), 32):
            batch = torch.from_numpy(pictures[at : at + 32]).permute(0, 3, 1, 2).float() / 255
            pairs = [views(batch, step_generator(0, at, stream)) for stream in range(CROPS // 2)]
            with torch.no_grad():
                maps = [front(255 * view - MEANS).half() for view in (batch, *(one for pair in pairs for one in pair))]
            whole.append(maps[0].flatten(1))
            crops.append(torch.stack([part.flatten(1) for part in maps[1:]], dim=1))
            print(f"{at + len(batch)} of {len(pictures)} pictures", flush=True)
        given.maps.parent.mkdir(parents=True, exist_ok=True)
        np.savez(given.maps, maps=torch.cat(whole).numpy(), crops=torch.cat(crops).numpy(), labels=labels)
    with np.load(given.maps) as arrays:
        labels = arrays["labels"]
        place = np.arange(len(labels)) - np.searchsorted(labels, labels)  # within its class; rows come class by class
        rows = np.flatnonzero((labels < given.classes) & (place < given.each))
        return {name: arrays[name][rows] for name in arrays} | {"rows": rows}


def features_of(stage: LastStage, maps: Tensor) -> np.ndarray:
    """Features of whole pictures by the network as it was trained on ImageNet."""
    with torch.no_grad():
        return torch.cat([stage(part.float()) for part in maps.split(64)]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seeds", nargs="*", type=int, default=[2])
    parser.add_argument("--methods", nargs="*", default=["discover", *ADAPTERS, *BLOCKS])
    parser.add_argument("--gallery", type=Path)
    parser.add_argument("--maps", type=Path, default=Path("out/caltech-maps.npz"))
    given = parser.parse_args()
    arrays = extract(given)
    maps, crops, truth = torch.from_numpy(arrays["maps"]), torch.from_numpy(arrays["crops"]), arrays["labels"]
    kept.add(RESULTS, {"classes": given.classes, "pictures": len(truth), "side": SIDE, "crops": CROPS})
    features = features_of(last_stage(given.onnx), maps)
    for seed in given.seeds:
        labels, _ = split(truth, seed)
        for name in given.methods:
            start = time.perf_counter()
            objective, _, block = name.partition(", ")
            common: dict[str, Any] = {"objective": objective, "seed": seed, "progress": False}
            if name == "discover":
                groups = discover(features, labels, given.classes, "auto", seed)
                found = groups.labels
                if given.gallery is not None:
                    groups.to_html(given.gallery, choose(given.pictures)[0][arrays["rows"]])
            elif not block:
                found = learn(features, labels, given.classes, **common).predict(features)
            else:
                stage, whole = last_stage(given.onnx), maps.float()
                model = learn(whole, labels, given.classes, stage, views=KeptViews(crops), **common, **BLOCK)
                found = model.predict(whole)
            cell = measured(truth, found, labels) | {"seconds": round(time.perf_counter() - start, 1)}
            kept.add(RESULTS, kept.nest(["runs", name, str(seed)], cell))
            print(seed, name, cell, flush=True)


def last_stage(onnx: Path) -> LastStage:
    """The last stage with ImageNet's weights."""
    model = load_keras_resnet50(onnx, channels="rgb")
    return LastStage(model.layer4, model.layer4[0].conv1.in_channels)


if __name__ == "__main__":
    main()
