"""`OpenWorldClassifier`: any classifier of scikit-learn that also says when a row is of none of its classes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import _safe_indexing
from sklearn.utils._tags import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y, _num_samples, check_is_fitted, validate_data

from offmap.activations import Activations
from offmap.detection import Component, Detector, Verdicts, detector
from offmap.errors import InputError, MissingError, OffmapWarning
from offmap.sklearn.classifier_outputs import describe_odd_columns, read_activations
from offmap.sklearn.holding_out import Promise, fit_and_calibrate
from offmap.typing import Array

WAY_OUT = "fill gaps and encode names before it: make_pipeline(make_column_transformer(...), estimator)"


class _Pair(NamedTuple):
    model: Any
    detector: Detector


@contextmanager
def _naming_odd_columns(model: Any, X: Any, spec: Any) -> Iterator[None]:
    """Say which columns are the reason where a detector lacks features."""
    try:
        yield
    except MissingError as error:
        odd = describe_odd_columns(model, X)
        if not odd:
            raise
        raise InputError(f"{spec} reads the columns that the classifier reads: {odd}; {WAY_OUT}") from error


class OpenWorldClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Predict the class of a row, or that it is of none: any classifier with a detector beside it.

    Parameters
    ----------
    estimator : classifier
        Any with `predict_proba` or `decision_function`: linear models, multi-layer perceptrons, trees, XGBoost,
        LightGBM, pipelines that end in one. A copy is fitted; one that is fitted already is kept as it is inside
        ``sklearn.frozen.FrozenEstimator(estimator)``, and `fit` then takes rows that it was not trained on.
    spec : str, Score or Detector, default="auto"
        The detector. It reads what goes into the last step of a pipeline as features (of a perceptron, its last hidden
        layer) and the classifier's logits; ``"auto"`` chooses one from the rows.
    tpr : float, default=0.95
        The share of rows of known classes to accept.
    by_class : bool, default=False
        Keep this promise within every predicted class instead of on average.
    calibration : float, default=0.2
        The share of rows held out of the fitting, on which the threshold is set.
    unknown_label : int or str, optional
        What is predicted for unknown rows: by default -1, or ``"unknown"`` where classes are names.
    random_state : int or None, default=0
        Draws the rows held out; `None` draws others each time.

    Attributes
    ----------
    estimator_ : classifier
        The fitted classifier.
    detector_ : Detector
        Fitted and calibrated.
    classes_ : array
        The known classes.
    unknown_label_ : int or str
        What is predicted for unknown rows.
    n_features_in_ : int
        How many columns it was fitted on.
    feature_names_in_ : array of str
        Their names, when `X` had names.

    See Also
    --------
    OutlierDetector : without a classifier.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = OpenWorldClassifier(LogisticRegression(max_iter=1000), "mahalanobis").fit(X, y)
    >>> model.predict([[5.0, 3.4, 1.5, 0.2], [50.0, 3.4, 1.5, 0.2]])
    array([ 0, -1])
    """

    def __init__(
        self,
        estimator: Any,
        spec: str | Component | Detector = "auto",
        *,
        tpr: float = 0.95,
        by_class: bool = False,
        calibration: float = 0.2,
        unknown_label: Any = None,
        random_state: int | None = 0,
    ) -> None:
        self.estimator = estimator
        self.spec = spec
        self.tpr = tpr
        self.by_class = by_class
        self.calibration = calibration
        self.unknown_label = unknown_label
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier and its detector on most rows, and set the threshold on the others.

        Parameters
        ----------
        X : array, pandas or polars frame of shape (n_rows, n_columns)
            Whatever the classifier takes.
        y : array of shape (n_rows,)
            The class of each row.

        Returns
        -------
        OpenWorldClassifier
            Itself.
        """
        promise = Promise(self.tpr, self.calibration, self.by_class, self.random_state)
        promise.check()
        made = detector(self.spec)
        X = self._rows(X, reset=True)
        y = self._targets(X, y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"y holds one class, {classes[0]!r}: a classifier needs two; use OutlierDetector instead")
        self.unknown_label_ = self._choose_unknown_label(classes)

        def fit(rows: Array) -> _Pair:
            part = _safe_indexing(X, rows)
            model = clone(self.estimator).fit(part, y[rows])
            acts = read_activations(model, part)
            labels = np.searchsorted(model.classes_, y[rows])
            known = Activations(acts.features if acts.has_features else None, acts.head, acts.given_logits, labels)
            with _naming_odd_columns(model, part, made):
                return _Pair(model, detector(made).fit(known))

        def score(pair: _Pair, rows: Array) -> tuple[Array, Array]:
            part = _safe_indexing(X, rows)
            acts = read_activations(pair.model, part)
            with _naming_odd_columns(pair.model, part, made):
                return pair.detector.score(acts), acts.predictions

        pair, calibration = fit_and_calibrate(promise, codes, fit, score)
        if pair.detector.trials:  # of "auto", which then takes methods that read logits only
            self._warn_of_odd_columns(pair.model, X)
        self.estimator_, self.detector_ = pair
        self.detector_.calibration = calibration
        self.classes_ = self.estimator_.classes_
        return self

    def _warn_of_odd_columns(self, model: Any, X: Any) -> None:
        odd = describe_odd_columns(model, X)
        if odd:
            warnings.warn(
                f"{odd}: the detector reads the classifier's logits only, which say little of rows far from all "
                f"classes; {WAY_OUT}",
                OffmapWarning,
                stacklevel=3,
            )

    def _targets(self, X: Any, y: Any) -> Array:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = _check_y(y, estimator=self)
        check_classification_targets(y)
        if len(y) != _num_samples(X):
            raise InputError(f"{_num_samples(X)} rows but {len(y)} classes in y; they must agree")
        return np.asarray(y)

    def _choose_unknown_label(self, classes: Array) -> Any:
        label = self.unknown_label
        if label is None:
            label = -1 if classes.dtype.kind in "biuf" else "unknown"
        if label in classes.tolist():
            raise InputError(
                f"class {label!r} is what stands for unknown rows in predictions; name another one: unknown_label=..."
            )
        return label

    def verdicts(self, X: Any) -> Verdicts:
        """Score, p-value and known or unknown for each row, with the number of the predicted class in `classes_`."""
        return self._verdicts(self._checked(X))

    def _verdicts(self, X: Any) -> Verdicts:
        calibration = self.detector_.calibration
        assert calibration is not None
        return calibration.verdicts(*self._score(X))

    def _score(self, X: Any) -> tuple[Array, Array]:
        acts = read_activations(self.estimator_, X)
        with _naming_odd_columns(self.estimator_, X, self.spec):
            return self.detector_.score(acts), acts.predictions

    def predict(self, X: Any) -> Array:
        """Predict the class of each row; `unknown_label_` where it is of none."""
        X = self._checked(X)
        known = self._verdicts(X).known
        predicted = np.asarray(self.estimator_.predict(X)).reshape(-1)
        both = np.concatenate([predicted, np.array([self.unknown_label_])])  # in a type that holds both
        return np.asarray(np.where(known, both[:-1], both[-1]))

    def score_samples(self, X: Any) -> Array:
        """Score rows: one number each, higher means known."""
        return self._score(self._checked(X))[0]

    def p_values(self, X: Any) -> Array:
        """Give the conformal p-value of each row: small for unknown ones, at most α for a share α of the known."""
        return self.verdicts(X).p_value

    @available_if(lambda self: hasattr(getattr(self, "estimator_", self.estimator), "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Give the classifier's probabilities of the known classes, whether the row is known or not."""
        X = self._checked(X)
        return np.asarray(self.estimator_.predict_proba(X))

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._rows(X, reset=False)

    def _rows(self, X: Any, reset: bool) -> Any:
        """Check the names and number of columns; frames go to the classifier as they are, others as arrays."""
        if hasattr(X, "columns"):
            return validate_data(self, X, skip_check_array=True, reset=reset)
        return validate_data(self, X, reset=reset, accept_sparse=["csr", "csc"], dtype=None, ensure_all_finite=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        return tags
