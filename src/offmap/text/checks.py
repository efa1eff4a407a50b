"""Rules that every text meets before it is encoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from offmap.errors import InputError

MAX_CHARACTERS = 1_000_000


def check_texts(texts: Iterable[Any], max_characters: int = MAX_CHARACTERS) -> list[str]:
    """Return texts as a list, after checking each of them.

    Parameters
    ----------
    texts : iterable of str
        Not one text by itself, whose letters would be taken for texts.
    max_characters : int, default 1_000_000
        The longest text that is taken.

    Returns
    -------
    list of str
        The same texts.

    Raises
    ------
    InputError
        If one of them is no text, empty, too long, or holds half of a character; it is named by its place in the list,
        from 0.

    Examples
    --------
    >>> check_texts(["where is my card?", "🙂", "أين بطاقتي"])
    ['where is my card?', '🙂', 'أين بطاقتي']
    >>> check_texts(["fine", "  "])
    Traceback (most recent call last):
    offmap.errors.InputError: text 1 is empty; leave it out
    """
    if isinstance(texts, str | bytes):
        raise InputError("one text was given where a list of texts is needed; put it in brackets")
    return [check_text(text, f"text {number}", max_characters) for number, text in enumerate(texts)]


def check_text(text: Any, name: str = "the text", max_characters: int = MAX_CHARACTERS) -> str:
    """Return a text after checking that it can be encoded; parameters as in `check_texts`, `name` is for errors."""
    if not isinstance(text, str):
        raise InputError(f"{name} is a {type(text).__name__}; a str is needed")
    if len(text) > max_characters:
        raise InputError(f"{name} has {len(text):,} characters, the limit is {max_characters:,}; cut it into parts")
    if not text.strip():
        raise InputError(f"{name} is empty; leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} holds half of a character at place {error.start} and is no Unicode; read its file as UTF-8 again"
        ) from error
    return text
