"""Texts: one per line of a file, or one per file of a folder, and the encoder that turns them into features."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.data.samples import MAX_BYTES, check_size
from offmap.errors import InputError

Encoder = Callable[[Sequence[str]], Any]


def read_texts(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> list[str]:
    r"""Every line of a text file that is not empty, or every ``.txt`` file of a folder, by name.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "queries.txt"
    >>> _ = file.write_text("where is my card\n\nfreeze my account\n")
    >>> read_texts(file)
    ['where is my card', 'freeze my account']
    """
    source = Path(path)
    files = sorted(source.glob("*.txt")) if source.is_dir() else [source]
    if not files or not all(file.is_file() for file in files):
        raise InputError(f"{source}: no texts; give a file with one text per line, or a folder of .txt files")
    check_size(sum(file.stat().st_size for file in files), str(source), max_bytes)
    try:
        contents = [file.read_text(encoding="utf-8") for file in files]
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not text in UTF-8 ({error.reason})") from error
    texts = contents if source.is_dir() else contents[0].splitlines()
    return [text.strip() for text in texts if text.strip()]


def encode_texts(texts: Sequence[str], encoder: Encoder) -> npt.NDArray[np.float32]:
    """Encode texts: return the features that an encoder gives to them, one row each.

    Examples
    --------
    >>> encode_texts(["a", "bcd"], lambda texts: [[len(text)] for text in texts])
    array([[1.],
           [3.]], dtype=float32)
    """
    features = np.asarray(encoder(list(texts)), dtype=np.float32)
    if features.ndim != 2 or len(features) != len(texts):
        raise InputError(
            f"the encoder gave an array of shape {features.shape} for {len(texts)} texts; one row per text is needed"
        )
    return features
