"""`Contingency`: how often each group met each true class, the one table that all clustering metrics come from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError

Counts = npt.NDArray[np.int64]
NOBODY = -1  # a prediction of -1 is an outlier: it belongs to no group and is never right


class Contingency:
    """Counts of how often each group met each true class, filled in blocks or on many machines and merged.

    Samples whose true class is -1 have none and are not counted.

    Examples
    --------
    >>> first = Contingency().update(["a", "a"], [0, 1])
    >>> whole = first.merge(Contingency().update(["b"], [1]))
    >>> whole.classes, whole.groups, whole.counts.tolist()
    (['a', 'b'], [0, 1], [[1, 0], [1, 1]])
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[Hashable, Hashable], int] = {}

    def update(self, y_true: Any, y_pred: Any) -> Self:
        """Count more samples.

        Parameters
        ----------
        y_true : array-like
            Their true classes.
        y_pred : array-like
            Their groups.

        Returns
        -------
        Contingency
            Itself.
        """
        truth, found = read_labels(y_true, "y_true"), read_labels(y_pred, "y_pred")
        if len(truth) != len(found):
            raise InputError(f"{len(truth)} true labels but {len(found)} predictions; give one of each per sample")
        if not len(truth):
            return self
        groups, group = np.unique(found, return_inverse=True)
        classes, label = np.unique(truth, return_inverse=True)
        cells, counts = np.unique(group * len(classes) + label, return_counts=True)
        for cell, count in zip(cells, counts, strict=True):
            key = (groups[cell // len(classes)].item(), classes[cell % len(classes)].item())
            if key[1] != NOBODY:
                self._cells[key] = self._cells.get(key, 0) + int(count)
        return self

    def merge(self, other: Contingency) -> Self:
        """Take in what another table counted."""
        for key, count in other._cells.items():
            self._cells[key] = self._cells.get(key, 0) + count
        return self

    @property
    def classes(self) -> list[Hashable]:
        """The true classes, in order."""
        return _ordered({label for _, label in self._cells})

    @property
    def groups(self) -> list[Hashable]:
        """The groups that were found, in order; outliers (-1) are not one of them."""
        return _ordered({group for group, _ in self._cells} - {NOBODY})

    @property
    def counts(self) -> Counts:
        """Groups × classes; a class met only among outliers has a column of zeros."""
        return self.block(self.classes)

    def block(self, classes: Iterable[Hashable]) -> Counts:
        """Return the columns of these classes."""
        column = {label: j for j, label in enumerate(classes)}
        row = {group: i for i, group in enumerate(self.groups)}
        table = np.zeros((len(row), len(column)), np.int64)
        for (group, label), count in self._cells.items():
            if group in row and label in column:
                table[row[group], column[label]] = count
        return table

    def sizes(self, classes: Iterable[Hashable]) -> Counts:
        """Return how many samples each of these classes has, outliers included."""
        totals: dict[Hashable, int] = {}
        for (_, label), count in self._cells.items():
            totals[label] = totals.get(label, 0) + count
        return np.array([totals.get(label, 0) for label in classes], np.int64)


def as_contingency(y_true: Any, y_pred: Any) -> Contingency:
    """Count labels, or return counts as they are.

    Parameters
    ----------
    y_true : array-like or Contingency
        The true classes, or counts of them.
    y_pred : array-like or None
        The groups; `None` with counts.

    Returns
    -------
    Contingency
        The counts.
    """
    if isinstance(y_true, Contingency):
        if y_pred is not None:
            raise InputError("a Contingency already holds the predictions; leave y_pred out")
        return y_true
    if y_pred is None:
        raise InputError("y_pred is missing: give one group per sample, or a Contingency alone")
    return Contingency().update(y_true, y_pred)


def read_labels(values: Any, name: str) -> npt.NDArray[Any]:
    """Convert labels to one column of whole numbers or texts.

    Parameters
    ----------
    values : array-like of shape (n,)
        Labels.
    name : str
        What they are, for messages.

    Returns
    -------
    ndarray of shape (n,)
        The column.

    Raises
    ------
    InputError
        For another shape, fractions or NaN.
    """
    column = np.asarray(values)
    if column.ndim != 1:
        raise InputError(f"{name} of shape {column.shape}: one label per sample is needed")
    if column.dtype.kind == "f":
        if not (np.isfinite(column).all() and (column == np.round(column)).all()):
            raise InputError(f"{name} holds fractions or NaN; labels are whole numbers or strings")
        column = column.astype(np.int64)
    return column.astype(str) if column.dtype.kind == "O" else column


def _ordered(items: set[Hashable]) -> list[Hashable]:
    return sorted(items, key=lambda item: (isinstance(item, str), item))
