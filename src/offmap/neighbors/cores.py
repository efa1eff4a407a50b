"""Running our own threads, each multiplying on one core, instead of one product on all cores."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


class _OneCoreProducts:
    """Holds BLAS at one thread while any search runs, and gives the user's setting back after the last one.

    The setting belongs to the process. Were each search to save and restore it for itself, two that overlap
    could leave it at one for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._allowed = 1
        self._limit: Any = None

    @contextmanager
    def hold(self) -> Iterator[int]:
        with self._lock:
            if self._users == 0:
                libraries = _blas()
                self._allowed = max((one.num_threads for one in libraries.lib_controllers), default=1)
                self._limit = libraries.limit(limits=1)
            self._users += 1
            allowed = self._allowed
        try:
            yield allowed
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limit.restore_original_limits()


_products = _OneCoreProducts()


@functools.cache
def _blas() -> Any:
    import numpy as np
    import threadpoolctl

    np.ones((2, 2)) @ np.ones((2, 2))
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def one_core_products() -> Any:
    """Return a context in which BLAS uses one thread; gives the number of threads the user allows it otherwise.

    Examples
    --------
    >>> with one_core_products() as threads:
    ...     threads >= 1
    True
    """
    return _products.hold()


def in_threads(work: Callable[[int], None], threads: int) -> None:
    """Run ``work(0) … work(threads - 1)`` side by side, and raise the error of one that fails.

    Parameters
    ----------
    work : callable
        Takes the number of the thread.
    threads : int
        How many.

    Examples
    --------
    >>> done = []
    >>> in_threads(done.append, 2)
    >>> sorted(done)
    [0, 1]
    """
    if threads <= 1:
        work(0)
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work, thread) for thread in range(1, threads)]
        work(0)  # the calling thread does its share
        for other in others:
            other.result()
