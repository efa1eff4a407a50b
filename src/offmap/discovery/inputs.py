"""Read labels as people have them (numbers, names, gaps) as class numbers from 0, and hide some of them on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offmap.discovery.assign import Labels
from offmap.errors import InputError

UNKNOWN = -1


@dataclass(frozen=True)
class KnownClasses:
    """Which class each row is known to have.

    Parameters
    ----------
    codes : ndarray of int64
        Per row the position of its class in `ids`, -1 where unknown.
    ids : ndarray of int64
        The numbers that stand for known classes in a result: the user's own, or 0, 1, … for names.
    names : list of str
        What to call them.
    """

    codes: Labels
    ids: Labels
    names: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def next_id(self) -> int:
        """The first number free for a novel class."""
        return int(self.ids.max()) + 1 if len(self.ids) else 0


def read_labels(labels: Any, n: int) -> KnownClasses:
    """Understand labels: whole numbers with -1 for unknown, or strings with None (or "") for unknown.

    Examples
    --------
    >>> known = read_labels(["cat", None, "dog"], 3)
    >>> known.codes.tolist(), known.names
    ([0, -1, 1], ['cat', 'dog'])
    >>> read_labels([7, -1, 3], 3).ids.tolist()
    [3, 7]
    """
    if labels is None:
        return KnownClasses(np.full(n, UNKNOWN, np.int64), np.zeros(0, np.int64), [])
    column = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if column.shape != (n,):
        raise InputError(f"labels of shape {column.shape} for {n} rows: give one per row, -1 where unknown")
    if column.dtype.kind in "OUS":
        return _named(column)
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), UNKNOWN, column)
        if (column != np.round(column)).any():
            raise InputError("labels hold fractions; classes are whole numbers or names, -1 or None where unknown")
    if column.dtype.kind not in "iuf":
        raise InputError(f"labels of type {column.dtype}: classes are whole numbers or names")
    refuse_wrapped(column)
    whole = column.astype(np.int64)
    if (whole < UNKNOWN).any():
        raise InputError(f"labels hold {int(whole.min())}: classes are 0 or above, -1 stands for unknown")
    ids = np.unique(whole[whole >= 0])
    codes = np.where(whole >= 0, np.searchsorted(ids, whole), UNKNOWN).astype(np.int64)
    return KnownClasses(codes, ids, [str(item) for item in ids])


def refuse_wrapped(labels: Any) -> None:
    """Refuse class numbers without a sign that hold the largest one of their type: -1, for unknown, becomes that.

    Raises
    ------
    InputError
        With the way out.

    Examples
    --------
    >>> refuse_wrapped(np.array([0, 254], np.uint8))
    >>> refuse_wrapped(np.array([0, 255], np.uint8))
    Traceback (most recent call last):
    offmap.errors.InputError: labels of type uint8 hold 255, which is what -1 becomes there; ...
    """
    if labels.dtype.kind == "u" and labels.size and labels.max() == np.iinfo(labels.dtype).max:
        raise InputError(
            f"labels of type {labels.dtype} hold {labels.max()}, which is what -1 becomes there; "
            "give labels.astype(int), with -1 put in afterwards"
        )


def _named(column: Any) -> KnownClasses:
    values = column.tolist()
    absent = np.array([v is None or v == "" or v == UNKNOWN or (isinstance(v, float) and v != v) for v in values], bool)
    if all(isinstance(v, int) for v, gone in zip(values, absent, strict=True) if not gone):
        return read_labels(np.where(absent, UNKNOWN, column).astype(np.int64), len(values))
    text = np.array(["" if gone else str(v) for v, gone in zip(values, absent, strict=True)])
    names = np.unique(text[~absent])
    codes = np.where(absent, UNKNOWN, np.searchsorted(names, text)).astype(np.int64)
    return KnownClasses(codes, np.arange(len(names)), names.tolist())


def hide_classes(truth: Labels, seed: int) -> tuple[Labels, Labels]:
    """Hide half of the classes, and half of the rows of the others (thesis, appendix B.3.4).

    What finds hidden known classes well can be expected to find novel ones.

    Parameters
    ----------
    truth : ndarray of int64
        The class of each row.
    seed : int
        Draws the classes and the rows.

    Returns
    -------
    tuple of ndarray
        The labels that are left, -1 where hidden; the classes that still have some.

    Examples
    --------
    >>> given, shown = hide_classes(np.array([0, 0, 1, 1, 2, 2, 3, 3]), seed=0)
    >>> len(shown), bool(np.isin(given[given >= 0], shown).all())
    (2, True)
    """
    rng = np.random.default_rng(seed)
    classes = np.unique(truth)
    shown = np.sort(rng.permutation(classes)[: max(len(classes) // 2, 1)])
    kept = np.zeros(len(truth), bool)
    for one in shown:
        members = rng.permutation(np.flatnonzero(truth == one))
        kept[members[: max(len(members) // 2, 1)]] = True
    return np.where(kept, truth, UNKNOWN), shown
