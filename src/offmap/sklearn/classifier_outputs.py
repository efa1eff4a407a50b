"""Outputs of a scikit-learn classifier as activations: features, logits and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from offmap.activations import Activations, Head
from offmap.errors import InputError
from offmap.typing import Array

MARGINS: dict[str, dict[str, Any]] = {  # how a library's `predict` gives logits instead of classes
    "xgboost": {"output_margin": True},
    "lightgbm": {"raw_score": True},
    "catboost": {"prediction_type": "RawFormulaVal"},
}
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {  # of a multi-layer perceptron's hidden layers
    "identity": lambda values: values,
    "logistic": lambda values: np.asarray(expit(values)),
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0),
}
NAMED = 3  # columns that a sentence names
LOWEST = 1e-30  # probabilities of 0 have no logarithm


def read_activations(model: Any, X: Any) -> Activations:
    """Read features and logits of rows from a fitted classifier.

    Features are what goes into the last step of a pipeline, and for a multi-layer perceptron its last hidden layer.
    Logits come from a linear model's weights, from the library's margins, from `decision_function`, or are the
    logarithm of `predict_proba`. Rows that are not all numbers have logits only.

    Parameters
    ----------
    model : classifier
        Fitted; a pipeline, a search or a frozen estimator is looked into.
    X : array or data frame
        The rows.

    Returns
    -------
    Activations
        Without labels.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> acts = read_activations(LogisticRegression().fit(X, [0, 0, 1, 1]), X)
    >>> acts, acts.predictions
    (Activations(4 inputs, 1 feature, 2 classes), array([0, 0, 1, 1]))
    """
    last, rows = _last_step(model, X)
    features = _numbers(rows)
    if features is not None and _is_perceptron(last):
        hidden = _last_hidden(last, features)
        return Activations(hidden, head=_head(last.coefs_[-1].T, last.intercepts_[-1]))
    if features is not None and _is_linear(last, features):
        return Activations(features, head=_head(last.coef_, last.intercept_))
    return Activations(features, logits=_logits(last, rows))


def describe_odd_columns(model: Any, X: Any) -> str:
    """Name what keeps the rows before a classifier from being numbers; empty where nothing does.

    Parameters
    ----------
    model : classifier
        Fitted, as `read_activations` takes it.
    X : array or data frame
        The rows.

    Returns
    -------
    str
        Such as "'age' lacks 3 of 100 values; 'colour' does not hold numbers".

    Examples
    --------
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> X = np.array([[0.0, 1.0], [np.nan, 2.0]])
    >>> describe_odd_columns(HistGradientBoostingClassifier().fit(X, [0, 1]), X)
    'column 0 lacks 1 of 2 values'
    """
    _, rows = _last_step(model, X)
    dense = rows.toarray() if hasattr(rows, "toarray") else rows
    if hasattr(dense, "columns"):
        columns = [(repr(str(name)), np.asarray(dense[name])) for name in dense.columns]
    else:
        columns = [(f"column {place}", values) for place, values in enumerate(np.asarray(dense).T)]
    described = [(name, _describe_odd(values)) for name, values in columns]
    odd = [f"{name} {words}" for name, words in described if words]
    return "; ".join(odd[:NAMED] + [f"{len(odd) - NAMED} more columns"] * (len(odd) > NAMED))


def _describe_odd(values: Array) -> str:
    try:
        missing = int(np.sum(~np.isfinite(values.astype(np.float64))))
    except (TypeError, ValueError):
        return "does not hold numbers"
    return f"lacks {missing} of {len(values)} values" if missing else ""


def _last_step(model: Any, X: Any) -> tuple[Any, Any]:
    """Go through frozen estimators, searches and pipelines to the classifier itself and what goes into it."""
    if hasattr(model, "best_estimator_"):
        return _last_step(model.best_estimator_, X)
    if hasattr(model, "steps"):
        return _last_step(model.steps[-1][1], model[:-1].transform(X) if len(model.steps) > 1 else X)
    if type(model).__name__ == "FrozenEstimator":
        return _last_step(model.estimator, X)
    return model, X


def _numbers(rows: Any) -> Array | None:
    dense = rows.toarray() if hasattr(rows, "toarray") else rows
    try:
        found = np.asarray(dense, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == 2 and np.isfinite(found).all() else None


def _is_perceptron(model: Any) -> bool:
    return hasattr(model, "coefs_") and hasattr(model, "intercepts_") and len(model.coefs_) > 1


def _is_linear(model: Any, features: Array) -> bool:
    weight = getattr(model, "coef_", None)
    if weight is None or not hasattr(model, "intercept_") or hasattr(weight, "toarray"):
        return False
    rows = 1 if len(model.classes_) == 2 else len(model.classes_)
    return np.shape(weight) == (rows, features.shape[1])


def _last_hidden(model: Any, features: Array) -> Array:
    apply = ACTIVATIONS[model.activation]
    for weight, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        features = apply(features @ weight + bias)
    return features


def _head(weight: Array, bias: Any) -> Head:
    shift = np.broadcast_to(np.asarray(bias, dtype=np.float64), (len(weight),))
    return Head(two_sided(np.asarray(weight).T).T, two_sided(shift[None])[0])


def two_sided(columns: Array) -> Array:
    """Turn the one logit z of a binary classifier into -z/2 and z/2, which give the same probabilities.

    Examples
    --------
    >>> two_sided(np.array([[2.0], [-4.0]]))
    array([[-1.,  1.],
           [ 2., -2.]])
    """
    return np.hstack([-columns / 2, columns / 2]) if columns.shape[1] == 1 else columns


def _logits(model: Any, rows: Any) -> Array:
    options = MARGINS.get(type(model).__module__.split(".")[0])
    if options is not None:
        found = model.predict(rows, **options)
    elif hasattr(model, "decision_function") and _one_per_class(model):
        found = model.decision_function(rows)
    elif hasattr(model, "predict_proba"):
        found = np.log(np.maximum(model.predict_proba(rows), LOWEST))
    else:
        raise InputError(
            f"{type(model).__name__}: a classifier with predict_proba or decision_function is needed; wrap it in "
            "sklearn.calibration.CalibratedClassifierCV"
        )
    found = np.asarray(found, dtype=np.float64)
    return two_sided(found.reshape(len(found), -1))


def _one_per_class(model: Any) -> bool:
    """Return whether `decision_function` gives one number per class: support vector machines can give one per pair."""
    return getattr(model, "decision_function_shape", "ovr") == "ovr"
