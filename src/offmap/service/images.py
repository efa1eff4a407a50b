"""Decode images from clients within limits: few formats, sizes checked before any pixel is decoded."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.data import scale_images
from offmap.errors import DependencyError, InputError
from offmap.service.request_errors import RequestError, to_sentence
from offmap.service.settings import Settings

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/bmp": "BMP"}
_MEDIA = {name: kind for kind, name in FORMATS.items()} | {"MPO": "image/jpeg"}  # several JPEGs in one, as of phones


def decode_images(
    contents: Sequence[bytes], settings: Settings, reserve: Callable[[int], None] = lambda size: None
) -> tuple[npt.NDArray[np.float32], str]:
    """Decode images into the array that the network reads.

    Parameters
    ----------
    contents : sequence of bytes
        Files in one of `FORMATS`.
    settings : Settings
        The largest number of pixels, and the size, channels, mean and standard deviation of the result.
    reserve : callable, optional
        Called with the number of bytes of the result before anything is decoded; may raise `RequestError`.

    Returns
    -------
    rows : ndarray of shape (n, channels, height, width)
        Scaled images.
    content_type : str
        The media type of the files, ``"application/octet-stream"`` when they differ.

    Raises
    ------
    RequestError
        If the images have too many pixels.
    InputError
        If an image is damaged or has another size than the first.

    Examples
    --------
    >>> from PIL import Image
    >>> out = io.BytesIO()
    >>> Image.new("RGB", (8, 8), "red").save(out, "PNG")
    >>> rows, kind = decode_images([out.getvalue()], Settings())
    >>> rows.shape, kind
    ((1, 3, 8, 8), 'image/png')
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DependencyError("reading images needs pillow: pip install 'offmap[data]'") from error
    content_type = _check_headers(contents, settings, reserve)
    arrays: list[npt.NDArray[Any]] = []
    for row, content in enumerate(contents):
        with _open_image(content, row) as opened:
            upright = ImageOps.exif_transpose(opened).convert("L" if settings.gray else "RGB")
            if settings.image_size is not None:
                side = settings.image_size
                upright = ImageOps.fit(upright, (side, side), Image.Resampling.BILINEAR)
        array = np.asarray(upright)
        arrays.append(array[..., None] if array.ndim == 2 else array)
        if arrays[-1].shape != arrays[0].shape:
            raise InputError(
                f"image {row}: {arrays[-1].shape[1]}×{arrays[-1].shape[0]} pixels, the first has "
                f"{arrays[0].shape[1]}×{arrays[0].shape[0]}; send one size, or start the service with --image-size"
            )
    return scale_images(np.stack(arrays), settings.mean, settings.std), content_type


def _check_headers(contents: Sequence[bytes], settings: Settings, reserve: Callable[[int], None]) -> str:
    """Check sizes by the headers alone, reserve the memory of the decoded images, and return their media type."""
    from PIL import Image

    kinds: set[str] = set()
    pixels, channels, side = 0, 1 if settings.gray else 3, settings.image_size
    for row, content in enumerate(contents):
        too_many = RequestError(413, f"image {row}: more than {settings.max_pixels:,} pixels in one request")
        try:
            with _open_image(content, row) as opened:
                width, height = opened.size
                kinds.add(_MEDIA[str(opened.format)])
        except Image.DecompressionBombError as error:
            raise too_many from error
        pixels += width * height
        if pixels > settings.max_pixels:
            raise too_many
        expected = settings.input_shape
        # an image on its side has the same two lengths
        if side is None and expected is not None and sorted(expected) != sorted((channels, height, width)):
            shape = "×".join(map(str, expected))
            raise InputError(f"image {row}: {width}×{height} pixels; the network takes inputs of shape {shape}")
    decoded = 4 * channels * (pixels if side is None else side * side * len(contents))
    reserve(decoded if side is None else decoded + channels * pixels)
    return kinds.pop() if len(kinds) == 1 else "application/octet-stream"


@contextmanager
def _open_image(content: bytes, row: int) -> Iterator[Any]:
    """Open an image without decoding it; errors about damaged files become one sentence."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            with Image.open(io.BytesIO(content), formats=tuple(FORMATS.values())) as opened:
                yield opened
    except (RequestError, InputError, Image.DecompressionBombError):
        raise
    except MemoryError as error:
        raise RequestError(503, f"image {row}: there is not enough memory to decode it now; try again") from error
    except UnidentifiedImageError as error:  # whose message is the address of our buffer
        raise InputError(f"image {row}: not a {', '.join(FORMATS.values())} file") from error
    except Exception as error:  # decoders raise all kinds of errors about damaged files
        raise InputError(
            f"image {row}: not a readable {', '.join(FORMATS.values())} file ({to_sentence(error)[:200]})"
        ) from error
