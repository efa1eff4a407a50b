"""Every metric against brute force, with ties; against scikit-learn where it does the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from offmap import metrics
from offmap.errors import InputError

TIED = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=15)
ANY = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=15)
SCORES = st.one_of(TIED, ANY)


def brute_threshold(known: list[float], tpr: float) -> float:
    return max(t for t in known if sum(s >= t for s in known) >= tpr * len(known) - 1e-9)


@settings(deadline=None)
@given(SCORES, SCORES, st.sampled_from([0.05, 0.5, 0.8, 0.95, 0.99, 1.0]))
def test_fpr_at_tpr(known: list[float], unknown: list[float], tpr: float) -> None:
    threshold = brute_threshold(known, tpr)
    assert metrics.threshold_at_tpr(known, tpr) == threshold
    wanted = sum(s >= threshold for s in unknown) / len(unknown)
    assert metrics.fpr_at_tpr(known, unknown, tpr) == pytest.approx(wanted)
    flipped = brute_threshold([-s for s in unknown], tpr)
    wanted = sum(-s >= flipped for s in known) / len(known)
    assert metrics.fpr_at_tpr_ood_positive(known, unknown, tpr) == pytest.approx(wanted)


@settings(deadline=None)
@given(SCORES, SCORES)
def test_auroc_is_the_share_of_pairs_and_scikit_learns(known: list[float], unknown: list[float]) -> None:
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in known for b in unknown]
    assert metrics.auroc(known, unknown) == pytest.approx(np.mean(pairs))
    truth = [1] * len(known) + [0] * len(unknown)
    ranks = np.unique(known + unknown, return_inverse=True)[1]
    assert metrics.auroc(known, unknown) == pytest.approx(roc_auc_score(truth, ranks))
    assert metrics.auroc(known, unknown) + metrics.auroc(unknown, known) == pytest.approx(1)


def brute_average_precision(positive: list[float], negative: list[float]) -> float:
    total, before = 0.0, 0.0
    for threshold in sorted(set(positive + negative), reverse=True):
        hits = sum(s >= threshold for s in positive)
        recall, precision = hits / len(positive), hits / (hits + sum(s >= threshold for s in negative))
        total, before = total + (recall - before) * precision, recall
    return total


@settings(deadline=None)
@given(SCORES, SCORES)
def test_aupr(known: list[float], unknown: list[float]) -> None:
    assert metrics.aupr(known, unknown) == pytest.approx(brute_average_precision(known, unknown))
    negated = brute_average_precision([-s for s in unknown], [-s for s in known])
    assert metrics.aupr(known, unknown, positive="ood") == pytest.approx(negated)
    ranks = np.unique(known + unknown, return_inverse=True)[1]
    wanted = average_precision_score([1] * len(known) + [0] * len(unknown), ranks)
    assert metrics.aupr(known, unknown) == pytest.approx(wanted)


@settings(deadline=None)
@given(SCORES, SCORES)
def test_metrics_mind_only_the_order(known: list[float], unknown: list[float]) -> None:
    places = np.unique(known + unknown, return_inverse=True)[1]
    for metric in (metrics.fpr_at_tpr, metrics.auroc, metrics.aupr, metrics.fpr_at_tpr_ood_positive):
        assert metric(places[: len(known)], places[len(known) :]) == pytest.approx(metric(known, unknown))


def test_the_last_input_counts() -> None:
    """With 20 known inputs exactly one may be below the threshold: 19 of 20 are 95 %."""
    known = np.arange(20.0)
    assert metrics.threshold_at_tpr(known, 0.95) == 1.0
    assert metrics.threshold_at_tpr(np.arange(10_000.0), 0.95) == 500.0
    assert metrics.threshold_at_tpr(known, 1.0) == 0.0
    assert metrics.threshold_at_tpr(known, 1e-12) == 19.0


def test_infinities_count_and_nan_is_refused() -> None:
    assert metrics.auroc([np.inf, 1], [-np.inf, 0]) == 1.0
    assert metrics.aupr([np.inf, 1], [-np.inf, 0]) == 1.0
    assert metrics.fpr_at_tpr([1.0], [-np.inf, np.inf]) == 0.5
    with pytest.raises(InputError, match="OOD scores hold NaN"):
        metrics.auroc([1.0], [np.nan])
    with pytest.raises(InputError, match="no ID scores"):
        metrics.auroc([], [1.0])
    with pytest.raises(InputError, match="tpr=0"):
        metrics.fpr_at_tpr([1.0], [1.0], tpr=0)
    with pytest.raises(InputError, match="tpr=95"):
        metrics.fpr_at_tpr([1.0], [1.0], tpr=95)
    with pytest.raises(InputError, match="'id' or 'ood'"):
        metrics.aupr([1.0], [1.0], positive="in")  # type: ignore[arg-type]


def test_report_holds_them_all() -> None:
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 300), rng.normal(0, 1, 100)
    report = metrics.detection_report(known, unknown)
    assert report.as_dict() == {
        "fpr95": metrics.fpr_at_tpr(known, unknown),
        "auroc": metrics.auroc(known, unknown),
        "aupr_in": metrics.aupr(known, unknown),
        "aupr_out": metrics.aupr(known, unknown, positive="ood"),
        "n_id": 300,
        "n_ood": 100,
    }
    assert "300 ID : 100 OOD" in str(report)
