"""Rows that belong to no class: those that stand alone, where members of any class have company."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from offmap.discovery.assign import Floats, Labels
from offmap.neighbors import Bank

COMPANY = 2  # a class of five samples gives each of them two others nearby; noise has none
KEPT = 0.98  # of rows that are known to belong to a class


def alone(rows: Floats, codes: Labels, kept: float = KEPT) -> npt.NDArray[np.bool_]:
    """Unlabelled rows whose second neighbour is farther than it is for 98 % of the labelled rows.

    Without labels the limit comes from the rows themselves: three robust deviations above the median, distances
    taken as logarithms.

    Parameters
    ----------
    rows
        Rows in the space they are grouped in.
    codes
        The known class of each row, -1 where unknown.
    kept
        The share of labelled rows that would pass.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.concatenate([rng.normal(size=(50, 2)), [[99.0, 99.0]]]).astype(np.float32)
    >>> np.flatnonzero(alone(rows, np.full(51, -1))).tolist()
    [50]
    """
    if len(rows) <= COMPANY + 1:
        return np.zeros(len(rows), bool)
    reach = Bank.of(np.ascontiguousarray(rows, np.float32), normalize=False).kth_distance(rows, COMPANY + 1)
    labelled = codes >= 0
    if labelled.sum() >= 20:
        limit = float(np.quantile(reach[labelled], kept))
    else:
        logs = np.log(np.maximum(reach, 1e-12))
        centre = float(np.median(logs))
        limit = float(np.exp(centre + 3 * 1.4826 * max(float(np.median(np.abs(logs - centre))), 1e-3)))
    return np.asarray((reach > limit) & ~labelled)
