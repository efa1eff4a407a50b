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
TWO_STAGE = ("fasterrcnn_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn")
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


def tap_faster_rcnn(name: str) -> dict[str, Any]:
    """Run the adapter of examples/boxes; compare with what torchvision's second stage says of the same boxes."""
    from box_adapters import FasterRcnn
    from torchvision.models import detection
    from torchvision.models.detection import image_list

    images = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    model = getattr(detection, name)(
        weights=None, weights_backbone=None, num_classes=4, min_size=128, max_size=192, box_score_thresh=0.0,
        box_detections_per_img=10, rpn_post_nms_top_n_test=20, rpn_pre_nms_top_n_test=40,
    )  # fmt: skip
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        model.backbone.train()(torch.rand(4, 3, 128, 192))  # statistics of a batch, or random weights let all vanish
        for last in (model.roi_heads.box_predictor.cls_score, model.roi_heads.box_predictor.bbox_pred):
            last.weight *= 0.05  # large logits leave one class with a score, large shifts no box
    adapter = FasterRcnn(model)
    with torch.no_grad():
        own, entries = model(list(images)), adapter(images)
        batch: image_list.ImageList = model.transform(list(images))[0]
        scaled = [2 * one["boxes"] for one in own]
        stage = model.roi_heads
        pooled = stage.box_roi_pool(model.backbone(batch.tensors), scaled, batch.image_sizes)
        logits = stage.box_predictor(stage.box_head(pooled))[0]
    given = torch.cat([entry["logits"] for entry in entries])
    return {
        "boxes": len(given),
        "same_boxes": all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(own, entries, strict=True)),
        "features": entries[0]["features"].shape[1],
        "spread_of_logits": float(given.std(dim=0).mean()),
        "largest_difference": float((given - logits[:, 1:]).abs().max()),
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
    """Declare the operators that torchvision registers shapes for as it is imported; write the one that boxes need."""
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", suppress, "CPU")
        _DECLARED.append(library)  # what it declares lasts as long as it
        import torchvision

        torchvision.ops.boxes._assert_has_ops = lambda: None


def suppress(boxes: torch.Tensor, scores: torch.Tensor, overlap: float) -> torch.Tensor:
    """Keep boxes from the surest on, but none that overlaps a kept one by more."""
    kept: list[int] = []
    size = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    for place in scores.argsort(descending=True, stable=True).tolist():
        corner, end = torch.maximum(boxes[place, :2], boxes[kept, :2]), torch.minimum(boxes[place, 2:], boxes[kept, 2:])
        shared = (end - corner).clamp(min=0).prod(dim=1)
        if not (shared > overlap * (size[place] + size[kept] - shared)).any():
            kept.append(place)
    return torch.tensor(kept, dtype=torch.long)


def measure_torchvision() -> dict[str, Any]:
    """Classifiers."""
    from torchvision import models

    return measure("torchvision", TORCHVISION, lambda name: tap(getattr(models, name)(num_classes=5), 64))


def measure_timm() -> dict[str, Any]:
    """Classifiers."""
    import timm

    return measure("timm", TIMM, lambda name: tap(timm.create_model(name, num_classes=5), 224 if "224" in name else 64))


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "torchvision": measure_torchvision,
    "timm": measure_timm,
    "torchvision, boxes": lambda: measure("torchvision", TWO_STAGE, tap_faster_rcnn),
    "ultralytics": lambda: measure("ultralytics", YOLO, tap_yolo),
}


def main() -> None:
    """Tap all, or one part, and write what was found beside what the file holds of other parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/frameworks.json"))
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    given = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    declare_operators()
    found = json.loads(given.out.read_text()) if given.only and given.out.exists() else {}
    for name in [given.only] if given.only else PARTS:
        found[name] = PARTS[name]()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
