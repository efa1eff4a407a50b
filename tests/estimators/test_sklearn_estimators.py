"""The estimators for scikit-learn: its own checks, its own tools, real classifiers, frames with names."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, load_wine, make_blobs
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

import offmap
from offmap.errors import InputError, OffmapWarning
from offmap.sklearn import ClassDiscovery, OpenWorldClassifier, OutlierDetector
from offmap.sklearn.classifier_outputs import read_activations

CHEAP = "knn(1, normalize=false)"
EXPECTED = {  # checks of scikit-learn that an open-world classifier fails on purpose
    "check_classifiers_classes": "it refuses a class -1, which stands for unknown rows, unless another label is named",
    "check_classifiers_train": "its predictions are -1 for some rows, which the largest probability never says",
}
ROUNDED = {  # what `auto` may fail besides, on some processors: the check allows a difference of 1e-7
    "check_methods_subset_invariance": "float32 rounds the products of a batch and those of a row differently",
}


def failures(estimator: Any) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 40
    return {each["check_name"]: str(each["exception"]) for each in results if each["status"] == "failed"}


@pytest.mark.parametrize("estimator", [OutlierDetector(CHEAP), ClassDiscovery()], ids=lambda one: type(one).__name__)
def test_scikit_learns_own_checks_pass(estimator: Any) -> None:
    assert failures(estimator) == {}


def test_scikit_learns_own_checks_of_a_classifier_pass_but_two() -> None:
    assert failures(OpenWorldClassifier(LogisticRegression(), CHEAP)).keys() == EXPECTED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["outliers", "classifier"])
def test_scikit_learns_own_checks_pass_with_auto(name: str) -> None:
    estimator = OutlierDetector() if name == "outliers" else OpenWorldClassifier(LogisticRegression())
    assert failures(estimator).keys() <= {*(EXPECTED if name == "classifier" else ()), *ROUNDED}


def test_a_row_by_itself_scores_as_in_a_batch_up_to_float32() -> None:
    rows = 3 * np.random.default_rng(0).uniform(size=(60, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffmapWarning)
        model = OutlierDetector().fit(rows)
    alone = np.concatenate([model.score_samples(row[None]) for row in rows])
    np.testing.assert_allclose(alone, model.score_samples(rows), rtol=1e-5, atol=1e-5)


def test_false_alarms_stay_below_the_promise_and_outliers_are_flagged() -> None:
    rng = np.random.default_rng(0)
    model = OutlierDetector("knn(5, normalize=false)", tpr=0.9).fit(rng.normal(size=(2000, 4)))
    inside, outside = rng.normal(size=(4000, 4)), rng.normal(size=(500, 4)) + 5
    assert np.mean(model.predict(inside) == -1) == pytest.approx(0.1, abs=0.04)
    assert np.mean(model.predict(outside) == -1) > 0.99
    np.testing.assert_array_equal(model.predict(inside) == 1, model.p_values(inside) > 0.1 + 1e-12)
    np.testing.assert_allclose(model.score_samples(inside) - model.offset_, model.decision_function(inside))


def test_few_rows_are_cross_fitted_and_fewer_promise_less_with_a_warning() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(OffmapWarning, match="holds approximately"):
        model = OutlierDetector(CHEAP).fit(rng.normal(size=(30, 2)))
    assert model.predict([[50.0, 50.0]]) == -1
    assert model.detector_.calibration is not None
    assert len(model.detector_.calibration.scores) == 30
    with (
        pytest.warns(OffmapWarning, match="holds approximately"),
        pytest.warns(OffmapWarning, match=r"cannot be promised from 9 rows.*accepts 0\.900"),
    ):
        OutlierDetector(CHEAP).fit(rng.normal(size=(9, 2)))


def test_rows_of_class_minus_one_are_not_fitted_on() -> None:
    rng = np.random.default_rng(1)
    rows = np.vstack([rng.normal(size=(200, 3)), rng.normal(size=(20, 3)) + 9])
    y = np.repeat([1, -1], [200, 20])
    model = OutlierDetector(CHEAP).fit(rows, y)
    assert (model.predict(rows[200:]) == -1).all()
    assert (OutlierDetector("mahalanobis").fit(rows, np.where(y == 1, "in", "out")).predict(rows[200:]) == 1).any()
    with pytest.raises(InputError, match="all rows are of class -1"):
        OutlierDetector(CHEAP).fit(rows, np.full(220, -1))
    with pytest.raises(InputError, match="y holds fractions"):
        OutlierDetector(CHEAP).fit(rows, np.linspace(0, 1, 220))


def test_a_search_and_a_pipeline_reach_the_detectors_parameters() -> None:
    rng = np.random.default_rng(0)
    rows = np.vstack([rng.normal(size=(150, 3)), rng.normal(size=(30, 3)) * 4]) * [1, 100, 1e4]
    y = np.repeat([1, -1], [150, 30])
    pipeline = make_pipeline(StandardScaler(), OutlierDetector(offmap.detector(CHEAP)))
    search = GridSearchCV(
        pipeline, {"outlierdetector__spec__knn__k": [1, 5, 20]}, scoring="roc_auc", cv=StratifiedKFold(3)
    )
    assert search.fit(rows, y).best_score_ > 0.8
    assert search.best_params_["outlierdetector__spec__knn__k"] in (1, 5, 20)
    assert repr(pipeline[-1].spec) == repr(offmap.detector(CHEAP))  # the search works on copies


def test_frames_keep_their_names_and_another_order_is_refused() -> None:
    X, _ = load_wine(return_X_y=True, as_frame=True)
    by_pandas, by_polars = OutlierDetector(CHEAP).fit(X), OutlierDetector(CHEAP).fit(pl.DataFrame(X.to_dict("list")))
    np.testing.assert_array_equal(by_pandas.feature_names_in_, X.columns)
    np.testing.assert_array_equal(by_polars.feature_names_in_, X.columns)
    np.testing.assert_array_equal(by_pandas.score_samples(X), by_polars.score_samples(pl.DataFrame(X.to_dict("list"))))
    turned = X[X.columns[::-1]]
    for model in (by_pandas, OpenWorldClassifier(GaussianNB(), CHEAP).fit(X, np.arange(len(X)) % 2)):
        with pytest.raises(ValueError, match="must be in the same order"):
            model.predict(turned)


def test_a_mixed_table_goes_through_the_users_pipeline() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=300), "colour": rng.choice(["red", "blue"], 300)})
    y = np.where(table["colour"] == "red", "apple", "plum")
    encode = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    model = OpenWorldClassifier(make_pipeline(encode, LogisticRegression()), CHEAP).fit(table, y)
    strange = pd.DataFrame({"size": [50.0, 0.0], "colour": ["red", "blue"]})
    assert model.predict(strange).tolist() == ["unknown", "plum"]
    assert list(model.feature_names_in_) == ["size", "colour"]
    assert model.classes_.tolist() == ["apple", "plum"]
    trees = HistGradientBoostingClassifier(categorical_features="from_dtype", max_iter=5)
    typed = table.astype({"colour": "category"})
    logits_only = OpenWorldClassifier(trees, "msp").fit(typed, y)
    assert set(logits_only.predict(typed)) <= {"apple", "plum", "unknown"}


def lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1)


def xgboost() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=10, n_jobs=1)


CLASSIFIERS = [
    LogisticRegression(max_iter=500),
    make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=60, random_state=0)),
    SVC(),
    SVC(decision_function_shape="ovo"),
    GaussianNB(),
    QuadraticDiscriminantAnalysis(reg_param=0.1),
    RandomForestClassifier(10, random_state=0),
    DecisionTreeClassifier(random_state=0),
    HistGradientBoostingClassifier(max_iter=5),
    GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=2),
    lightgbm(),
    xgboost(),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda one: type(one).__name__)
def test_activations_say_what_the_classifier_says(estimator: Any, n_classes: int) -> None:
    X, y = make_blobs(240, 4, centers=n_classes, cluster_std=3.0, random_state=3)
    if isinstance(estimator, SVC) and estimator.decision_function_shape == "ovo":
        with pytest.raises(InputError, match="CalibratedClassifierCV"):
            read_activations(clone(estimator).fit(X, y), X)
        return
    fitted = clone(estimator).fit(X, y)
    acts = read_activations(fitted, X)
    assert acts.n_classes == n_classes
    np.testing.assert_array_equal(fitted.classes_[acts.predictions], fitted.predict(X))
    soft = "GaussianNB LogisticRegression Pipeline RandomForestClassifier GridSearchCV LGBMClassifier XGBClassifier"
    if type(estimator).__name__ in soft + " HistGradientBoostingClassifier":
        exponentials = np.exp(acts.logits - acts.logits.max(axis=1, keepdims=True))
        shares = exponentials / exponentials.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(shares, fitted.predict_proba(X), atol=2e-5)


@pytest.mark.parametrize("classifier", [lightgbm(), xgboost()], ids=lambda one: type(one).__name__)
def test_boosted_trees_take_gaps_that_a_detector_cannot_and_the_column_is_named(classifier: Any) -> None:
    X, y = make_blobs(300, 2, centers=3, random_state=0)
    table = pd.DataFrame(X, columns=["size", "age"])
    gaps = table.copy()
    gaps.loc[::5, "age"] = np.nan
    with pytest.warns(OffmapWarning, match="'age' lacks 60 of 300 values: the detector reads the classifier's logits"):
        model = OpenWorldClassifier(classifier).fit(gaps, y)
    assert set(model.predict(gaps)) <= {-1, 0, 1, 2}
    with pytest.raises(InputError, match=r"knn\(1, normalize=False\) reads the columns .* 'age' lacks .*make_pipe"):
        OpenWorldClassifier(classifier, CHEAP).fit(gaps, y)
    whole = OpenWorldClassifier(classifier, CHEAP).fit(table, y)
    with pytest.raises(InputError, match="'age' lacks 2 of 10 values"):
        whole.predict(gaps[:10])
    filled = OpenWorldClassifier(make_pipeline(SimpleImputer(), clone(classifier)), CHEAP).fit(gaps, y)
    assert filled.predict(pd.DataFrame({"size": [99.0], "age": [np.nan]})) == -1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_digits_that_were_never_shown_are_flagged_by_a_real_classifier() -> None:
    X, y = load_digits(return_X_y=True)
    known, order = y < 8, np.random.default_rng(0).permutation(len(y))
    seen, new = order[known[order]][:900], order[known[order]][900:]
    model = OpenWorldClassifier(make_pipeline(MinMaxScaler(), LogisticRegression(max_iter=200)), "knn(5)")
    model.set_params(spec="auto", estimator__logisticregression__C=0.5).fit(X[seen], y[seen])
    answers = model.predict(X[new])
    assert np.mean(answers == -1) < 0.12
    assert np.mean(answers[answers != -1] == y[new][answers != -1]) > 0.95
    assert np.mean(model.predict(X[~known]) == -1) > 0.6
    truth = np.where(known, y, -1)
    assert model.score(X[new], truth[new]) > 0.85
    assert model.predict_proba(X[:5]).shape == (5, 8)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - scikit-learn's own way to keep models, on our own bytes
    np.testing.assert_array_equal(again.predict(X[:50]), model.predict(X[:50]))


def test_a_frozen_classifier_stays_as_it_is_and_labels_are_chosen() -> None:
    X, y = make_blobs(400, 3, centers=2, random_state=0)
    y = 2 * y - 1
    fitted = GaussianNB().fit(X[:200], y[:200])
    with pytest.raises(InputError, match="unknown_label="):
        OpenWorldClassifier(FrozenEstimator(fitted), CHEAP).fit(X[200:], y[200:])
    model = OpenWorldClassifier(FrozenEstimator(fitted), CHEAP, unknown_label=9).fit(X[200:], y[200:])
    assert model.estimator_.estimator is fitted
    assert model.predict([[99.0, 99.0, 99.0]]) == 9
    assert cross_val_score(model, X, y, cv=3).mean() > 0.85
    by_class = OpenWorldClassifier(GaussianNB(), CHEAP, by_class=True, calibration=0.4).fit(X, y * 2 + 3)
    assert by_class.detector_.calibration.thresholds().keys() == {0, 1}
    with pytest.raises(InputError, match="OutlierDetector"):
        OpenWorldClassifier(GaussianNB(), CHEAP).fit(X, np.ones(400))
    for wrong in ({"tpr": 1.5}, {"calibration": 0.0}):
        with pytest.raises(InputError, match="between 0 and 1"):
            OpenWorldClassifier(GaussianNB(), CHEAP, **wrong).fit(X, y)


def test_the_clusterer_reads_numbers_and_names_with_gaps() -> None:
    X, truth = make_blobs(300, 5, centers=5, random_state=4)
    y = np.where((truth < 2) & (np.arange(300) % 2 == 0), truth + 3, -1)
    model = ClassDiscovery(n_classes=5)
    found = model.fit_predict(X, y)
    np.testing.assert_array_equal(found[y >= 0], y[y >= 0])
    assert model.n_classes_ == 5
    assert sorted(model.novel_) == [5, 6, 7]
    names = np.array([None if label < 0 else f"class {label}" for label in y], dtype=object)
    named = ClassDiscovery(n_classes=5).fit(pl.DataFrame(X), names)
    np.testing.assert_array_equal(named.labels_[y >= 0], y[y >= 0] - 3)
    np.testing.assert_array_equal(named.labels_, offmap.discover(X, names, 5).labels)
    assert len(named.feature_names_in_) == 5
