"""`offmap.boxes`: a guard for every box of an object detector."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offmap.activations import Activations, Head, as_array
from offmap.detection import Detector, Verdicts
from offmap.detection import detector as make_detector
from offmap.errors import InputError
from offmap.metrics.boxes import match_boxes
from offmap.openworld.deployment import Deployment
from offmap.typing import Array

BoxModel = Callable[[Any], Sequence[Any]]
PARTS = ("boxes", "logits", "features")
FEWEST = 20  # boxes that a guard is fitted or calibrated on


@dataclass(frozen=True)
class Boxes:
    """The boxes that a detector found in one image.

    Parameters
    ----------
    corners : ndarray of shape (k, 4)
        x1, y1, x2, y2 in pixels.
    logits : ndarray of shape (k, classes)
        Class logits.
    features : ndarray of shape (k, width)
        What goes into the last layer for each box.
    """

    corners: Array
    logits: Array
    features: Array

    def __len__(self) -> int:
        return len(self.corners)


@dataclass(frozen=True)
class JudgedBoxes(Boxes):
    """The boxes of one image with a verdict on each.

    Parameters
    ----------
    verdicts : Verdicts
        One per box; see `Boxes` for the other parts.
    """

    verdicts: Verdicts

    def to_json(self, class_names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """One dictionary per box: corners, class, known, p_value, score."""
        columns = self.verdicts.columns(class_names)
        return [
            {"box": [float(x) for x in box], **{name: column[i].item() for name, column in columns.items()}}
            for i, box in enumerate(self.corners)
        ]


@dataclass(frozen=True)
class BoxGuard:
    """A detector of boxes whose every box is called known or unknown; `boxes` makes it.

    Parameters
    ----------
    model : callable
        As `boxes` takes it.
    deployment : Deployment
        The calibrated detector over the features of boxes. It can be saved and served by itself: the service then takes
        features of boxes.
    """

    model: BoxModel
    deployment: Deployment

    def __call__(self, images: Any) -> list[JudgedBoxes]:
        """Find the boxes of a batch of images and judge each of them."""
        found = find_boxes(self.model, images)
        judged = []
        for one in found:
            if len(one):
                verdicts = self.deployment.judge(Activations(one.features, self.deployment.head, one.logits))
            else:
                verdicts = Verdicts(np.zeros(0), np.zeros(0), np.zeros(0, bool), np.zeros(0, np.int64))
            judged.append(JudgedBoxes(one.corners, one.logits, one.features, verdicts))
        return judged

    def predict(self, images: Any) -> list[Array]:
        """Return per image the class number of each box, -1 where it is unknown."""
        return [np.where(found.verdicts.known, found.logits.argmax(axis=1), -1) for found in self(images)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the guard, without the model, into one file."""
        self.deployment.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: BoxModel) -> BoxGuard:
        """Read a guard back, for the model that it was made with."""
        return cls(model, Deployment.load(path))


def boxes(
    model: BoxModel,
    known: Iterable[Any],
    *,
    held_out: Iterable[Any],
    head: Any = None,
    detector: str | Detector = "auto",
    tpr: float = 0.95,
    class_names: Sequence[str] | None = None,
    overlap: float = 0.5,
) -> BoxGuard:
    """Make a guard for the boxes of an object detector.

    Boxes that overlap a labelled object are known ones; the guard is fitted on those of `known` and calibrated on those
    of `held_out`. Of boxes on known objects at most ``1 - tpr`` are then called unknown on average. The guard judges
    the boxes that the detector proposes: an object that gets no box is not seen.

    Parameters
    ----------
    model : callable
        Images in; boxes, class logits and features out. It is called with a batch of images as a tensor, and returns
        one entry per image: a mapping with ``boxes`` (k × 4 corners in pixels), ``logits`` (k × classes) and
        ``features`` (k × width), or a tuple of the three in that order.
    known : iterable of (images, targets)
        Batches of images of known classes, as arrays or tensors; a target per image, which is its true boxes (m × 4)
        and their class numbers (m), as a tuple or a mapping with ``boxes`` and ``labels``.
    held_out : iterable of (images, targets)
        The same for images that the detector was not trained on.
    head : nn.Linear or Head, optional
        The last layer, where the logits are a linear function of the features: methods that change features need it.
    detector : str or Detector, default "auto"
        What judges the boxes.
    tpr : float, default 0.95
        The share of boxes on known objects to accept.
    class_names : sequence of str, optional
        One per class.
    overlap : float, default 0.5
        Intersection over union from which a box shows an object.

    Returns
    -------
    BoxGuard
        Call it with images.

    Raises
    ------
    InputError
        If the model or the targets do not follow the protocol, or too few boxes match.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> corners = np.array([[0, 0, 8, 8], [8, 8, 16, 16]], np.float32)
    >>> def model(images):
    ...     rows = [image[0, ::8, ::8].diagonal()[:, None] + torch.tensor([[0.0, 1.0]]) for image in images]
    ...     return [{"boxes": corners, "logits": 9 * row, "features": row} for row in rows]
    >>> def batch(low, high):
    ...     images = rng.uniform(low, high, (40, 1, 16, 16)).astype(np.float32)
    ...     return images, [(corners, np.array([1, 1]))] * 40
    >>> guarded = boxes(model, [batch(0, 1)], held_out=[batch(0, 1)], detector="mahalanobis")
    >>> guarded.predict(batch(8, 9)[0])[0]
    array([-1, -1])
    """
    last = _as_head(head)
    made = make_detector(detector) if isinstance(detector, str) else detector
    made.fit(read_known_boxes(model, known, last, overlap, "known"))
    made.calibrate(read_known_boxes(model, held_out, last, overlap, "held_out"), tpr=tpr)
    return BoxGuard(model, Deployment(made, class_names=class_names))


