"""What offmap taps in models of torchvision, timm and Ultralytics, with the real packages and random weights.

``python benchmarks/frameworks.py --out benchmarks/results/frameworks.json``, in an environment of your own that has the
three beside offmap. Where torchvision's compiled operators do not fit the torch that is there, as with its wheels for
CUDA beside a torch for the CPU, their names are declared first, so that its classifiers can be built.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offmap
from offmap.errors import OffmapError

EXAMPLES = Path(__file__).parents[1] / "examples" / "boxes"
TORCHVISION = (
    "resnet18", "vgg11", "densenet121", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "regnet_y_400mf",
    "shufflenet_v2_x0_5", "squeezenet1_1",
)  # fmt: skip
TIMM = (
    "resnet10t", "mobilenetv3_small_050", "convnext_atto", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224",
    "mixer_s32_224",
)  # fmt: skip
YOLO = ("yolov8n.yaml", "yolo11n.yaml")
_DECLARED: list[torch.library.Library] = []


def tap(model: torch.nn.Module, side: int) -> dict[str, Any]:
    """Tap a classifier; say what, and whether features and head give the model's own logits."""
    inputs = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    try:
        network = offmap.Network(model.eval())
        acts = network(inputs)
    except OffmapError as error:
        return {"refused": str(error)}
    with torch.no_grad():
        own = model(inputs).numpy()
    assert acts.head is not None
    again = acts.features @ acts.head.weight.T + acts.head.bias
    return {"tapped": str(network), "largest_difference": float(np.abs(again - own).max())}


def tap_yolo(name: str) -> dict[str, Any]:
    """Run the adapter of examples/boxes; compare its class scores with those that the model gives."""
    from box_adapters import Yolo
    from ultralytics import YOLO as Released

    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    model = Released(name).model.eval()
    with torch.no_grad():
        answer = model(images)
        entries = Yolo(model, confidence=0.0, overlap=1.0)(images)
    raw = (answer if isinstance(answer, torch.Tensor) else answer[0])[0]
    order = raw[4:].amax(dim=0).argsort(descending=True, stable=True)
    scores = entries[0]["logits"].sigmoid()
    return {
        "boxes": len(scores),
        "features": entries[0]["features"].shape[1],
        "largest_difference": float((scores.amax(1) - raw[4:, order].amax(0)).abs().max()),
    }


def measure(package: str, names: tuple[str, ...], make: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Tap every model of a package."""
    found: dict[str, Any] = {"version": version(package), "models": {}}
    for name in names:
        torch.manual_seed(0)
        found["models"][name] = make(name)
        print(package, name, found["models"][name])
    return found


def declare_operators() -> None:
    """Declare the two operators that torchvision registers shapes for as it is imported."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)  # what it declares lasts as long as it


def main() -> None:
    """Tap all, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/frameworks.json"))
    out = parser.parse_args().out
    sys.path.insert(0, str(EXAMPLES))
    declare_operators()
    import timm
    from torchvision import models

    found = {
        "torchvision": measure("torchvision", TORCHVISION, lambda name: tap(getattr(models, name)(num_classes=5), 64)),
        "timm": measure(
            "timm", TIMM, lambda name: tap(timm.create_model(name, num_classes=5), 224 if "224" in name else 64)
        ),
        "ultralytics": measure("ultralytics", YOLO, tap_yolo),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
