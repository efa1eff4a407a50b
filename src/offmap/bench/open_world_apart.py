"""Novel class discovery as the thesis measures it: known inputs by a linear head, novel ones grouped alone."""

from __future__ import annotations

import numpy as np

from offmap.typing import Array, FloatArray, IntArray

RESTARTS = 10  # of k-means: scikit-learn's default when the thesis was written


def predict_apart(
    fitted: FloatArray, labels: IntArray, features: FloatArray, targets: IntArray, known: Array, seed: int = 0
) -> IntArray:
    """Predict inputs of known classes by a linear head and group those of novel classes by k-means.

    The way of the thesis' tables 6.1 and 6.2 (section 6.5): it is told which inputs are of novel classes, and how many
    such classes there are.

    Parameters
    ----------
    fitted : ndarray of shape (n_fitted, n_features)
        Features that were there in learning.
    labels : ndarray of shape (n_fitted,)
        Their known classes, -1 where unlabelled.
    features : ndarray of shape (n, n_features)
        Features to be told apart.
    targets : ndarray of shape (n,)
        Their true classes, of which only whether one is known is used, and the number of the others.
    known : array_like of int
        The known classes.
    seed : int, default=0
        Where k-means starts.

    Returns
    -------
    ndarray of int64 of shape (n,)
        A known class, or the number of a group counted from above all classes.

    Examples
    --------
    >>> rows = np.array([[0.0, 9.0], [0.1, 9.0], [9.0, 0.0], [9.0, 0.1], [-9.0, 0.0], [0.0, -9.0]])
    >>> labels = np.array([0, 0, 1, 1, -1, -1])
    >>> predict_apart(rows, labels, rows, np.array([0, 0, 1, 1, 2, 3]), [0, 1])[:4]
    array([0, 0, 1, 1])
    """
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression

    familiar = np.isin(targets, known)
    found = np.empty(len(targets), np.int64)
    named = labels >= 0
    if familiar.any():
        head = LogisticRegression(max_iter=1000).fit(fitted[named], labels[named])
        found[familiar] = head.predict(features[familiar])
    if not familiar.all():
        n_novel = len(np.unique(targets[~familiar]))
        groups = KMeans(n_novel, n_init=RESTARTS, random_state=seed).fit_predict(features[~familiar])
        found[~familiar] = int(max(targets.max(), np.max(known))) + 1 + groups
    return found
