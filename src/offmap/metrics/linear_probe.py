"""How linearly the classes can be told apart in features."""

from __future__ import annotations

from typing import Any

import numpy as np

from offmap.errors import InputError
from offmap.metrics.contingency import read_labels


def linear_probe_accuracy(
    train_features: Any,
    train_labels: Any,
    test_features: Any,
    test_labels: Any,
    *,
    regularization: float = 1.0,
    seed: int = 0,
) -> float:
    """Measure the accuracy of a logistic regression on frozen features: how linearly the classes can be told apart.

    Features are standardised with the training part's mean and deviation.

    Parameters
    ----------
    train_features, test_features : array-like of shape (n, d)
        Frozen features.
    train_labels, test_labels : array-like of shape (n,)
        Their classes.
    regularization : float, default=1.0
        C of scikit-learn's logistic regression.
    seed : int, default=0
        Seed of its solver.

    Returns
    -------
    float
        The share of test inputs that are right.

    Examples
    --------
    >>> rows = np.array([[0.0], [1.0], [9.0], [10.0]])
    >>> linear_probe_accuracy(rows, [0, 0, 1, 1], rows, [0, 0, 1, 1])
    1.0
    """
    from sklearn.linear_model import LogisticRegression

    rows, queries = np.asarray(train_features, np.float64), np.asarray(test_features, np.float64)
    labels = read_labels(train_labels, "train_labels")
    if len(np.unique(labels)) < 2:
        raise InputError("linear_probe_accuracy: the training labels hold one class; at least two are needed")
    centre, spread = rows.mean(axis=0), rows.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    probe = LogisticRegression(C=regularization, max_iter=1000, random_state=seed)
    probe.fit((rows - centre) / spread, labels)
    return float(probe.score((queries - centre) / spread, read_labels(test_labels, "test_labels")))
