"""One query at a time at half the reading: a float16 copy names the rows that can be among the k nearest.

One query costs one reading of the bank, and memory is slower than arithmetic. So unit vectors are compared in float16
first, and only the rows that may be among the k nearest are compared in float32. The answer is exact, for rounding to
float16 moves a product of unit vectors by no more than is known beforehand (`slack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.neighbors.largest import best
from offmap.neighbors.vectors import as_floats, is_mapped, take
from offmap.typing import Array, Float32Array

SMALLEST = 2**22  # bytes; a smaller bank is read in no time
LARGEST = 2**29  # a larger one is not worth half as much memory again
PATIENCE = 8  # single queries before a copy is made
ROUNDING = 2.0**-11  # of one number to float16, relative


def slack(width: int) -> float:
    """Bound how far a product of two unit vectors in float16 can be from the true one.

    Both vectors are rounded, and the product is: three roundings. Numbers too small for float16 and the sum in float32
    add at most 2⁻²³ per column.

    Parameters
    ----------
    width : int
        Number of columns.

    Returns
    -------
    float
        The bound.

    Examples
    --------
    >>> 0.001 < slack(512) < 0.002
    True
    """
    return 3 * ROUNDING + width * 2.0**-23


class HalfCopy:
    """A float16 copy of a bank of unit vectors.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.

    Examples
    --------
    >>> bank = [np.eye(3, dtype=np.float32)]
    >>> HalfCopy(bank).nearest(np.array([0.6, 0.0, 0.8], dtype=np.float32), 1)
    (array([[0.8]], dtype=float32), array([[2]]))
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        import torch

        self._parts = parts
        self._copy = torch.from_numpy(np.concatenate([part.astype(np.float16) for part in parts]))
        self._slack = slack(self._copy.shape[1])

    @staticmethod
    def pays(parts: Sequence[Array]) -> bool:
        """Return whether a bank gains from a copy."""
        size = sum(part.nbytes for part in parts)
        plain = not any(map(is_mapped, parts)) and parts[0].dtype == np.float32
        return plain and SMALLEST <= size <= LARGEST and _sums_in_float32()

    def nearest(self, query: Float32Array, k: int) -> tuple[Float32Array, Array] | None:
        """Find the k nearest rows of a query, as `exact.nearest` does.

        Parameters
        ----------
        query : ndarray of float32 of shape (1, d)
            One query.
        k : int
            How many rows.

        Returns
        -------
        tuple of 2 ndarray or None
            Closeness and row numbers; `None` if too many rows may be among them.
        """
        import torch

        asked = torch.from_numpy(query.astype(np.float16))
        rough: Any = torch.mv(self._copy, asked).numpy().astype(np.float32)
        place = len(rough) - k
        near = np.flatnonzero(rough >= np.partition(rough, place)[place] - 2 * self._slack)
        if len(near) > k + len(rough) // 8:
            return None
        closeness = np.dot(as_floats(take(self._parts, near)), query)
        values, chosen = best(closeness[None], k)
        return values, near[chosen]


def _sums_in_float32() -> bool:
    """Return whether this machine's float16 product keeps its sums in float32.

    1 + 4096 · 2⁻¹² is 2; a sum in float16 would stay at 1, for 2⁻¹² is below its last digit there.
    """
    import torch

    row = torch.full((1, 4097), 2.0**-12, dtype=torch.float16)
    row[0, 0] = 1.0
    return float(torch.mv(row, torch.ones(4097, dtype=torch.float16))) == 2.0
