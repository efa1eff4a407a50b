"""Token ids of texts, in windows that an encoder can read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from offmap.errors import InputError

Tokenize = Callable[[list[str], bool], list[list[int]]]


class TokenWindows:
    """Cut the token ids of texts into windows, each with the special tokens around it.

    Parameters
    ----------
    tokenize : callable
        From texts and whether to add special tokens, to the ids of each text.
    max_tokens : int
        Tokens in a window, with the special ones.
    """

    def __init__(self, tokenize: Tokenize, max_tokens: int) -> None:
        self._tokenize, self.max_tokens = tokenize, max_tokens

    @cached_property
    def _special(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text, seen by comparing a text with and without them."""
        ((bare,), (whole,)) = self._tokenize(["a"], False), self._tokenize(["a"], True)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise InputError("the tokenizer changes a text when it adds special tokens; it cannot be cut into windows")

    def cut(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """Return the windows of each text: one for most, several for a long document."""
        before, after = self._special
        room = self.max_tokens - len(before) - len(after)
        if room < 1:
            raise InputError(f"max_tokens={self.max_tokens}: the special tokens alone take as many; give more")
        return [
            [before + ids[start : start + room] + after for start in range(0, max(len(ids), 1), room)]
            for ids in self._tokenize(list(texts), False)
        ]
