"""Making the next batch while the present one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def read_ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield items in order while one thread makes the next one.

    Reading and decoding pictures leave Python free for the network, so that both go on at a time. One item more
    is held than without, nothing is made beyond it, and an error is raised in the place of the item that it belongs to.

    Parameters
    ----------
    items : iterable
        Made by code that may run in another thread than the rest.

    Yields
    ------
    object
        The items.

    Examples
    --------
    >>> list(read_ahead(range(3)))
    [0, 1, 2]
    """
    made = iter(items)

    def make_next() -> list[T]:
        return list(islice(made, 1))

    with ThreadPoolExecutor(1, thread_name_prefix="offmap-reading") as thread:
        coming = thread.submit(make_next)
        while found := coming.result():
            coming = thread.submit(make_next)
            yield found[0]
