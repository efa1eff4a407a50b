"""Samples that do not depend on how the data was cut: a row's chance is a seeded hash of what is in it.

A reservoir filled block by block, or on many machines and merged, holds the same rows as one filled in one go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def priorities(rows: npt.NDArray[Any], seed: int) -> npt.NDArray[np.uint64]:
    """A uniform 64-bit number per row, the same wherever the row stands. Equal rows get equal numbers.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    >>> bool((priorities(rows, 0)[::-1] == priorities(rows[::-1], 0)).all())
    True
    """
    values = np.ascontiguousarray(rows, dtype=np.float32).reshape(len(rows), -1)
    values = values + np.float32(0)  # -0.0 and 0.0 are one value
    bits = values.view(np.uint32)
    factors = np.random.default_rng(seed).integers(1, 2**63, size=bits.shape[1], dtype=np.uint64) * 2 + 1
    total = np.full(len(bits), np.uint64(seed) * _STEP + _STEP, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, bits.shape[1], 256):  # bounds the 64-bit copy to 256 columns
            part = bits[:, start : start + 256].astype(np.uint64) + np.uint64(1)
            total += part @ factors[start : start + 256]
        return _mix(total)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread every input bit over every output bit (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))
