"""One unknown input, the limits of a store of them, and a page of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from offmap.typing import Float32Array

OPEN, RESOLVED, DISCARDED = "open", "resolved", "discarded"
STATUSES = (OPEN, RESOLVED, DISCARDED)
ID_LENGTH = 32


def new_ids(n: int) -> list[str]:
    """Make `n` unique ids: 48 bits of time, so that they sort roughly by age, and 80 random bits.

    Parameters
    ----------
    n : int
        Number of ids.

    Returns
    -------
    list of str
        Hexadecimal texts of 32 characters.

    Examples
    --------
    >>> ids = new_ids(3)
    >>> len(set(ids)), len(ids[0])
    (3, 32)
    """
    start = f"{time.time_ns() // 1_000_000 & (1 << 48) - 1:012x}"
    noise = os.urandom(10 * n).hex()
    return [start + noise[20 * i : 20 * (i + 1)] for i in range(n)]


@dataclass(frozen=True)
class UnknownInput:
    """One unknown input with its verdict.

    Parameters
    ----------
    id : str
        The id that the client was given.
    time : float
        When it was scored, in seconds since 1970.
    score, p_value : float
        The detector's verdict.
    predicted : str, int or None, default=None
        The nearest known class, a name or an index; `None` without a classification head.
    guard : str, default=""
        The version of the deployment that scored it. Features of different versions may not be comparable.
    features : ndarray or None, default=None
        The network's features; `None` when there are none.
    content : bytes or None, default=None
        The input itself: an image as it was sent, or an array as ``.npy``; `None` when only features were sent.
    content_type : str or None, default=None
        The media type of `content`.
    reference : str or None, default=None
        The client's own name for the input. It is text, and never opened.
    status : str, default="open"
        ``"open"``, ``"resolved"`` or ``"discarded"``.
    seq : int, default=0
        Its position in the store, growing; assigned by the store.
    """

    id: str
    time: float
    score: float
    p_value: float
    predicted: str | int | None = None
    guard: str = ""
    features: Float32Array | None = field(default=None, compare=False)
    content: bytes | None = field(default=None, repr=False)
    content_type: str | None = None
    reference: str | None = None
    status: str = OPEN
    seq: int = 0

    @property
    def bytes(self) -> int:
        """Approximate size on disk."""
        features = 0 if self.features is None else 4 * self.features.size
        return 200 + features + len(self.content or b"") + len(self.reference or "")


@dataclass(frozen=True)
class StoreLimits:
    """Limits of a store; beyond them the oldest items are dropped.

    Parameters
    ----------
    items : int, default=100_000
        Number of items.
    bytes : int, default=2**30
        Approximate size of all items.
    seconds : float, default=90 days
        Age of an item.
    """

    items: int = 100_000
    bytes: int = 2**30
    seconds: float = 90 * 86400.0


@dataclass(frozen=True)
class StorePage:
    """A page of a store.

    Parameters
    ----------
    items : list of UnknownInput
        In the order of arrival, without features and contents.
    next : int or None
        The position to continue after; `None` at the end.
    """

    items: list[UnknownInput]
    next: int | None
