"""Two families of object detectors behind the protocol of `offmap.boxes`: images in; boxes, logits, features out.

Copy the one that you need. Written after the published structure of two-stage detectors of torchvision and of YOLO
(8 and 11) by Ultralytics; neither package is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class FasterRcnn:
    """A two-stage detector of torchvision, such as `fasterrcnn_resnet50_fpn`.

    Its labels count from 1, since 0 is the background, which no box is ever given however likely it is. Here it is left
    out: class numbers are its labels less one, also in the targets of `offmap.boxes`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model.eval()
        own: nn.Linear = self.model.roi_heads.box_predictor.cls_score
        self.head = nn.Linear(own.in_features, own.out_features - 1).to(own.weight)  # give it to offmap.boxes(head=...)
        self.head.load_state_dict({"weight": own.weight[1:], "bias": own.bias[1:]})

    def __call__(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Find boxes, then pool the features of the boxes that are left after suppression."""
        found = self.model(list(images))
        batch, _ = self.model.transform(list(images))
        maps = self.model.backbone(batch.tensors)
        maps = maps if isinstance(maps, Mapping) else {"0": maps}
        scaled = []
        for image, size, one in zip(images, batch.image_sizes, found, strict=True):
            down, across = size[0] / image.shape[-2], size[1] / image.shape[-1]
            scaled.append(one["boxes"] * one["boxes"].new_tensor([across, down, across, down]))
        features = self.model.roi_heads.box_head(self.model.roi_heads.box_roi_pool(maps, scaled, batch.image_sizes))
        counts = [len(one["boxes"]) for one in found]
        parts = zip(found, self.head(features).split(counts), features.split(counts), strict=True)
        return [{"boxes": one["boxes"], "logits": logits, "features": rows} for one, logits, rows in parts]


class Yolo:
    """YOLO 8 or 11 of Ultralytics: ``Yolo(YOLO("yolov8n.pt").model)``; images are scaled to [0, 1] and its size before.

    Every level of the pyramid has class weights of its own, so there is no common head.
    """

    def __init__(self, model: nn.Module, confidence: float = 0.25, overlap: float = 0.7) -> None:
        self.model: Any = model.eval()
        self.confidence, self.overlap = confidence, overlap
        self._levels: dict[int, tuple[Tensor, Tensor]] = {}
        for level, branch in enumerate(self.model.model[-1].cv3):
            branch[-1].register_forward_hook(self._keep(level))  # the 1×1 convolution that gives class logits

    def _keep(self, level: int) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._levels[level] = (inputs[0], output)

        return hook

    def __call__(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Find boxes, with the features of the cell that each one came from."""
        answer = self.model(images)
        places = (answer if isinstance(answer, Tensor) else answer[0])[:, :4].transpose(1, 2)
        middle, half = places[..., :2], places[..., 2:] / 2
        corners = torch.cat([middle - half, middle + half], dim=-1)
        levels = [self._levels[level] for level in sorted(self._levels)]
        features, logits = (torch.cat([level[i].flatten(2) for level in levels], 2).transpose(1, 2) for i in (0, 1))
        return [self._kept(*parts) for parts in zip(corners, logits, features, strict=True)]

    def _kept(self, boxes: Tensor, logits: Tensor, features: Tensor) -> dict[str, Tensor]:
        """Leave out doubtful boxes, and those that overlap a surer one."""
        sure = logits.sigmoid().amax(dim=1)
        order = [int(place) for place in sure.argsort(descending=True) if sure[place] >= self.confidence]
        kept: list[int] = []
        for place in order:
            if all(_overlap(boxes[place], boxes[other]) <= self.overlap for other in kept):
                kept.append(place)
        return {"boxes": boxes[kept], "logits": logits[kept], "features": features[kept]}


def _overlap(one: Tensor, other: Tensor) -> float:
    """Intersection over union of two boxes."""
    size = (torch.minimum(one[2:], other[2:]) - torch.maximum(one[:2], other[:2])).clamp(min=0)
    shared = size.prod()
    return float(shared / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - shared))
