"""Whether the columns of a table are in different units, so that distances between its rows mean little as they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offmap.typing import FloatArray

MIXED = 20.0  # times the median spread: a column that spreads further is in another unit, or nearly all there is
HEARD = 4.0  # columns of equal spread that hold as much: with more, none drowns the others
ROWS, COLUMNS = 4096, 200  # that are looked at


def has_dominant_columns(features: npt.ArrayLike) -> bool:
    """Tell whether a few columns drown the others.

    The largest spread is 20 times the median one, and nearly all of the variance is in a few columns. Features of a
    network spread unevenly as well, but over dozens of columns, whose differences mean something.

    Parameters
    ----------
    features : array of shape (n_rows, n_columns)
        Some 4,000 of its rows are looked at, at even distances.

    Returns
    -------
    bool
        False with fewer than two columns that vary, or ten rows.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(50, 4))
    >>> has_dominant_columns(rows), has_dominant_columns(rows * [1, 1, 1, 500])
    (False, True)
    """
    spread = _some_columns(features).std(axis=0)
    if len(spread) < 2 or spread.max() <= MIXED * np.median(spread):
        return False
    shares = (spread / spread.max()) ** 2
    return bool(shares.sum() ** 2 <= HEARD * (shares**2).sum())


def has_mixed_scales(features: npt.ArrayLike) -> bool:
    """Tell whether columns are in different units: a few drown the others, and columns go together.

    Columns without correlation are principal components, whose spreads differ for a reason.

    Parameters
    ----------
    features : array of shape (n_rows, n_columns)
        Some 4,000 of its rows are looked at, at even distances.

    Returns
    -------
    bool
        False with fewer than two columns that vary, or ten rows.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> size = rng.normal(size=(200, 1)) + rng.normal(size=(200, 3))
    >>> has_mixed_scales(size), has_mixed_scales(size * [1, 1, 1000])
    (False, True)
    """
    if not has_dominant_columns(features):
        return False
    some = _some_columns(features)
    largest = np.argsort(-some.std(axis=0), kind="stable")[:COLUMNS]
    alike = np.abs(np.corrcoef(some[:, largest].T))
    return bool((alike.sum() - len(alike)) / (alike.size - len(alike)) > 2 / np.sqrt(len(some)))


def _some_columns(features: npt.ArrayLike) -> FloatArray:
    """Return those columns of some rows that vary; none with fewer than ten rows."""
    array = np.asanyarray(features)
    step = max(len(array) // ROWS, 1)
    some = np.asarray(array[: step * ROWS : step], np.float64)
    if len(some) < 10:
        return some[:, :0]
    return some[:, some.std(axis=0) > 1e-9 * np.maximum(np.abs(some).max(axis=0), 1e-300)]
