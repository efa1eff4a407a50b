"""The thesis' pictures of activations: true and mismatched BatchNorm statistics, other normalisations, layers, noise
(section 3.5, figures 3.4 and 3.5; appendices A.1.2 to A.1.4).

``OFFMAP_DATA=… python benchmarks/thesis_activations.py`` writes results/thesis_activations.json and the pictures of
docs/theory/rectified.md; parts that the file holds are not run again. The network with BatchNorm is the DenseNet for
CIFAR-10, unknown are SVHN and Gaussian noise. Networks with WeightNorm and GroupNorm are small CNNs trained here on
4,000 of CIFAR-10's test pictures, for there are no published ones at hand; 1,000 others are their known inputs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kept
from offmap.data import scale_images, tiles
from offmap.extra_passes import BatchStatistics, Layer, Requirements
from offmap.models.classify import train_classifier
from offmap.models.densenet import DenseNet
from offmap.network import Network
from theory_figures import chart
from thesis.networks import build_normed_cnn

HERE = Path(__file__).parent
SCALE = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
INPUTS = 200
LAYERS = ("trans1", "trans2", "block3")
TRAINED, TESTED, EPOCHS = 20, 5, 5  # the small networks see so many times as many pictures


def pictures(name: str, data: Path, rows: slice = slice(None)) -> Any:
    """Pictures of a mosaic as the networks take them, in a fixed random order."""
    held = tiles(name, data)
    order = np.random.default_rng(0).permutation(len(held))[rows]
    return scale_images(held.inputs[order], *SCALE), np.asarray(held.labels)[order]


def describe(known: Any, unknown: dict[str, Any]) -> dict[str, Any]:
    """Mean and deviation of every unit, units in the order of the known means, and a few numbers about them."""
    order = np.argsort(known.mean(axis=0), kind="stable")
    out: dict[str, Any] = {}
    for name, values in {"known": known, **unknown}.items():
        mean, deviation = values.mean(axis=0)[order], values.std(axis=0)[order]
        out[name] = {
            "mean": float(mean.mean()),
            "spread of unit means": float(mean.std()),
            "mean deviation": float(deviation.mean()),
            "largest unit mean": float(mean.max()),
            "units": mean.round(4).tolist(),
        }
    return out


def densenet(data: Path) -> Network:
    """Load the network of the thesis' CIFAR-10 tables."""
    return Network(DenseNet.load(data / "weights" / "densenet100bc_cifar10.safetensors"))


def batchnorm(data: Path, inputs: int) -> dict[str, Any]:
    """Penultimate activations of SVHN with the statistics of CIFAR-10, and with those of SVHN itself."""
    net = densenet(data)
    asked = Requirements(features=True, extras=(BatchStatistics(),))
    known, unknown = (
        net.extract(torch.from_numpy(pictures(name, data, slice(inputs))[0]), asked, batch_size=inputs, progress=False)
        for name in ("cifar10_test", "svhn_test10k")
    )
    true = unknown.extras[BatchStatistics().outputs[0]]
    return describe(
        known.features, {"unknown, mismatched statistics": unknown.features, "unknown, true statistics": true}
    )


def noise(data: Path, inputs: int) -> dict[str, Any]:
    """Penultimate activations of Gaussian noise."""
    net = densenet(data)
    known = net.extract(torch.from_numpy(pictures("cifar10_test", data, slice(inputs))[0]), progress=False)
    return describe(known.features, {"Gaussian noise": net.noise(inputs, (3, 32, 32)).features})


def layers(data: Path, inputs: int) -> dict[str, Any]:
    """Channels of inner layers, averaged over positions."""
    net = densenet(data)
    asked = Requirements(features=True, extras=tuple(Layer(name) for name in LAYERS))
    known, unknown = (
        net.extract(torch.from_numpy(pictures(name, data, slice(inputs))[0]), asked, progress=False)
        for name in ("cifar10_test", "svhn_test10k")
    )
    found = {
        name: describe(known.extras[Layer(name).key], {"unknown": unknown.extras[Layer(name).key]}) for name in LAYERS
    }
    return {**found, "penultimate": describe(known.features, {"unknown": unknown.features})}


def normalisation(norm: Any, data: Path, inputs: int) -> dict[str, Any]:
    """Penultimate activations of a small network with another normalisation."""
    shown, labels = pictures("cifar10_test", data, slice((TRAINED + TESTED) * inputs))
    trained = TRAINED * inputs
    model = build_normed_cnn(10, channels=3, width=24, norm=norm)
    train_classifier(model, shown[:trained], labels[:trained], epochs=EPOCHS, batch_size=128, seed=0)
    net = Network(model.eval())
    known = net.extract(torch.from_numpy(shown[trained:]), progress=False)
    unknown = net.extract(torch.from_numpy(pictures("svhn_test10k", data, slice(TESTED * inputs))[0]), progress=False)
    right = 100 * float((known.predictions == labels[trained:]).mean())
    return describe(known.features, {"unknown": unknown.features}) | {"accuracy": right}


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "batchnorm": batchnorm,
    "noise": noise,
    "layers": layers,
    "weight normalisation": lambda data, inputs: normalisation("weight", data, inputs),
    "group normalisation": lambda data, inputs: normalisation("group", data, inputs),
    "batch normalisation, the same CNN": lambda data, inputs: normalisation("batch", data, inputs),
}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw unit means, one picture for each part of the thesis' figures."""
    shown = {
        "activations-batchnorm.svg": ("Units of the DenseNet, SVHN as unknown", found["batchnorm"]),
        "activations-noise.svg": ("Units of the DenseNet, Gaussian noise as unknown", found["noise"]),
        "activations-weightnorm.svg": (
            "Units of a CNN with WeightNorm, SVHN as unknown",
            found["weight normalisation"],
        ),
        "activations-layer.svg": ("Channels of the DenseNet after its second block", found["layers"]["trans2"]),
    }
    for file, (title, parts) in shown.items():
        series = {name: part["units"] for name, part in parts.items() if isinstance(part, dict)}
        lines = {name: (list(range(len(units))), units) for name, units in reversed(series.items())}
        chart(file, title, "unit, in the order of its mean on known inputs", "mean activation", lines, folder=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("OFFMAP_DATA", ".")))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "thesis_activations.json")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--inputs", type=int, default=INPUTS, help="pictures of each set; small networks see more")
    given = parser.parse_args()
    for name in given.parts:
        run = PARTS[name]
        if not kept.holds(given.out, [name]):
            kept.add(given.out, {name: run(given.data, given.inputs)})
            print(name, flush=True)
    found = kept.read(given.out)
    if found.keys() == PARTS.keys():
        draw(found, HERE.parent / "docs" / "theory")


if __name__ == "__main__":
    main()
