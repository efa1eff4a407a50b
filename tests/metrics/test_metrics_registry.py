"""A metric of one's own is measured and shown wherever the usual ones are."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

import offmap
from offmap.errors import InputError
from offmap.metrics import METRICS, detection_report, metric_names, register_metric


@pytest.fixture
def gap() -> Iterator[None]:
    @register_metric("gap", "Gap")
    def mean_gap(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
        """Difference of the means."""
        return float(np.mean(id_scores) - np.mean(ood_scores))

    yield
    METRICS.remove("gap")


def test_reports_tables_pages_and_plots_hold_it(gap: None) -> None:
    assert metric_names() == ("fpr95", "auroc", "aupr_in", "aupr_out", "gap")
    assert detection_report([3, 2], [0, 1]).as_dict()["gap"] == 2.0
    rng = np.random.default_rng(0)
    known = offmap.Activations(None, logits=rng.normal(size=(60, 3)) + 4 * np.eye(3)[np.arange(60) % 3])
    unknown = {name: offmap.Activations(None, logits=rng.normal(size=(20, 3))) for name in ("a", "b")}
    table = offmap.compare("msp, energy", known[:30], known[30:], unknown)
    for method, scores in table.scores.items():
        row = next(row for row in table.averages() if row.method == method)
        gaps = [scores["id"].mean() - scores[name].mean() for name in unknown]
        assert row.more["gap"] == pytest.approx(np.mean(gaps), rel=1e-6)
    assert json.loads(table.to_json())["rows"][0]["more"].keys() == {"gap"}
    assert "Gap ↑" in table.to_html()
    assert table.plot("gap") is not None


def test_without_others_nothing_changes() -> None:
    assert metric_names() == ("fpr95", "auroc", "aupr_in", "aupr_out")
    report = detection_report([3, 2], [0, 1])
    assert set(report.as_dict()) == {*metric_names(), "n_id", "n_ood"}
    with pytest.raises(InputError, match="the name 'auroc' is taken"):
        register_metric("auroc", "AUROC")(lambda known, unknown: 0.0)
