"""`measure` and `compare`: the numbers of the metrics, with and without unknown inputs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from detection_zoo import blobs, rebuilt

import offmap
from offmap.detection.comparison import AVERAGE, METRICS
from offmap.detection.evaluate import measure
from offmap.errors import InputError
from offmap.metrics.detection import aupr, auroc, fpr_at_tpr

KNOWN, TEST = blobs(200), blobs(80, seed=1)
FAR = {
    name: rebuilt(TEST, features=TEST.features[:, ::-1] * scale, labels=None)
    for name, scale in {"a": 1, "b": 2}.items()
}


def test_measure_gives_the_numbers_of_the_metrics() -> None:
    found = measure(offmap.detector("knn(5)"), lambda made: made.fit(KNOWN), lambda made: {"id": TEST, **FAR})
    inside, outside = found.detector.score(TEST), found.detector.score(FAR["a"])
    np.testing.assert_array_equal(found.scores["id"], inside)
    report = found.reports["a"]
    assert report == {
        "fpr95": fpr_at_tpr(inside, outside),
        "auroc": auroc(inside, outside),
        "aupr_in": aupr(inside, outside),
        "aupr_out": aupr(inside, outside, positive="ood"),
    }
    assert found.id_accuracy == np.mean(TEST.predictions == TEST.labels)
    assert found.fit_seconds >= 0 <= found.score_seconds


def test_coverage_is_that_of_a_threshold_from_the_other_half() -> None:
    found = measure(offmap.detector("energy"), lambda made: made.fit(KNOWN), lambda made: {"id": TEST})
    made = offmap.detector("energy").fit(KNOWN).calibrate(TEST[::2], tpr=0.95)
    assert found.coverage == made(TEST[1::2]).known.mean()
    few = measure(offmap.detector("energy"), lambda made: made.fit(KNOWN), lambda made: {"id": TEST[:39]})
    assert few.coverage is None


def test_compare_has_a_row_per_method_and_set_and_for_the_average() -> None:
    table = offmap.compare("energy, knn(5), knn(5) + energy", KNOWN, TEST, FAR)
    assert [(row.method, row.ood) for row in table.rows] == [
        (method, ood) for method in ("energy", "knn(5)", "knn(5) + energy") for ood in ("a", "b", AVERAGE)
    ]
    cells = {(row.method, row.ood): row for row in table.rows}
    for method in table.detectors:
        for metric in METRICS:
            mean = np.mean([getattr(cells[method, name], metric) for name in FAR])
            assert getattr(cells[method, AVERAGE], metric) == pytest.approx(mean)
    assert table.best is table.detectors[table.averages()[0].method]
    assert "knn(5) + energy" in str(table)
    saved = json.loads(table.to_json())
    assert saved["sizes"] == {"id": 80, "a": 80, "b": 80}
    assert saved["rows"][0]["fpr95"] == cells["energy", "a"].fpr95
    assert "Known against a." in table.to_html()


def test_without_unknown_inputs_known_ones_speak() -> None:
    table = offmap.compare("react(c=0.5)|energy, knn(5)", KNOWN, TEST)
    assert table.rows == table.averages() == []
    text = str(table)
    assert "coverage" in text
    assert "FPR95" not in text
    saved = json.loads(table.to_json())["known"]
    made = table.detectors["react(c=0.5)|energy"]
    assert saved["react(c=0.5)|energy"]["id_accuracy"] == np.mean(made.predict_classes(TEST) == TEST.labels)
    assert "coverage" in table.to_html()
    with pytest.raises(InputError, match="nothing says which detector is best"):
        _ = table.best


def test_trials_are_printed_without_unknown_inputs() -> None:
    noise = offmap.Activations(np.random.default_rng(0).random((60, 6)).astype(np.float32) * 9, KNOWN.head)
    table = offmap.compare("react(auto)|energy", KNOWN, TEST, val=TEST, outliers=noise)
    assert str(table).count("tried: react(") == len(table.detectors["react(auto)|energy"].trials) > 1


def test_a_long_choice_is_told_below_the_table() -> None:
    table = offmap.compare("auto(fast), energy", KNOWN[:60], TEST)
    lines = str(table).splitlines()
    assert lines[1].split()[0] == "auto(fast)"
    assert max(map(len, lines[:3])) < 80
    assert lines[3] == f"auto(fast) is {table.detectors['auto(fast)'].chosen}"
    assert "tried: " in lines[4]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([], KNOWN, TEST, FAR), "no detectors"),
        ((["energy"], KNOWN, TEST, {}), "at least one input"),
        ((["energy"], KNOWN, TEST[:0], FAR), "at least one input"),
        ((["energy"], KNOWN, TEST, {"id": TEST}), "cannot be named 'id'"),
        ((["energy"], KNOWN, TEST, {"average": TEST}), "cannot be named"),
    ],
)
def test_refused_with_a_sentence(arguments: tuple, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        offmap.compare(*arguments)
