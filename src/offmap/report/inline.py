"""Parts written into a page itself: text as safe HTML, pictures as data."""

from __future__ import annotations

import base64
import html
import io
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.errors import DependencyError, InputError

_SPANS = (
    (re.compile(r"\*\*(\S(?:.*?\S)?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"\*(\S(?:.*?\S)?)\*"), r"<em>\1</em>"),
)


def markup(text: str) -> Any:
    r"""Convert paragraphs, lists and three kinds of emphasis to HTML, everything else escaped.

    Parameters
    ----------
    text : str
        With ``**bold**``, ``*emphasis*`` and `` `code` ``.

    Returns
    -------
    markupsafe.Markup
        Safe HTML.

    Examples
    --------
    >>> str(markup("a & `b*c*`"))
    '<p>a &amp; <code>b*c*</code></p>'
    >>> str(markup("- one\n- **two**"))
    '<ul><li>one</li><li><strong>two</strong></li></ul>'
    """
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return trusted("\n".join(_paragraph(part) for part in paragraphs if part.strip()))


def trusted(text: str) -> Any:
    """Mark text as HTML that may stand in a page: written by offmap, with everything from outside escaped.

    Examples
    --------
    >>> trusted("<p>one</p>")
    Markup('<p>one</p>')
    """
    try:
        from markupsafe import Markup
    except ImportError as error:
        raise DependencyError("a report needs jinja2, which is not installed: pip install 'offmap[report]'") from error
    return Markup(text)


def _paragraph(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines()]
    if all(line.startswith("- ") for line in lines):
        return "<ul>" + "".join(f"<li>{_spans(line[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{_spans(' '.join(lines))}</p>"


def _spans(text: str) -> str:
    pieces = html.escape(text).split("`")
    if len(pieces) % 2 == 0:  # an unpaired backtick is just a backtick
        pieces[-2:] = ["`".join(pieces[-2:])]
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = f"<code>{piece}</code>"
            continue
        for pattern, replacement in _SPANS:
            piece = pattern.sub(replacement, piece)
        pieces[i] = piece
    return "".join(pieces)


def picture(image: npt.NDArray[Any]) -> str:
    """Encode an image as the address of a PNG inside the page.

    Parameters
    ----------
    image : ndarray of uint8
        Height × width, or height × width × 3.

    Returns
    -------
    str
        A ``data:`` address.

    Examples
    --------
    >>> picture(np.zeros((2, 2, 3), np.uint8))[:22]
    'data:image/png;base64,'
    """
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not fits or 0 in array.shape:
        raise InputError(
            f"picture of shape {array.shape} and type {array.dtype}: uint8 values of height × width "
            "(× 1, 3 or 4) are needed; scale to 0…255 first"
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise DependencyError(
            "pictures in a report need pillow, which is not installed: pip install 'offmap[data]'"
        ) from error
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
