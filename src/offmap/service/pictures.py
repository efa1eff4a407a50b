"""Pictures from strangers, decoded within limits: few formats, sizes looked at before any pixel is made."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.data import scaled
from offmap.errors import DependencyError, InputError
from offmap.service.request_errors import RequestError, one_sentence
from offmap.service.settings import Settings

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/bmp": "BMP"}


def decode_pictures(contents: Sequence[bytes], settings: Settings) -> tuple[npt.NDArray[np.float32], str]:
    """Pictures as the network takes them, and their type; refused when any is damaged, too large or of another size.

    Examples
    --------
    >>> from PIL import Image
    >>> out = io.BytesIO()
    >>> Image.new("RGB", (8, 8), "red").save(out, "PNG")
    >>> rows, kind = decode_pictures([out.getvalue()], Settings())
    >>> rows.shape, kind
    ((1, 3, 8, 8), 'image/png')
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DependencyError("reading pictures needs pillow: pip install 'offmap[data]'") from error
    made: list[npt.NDArray[Any]] = []
    kinds: set[str] = set()
    pixels = 0
    for row, content in enumerate(contents):
        too_many = RequestError(413, f"picture {row}: more than {settings.max_pixels:,} pixels in one request")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
                with Image.open(io.BytesIO(content), formats=tuple(FORMATS.values())) as opened:
                    pixels += opened.width * opened.height
                    if pixels > settings.max_pixels:
                        raise too_many
                    kinds.add(str(opened.format))
                    upright = ImageOps.exif_transpose(opened).convert("L" if settings.gray else "RGB")
            if settings.image_size is not None:
                side = settings.image_size
                upright = ImageOps.fit(upright, (side, side), Image.Resampling.BILINEAR)
        except RequestError:
            raise
        except Image.DecompressionBombError as error:
            raise too_many from error
        except Exception as error:  # decoders raise all kinds of errors about damaged files
            raise InputError(
                f"picture {row}: not a readable {', '.join(FORMATS.values())} file ({one_sentence(error)[:200]})"
            ) from error
        array = np.asarray(upright)
        made.append(array[..., None] if array.ndim == 2 else array)
        if made[-1].shape != made[0].shape:
            raise InputError(
                f"picture {row}: {made[-1].shape[1]}×{made[-1].shape[0]} pixels, the first has "
                f"{made[0].shape[1]}×{made[0].shape[0]}; send one size, or start the service with --image-size"
            )
    names = {name: kind for kind, name in FORMATS.items()}
    kind = names[kinds.pop()] if len(kinds) == 1 else "application/octet-stream"
    return scaled(np.stack(made), settings.mean, settings.std), kind
