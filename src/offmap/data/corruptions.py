"""Corrupted pictures: what a camera or a file does to a known input, at five strengths (a covariate shift)."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np

from offmap.errors import InputError
from offmap.registry import Registry
from offmap.typing import Array

STRENGTHS = 5
CORRUPTIONS: Registry[Callable[[Array, float, np.random.Generator], Array]] = Registry("corruption")
# from weakest to strongest, in the order of magnitude of Hendrycks & Dietterich, ICLR 2019
LEVELS = {
    "blur": (1.0, 2.0, 3.0, 4.0, 6.0),  # standard deviation in pixels of a picture with 224
    "noise": (0.08, 0.12, 0.18, 0.26, 0.38),  # standard deviation, white being 1
    "jpeg": (25.0, 18.0, 15.0, 10.0, 7.0),  # quality
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # added, white being 1
}


def corrupt(images: Array, kind: str, strength: int, seed: int = 0) -> Array:
    """Corrupt pictures.

    Parameters
    ----------
    images : ndarray of uint8 of shape (n, height, width, channels)
        The pictures.
    kind : {"blur", "noise", "jpeg", "brightness"}
        What happens to them.
    strength : int
        From 1 to 5.
    seed : int, default=0
        Seed of the noise; picture i has its own, so that a part of a set is corrupted as in the whole.

    Returns
    -------
    ndarray of uint8
        Of the same shape.

    Examples
    --------
    >>> grey = np.full((1, 8, 8, 3), 100, np.uint8)
    >>> corrupt(grey, "brightness", 1)[0, 0, 0].tolist()
    [125, 125, 125]
    """
    change = CORRUPTIONS.get(kind)
    if isinstance(strength, bool) or strength not in range(1, STRENGTHS + 1):
        raise InputError(f"strength={strength!r}: corruptions have strengths from 1 to {STRENGTHS}")
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"images of shape {images.shape}, type {images.dtype}: uint8 pictures are needed")
    amount = LEVELS[kind][strength - 1]
    made = [change(image, amount, np.random.default_rng([seed, place])) for place, image in enumerate(images)]
    return np.stack(made) if made else images.copy()


@CORRUPTIONS.register("blur")
def _blur(image: Array, amount: float, rng: np.random.Generator) -> Array:
    """Blur by a Gaussian, as wide relative to the picture as at 224 pixels."""
    from scipy.ndimage import gaussian_filter

    sigma = amount * min(image.shape[:2]) / 224
    blurred = gaussian_filter(image.astype(np.float32), (sigma, sigma, 0), mode="nearest")
    return _pixels(blurred)


@CORRUPTIONS.register("noise")
def _noise(image: Array, amount: float, rng: np.random.Generator) -> Array:
    """Add Gaussian noise to every value."""
    return _pixels(image + 255 * amount * rng.standard_normal(image.shape, dtype=np.float32))


@CORRUPTIONS.register("jpeg")
def _jpeg(image: Array, amount: float, rng: np.random.Generator) -> Array:
    """Compress as JPEG and decode again."""
    from PIL import Image

    grey = image.shape[-1] == 1
    held = io.BytesIO()
    Image.fromarray(image[..., 0] if grey else image).save(held, "JPEG", quality=int(amount))
    decoded = np.asarray(Image.open(held))
    return decoded[..., None] if grey else decoded


@CORRUPTIONS.register("brightness")
def _brightness(image: Array, amount: float, rng: np.random.Generator) -> Array:
    """Add the same to every value."""
    return _pixels(image.astype(np.float32) + 255 * amount)


def _pixels(values: Array) -> Array:
    return np.clip(values, 0, 255).astype(np.uint8)
