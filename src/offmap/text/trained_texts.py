"""Which texts an encoder was fine-tuned on: their digests beside its files, so that no threshold is set on them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from offmap.errors import StoreError

TRAINED_TEXTS = "fine_tuned_on.json"
_BYTES = 8


def digest_text(text: str) -> str:
    """Return a short digest of a text; spaces around it do not count.

    Examples
    --------
    >>> digest_text("lost card") == digest_text(" lost card"), len(digest_text("lost card"))
    (True, 16)
    """
    return hashlib.blake2b(text.strip().encode(), digest_size=_BYTES).hexdigest()


def write_trained_texts(texts: Iterable[str], before: Iterable[str] = ()) -> bytes:
    """Return the content of the file that says which texts an encoder was trained on.

    Parameters
    ----------
    texts : iterable of str
        What it was trained on; digests of them are kept, not the texts.
    before : iterable of str
        Digests of what the encoder was trained on earlier.
    """
    return (json.dumps(sorted({*before, *map(digest_text, texts)}), indent=0) + "\n").encode()


def read_trained_texts(folder: str | os.PathLike[str]) -> frozenset[str]:
    """Return the digests of the texts that the encoder in a folder was trained on; none where it does not say.

    Raises
    ------
    StoreError
        If the file is damaged.
    """
    file = Path(folder) / TRAINED_TEXTS
    if not file.is_file():
        return frozenset()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file}: not JSON; fine-tune the encoder again, or remove this file") from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise StoreError(f"{file}: a list of digests is needed; fine-tune the encoder again, or remove this file")
    return frozenset(found)
