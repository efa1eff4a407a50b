"""`ClassDiscovery`: `offmap.discover` as a clusterer of scikit-learn that takes some labels."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from offmap.discovery import discover
from offmap.discovery.assign import Labels


class ClassDiscovery(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Find the classes among rows of which some, or none, have labels.

    Parameters
    ----------
    n_classes : int or "auto", default="auto"
        Known and novel classes together; estimated by default.
    method : str, default="auto"
        See `offmap.discover`.
    outliers : bool or float, default=False
        Give rows that belong to no class the label -1; a number is the share of rows with a class that may be lost to
        this.
    random_state : int, default=0
        The same seed gives the same answer.

    Attributes
    ----------
    labels_ : array of shape (n_rows,)
        The class of each row: known classes keep their numbers, novel ones follow, -1 is an outlier. Names given as
        labels are numbered in alphabetical order.
    n_classes_ : int
        How many classes there are.
    novel_ : array
        The numbers of the novel classes.
    discovery_ : Discovery
        The whole result: confidence, exemplars, names, page.
    n_features_in_ : int
        How many columns `X` had.
    feature_names_in_ : array of str
        Their names, when `X` had names.

    See Also
    --------
    offmap.discover : the same as a function.
    offmap.discovery.SemiSupervisedKMeans : with `predict` for new rows.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = np.repeat(10 * np.eye(3), 40, axis=0) + rng.normal(size=(120, 3))
    >>> y = np.full(120, -1)
    >>> y[:20] = 5
    >>> model = ClassDiscovery(n_classes=3)
    >>> np.unique(model.fit_predict(X, y))
    array([5, 6, 7])
    """

    def __init__(
        self,
        n_classes: int | Literal["auto"] = "auto",
        *,
        method: str = "auto",
        outliers: bool | float = False,
        random_state: int = 0,
    ) -> None:
        self.n_classes = n_classes
        self.method = method
        self.outliers = outliers
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Group the rows.

        Parameters
        ----------
        X : array, pandas or polars frame of shape (n_rows, n_columns)
            Labelled and unlabelled rows together.
        y : array of shape (n_rows,), optional
            Class numbers with -1 where unknown, or names with `None` where unknown.

        Returns
        -------
        ClassDiscovery
            Itself.
        """
        rows = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        self.discovery_ = discover(rows, y, self.n_classes, self.method, self.random_state, outliers=self.outliers)
        self.labels_ = self.discovery_.labels
        self.n_classes_ = self.discovery_.n_classes
        self.novel_ = np.array([info.id for info in self.discovery_.novel], dtype=np.int64)
        return self

    def fit_predict(self, X: Any, y: Any = None) -> Labels:
        """Group the rows and give their classes; unlike scikit-learn's clusterers it reads `y`."""
        return self.fit(X, y).labels_
