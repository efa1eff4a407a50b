"""Check a number of groups by counting in other ways, where few known classes say whether it is right."""

from __future__ import annotations

import numpy as np

from offmap.discovery.calibrating import FEWEST_CLASSES
from offmap.discovery.class_sizes import effective_number
from offmap.discovery.halves import count_by_halves
from offmap.typing import Float32Array, IntArray

CONTRADICTED = 2.0  # times more or fewer groups, by their rows, than counting by halves gives
ALLOWED = 1.5  # times that number, or parts of it, are left of groups that it contradicts
HEAP = 2.0  # groups of one size: fewer say nothing of how many classes there are
SHOWN_BY_HALVES = 40  # rows of a group on average, for halves to show that there are fewer groups
HARDLY_MORE = 1.25  # times the groups, where halves show that there are more
EVEN = 0.9  # of the number of groups, their effective number at least: they are about equal in size


def check_count(
    rows: Float32Array, labels: IntArray, found: int, n_known: int, seed: int = 0
) -> tuple[int, tuple[int, int]] | None:
    """Return another number of groups and its interval, where counting by halves rules these groups out.

    Both ways to count err, so where they are far apart, the number that is nearest to these groups within half as many
    again as halves give is taken; one heap beside scraps says nothing, and theirs is taken as it is. Where they are not
    far apart, it is the nearest number that halves allow. Halves miss small classes and cut large or loose ones, so
    they are no reason for fewer groups where the groups have few rows on average, nor for many more, nor for any where
    groups differ in size.

    With four known classes the tree of joins is fitted to the set, and with eight its count is too: with four to seven
    only a heap beside scraps is doubted, and with more nothing.

    Parameters
    ----------
    rows : ndarray of float32
        In a space where near means alike.
    labels : ndarray of int64
        The group of each row, known class i being group i.
    found : int
        How many groups there are, every known class counting as one.
    n_known : int
        The number of known classes.
    seed : int, default=0
        Draws the halves.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(300) % 6
    >>> rows = (4 * np.eye(6, 12)[truth] + rng.normal(size=(300, 12))).astype(np.float32)
    >>> check_count(rows, truth, 6, 0) is None
    True
    >>> check_count(rows, np.zeros(300, np.int64), 1, 0)[0]
    6
    """
    equal = effective_number(labels)
    fitted = n_known >= FEWEST_CLASSES
    if n_known >= 2 * FEWEST_CLASSES or (fitted and CONTRADICTED * equal > found):
        return None
    other = count_by_halves(rows, seed, also=found)
    if other is None:
        return None
    number, (low, high) = other
    if number > CONTRADICTED * equal or (number < equal / CONTRADICTED and not fitted):
        near = number if equal < HEAP else round(float(np.clip(equal, number / ALLOWED, number * ALLOWED)))
        near = max(near, n_known)
        return near, (min(low, near), max(high, near))
    if fitted:
        return None
    if round(equal) > high and len(labels) >= SHOWN_BY_HALVES * found:
        return max(high, n_known), (low, found)
    if found < low <= HARDLY_MORE * found and equal >= EVEN * found:
        return low, (found, high)
    return None
