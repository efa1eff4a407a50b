"""A linear classifier over embeddings of texts, its regularisation chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from offmap.activations import Head
from offmap.errors import InputError
from offmap.typing import Array, Float32Array, IntArray

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
FOLDS = 3
TOLERANCE = 1e-5  # of the mean gradient, which is small from the start where there are many classes


def train_head(features: Array, labels: IntArray, n_classes: int, seed: int = 0) -> Head:
    """Train a linear head over embeddings, its regularisation chosen by the accuracy in cross-validation.

    Rows are centred and scaled by one number. Columns are not standardised each by itself: in embeddings the directions
    of little variance carry little meaning, and would be given the same weight as the others.

    Parameters
    ----------
    features, labels : array
        One row and one class number per text.
    n_classes : int
        The number of classes; each needs one text at least.
    seed : int, default 0
        Of the folds.

    Returns
    -------
    Head
        Trained on all rows.

    Raises
    ------
    InputError
        If a class has no text.

    Examples
    --------
    >>> rows = np.array([[0.0, 1.0], [0.2, 1.1], [3.0, 0.0], [3.1, 0.2]])
    >>> train_head(rows, np.array([0, 0, 1, 1]), 2)(rows).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    rows = np.asarray(features, np.float32)
    sizes = np.bincount(labels, minlength=n_classes)
    if not sizes.all():
        raise InputError(f"{n_classes} classes but texts of {np.count_nonzero(sizes)}; every class needs one at least")
    if n_classes == 1:
        return Head(np.zeros((1, rows.shape[1])))
    *_, made = fit_strengths(rows, labels, STRENGTHS[: _choose_strength(rows, labels, int(sizes.min()), seed) + 1])
    return made


def fit_strengths(features: Float32Array, labels: IntArray, strengths: tuple[float, ...]) -> Iterator[Head]:
    """Fit a multinomial logistic regression for each strength in turn, each from the solution before it.

    Parameters
    ----------
    features, labels : array
        Rows of two or more classes, all of them present.
    strengths : tuple of float
        Inverses of the L2 penalty, ascending, for rows at a mean squared distance of 1 from their mean.
    """
    from sklearn.linear_model import LogisticRegression

    centre = features.mean(axis=0)
    scale = 1 / max(float(np.sqrt(np.square(features - centre).sum(axis=1).mean())), 1e-12)
    rows = (features - centre) * np.float32(scale)
    model: Any = LogisticRegression(max_iter=200, tol=TOLERANCE, warm_start=True)
    for strength in strengths:
        model.set_params(C=strength).fit(rows, labels)
        weight, bias = model.coef_ * scale, model.intercept_
        if len(weight) == 1:  # scikit-learn keeps one row for two classes
            weight, bias = np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
        yield Head(weight, bias - weight @ centre)


def _choose_strength(rows: Float32Array, labels: IntArray, fewest: int, seed: int) -> int:
    """Return the place of the strength that is right most often on rows that were left out."""
    from sklearn.model_selection import StratifiedKFold

    if fewest < 2:  # a class of one text cannot be in both parts of a fold
        return STRENGTHS.index(10.0)
    right = np.zeros(len(STRENGTHS))
    folds = StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=seed)
    for train, test in folds.split(rows, labels):
        for place, head in enumerate(fit_strengths(rows[train], labels[train], STRENGTHS)):
            right[place] += (head(rows[test]).argmax(axis=1) == labels[test]).sum()
    return int(np.argmax(right))