def find_boxes(model: BoxModel, images: Any) -> list[Boxes]:
    """Run a model of the protocol over a batch of images, and check what it answers.

    Parameters
    ----------
    model : callable
        As `boxes` takes it.
    images : array or Tensor of shape (n, channels, height, width)
        A batch.

    Returns
    -------
    list of Boxes
        One per image.
    """
    batch = images if isinstance(images, torch.Tensor) else torch.as_tensor(np.asarray(images))
    with torch.no_grad():
        answered = model(batch)
    if not isinstance(answered, Sequence) or len(answered) != len(batch):
        raise InputError(
            f"the model answers {type(answered).__name__} for {len(batch)} images; a list with one entry per image is "
            "needed, each with boxes, logits and features"
        )
    return [_read_entry(entry, number) for number, entry in enumerate(answered)]


def read_known_boxes(
    model: BoxModel, batches: Iterable[Any], head: Head | None, overlap: float, name: str
) -> Activations:
    """Run a model over labelled images and keep the boxes that show a labelled object.

    Parameters
    ----------
    model, batches, head, overlap
        As `boxes` takes them.
    name : str
        What the batches are called, for messages.

    Returns
    -------
    Activations
        One row per box kept, labelled with the class of its object.
    """
    kept: list[tuple[Array, Array, Array]] = []
    objects = 0
    for found, corners, labels in _with_targets(model, batches, name):
        objects += len(labels)
        matched = match_boxes(found.corners, corners, overlap)
        rows = np.flatnonzero(matched >= 0)
        kept.append((found.features[rows], found.logits[rows], labels[matched[rows]]))
    features, logits, labels = (np.concatenate(part) for part in zip(*kept, strict=True)) if kept else [np.zeros(0)] * 3
    if len(labels) < FEWEST:
        raise InputError(
            f"{name}: {len(labels)} boxes show one of {objects} labelled objects, and at least {FEWEST} are needed; "
            "give more images, check that corners are x1, y1, x2, y2 in pixels, or lower overlap"
        )
    return Activations(features, head, logits, labels)


def _with_targets(model: BoxModel, batches: Iterable[Any], name: str) -> Iterator[tuple[Boxes, Array, Array]]:
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or len(batch[0]) != len(batch[1]):
            raise InputError(f"{name}: batches of (images, targets) are needed, with one target per image")
        for found, target in zip(find_boxes(model, batch[0]), batch[1], strict=True):
            both = (target["boxes"], target["labels"]) if isinstance(target, Mapping) else target
            corners, labels = as_array(both[0], "boxes").reshape(-1, 4), as_array(both[1], "labels").astype(np.int64)
            if len(corners) != len(labels):
                raise InputError(f"{name}: {len(corners)} boxes but {len(labels)} labels of one image; give one each")
            classes = found.logits.shape[1]
            if len(labels) and len(found.logits) and not 0 <= labels.min() <= labels.max() < classes:
                raise InputError(
                    f"{name}: labels {labels.min()} to {labels.max()}, but class numbers of {classes} logits are 0 "
                    f"to {classes - 1}; labels that count from 1 (0 being the background) are given less one"
                )
            yield found, corners, labels


def _read_entry(entry: Any, number: int) -> Boxes:
    if isinstance(entry, Mapping):
        if missing := [part for part in PARTS if part not in entry]:
            raise InputError(
                f"image {number}: the model answers {', '.join(map(str, entry))}, without {missing[0]}; it must give "
                "boxes, logits and features, so let it return what goes into its last layer too"
            )
        entry = [entry[part] for part in PARTS]
    if not isinstance(entry, tuple | list) or len(entry) != 3:
        raise InputError(f"image {number}: boxes, logits and features are needed, not {type(entry).__name__}")
    corners, logits, features = (as_array(part, name) for part, name in zip(entry, PARTS, strict=True))
    if corners.shape != (len(corners), 4) or logits.ndim != 2 or features.ndim != 2:
        raise InputError(
            f"image {number}: boxes of shape {corners.shape}, logits of {logits.shape}, features of {features.shape}; "
            "k × 4, k × classes and k × width are needed"
        )
    for part, name in ((corners, "boxes"), (logits, "logits"), (features, "features")):
        if not np.isfinite(part).all():
            raise InputError(f"image {number}: {name} hold NaN or infinity; only finite numbers are judged")
    if not len(corners) == len(logits) == len(features):
        raise InputError(f"image {number}: {len(corners)} boxes, {len(logits)} logits, {len(features)} features")
    return Boxes(corners.astype(np.float32), logits.astype(np.float32), features.astype(np.float32))


def _as_head(given: Any) -> Head | None:
    if given is None or isinstance(given, Head):
        return given
    if not hasattr(given, "weight"):
        raise InputError(f"head={type(given).__name__}: give the last nn.Linear, or offmap.Head(weight, bias)")
    return Head(given.weight, getattr(given, "bias", None))
