"""One habit of NumPy that formulas keep: numbers in, a number out; arrays in, an array out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def unwrapped(values: Any) -> Array:
    """An array as it is, and a NumPy number instead of an array without dimensions.

    Examples
    --------
    >>> f"{unwrapped(np.array(0.5)):.2f}", unwrapped(np.array([0.5])).shape
    ('0.50', (1,))
    """
    result: Array = np.asarray(values, dtype=np.float64)[()]
    return result
