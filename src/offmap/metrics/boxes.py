"""How boxes overlap, and which of them show the same object."""

from __future__ import annotations

import numpy as np

from offmap.typing import Array, IntArray


def overlaps(some: Array, others: Array) -> Array:
    """Compute the intersection over union of every pair of boxes.

    Parameters
    ----------
    some, others : ndarray of shape (n, 4) and (m, 4)
        Corners x1, y1, x2, y2.

    Returns
    -------
    ndarray of shape (n, m)
        Between 0 and 1.

    Examples
    --------
    >>> overlaps(np.array([[0, 0, 2, 2]]), np.array([[1, 0, 3, 2], [5, 5, 6, 6]])).round(3)
    array([[0.333, 0.   ]])
    """
    one, two = np.asarray(some, np.float64)[:, None], np.asarray(others, np.float64)[None]
    sides = np.minimum(one[..., 2:], two[..., 2:]) - np.maximum(one[..., :2], two[..., :2])
    shared = sides.clip(min=0).prod(axis=-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clip(min=0).prod(axis=-1) for boxes in (one, two)]
    return np.asarray(shared / np.maximum(areas[0] + areas[1] - shared, 1e-12))


def match_boxes(found: Array, true: Array, least: float = 0.5) -> IntArray:
    """Match boxes found with true ones, the largest overlap first, each at most once.

    Parameters
    ----------
    found, true : ndarray of shape (n, 4) and (m, 4)
        Corners x1, y1, x2, y2.
    least : float, default 0.5
        Intersection over union from which a box shows an object.

    Returns
    -------
    ndarray of int of shape (n,)
        For each box found the place of its true box, -1 where it has none.

    Examples
    --------
    >>> match_boxes(np.array([[0, 0, 4, 4], [0, 0, 3, 4], [9, 9, 10, 10]]), np.array([[0, 0, 3, 4]]))
    array([-1,  0, -1])
    """
    matched = np.full(len(found), -1, np.int64)
    if not len(found) or not len(true):
        return matched
    shared = overlaps(found, true)
    free = np.ones(len(true), bool)
    for pair in np.argsort(-shared, axis=None, kind="stable"):
        box, target = divmod(int(pair), len(true))
        if shared[box, target] < least:
            break
        if matched[box] < 0 and free[target]:
            matched[box], free[target] = target, False
    return matched
