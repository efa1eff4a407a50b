"""Estimate how many classes there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offmap.discovery.assign import Labels, Rows
from offmap.discovery.choosing import choose_space
from offmap.discovery.graph_groups import group_by_graph
from offmap.wording import format_count


@dataclass(frozen=True)
class ClassCount:
    """An estimate of the number of classes, known and novel together.

    Parameters
    ----------
    n_classes : int
        The estimate.
    interval : tuple of 2 int
        Where the true number is expected with a probability of 90 %, if the errors of the estimates are as assumed.
    criteria : dict of str to float
        The number of groups in the tree of joins and after every step that changed it; see the page on discovery.
    """

    n_classes: int
    interval: tuple[int, int]
    criteria: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        said = "".join(f"; {name} {value:.0f}" for name, value in self.criteria.items())
        return f"{format_count(self.n_classes, 'class', 'classes')} ({self.interval[0]} to {self.interval[1]}){said}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ClassCount:
        """Make an estimate from its plain values."""
        low, high = values["interval"]
        return cls(values["n_classes"], (low, high), values["criteria"])


def count_classes(features: Any, labels: Labels | None = None, seed: int = 0) -> ClassCount:
    """Estimate the number of classes without labels of novel ones.

    Rows are joined over their neighbour graph until no two groups look like one class (`group_by_graph`). Class sizes
    may differ; a class of fewer than four unlabelled rows is not seen.

    Parameters
    ----------
    features : array-like
        One row per sample. Of more than 30,000 rows a sample is looked at.
    labels : ndarray of int64, optional
        Known class per row from 0, -1 where unknown; no class is known without.
    seed : int, default=0
        Draws the sample and the classes that are hidden to choose a space.

    Returns
    -------
    ClassCount
        The estimate and its interval.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat(np.arange(6), [200, 100, 40, 40, 20, 10])
    >>> rows = rng.normal(size=(6, 8))[truth] + 0.05 * rng.normal(size=(410, 8))
    >>> count_classes(rows, np.where(truth < 3, truth, -1)).n_classes
    6
    """
    codes = np.full(len(features), -1, np.int64) if labels is None else labels
    space, _ = choose_space(features, codes, seed)
    return count_groups(Rows(space.prepare(features, codes)), codes, int(codes.max(initial=-1)) + 1, seed)


def count_groups(rows: Rows, codes: Labels, n_known: int, seed: int = 0) -> ClassCount:
    """Estimate the number of classes of rows that are in their space already; parameters as in `group_by_graph`."""
    found = group_by_graph(rows, codes, n_known, seed=seed)
    return ClassCount(found.n_groups, found.interval, found.steps)
