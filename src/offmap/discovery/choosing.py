"""Choose the space rows are grouped in, by what it does for known classes that are hidden for the purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.columns import has_mixed_scales
from offmap.discovery.assign import Labels
from offmap.discovery.inputs import hide_classes
from offmap.discovery.space import Space
from offmap.graph import nearest_neighbors

TRIALS = 2
TRIAL_ROWS = 2000
TRIAL_NEIGHBORS = 5
MOST_COLUMNS = 1024  # whitening more takes longer than grouping
FEWEST_CLASSES = 4  # to hide some and still have some
CLEARLY = 0.05  # purer, on hidden classes: less is noise


def candidate_spaces(features: Any) -> list[Space]:
    """List the spaces that are tried, the plain one first: cosine, or Euclidean with fewer than four columns.

    Examples
    --------
    >>> [str(space) for space in candidate_spaces(np.eye(3))][:1]
    ['euclidean']
    """
    mixed = has_mixed_scales(features)
    metrics: tuple[Any, Any] = ("cosine", "euclidean") if features.shape[1] > 3 else ("euclidean", "cosine")
    plain = [Space(metric, standardize=mixed) for metric in metrics]
    if features.shape[1] > MOST_COLUMNS:
        return plain
    return [*plain, *(Space(metrics[0], shrinkage, standardize=mixed) for shrinkage in (0.5, 0.2))]


def choose_space(features: Any, labels: Labels, seed: int = 0) -> tuple[Space, list[tuple[Space, float]]]:
    """Return the space in which rows of hidden classes have the purest neighbourhoods, and the purity in each.

    The first candidate is taken unless another one is purer by 5 points. With fewer than four known classes nothing can
    be hidden, and it is taken at once.

    Parameters
    ----------
    features : array-like
        One row per sample; at most 2,000 labelled ones are looked at.
    labels : ndarray of int64
        Known class per row from 0, -1 where unknown.
    seed : int, default=0
        Draws the classes that are hidden.

    Returns
    -------
    tuple
        The space, and each candidate with the share of neighbours that are of the same hidden class.
    """
    spaces = candidate_spaces(features)
    labelled = np.flatnonzero(labels >= 0)
    if len(np.unique(labels[labelled])) < FEWEST_CLASSES:
        return spaces[0], []
    if len(labelled) > TRIAL_ROWS:
        labelled = np.sort(np.random.default_rng(seed).choice(labelled, TRIAL_ROWS, replace=False))
    rows, truth = np.asarray(features[labelled], np.float32), labels[labelled]
    purity = np.zeros(len(spaces))
    for trial in range(TRIALS):
        given, shown = hide_classes(truth, seed + trial)
        hidden = ~np.isin(truth, shown)
        codes = np.where(given >= 0, np.searchsorted(shown, given), -1)
        for i, space in enumerate(spaces):
            _, near = nearest_neighbors(space.prepare(rows, codes), min(TRIAL_NEIGHBORS, len(rows) - 1))
            purity[i] += float((truth[near[hidden]] == truth[hidden][:, None]).mean()) / TRIALS
    best = int(np.argmax(purity))
    chosen = best if purity[best] > purity[0] + CLEARLY else 0
    return spaces[chosen], list(zip(spaces, purity.tolist(), strict=True))
