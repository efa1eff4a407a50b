"""Models built as timm, torchvision and Ultralytics build theirs: these packages cannot be installed everywhere.

The classes below are written here, with the names and the order of parts that those libraries publish.
"""

from __future__ import annotations

import importlib.util
from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import offmap
from offmap import Network
from offmap.errors import InputError

ADAPTERS = Path(__file__).parents[2] / "examples" / "boxes" / "box_adapters.py"
X = torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class TimmTransformer(nn.Module):
    """As `timm.create_model("vit_...")`: tokens, a pooled one, a norm, dropout, the head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 12, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 12))
        self.blocks = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12), nn.GELU())
        self.norm, self.fc_norm, self.head_drop = nn.LayerNorm(12), nn.Identity(), nn.Dropout(0.1)
        self.head = nn.Linear(12, 5)

    def forward_features(self, x):
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        return self.norm(self.blocks(torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], dim=1)))

    def forward_head(self, x, pre_logits: bool = False):
        x = self.head_drop(self.fc_norm(x[:, 0]))
        return x if pre_logits else self.head(x)

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


class TimmHead(nn.Module):
    """As timm's `ClassifierHead` with a 1×1 convolution, flattened afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.head = nn.Sequential(
            OrderedDict(global_pool=nn.AdaptiveAvgPool2d(1), drop=nn.Dropout(0.2), fc=nn.Conv2d(8, 5, 1))
        )

    def forward(self, x):
        return self.head(self.stem(x)).flatten(1)


class VisionResNet(nn.Module):
    """As torchvision's ResNet: `avgpool`, `torch.flatten`, `fc`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.relu(self.bn1(self.conv1(x)))), 1))


class VisionVgg(VisionResNet):
    """As torchvision's VGG: three linear layers under `classifier`."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Linear(8, 10), nn.ReLU(True), nn.Dropout(), nn.Linear(10, 7), nn.ReLU(True), nn.Linear(7, 5)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.relu(self.conv1(x))), 1))


class VisionDenseNet(VisionResNet):
    """As torchvision's DenseNet: functional ReLU and pooling before `classifier`."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 5)

    def forward(self, x):
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(out, (1, 1)), 1))


Outputs = namedtuple("InceptionOutputs", ["logits", "aux_logits"])


class VisionInception(VisionResNet):
    """As torchvision's Inception: a named tuple of logits and those of an auxiliary head."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(8, 5)

    def forward(self, x):
        rows = torch.flatten(self.avgpool(self.conv1(x)), 1)
        return Outputs(self.fc(rows), self.aux(rows))


class VisionSqueezeNet(VisionResNet):
    """As torchvision's SqueezeNet: a ReLU follows the 1×1 convolution, so the end is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x):
        return torch.flatten(self.classifier(self.conv1(x)), 1)


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        (TimmTransformer, 12),
        (TimmHead, 8),
        (VisionResNet, 8),
        (VisionVgg, 7),
        (VisionDenseNet, 8),
        (VisionInception, 8),
    ],
)
def test_a_classifier_is_tapped_before_its_head(kind, width):
    torch.manual_seed(0)
    model = kind().eval()
    acts = Network(model)(X)
    with torch.no_grad():
        answer = model(X)
    logits = answer.logits if hasattr(answer, "logits") else answer
    assert acts.features.shape == (12, width)
    np.testing.assert_allclose(acts.logits, logits, atol=1e-5)
    np.testing.assert_allclose(acts.head(acts.features), logits, atol=1e-4)


def test_an_end_that_is_not_linear_says_where_to_tap():
    model = VisionSqueezeNet().eval()
    with pytest.raises(InputError, match=r"classifier"):
        Network(model)(X)
    assert Network(model, layer="conv1")(X).features.shape == (12, 8)


@pytest.fixture(scope="module")
def adapters():
    spec = importlib.util.spec_from_file_location("box_adapters", ADAPTERS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TwoStage(nn.Module):
    """The parts of torchvision's `FasterRCNN` that an adapter meets: it enlarges images, boxes come back in pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 4, 1)
        predictor = nn.Module()
        predictor.cls_score = nn.Linear(6, 3)
        self.roi_heads = nn.Module()
        self.roi_heads.box_head = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU())
        self.roi_heads.box_predictor = predictor
        self.roi_heads.box_roi_pool = self.pool

    def pool(self, maps, boxes, sizes):
        """Mean of the map inside each box, boxes in the pixels of the enlarged images."""
        rows = []
        for number, corners in enumerate(boxes):
            assert (corners <= max(sizes[number])).all()
            for left, top, right, bottom in corners.long().tolist():
                rows.append(maps["0"][number, :, top:bottom, left:right].mean((1, 2)))
        return torch.stack(rows)

    def transform(self, images):
        large = torch.stack([functional.interpolate(image[None], scale_factor=2)[0] for image in images])
        return SimpleNamespace(tensors=large, image_sizes=[tuple(image.shape[-2:]) for image in large]), None

    def forward(self, images):
        corners = torch.tensor([[0.0, 0, 8, 8], [8, 8, 16, 16]])
        return [{"boxes": corners, "labels": torch.ones(2), "scores": torch.ones(2)} for _ in images]


