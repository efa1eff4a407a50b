"""Generated scenes of real handwritten digits and a small detector trained on them, to show `offmap.boxes`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offmap.errors import InputError
from offmap.typing import Array

SIDE, STRIDE = 64, 8  # pixels of a scene, and of a cell of the detector's grid
SIZES = (14, 22)  # pixels of a digit, drawn between these
APART = 2  # pixels between two digits
FOUND = 0.5  # objectness from which a cell holds an object
SAME = 0.3  # overlap from which two boxes show the same object


@dataclass(frozen=True)
class Scenes:
    """Pictures with several digits each: the scenes are generated, the digits are real.

    Parameters
    ----------
    images : ndarray of float32 of shape (n, 1, 64, 64)
        Between 0 and 1.
    targets : list of (ndarray, ndarray)
        Per image: corners x1, y1, x2, y2 of every digit, and which digit it is.
    """

    images: Array
    targets: list[tuple[Array, Array]]

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int = 32) -> list[tuple[Array, list[tuple[Array, Array]]]]:
        """Cut into batches of images and targets, as `offmap.boxes` reads them."""
        return [(self.images[i : i + size], self.targets[i : i + size]) for i in range(0, len(self), size)]


def make_scenes(n: int, digits: Sequence[int], part: str = "train", most: int = 4, seed: int = 0) -> Scenes:
    """Paste scikit-learn's handwritten digits into noisy pictures, without overlap.

    Parameters
    ----------
    n : int
        How many scenes.
    digits : sequence of int
        Which digits occur.
    part : {"train", "held-out", "test"}, default "train"
        Every digit that was written goes to one of three parts, so that no part shows one of another.
    most : int, default 4
        Digits in one scene at most; at least one.
    seed : int, default 0
        The same seed gives the same scenes.

    Examples
    --------
    >>> scenes = make_scenes(3, [0, 1])
    >>> scenes.images.shape, scenes.targets[0][0].shape[1]
    ((3, 1, 64, 64), 4)
    """
    from sklearn.datasets import load_digits

    parts = {"train": (0, 1, 2), "held-out": (3,), "test": (4,)}
    if part not in parts:
        raise InputError(f"part={part!r}: give one of {', '.join(parts)}")
    written = load_digits()
    mine = np.isin(np.arange(len(written.target)) % 5, parts[part]) & np.isin(written.target, digits)
    rows = np.flatnonzero(mine)
    rng = np.random.default_rng([seed, sorted(parts).index(part)])
    images = (0.08 * rng.random((n, 1, SIDE, SIDE))).astype(np.float32)
    targets = []
    for image in images:
        corners: list[tuple[int, int, int, int]] = []
        labels: list[int] = []
        for _ in range(rng.integers(1, most + 1)):
            place = _free_place(corners, rng)
            if place is None:
                continue
            row = int(rng.choice(rows))
            x1, y1, x2, y2 = place
            image[0, y1:y2, x1:x2] += _resized(written.images[row] / 16, x2 - x1)
            corners.append(place)
            labels.append(int(written.target[row]))
        targets.append((np.array(corners, np.float32).reshape(-1, 4), np.array(labels, np.int64)))
    return Scenes(images.clip(0, 1), targets)


def _free_place(taken: list[tuple[int, int, int, int]], rng: np.random.Generator) -> tuple[int, int, int, int] | None:
    for _ in range(30):
        size = int(rng.integers(*SIZES))
        x, y = (int(rng.integers(0, SIDE - size)) for _ in range(2))
        box = (x, y, x + size, y + size)
        if all(
            box[0] >= other[2] + APART or other[0] >= box[2] + APART or box[1] >= other[3] + APART
            or other[1] >= box[3] + APART
            for other in taken
        ):  # fmt: skip
            return box
    return None


def _resized(digit: Array, size: int) -> Array:
    picture = torch.from_numpy(digit.astype(np.float32))[None, None]
    return F.interpolate(picture, size=(size, size), mode="bilinear", align_corners=False)[0, 0].numpy()


class SceneDetector(nn.Module):
    """A small detector with one guess per cell of a grid: objectness, corners, features and class logits.

    Objectness does not know of classes, so that it also finds objects of classes that it was not taught.

    Parameters
    ----------
    n_classes : int
        Known classes.
    width : int, default 48
        Features of a box.
    """

    def __init__(self, n_classes: int, width: int = 48) -> None:
        super().__init__()
        widths = (1, 16, 32, width, width)
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if i < 3 else []
        self.backbone = nn.Sequential(*layers)
        self.place = nn.Conv2d(width, 5, 1)  # objectness, then centre and logarithm of the size in cells
        self.head = nn.Linear(width, n_classes)

    def cells(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and places of every cell: n × cells × width, n × cells × 5."""
        maps = self.backbone(images)
        return maps.flatten(2).transpose(1, 2), self.place(maps).flatten(2).transpose(1, 2)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Return per image the boxes found, their class logits and their features."""
        features, places = self.cells(images)
        found = []
        for rows, place in zip(features, places, strict=True):
            objectness = place[:, 0].sigmoid()
            order = torch.argsort(objectness, descending=True)
            order = order[objectness[order] > FOUND]
            corners = _corners(place, order)
            kept = _keep_apart(corners)
            chosen = rows[order[kept]]
            found.append({"boxes": corners[kept], "logits": self.head(chosen), "features": chosen})
        return found


def _corners(place: Tensor, cells: Tensor) -> Tensor:
    across = SIDE // STRIDE
    x = (cells % across + place[cells, 1].sigmoid()) * STRIDE
    y = (cells // across + place[cells, 2].sigmoid()) * STRIDE
    half = place[cells, 3:].clamp(-3, 3).exp() * STRIDE / 2
    return torch.stack([x - half[:, 0], y - half[:, 1], x + half[:, 0], y + half[:, 1]], dim=1)


def _keep_apart(corners: Tensor) -> Tensor:
    """Greedy suppression: of boxes that overlap, the first stays."""
    from offmap.metrics.boxes import overlaps

    shared = torch.from_numpy(overlaps(corners.detach().numpy(), corners.detach().numpy())) > SAME
    kept: list[int] = []
    for i in range(len(corners)):
        if not any(bool(shared[i, j]) for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long)


def train_scene_detector(
    scenes: Scenes, n_classes: int, steps: int = 200, batch: int = 32, seed: int = 0
) -> SceneDetector:
    """Train a detector on scenes whose digits are 0 to `n_classes` - 1.

    Parameters
    ----------
    scenes : Scenes
        From `make_scenes`.
    n_classes : int
        Known classes.
    steps, batch : int, default 200 and 32
        How many batches of how many scenes.
    seed : int, default 0
        Of the weights and the order of the scenes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SceneDetector(n_classes)
    images, (holds, places, labels) = torch.from_numpy(scenes.images), _cell_targets(scenes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = torch.from_numpy(rng.integers(0, len(images), batch))
        features, guessed = model.cells(images[rows])
        there = holds[rows]
        loss = F.binary_cross_entropy_with_logits(guessed[..., 0], there.float(), pos_weight=torch.tensor(4.0))
        centre = (guessed[there][:, 1:3].sigmoid() - places[rows][there][:, :2]).abs().mean()
        size = (guessed[there][:, 3:] - places[rows][there][:, 2:]).abs().mean()
        kind = F.cross_entropy(model.head(features[there]), labels[rows][there])
        optimizer.zero_grad()
        (loss + centre + size + kind).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        plan.step()
    return model.eval()


def _cell_targets(scenes: Scenes) -> tuple[Tensor, Tensor, Tensor]:
    """For every cell: whether a digit's centre is in it, where and how large it is, and which digit."""
    across = SIDE // STRIDE
    holds = torch.zeros(len(scenes), across * across, dtype=torch.bool)
    places = torch.zeros(len(scenes), across * across, 4)
    labels = torch.zeros(len(scenes), across * across, dtype=torch.long)
    for i, (corners, digits) in enumerate(scenes.targets):
        for (x1, y1, x2, y2), digit in zip(corners.tolist(), digits.tolist(), strict=True):
            x, y = (x1 + x2) / 2 / STRIDE, (y1 + y2) / 2 / STRIDE
            cell = int(y) * across + int(x)
            holds[i, cell] = True
            wide, high = np.log((x2 - x1) / STRIDE), np.log((y2 - y1) / STRIDE)
            places[i, cell] = torch.tensor([x - int(x), y - int(y), wide, high])
            labels[i, cell] = digit
    return holds, places, labels


def count_found(guarded: Any, scenes: Scenes, known: Sequence[int], overlap: float = 0.5) -> dict[str, float]:
    """Count what a guarded detector does with known and unknown digits of scenes.

    Parameters
    ----------
    guarded : BoxGuard
        From `offmap.boxes`.
    scenes : Scenes
        Of known and unknown digits.
    known : sequence of int
        The digits that were taught.
    overlap : float, default 0.5
        Intersection over union from which a box shows an object.

    Returns
    -------
    dict of str to float
        ``known_boxed`` and ``unknown_boxed``: the share of digits on which there is a box; ``known_flagged`` and
        ``unknown_flagged``: of these boxes, the share called unknown; ``known_right``: of the boxes of known digits,
        the share that has the right class and is called known.
    """
    from offmap.metrics.boxes import match_boxes

    counts = dict.fromkeys(("known", "unknown", "known_boxed", "unknown_boxed"), 0)
    flagged, right = {"known": 0, "unknown": 0}, 0
    for images, targets in scenes.batches():
        for found, (corners, digits) in zip(guarded(images), targets, strict=True):
            matched = match_boxes(found.corners, corners, overlap)
            for digit in digits.tolist():
                counts["known" if digit in known else "unknown"] += 1
            for box, target in enumerate(matched.tolist()):
                if target < 0:
                    continue
                kind = "known" if int(digits[target]) in known else "unknown"
                counts[f"{kind}_boxed"] += 1
                verdict = found.verdicts[box]
                flagged[kind] += not verdict.known
                right += verdict.known and verdict.predicted == int(digits[target])
    shares = {f"{kind}_boxed": counts[f"{kind}_boxed"] / max(counts[kind], 1) for kind in flagged}
    shares |= {f"{kind}_flagged": flagged[kind] / max(counts[f"{kind}_boxed"], 1) for kind in flagged}
    return shares | {"known_right": right / max(counts["known_boxed"], 1)}
