"""Hold rows out of the fitting, so that the threshold keeps its promise; cross-fit where rows are few."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np

from offmap.detection import Calibration
from offmap.errors import InputError, OffmapWarning
from offmap.typing import Array

FOLDS = 5

T = TypeVar("T")


class Promise(NamedTuple):
    """A promise, and on how many rows it is based.

    Parameters
    ----------
    tpr : float
        The share of known inputs to accept.
    share : float
        The share of rows held out.
    by_class : bool
        Whether the promise holds within every predicted class.
    seed : int or None
        Draws the rows.
    """

    tpr: float
    share: float
    by_class: bool
    seed: int | None

    @property
    def fewest(self) -> int:
        """How many held-out rows the promise needs."""
        return ceil(1 / (1 - self.tpr) - 1e-9) - 1

    def check(self) -> None:
        """Refuse numbers outside of their ranges."""
        if not 0 < self.tpr < 1:
            raise InputError(f"tpr={self.tpr}: the share of known inputs to accept lies between 0 and 1")
        if not 0 < self.share < 1:
            raise InputError(f"calibration={self.share}: the share of rows held out lies between 0 and 1")


def fit_and_calibrate(
    promise: Promise,
    strata: Array,
    fit: Callable[[Array], T],
    score: Callable[[T, Array], tuple[Array, Array | None]],
) -> tuple[T, Calibration]:
    """Fit on some rows and calibrate on others.

    Parameters
    ----------
    promise : Promise
        What to promise.
    strata : array of shape (n_rows,)
        The class of each row, from 0: rows are held out of every class alike.
    fit : callable
        From the numbers of rows to something fitted on them.
    score : callable
        From that and the numbers of other rows to their scores and, where there are any, predicted classes.

    Returns
    -------
    fitted : object
        What `fit` made: of the rows not held out or, with too few rows for that, of all rows.
    calibration : Calibration
        Calibration of the scores of held-out rows; with too few rows, of rows scored by fits of the others (5 folds).
    """
    rows = len(strata)
    held_out = max(round(promise.share * rows), promise.fewest)
    rng = np.random.default_rng(promise.seed)
    if held_out <= rows / 2:
        apart = _draw(strata, held_out, rng)
        fitted = fit(np.setdiff1d(np.arange(rows), apart))
        scores, classes = score(fitted, apart)
    else:
        fitted = fit(np.arange(rows))
        scores, classes = _cross_fit(strata, rng, fit, score)
        warnings.warn(
            f"{rows} rows are too few to hold {promise.fewest} of them out, as tpr={promise.tpr} takes; each is scored "
            "by a fit of the others instead, so that the promise holds approximately",
            OffmapWarning,
            stacklevel=4,
        )
    tpr = promise.tpr
    if rows < promise.fewest:
        tpr = rows / (rows + 1)
        warnings.warn(
            f"tpr={promise.tpr} cannot be promised from {rows} rows, at least {promise.fewest} are needed; "
            f"the threshold is the lowest score among them, which accepts {tpr:.3f}",
            OffmapWarning,
            stacklevel=4,
        )
    return fitted, Calibration.of(scores, tpr, classes if promise.by_class else None)


def _draw(strata: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw rows such that every class keeps its share, and at least one row to fit on."""
    order = rng.permutation(len(strata))
    place = np.empty(len(strata))
    for label in np.unique(strata):
        members = order[strata[order] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
        place[members[-1]] = 2.0  # fitted on, whatever happens
    return np.sort(order[np.argsort(place[order], kind="stable")[:count]])


def _cross_fit(
    strata: Array,
    rng: np.random.Generator,
    fit: Callable[[Array], T],
    score: Callable[[T, Array], tuple[Array, Array | None]],
) -> tuple[Array, Array | None]:
    scores = np.empty(len(strata))
    classes = None
    for apart in _folds(strata, rng):
        found, predicted = score(fit(np.setdiff1d(np.arange(len(strata)), apart)), apart)
        scores[apart] = found
        if predicted is not None:
            classes = np.empty(len(strata), dtype=np.int64) if classes is None else classes
            classes[apart] = predicted
    return scores, classes


def _folds(strata: Array, rng: np.random.Generator) -> Iterator[Array]:
    order = rng.permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    folds = min(FOLDS, len(strata))
    for fold in range(folds):
        yield np.sort(order[fold::folds])