class Detect(nn.Module):
    """The last module of Ultralytics' YOLO: per level a branch for classes that ends in a 1×1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.cv3 = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 6, 1), nn.SiLU(), nn.Conv2d(6, 3, 1)) for _ in range(2))

    def forward(self, maps):
        found = [branch(one) for branch, one in zip(self.cv3, maps, strict=True)]
        places = []
        for one in found:
            size = one.shape[-1]
            step = 16 / size
            middle = (torch.arange(size) + 0.5) * step
            grid = torch.stack(torch.meshgrid(middle, middle, indexing="xy")).flatten(1)
            places.append(torch.cat([grid, torch.full_like(grid, step)]).expand(len(one), -1, -1))
        scores = torch.cat([one.flatten(2) for one in found], 2).sigmoid()
        return torch.cat([torch.cat(places, 2), scores], dim=1), found


class YoloNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleList([nn.Identity(), Detect()])

    def forward(self, x):
        return self.model[-1]([functional.avg_pool2d(x, 4), functional.avg_pool2d(x, 8)])


def batches(count: int):
    corners = np.array([[0, 0, 8, 8], [8, 8, 16, 16]], np.float32)
    images = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
    return [(images, [(corners, np.array([0, 1]))] * count)]


def test_a_two_stage_detector_of_torchvision(adapters):
    torch.manual_seed(0)
    model = adapters.FasterRcnn(TwoStage())
    guarded = offmap.boxes(model, batches(30), held_out=batches(25), head=model.head, detector="maxlogit + knn(3)")
    judged = guarded(X[:4])
    assert [len(one.corners) for one in judged] == [2, 2, 2, 2]
    np.testing.assert_allclose(
        judged[0].logits, model.head(torch.as_tensor(judged[0].features)).detach().numpy(), atol=1e-5
    )


@torch.no_grad()
def test_no_box_of_torchvision_is_of_the_background_however_likely_that_is(adapters):
    torch.manual_seed(0)
    detector = TwoStage()
    detector.roi_heads.box_predictor.cls_score.bias[0] += 100
    entry = adapters.FasterRcnn(detector)(X[:1])[0]
    own = detector.roi_heads.box_predictor.cls_score(entry["features"])
    assert own.argmax(dim=1).tolist() == [0, 0]
    torch.testing.assert_close(entry["logits"], own[:, 1:])
    from_one = [(images, [(corners, labels + 1) for corners, labels in targets]) for images, targets in batches(30)]
    with pytest.raises(offmap.errors.InputError, match=r"labels 1 to 2, but .* 2 logits are 0 to 1; .* less one"):
        offmap.boxes(adapters.FasterRcnn(detector), from_one, held_out=batches(25), detector="knn(3)")


@torch.no_grad()
def test_a_yolo_of_ultralytics(adapters):
    torch.manual_seed(0)
    model = adapters.Yolo(YoloNet(), confidence=0.0)
    entries = model(X[:2])
    assert [len(entry["boxes"]) for entry in entries] == [20, 20], "16 cells and 4 larger ones"
    boxes = entries[0]["boxes"]
    large = int((boxes[:, 2] - boxes[:, 0]).argmax())
    last = model.model.model[-1].cv3[1][-1]
    expected = last.weight[:, :, 0, 0] @ entries[0]["features"][large] + last.bias
    torch.testing.assert_close(entries[0]["logits"][large], expected)
    model.overlap = 0.1
    assert len(model(X[:2])[0]["boxes"]) < 20, "a small cell lies inside a large one"
    guarded = offmap.boxes(model, batches(30), held_out=batches(25), detector="mahalanobis")
    assert len(guarded(X[:2])) == 2
