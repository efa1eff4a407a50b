"""A budget for the memory that all requests together may hold."""

from __future__ import annotations

import threading

from offmap.service.request_errors import RequestError


class MemoryBudget:
    """Bytes that requests may hold at the same time; safe to use from several threads.

    Parameters
    ----------
    limit : int
        The largest sum of all reservations.

    Examples
    --------
    >>> budget = MemoryBudget(100)
    >>> reservation = budget.open_reservation()
    >>> reservation.reserve(80)
    >>> budget.reserved
    80
    >>> reservation.release()
    >>> budget.reserved
    0
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        self._lock = threading.Lock()

    def open_reservation(self) -> Reservation:
        """Open the reservation of one request."""
        return Reservation(self)

    def add(self, size: int) -> bool:
        """Reserve or release bytes; return whether they fit."""
        with self._lock:
            if size > 0 and self.reserved + size > self.limit:
                return False
            self.reserved += size
            return True


class Reservation:
    """The bytes that one request holds of a `MemoryBudget`.

    Parameters
    ----------
    budget : MemoryBudget
        Shared with other requests.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._size = 0

    def reserve(self, size: int) -> None:
        """Reserve further bytes.

        Parameters
        ----------
        size : int
            Bytes that are about to be allocated.

        Raises
        ------
        RequestError
            413 if one request may never hold so much, 503 if it cannot now because of others.
        """
        if self._size + size > self._budget.limit:
            raise RequestError(
                413,
                f"the request needs {self._size + size:,} bytes of memory once decoded, the limit is "
                f"{self._budget.limit:,}; send it in parts",
            )
        if not self._budget.add(size):
            raise RequestError(503, "too many requests at a time; come back in a moment")
        self._size += size

    def release(self) -> None:
        """Release everything."""
        self._budget.add(-self._size)
        self._size = 0
