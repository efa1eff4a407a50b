"""One habit of NumPy that formulas keep: numbers in, a number out; arrays in, an array out."""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.typing import FloatArray


def unwrap(values: Any) -> FloatArray:
    """Return an array as it is, and a NumPy number instead of an array without dimensions.

    Parameters
    ----------
    values : array_like
        Result of a formula.

    Returns
    -------
    ndarray or numpy.float64

    Examples
    --------
    >>> f"{unwrap(np.array(0.5)):.2f}", unwrap(np.array([0.5])).shape
    ('0.50', (1,))
    """
    result: FloatArray = np.asarray(values, dtype=np.float64)[()]
    return result
