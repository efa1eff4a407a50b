"""`OutlierDetector`: any detector of offmap as an outlier detector of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from offmap.activations import Activations
from offmap.detection import Component, Detector, detector
from offmap.errors import InputError
from offmap.sklearn.holding_out import Promise, fit_and_calibrate
from offmap.typing import Array

UNKNOWN = -1


class OutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Flag rows that are unlike those it was fitted on, with a bound on false alarms.

    Rows are taken as they are: scale and encode columns with steps of your own before it in a pipeline.

    Parameters
    ----------
    spec : str, Score or Detector, default="auto"
        The detector, such as ``"knn(10, normalize=false)"``; ``"auto"`` chooses one from the rows. Parameters of a
        `Detector` can be searched: ``spec__knn__k``.
    tpr : float, default=0.95
        The share of rows like the fitted ones to accept: of new ones, at most ``1 - tpr`` are flagged on average.
    calibration : float, default=0.2
        The share of rows held out of the fitting, on which the threshold is set. Where the rows are too few for that,
        the threshold comes from 5 fits that leave a fifth out each, with a warning.
    random_state : int or None, default=0
        Draws the rows held out; `None` draws others each time.
    device : str, default="cpu"
        Where to compute.

    Attributes
    ----------
    detector_ : Detector
        Fitted and calibrated; `save` writes it to a file, `offmap.export` to an ONNX graph.
    offset_ : float
        The threshold: ``decision_function = score_samples - offset_``.
    n_features_in_ : int
        How many columns it was fitted on.
    feature_names_in_ : array of str
        Their names, when `X` had names.

    See Also
    --------
    OpenWorldClassifier : a classifier and its detector together.
    offmap.detector : the same for activations of a network.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> model = OutlierDetector("knn(5, normalize=false)").fit(rng.normal(size=(500, 3)))
    >>> model.predict([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    array([ 1, -1])
    """

    def __init__(
        self,
        spec: str | Component | Detector = "auto",
        *,
        tpr: float = 0.95,
        calibration: float = 0.2,
        random_state: int | None = 0,
        device: str = "cpu",
    ) -> None:
        self.spec = spec
        self.tpr = tpr
        self.calibration = calibration
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on rows that count as known, and set the threshold on some of them.

        Parameters
        ----------
        X : array, pandas or polars frame of shape (n_rows, n_columns)
            Finite numbers.
        y : array of shape (n_rows,), optional
            The class of each row, as numbers or names; some methods read it. Rows of class -1 are known outliers, and
            are not fitted on.

        Returns
        -------
        OutlierDetector
            Itself.
        """
        promise = Promise(self.tpr, self.calibration, False, self.random_state)
        promise.check()
        made = detector(self.spec)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        known = read_known(rows, y)
        strata = np.zeros(len(known), dtype=np.int64) if known.labels is None else known.labels
        self.detector_, calibration = fit_and_calibrate(
            promise,
            strata,
            lambda chosen: detector(made).fit(known[chosen], device=self.device),
            lambda fitted, chosen: (fitted.score(known[chosen], self.device), None),
        )
        self.detector_.calibration = calibration
        self.offset_ = calibration.threshold
        return self

    def score_samples(self, X: Any) -> Array:
        """Score rows: one number each, higher means more like those fitted on."""
        rows = self._rows(X)
        return self.detector_.score(rows, self.device)

    def decision_function(self, X: Any) -> Array:
        """Give the score above the threshold: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Array:
        """Give 1 for rows like those fitted on, -1 for outliers."""
        return np.where(self.decision_function(X) >= 0, 1, UNKNOWN)

    def p_values(self, X: Any) -> Array:
        """Give the conformal p-value of each row: small for outliers, at most α for a share α of the others."""
        rows = self._rows(X)
        assert self.detector_.calibration is not None
        return self.detector_.calibration.p_values(self.detector_.score(rows, self.device))

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))


def read_known(rows: Array, y: Any) -> Activations:
    """Make activations of the rows that are not of class -1, with their classes numbered from 0.

    Examples
    --------
    >>> read_known(np.eye(3), ["cat", "dog", "cat"]).labels
    array([0, 1, 0])
    >>> len(read_known(np.eye(3), [1, -1, 1]))
    2
    """
    if y is None:
        return Activations(rows)
    labels = np.asarray(y)
    if labels.shape != (len(rows),):
        raise InputError(f"y of shape {labels.shape} for {len(rows)} rows: give one class per row, or leave y out")
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.floor(labels)):
        raise InputError("y holds fractions or NaN: give the class of each row as a number or a name, or leave y out")
    known = labels != UNKNOWN if labels.dtype.kind in "iuf" else np.ones(len(rows), dtype=bool)
    if not known.any():
        raise InputError("y: all rows are of class -1, which stands for outliers; fit on known rows")
    return Activations(rows[known], labels=np.unique(labels[known], return_inverse=True)[1])
