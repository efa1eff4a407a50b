"""`Verdicts`: what a calibrated detector says about each input, as arrays, rows and tables."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np

from offmap.errors import DependencyError, InputError
from offmap.typing import Array
from offmap.wording import format_count

MAX_SCORE = float(np.finfo(np.float32).max)  # what JSON carries in place of infinity


class Verdict(NamedTuple):
    """The verdict on one input."""

    score: float
    p_value: float
    known: bool
    predicted: int | None


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on a batch: arrays with one entry per input. Iterating gives one `Verdict` each.

    Parameters
    ----------
    score : array of shape (n,)
        Higher means known.
    p_value : array of shape (n,)
        How unusual the score is among known inputs.
    known : array of bool of shape (n,)
        The verdict.
    predicted : array of int of shape (n,), optional
        The class with the largest logit, where the detector has logits.

    Examples
    --------
    >>> found = Verdicts(np.array([2.5, -1.0]), np.array([0.8, 0.01]), np.array([True, False]), np.array([1, 0]))
    >>> found
    Verdicts(2 inputs, 1 unknown)
    >>> found[1]
    Verdict(score=-1.0, p_value=0.01, known=False, predicted=0)
    >>> found[~found.known]
    Verdicts(1 input, 1 unknown)
    >>> found.to_pandas(class_names=["ant", "bee"])
      class  known  p_value  score
    0   bee   True     0.80    2.5
    1   ant  False     0.01   -1.0
    """

    score: Array
    p_value: Array
    known: Array
    predicted: Array | None = None

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Verdict: ...

    @overload
    def __getitem__(self, index: slice | Array | Sequence[int]) -> Verdicts: ...

    def __getitem__(self, index: Any) -> Verdict | Verdicts:
        """Give the verdict on one input, or the verdicts on some, by slice, mask or indices."""
        if isinstance(index, int | np.integer):
            predicted = None if self.predicted is None else int(self.predicted[index])
            return Verdict(float(self.score[index]), float(self.p_value[index]), bool(self.known[index]), predicted)
        predicted = None if self.predicted is None else self.predicted[index]
        return Verdicts(self.score[index], self.p_value[index], self.known[index], predicted)

    def __repr__(self) -> str:
        return f"Verdicts({format_count(len(self), 'input')}, {int(np.sum(~self.known))} unknown)"

    def columns(self, class_names: Sequence[str] | None = None, path: Sequence[Any] | None = None) -> dict[str, Array]:
        """Give the columns of the table that `to_pandas`, `to_csv` and the command line write.

        Parameters
        ----------
        class_names : sequence of str, optional
            The name of each class by its number; without names the column `class` holds numbers.
        path : sequence, optional
            What each input is called, such as its file; the first column then.

        Returns
        -------
        dict of str to array
            ``path`` and ``class`` where they are known, ``known``, ``p_value``, ``score``.
        """
        if path is not None and len(path) != len(self):
            raise InputError(f"{len(path)} paths for {len(self)} inputs; give one each")
        found: dict[str, Array] = {} if path is None else {"path": np.array([str(one) for one in path])}
        if self.predicted is not None:
            found["class"] = name_classes(self.predicted, class_names)
        return found | {"known": self.known, "p_value": self.p_value, "score": self.score}

    def to_pandas(self, class_names: Sequence[str] | None = None, path: Sequence[Any] | None = None) -> Any:
        """Give a DataFrame with one row per input; parameters as for `columns`."""
        try:
            import pandas as pd
        except ImportError as error:
            raise DependencyError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pd.DataFrame(self.columns(class_names, path))

    def to_csv(
        self,
        file: str | os.PathLike[str],
        class_names: Sequence[str] | None = None,
        path: Sequence[Any] | None = None,
    ) -> None:
        """Write a CSV file with a header and one row per input; the other parameters as for `columns`."""
        columns = self.columns(class_names, path)
        with open(file, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def name_classes(predicted: Array, class_names: Sequence[str] | None = None) -> Array:
    """Replace class numbers by names where there are names.

    Examples
    --------
    >>> name_classes(np.array([1, 0, -1]), ["ant", "bee"])
    array(['bee', 'ant', '-1'], dtype='<U3')
    """
    if class_names is None:
        return predicted
    names = [str(name) for name in class_names]
    return np.array([names[label] if 0 <= label < len(names) else str(label) for label in predicted.tolist()])


def limit_scores(verdicts: Verdicts, n_calibration: int) -> Verdicts:
    """Make infinite scores finite, and their inputs unknown.

    A distance overflows or a row of zeros has no direction: such an input is like no known one, whatever the sign.

    Parameters
    ----------
    verdicts : Verdicts
        Of one batch.
    n_calibration : int
        The number of calibration scores, which gives the smallest p-value.

    Returns
    -------
    Verdicts
        The same where all scores are finite.

    Examples
    --------
    >>> scores = np.array([1.0, np.inf, -np.inf])
    >>> limited = limit_scores(Verdicts(scores, np.array([0.5, 1.0, 0.1]), np.array([True, True, False])), 9)
    >>> limited.known, limited.p_value, limited.score.tolist()
    (array([ True, False, False]), array([0.5, 0.1, 0.1]), [1.0, 3.4028234663852886e+38, -3.4028234663852886e+38])
    """
    finite = np.isfinite(verdicts.score)
    if finite.all():
        return verdicts
    return replace(
        verdicts,
        score=np.clip(np.nan_to_num(verdicts.score, nan=-np.inf), -MAX_SCORE, MAX_SCORE),
        p_value=np.where(finite, verdicts.p_value, 1 / (n_calibration + 1)),
        known=verdicts.known & finite,
    )


def limit_value(value: float) -> float:
    """Make one number finite, as JSON has neither infinity nor NaN.

    Parameters
    ----------
    value : float
        A score, a threshold or a feature.

    Returns
    -------
    float
        The nearest one of float32; the smallest for NaN.

    Examples
    --------
    >>> limit_value(2.5), limit_value(float("-inf"))
    (2.5, -3.4028234663852886e+38)
    """
    return -MAX_SCORE if value != value else min(max(value, -MAX_SCORE), MAX_SCORE)
