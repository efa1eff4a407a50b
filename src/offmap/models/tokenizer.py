"""Texts to token numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.errors import DependencyError, InputError

MAX_LENGTH = 128  # tokens kept of a text by default


class Tokenizer:
    """Texts to token numbers, by a ``tokenizer.json`` of the library ``tokenizers``.

    Parameters
    ----------
    definition : str
        The content of the file, kept with a model that is saved.
    max_length : int, default 128
        Tokens kept of each text, from its beginning.
    """

    def __init__(self, definition: str, max_length: int = MAX_LENGTH) -> None:
        self.definition, self.max_length = definition, max_length
        self._made: Any = None

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return token numbers, texts × tokens of the longest one, 0 where a text has ended."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError("texts: a list of strings is needed, one for each text")
        if self._made is None:
            self._made = _make_tokenizer(self.definition, self.max_length)
        found = [encoding.ids for encoding in self._made.encode_batch(list(texts))]
        ids = np.zeros((len(found), max(map(len, found), default=1)), np.int64)
        for row, tokens in zip(ids, found, strict=True):
            row[: len(tokens)] = tokens
        return ids


def _make_tokenizer(definition: str, max_length: int) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DependencyError("tokenizing texts needs the library tokenizers: pip install 'offmap[text]'") from None
    try:
        made = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises plain exceptions
        raise InputError(f"not a tokenizer.json ({str(error)[:200]})") from error
    made.no_padding()
    made.enable_truncation(max_length)
    return made
