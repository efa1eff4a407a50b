"""Put what a guarded object detector does not know into the store of unknown inputs, cut out of its image."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.errors import DependencyError, InputError
from offmap.openworld import BoxGuard
from offmap.service.unknown_inputs import UnknownInput, new_ids
from offmap.service.unknowns import UnknownStore
from offmap.typing import Array

MARGIN = 0.15  # of a box's size that is kept around it


def store_unknown_boxes(
    store: UnknownStore,
    guarded: BoxGuard,
    images: Any,
    references: Sequence[str] | None = None,
    margin: float = MARGIN,
) -> int:
    """Judge the boxes of some images and store the unknown ones: the crop as PNG, its features and its verdict.

    Grouping on the triage page, names and learning then work on crops as they do on whole inputs.

    Parameters
    ----------
    store : UnknownStore
        From `offmap.service.open_unknown_store`.
    guarded : BoxGuard
        From `offmap.boxes`.
    images : array or Tensor of shape (n, 1 or 3, height, width)
        With values in [0, 1], or uint8.
    references : sequence of str, optional
        What each image is called; stored beside the corners of the box.
    margin : float, default 0.15
        How much of the surroundings is cut out too, in sizes of the box.

    Returns
    -------
    int
        How many boxes were stored.
    """
    pictures = _pictures(images)
    names = [f"image {i}" for i in range(len(pictures))] if references is None else list(references)
    if len(names) != len(pictures):
        raise InputError(f"{len(names)} references for {len(pictures)} images; give one each")
    deployment, now = guarded.deployment, time.time()
    items = []
    for picture, name, found in zip(pictures, names, guarded(images), strict=True):
        unknown = np.flatnonzero(~found.verdicts.known)
        for row, id in zip(unknown.tolist(), new_ids(len(unknown)), strict=True):
            verdict = found.verdicts[row]
            crop = crop_box(picture, found.corners[row], margin)
            if crop.size == 0:
                continue
            items.append(
                UnknownInput(
                    id,
                    now,
                    verdict.score,
                    verdict.p_value,
                    deployment.class_name(verdict.predicted),
                    deployment.version,
                    found.features[row],
                    _png(crop),
                    "image/png",
                    f"{name}, box {', '.join(f'{x:.0f}' for x in found.corners[row])}",
                )
            )
    if items:
        store.add(items)
    return len(items)


def crop_box(picture: Array, corners: Array, margin: float = MARGIN) -> Array:
    """Cut a box with some surroundings out of a picture.

    Parameters
    ----------
    picture : ndarray of shape (height, width, ...)
        The picture.
    corners : ndarray of shape (4,)
        x1, y1, x2, y2 in pixels; what lies outside of the picture is left out.
    margin : float, default 0.15
        In sizes of the box.

    Examples
    --------
    >>> crop_box(np.zeros((20, 30), np.uint8), np.array([10.0, -5.0, 20.0, 10.0]), margin=0.1).shape
    (12, 12)
    """
    x1, y1, x2, y2 = (float(x) for x in corners)
    wide, high = margin * (x2 - x1), margin * (y2 - y1)
    left, top = max(int(np.floor(x1 - wide)), 0), max(int(np.floor(y1 - high)), 0)
    return picture[top : max(int(np.ceil(y2 + high)), 0), left : max(int(np.ceil(x2 + wide)), 0)]


def _pictures(images: Any) -> Array:
    """Images as uint8 with channels last, one channel left out."""
    array = np.asarray(images.detach().cpu() if hasattr(images, "detach") else images)
    if array.ndim != 4 or array.shape[1] not in (1, 3):
        raise InputError(f"images of shape {array.shape}: n × 1 or 3 × height × width is needed to cut boxes out")
    if array.dtype != np.uint8:
        low, high = float(array.min(initial=0)), float(array.max(initial=1))
        array = (255 * (array - low) / (high - low)).astype(np.uint8)
    last = np.moveaxis(array, 1, -1)
    return last[..., 0] if last.shape[-1] == 1 else last


def _png(crop: Array) -> bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise DependencyError("storing crops needs pillow: pip install 'offmap[data]'") from error
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(crop)).save(out, "PNG")
    return out.getvalue()
