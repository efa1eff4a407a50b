"""Rows that belong to no class: those that stand alone, where members of any class have company."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.discovery.assign import Floats, Labels, Rows, block_rows
from offmap.discovery.calibrating import FEWEST_CLASSES
from offmap.neighbors import Bank

COMPANY = 4  # a class of five samples gives each of them four others nearby; noise has none
LOST = 0.05  # of the rows that do belong to a class
BANK_ROWS = 50_000
ENOUGH_LABELS = 20
LOOSE = 0.1  # the share of known classes that fewer links stay inside of than inside of a group of noise
MUCH_NOISE = 0.06  # of the unlabelled rows


def find_outliers(rows: Rows, codes: Labels, lost: float = LOST, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Unlabelled rows that are farther from their nearest four than all but a share `lost` of the labelled rows.

    A conformal test (Bates et al. 2023): labelled rows belong to classes, so a row that belongs to one, of a class
    as dense as theirs, is flagged with probability at most `lost`. Without labels the limit comes from the rows
    themselves: three robust deviations above the median, distances taken as logarithms.

    Parameters
    ----------
    rows : Rows
        Rows in a space that has not seen the labels; in a whitened one labelled rows lie closer than others.
    codes : ndarray of int64
        The known class of each row, -1 where unknown.
    lost : float, default=LOST
        The share of rows with a class that may be flagged.
    seed : int, default=0
        Seed of the 50,000 rows that neighbours are looked for among when there are more.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.concatenate([rng.normal(size=(50, 2)), [[99.0, 99.0]]]).astype(np.float32)
    >>> np.flatnonzero(find_outliers(Rows(rows), np.full(51, -1))).tolist()
    [50]
    """
    if len(rows) <= COMPANY + 1:
        return np.zeros(len(rows), bool)
    reach = outlier_distances(rows, seed)
    labelled = codes >= 0
    if labelled.sum() >= ENOUGH_LABELS:
        limit = conformal_limit(reach[labelled], lost)
    else:
        logs = np.log(np.maximum(reach, 1e-12))
        centre = float(np.median(logs))
        limit = float(np.exp(centre + 3 * 1.4826 * max(float(np.median(np.abs(logs - centre))), 1e-3)))
    return np.asarray((reach > limit) & ~labelled)


def outlier_distances(rows: Rows, seed: int = 0) -> Floats:
    """Each row's mean distance to the four nearest others.

    Examples
    --------
    >>> outlier_distances(Rows(np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [10.0]])))[[0, 5]]
    array([2.5, 7.5], dtype=float32)
    """
    n = len(rows)
    index = np.arange(n)
    if n > BANK_ROWS:
        index = np.sort(np.random.default_rng(seed).choice(n, BANK_ROWS, replace=False))
    bank = Bank.of(rows.take(index), normalize=False)
    reach = np.empty(n, np.float32)
    step = max(block_rows(rows.width, 1), 4096)
    for start in range(0, n, step):
        stop = min(start + step, n)
        gaps, near = bank.search(rows.block(start, stop), COMPANY + 1)
        own = index[near] == np.arange(start, stop)[:, None]
        own[~own.any(axis=1), -1] = True  # a row that is not in the bank, or hidden behind its copies
        reach[start:stop] = gaps[~own].reshape(-1, COMPANY).mean(axis=1)
    return reach


def conformal_limit(scores: npt.NDArray[Any], lost: float) -> float:
    """Return what a new score, drawn alike, exceeds with probability at most `lost`; infinite for too few scores.

    Examples
    --------
    >>> conformal_limit(np.arange(99.0), 0.05), conformal_limit(np.arange(9.0), 0.05)
    (94.0, inf)
    """
    rank = int(np.ceil((1 - lost) * (len(scores) + 1)))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else float("inf")


def find_noise(
    labels: Labels, codes: Labels, n_known: int, reach: npt.NDArray[Any], inside: npt.NDArray[Any]
) -> Labels:
    """Return the novel groups that are rows of no class: far from each other, and not held together by links.

    Known classes set both limits: half of the rows are farther from their nearest four than all but 5 % of
    the labelled rows, and fewer links stay inside than in nine of ten known classes. A few such rows may as well be
    small classes, so they count as noise only where there are many.

    Parameters
    ----------
    labels : ndarray of int64
        The group of each row, known class i being group i.
    codes : ndarray of int64
        The known class of each row, -1 where unknown.
    n_known : int
        The number of known classes; with fewer than four nothing is noise.
    reach : ndarray of float64
        How far the nearest four of each row are, on average.
    inside : ndarray of float32
        The share of the links of each row that stay inside its group.
    """
    labelled = codes >= 0
    if n_known < FEWEST_CLASSES or labelled.sum() < ENOUGH_LABELS:
        return np.zeros(0, np.int64)
    n_groups = int(labels.max()) + 1
    far = reach > conformal_limit(reach[labelled], LOST)
    free = np.flatnonzero(~labelled)
    counts = np.bincount(labels[free], minlength=n_groups)
    sizes = np.maximum(counts, 1)
    alone = np.bincount(labels[free], far[free], minlength=n_groups) / sizes
    kept = np.bincount(labels[free], inside[free], minlength=n_groups) / sizes
    usual = kept[:n_known][counts[:n_known] > 0]
    if not len(usual):
        return np.zeros(0, np.int64)
    loose = (alone > 0.5) & (kept < np.quantile(usual, LOOSE)) & (np.arange(n_groups) >= n_known)
    return np.flatnonzero(loose) if sizes[loose].sum() > MUCH_NOISE * len(free) else np.zeros(0, np.int64)
