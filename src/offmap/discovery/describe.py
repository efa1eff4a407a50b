"""Describe groups for the person who names them: size, tightness, typical and doubtful rows, similar known classes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offmap.discovery.assign import Floats, Labels, Rows, distances, margins
from offmap.discovery.kmeans import class_means

SHOWN = 8
CORE = 0.5  # the confidence from which a row is a core row of its class


@dataclass(frozen=True)
class ClassInfo:
    """One class of a result.

    Parameters
    ----------
    id, name, known : int, str and bool
        Its number in the labels, what it is called, whether it had labels.
    size, labelled : int
        Rows in it, and those whose label was given.
    compactness : float
        The mean distance of its rows to their centre, relative to the mean over all classes; below 1 is tight.
    confidence, core : float and int, default=1.0 and 0
        The mean confidence of its rows without a given label, 1 if there are none; how many of all its rows are core
        rows, with a confidence of at least 0.5. A group with high confidence is likely pure.
    exemplars, boundary : tuple of int
        Rows nearest to the centre, the medoid first; rows nearly as close to another class.
    nearest_known : tuple of int
        Numbers of the known classes with the nearest centres.
    """

    id: int
    name: str
    known: bool
    size: int
    labelled: int
    compactness: float
    exemplars: tuple[int, ...]
    boundary: tuple[int, ...]
    nearest_known: tuple[int, ...]
    confidence: float = 1.0
    core: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values to save."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ClassInfo:
        """Return the inverse of `to_json`."""
        lists = {name: tuple(values[name]) for name in ("exemplars", "boundary", "nearest_known")}
        return cls(**{**values, **lists})


def describe(
    rows: Floats,
    labels: Labels,
    given: Labels,
    known_ids: Labels,
    names: dict[int, str],
    confidence: Floats | None = None,
) -> tuple[list[ClassInfo], Floats]:
    """Describe every class in the labels, and return each row's confidence.

    Parameters
    ----------
    rows : ndarray of float32
        Rows in the space they were grouped in.
    labels, given : ndarray of int64
        Class numbers per row as found and as given; -1 for outliers and for unknown.
    known_ids, names : ndarray of int64 and dict of int to str
        The numbers of known classes, and what classes are called.
    confidence : ndarray of float32 or None, default=None
        Per row between 0 and 1; 1 − (distance to its centre / to the next one) unless given.
    """
    ids = np.unique(np.concatenate([labels[labels >= 0], known_ids]))
    if not len(ids):
        return [], np.zeros(len(rows), np.float32)
    inside = np.flatnonzero(labels >= 0)
    position = np.full(len(rows), -1, np.int64)
    position[inside] = np.searchsorted(ids, labels[inside])
    view = Rows(rows)
    centres = class_means(view, position, len(ids))
    own = np.sqrt(distances(view, centres, np.maximum(position, 0)))
    own[position < 0] = np.inf
    first, near, _, after = margins(view, centres)
    other = np.where(first == position, after, near)
    with np.errstate(invalid="ignore"):
        ratio = np.where(np.isfinite(other), own / np.maximum(other, 1e-12), 0)
    if confidence is None:
        confidence = np.zeros(len(rows), np.float32)
        confidence[inside] = np.clip(1 - ratio[inside], 0, 1)
    confidence[(given >= 0) & (labels == given)] = 1
    overall = max(float(own[inside].mean()), 1e-12) if len(inside) else 1.0
    is_known = np.isin(ids, known_ids)
    some = centres[is_known]
    # the square of the row's own centre is the same for all and left out
    gaps = (some**2).sum(axis=1) - 2 * (centres @ some.T) if len(some) else None
    infos = []
    for i, one in enumerate(ids):
        members = np.flatnonzero(position == i)
        order = members[np.argsort(own[members], kind="stable")]
        free = members[given[members] < 0]
        doubtful = free[np.argsort(confidence[free], kind="stable")]
        resembles: tuple[int, ...] = ()
        if gaps is not None:
            near_ids = ids[is_known][np.argsort(gaps[i], kind="stable")]
            resembles = tuple(int(j) for j in near_ids if j != one)[:3]
        infos.append(
            ClassInfo(
                id=int(one),
                name=names.get(int(one), f"new {int(one)}"),
                known=bool(is_known[i]),
                size=len(members),
                labelled=int((given[members] >= 0).sum()),
                compactness=float(own[members].mean()) / overall if len(members) else 0.0,
                exemplars=tuple(int(j) for j in order[:SHOWN]),
                boundary=tuple(int(j) for j in doubtful[:SHOWN]),
                nearest_known=resembles,
                confidence=float(confidence[free].mean()) if len(free) else 1.0,
                core=int((confidence[members] >= CORE).sum()),
            )
        )
    return infos, confidence
