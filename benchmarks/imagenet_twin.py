"""The thesis' ImageNet questions that need more than features: ODIN, layers, and BatchNorm's statistics.

    python benchmarks/imagenet_twin.py --data FOLDER [--pictures 60]

The folder is laid out as docs/howto/photographs.md says. Keras' ResNet-50 runs as a PyTorch module: ODIN with and
without ReAct; ReAct at the output of each stage; energy when BatchNorm uses the statistics of the batch (the oracle).
Known pictures are fitted on and tested in halves; textures are the unknown. Few pictures, so standard errors are about
4 points of AUROC. Results go to ``benchmarks/results/imagenet_twin.json``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kept
import offmap
from offmap.bench.sets import load_set
from offmap.bench.suites import SetSpec
from offmap.data import scale_images
from offmap.metrics.detection import detection_report
from offmap.models.resnet_keras import load_keras_resnet50

RESULTS = Path(__file__).parent / "results" / "imagenet_twin.json"
MEANS = (123.68 / 255, 116.779 / 255, 103.939 / 255)
METHODS = ("energy", "react(90)|energy", "batchnorm_oracle", "odin", "react(90)|odin")
STAGES = ("layer1", "layer2", "layer3", "layer4")
BATCH = 20


def pictures(data: Path, name: str, take: int) -> np.ndarray:
    """Pictures as the network takes them."""
    loaded = load_set(SetSpec(name, {"pictures": f"pictures/{name}", "take": take}), data)
    return scale_images(loaded.samples.inputs, MEANS, 1 / 255)


def summarise(known: np.ndarray, unknown: np.ndarray) -> dict[str, float]:
    """FPR95 and AUROC in per cent."""
    report = detection_report(known, unknown)
    return {"fpr95": round(100 * report.fpr95, 2), "auroc": round(100 * report.auroc, 2)}


def score(net: offmap.Network, spec: str, sets: tuple[np.ndarray, ...]) -> dict[str, float]:
    """One detector with whatever passes it asks for."""
    fit, test, far = sets
    made = offmap.detector(spec)
    made.fit(extract(net, fit, made))
    return summarise(made.score(extract(net, test, made)), made.score(extract(net, far, made)))


def extract(net: offmap.Network, inputs: np.ndarray, made: offmap.Detector) -> offmap.Activations:
    """Activations with the passes that a detector reads."""
    batches = [inputs[at : at + BATCH] for at in range(0, len(inputs), BATCH)]
    return net.extract(batches, requirements=made.requirements, progress=False)


def clip_at(model: torch.nn.Module, stage: str, sets: tuple[np.ndarray, ...], percentile: float) -> dict[str, float]:
    """Energy when the output of a stage is cut at a percentile of what known pictures give there."""
    seen: list[torch.Tensor] = []
    limit = torch.tensor(torch.inf)

    def cut(_module: torch.nn.Module, _inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
        if torch.isinf(limit):
            seen.append(out[:, :, ::4, ::4].reshape(-1))
        return out.clamp(max=limit)

    hook = getattr(model, stage).register_forward_hook(cut)

    def energies(inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            parts = [torch.from_numpy(inputs[at : at + BATCH]) for at in range(0, len(inputs), BATCH)]
            return torch.cat([torch.logsumexp(model(part), dim=1) for part in parts]).numpy()

    try:
        energies(sets[0])
        limit = torch.tensor(float(np.percentile(torch.cat(seen).numpy(), percentile)))
        return summarise(energies(sets[1]), energies(sets[2]))
    finally:
        hook.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=STAGES)
    given = parser.parse_args()
    n = given.pictures
    model = load_keras_resnet50(given.data / "weights" / "resnet50.onnx", channels="rgb")
    net = offmap.Network(model)
    known = pictures(given.data, "imagenet", 2 * n)
    sets = known[:n], known[n:], pictures(given.data, "textures", n)
    found: dict[str, Any] = {}
    for spec in given.methods:
        found[spec] = score(net, spec, sets)
        kept.add(RESULTS, {"pictures": n, "methods": found})
        print(spec, found[spec], flush=True)
    for stage in given.stages:
        cell = clip_at(model, stage, sets, 90)
        kept.add(RESULTS, {"energy cut at the 90th percentile after": {stage: cell}})
        print(stage, cell, flush=True)


if __name__ == "__main__":
    main()
