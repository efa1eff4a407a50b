"""Texts to a folder of activations, resumable, with the texts kept beside."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offmap.activation_files import check_dtype
from offmap.activations import Activations
from offmap.errors import InputError, StoreError
from offmap.network.writer import ActivationWriter, ExtractionPlan, read_plan
from offmap.progress import show_progress
from offmap.store import write_atomically
from offmap.text.checks import check_texts
from offmap.text.encoder import TextEncoder
from offmap.typing import Array

TEXTS = "texts.jsonl"


def extract_texts(
    encoder: TextEncoder,
    texts: Sequence[str],
    to: str | os.PathLike[str],
    labels: Any = None,
    dtype: str = "float32",
    batch_size: int = 1024,
    progress: bool | None = None,
) -> Activations:
    """Encode texts into a folder of activations, with the texts beside them; a run cut short is resumed.

    Parameters
    ----------
    encoder : TextEncoder
        What makes the rows.
    texts : sequence of str
        In a fixed order.
    to : path
        The folder. The same call on a folder that holds a part goes on where it stopped; on one that is finished it
        compares the texts and reads it.
    labels : array of int, optional
        One class number per text.
    dtype : {"float32", "float16"}, default "float32"
        Of the rows on disk.
    batch_size : int, default 1024
        Texts that are written at a time.
    progress : bool, optional
        `False` for no progress: a bar on a terminal, elsewhere a line every half minute.

    Returns
    -------
    Activations
        Mapped from the folder.

    See Also
    --------
    read_extracted_texts : the texts of such a folder.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/intents"
    >>> encoder = TextEncoder(lambda texts: [[len(text), 1] for text in texts])
    >>> extract_texts(encoder, ["lost card", "open an account"], folder, labels=[0, 1])
    Activations(2 inputs, 2 features, labels)
    >>> read_extracted_texts(folder)
    ['lost card', 'open an account']
    """
    checked = check_texts(texts)
    kept = check_dtype(dtype)
    plan = ExtractionPlan(encoder.fingerprint(), None, dtype, ())
    own = None if labels is None else np.asarray(labels, np.int64)
    if own is not None and len(own) != len(checked):
        raise InputError(f"{len(own)} labels for {len(checked)} texts; give one each")
    starts = range(0, len(checked), batch_size)
    with ActivationWriter(to, plan) as folder, show_progress("encoding", len(checked), progress) as advance:
        for number, start in enumerate(starts):
            part = checked[start : start + batch_size]
            some = None if own is None else own[start : start + batch_size]
            digest = _digest(part, some)
            if not folder.check(number, len(part), digest):
                arrays: dict[str, Array] = {"features": encoder.encode(part, progress=False).astype(kept)}
                folder.append(arrays if some is None else {**arrays, "labels": some}, digest)
            advance(len(part))
        lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in checked)
        write_atomically(Path(to) / TEXTS, lines.encode())
        return folder.finish(len(starts), None)


def read_extracted_texts(folder: str | os.PathLike[str]) -> list[str] | None:
    """Return the texts that `extract_texts` kept beside activations; `None` where there are none."""
    file = Path(folder) / TEXTS
    if not file.is_file():
        return None
    with file.open(encoding="utf-8") as lines:
        return [str(json.loads(line)) for line in lines]


def read_extraction(folder: str | os.PathLike[str], encoder: TextEncoder) -> Activations:
    """Read the rows that `extract_texts` wrote, for something that was made with this encoder.

    Parameters
    ----------
    folder : path
        A finished extraction.
    encoder : TextEncoder
        Rows of another encoder are refused: they mean something else.

    Raises
    ------
    StoreError
        If the rows are of another encoder, or the folder is not finished.
    """
    plan, ours = read_plan(folder), encoder.fingerprint()
    if plan is None or plan.network != ours:
        theirs = "nothing that says which" if plan is None else f"{plan.network[:8]}…"
        raise StoreError(f"{folder}: rows of another encoder ({theirs}, not {ours[:8]}…); give the texts themselves")
    return Activations.open(folder)


def _digest(texts: Sequence[str], labels: Array | None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        content = text.encode()
        digest.update(b"%d:" % len(content) + content)
    digest.update(b"" if labels is None else labels.tobytes())
    return digest.hexdigest()
