"""Words in sentences for people."""

from __future__ import annotations


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun, which is in the singular after 1 only.

    Parameters
    ----------
    count : int
        How many there are.
    noun : str
        One of them.
    plural : str, optional
        Several of them; by default `noun` with an s.

    Returns
    -------
    str
        Such as ``"1 class"``.

    Examples
    --------
    >>> format_count(1, "class", "classes"), format_count(0, "class", "classes"), format_count(3, "known input")
    ('1 class', '0 classes', '3 known inputs')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
