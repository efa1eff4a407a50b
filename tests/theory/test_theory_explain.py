"""The diagnosis as a whole: clipping measured, findings in words, a page that renders, real activations."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import offmap
from offmap.activations import Activations, Head
from offmap.errors import InputError
from offmap.theory import clip_report, explain
from offmap.theory.clipping import energy_auroc


def world(seed: int = 0, n: int = 240, units: int = 12):
    """A head that reads class directions, known inputs along them, unknown ones with a few wild units."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    weight = np.kron(np.eye(3), np.ones(units // 3)) - 0.3
    known = np.maximum(1.2 * (weight[labels] > 0) + 0.3 * rng.standard_normal((n, units)), 0)
    unknown = np.where(rng.random((n, units)) < 0.25, rng.gamma(2.0, 2.5, (n, units)), 0.1 * rng.random((n, units)))
    head = Head(weight)
    return Activations(known, head, labels=labels), Activations(unknown, head)


def test_clipping_is_measured_as_it_says():
    known, unknown = world()
    report = clip_report(known.features, unknown.features, known.head.weight, known.head.bias, levels=[1.0, 2.0])
    for i, c in enumerate((1.0, 2.0)):
        assert report.known_loss[i] == pytest.approx((known.features - np.minimum(known.features, c)).mean())
        assert report.unknown_loss[i] == pytest.approx((unknown.features - np.minimum(unknown.features, c)).mean())
        scores = [np.log(np.exp(np.minimum(a.features, c) @ known.head.weight.T).sum(axis=1)) for a in (known, unknown)]
        wins = np.mean([[(a > b) + 0.5 * (a == b) for b in scores[1]] for a in scores[0]])
        assert report.auroc[i] == pytest.approx(wins)
    assert report.helps
    assert report.theory_says
    assert "condition holds for them" in str(report)
    mean, spread = known.features[:, 0].mean(), known.features[:, 0].std()
    skew = ((known.features[:, 0] - mean) ** 3).mean() / spread**3
    np.testing.assert_allclose(report.known_units[:, 0], [mean, spread, skew])


def test_clipping_that_hurts_is_called_so():
    """Unknown inputs are quiet, known ones loud: clipping takes from the wrong side."""
    rng = np.random.default_rng(0)
    known = rng.gamma(2.0, 2.0, (200, 6))
    unknown = 0.2 * rng.random((200, 6))
    report = clip_report(known, unknown, np.eye(6), levels=[0.1])
    assert not report.theory_says
    assert not report.helps
    assert "condition fails for them" in str(report)
    opposite = clip_report(known, unknown)
    assert opposite.auroc is None
    assert not opposite.fit_holds
    assert "does not describe these tails" in str(opposite)
    assert not opposite.helps


def test_energy_auroc_without_clipping_is_plain_energy():
    known, unknown = world(1)
    plain = energy_auroc(known.features, unknown.features, known.head.weight, known.head.bias, np.inf)
    assert 0 <= plain <= 1


def test_explain_says_what_can_be_said():
    known, unknown = world()
    found = explain(known, unknown)
    assert [finding.topic for finding in found.findings] == [
        "methods",
        "rectified",
        "sparsified",
        "neighbours",
        "normality",
        "graph",
    ]
    assert all(finding.sentence in str(found) for finding in found.findings)
    json.dumps(found.to_dict())
    alone = explain(known.features)
    assert [finding.topic for finding in alone.findings] == ["methods", "neighbours", "graph"]
    partly = np.where(np.arange(len(known)) < 60, known.labels, -1)
    advised = explain(known.features, labels=np.where(partly == 2, -1, partly), budget=12)
    assert advised.findings[-1].topic == "advice"
    assert str(explain(known, unknown)) == str(found)


def test_too_few_inputs_are_called_so():
    acts = offmap.Activations(np.eye(2, 5), labels=np.arange(2))
    assert "give more of them" in str(explain(acts))


def test_methods_are_ranked_by_the_trials_of_auto():
    known, unknown = world()
    found = explain(known, unknown, seed=1)
    detector = offmap.detector("auto(seed=1)").fit(known)
    tried = [trial for trial in detector.trials if trial["left_out"] is not None]
    table = found.sections[0].tables[0]
    first = table.rows[0]
    assert first[2] == next(trial["left_out"] for trial in tried if trial["spec"] == first[0])
    assert {row[0] for row in table.rows if row[4]} == {trial["spec"] for trial in tried if trial["weight"]}
    assert detector.chosen in found.findings[0].sentence
    # the ranking does not depend on which unknown inputs are at hand, and no method is called good or bad on noise
    noise = Activations(np.random.default_rng(0).random((100, 12)), known.head)
    assert explain(known, noise, seed=1).findings[0] == found.findings[0]
    assert not any(word in str(found) for word in ("should help", "will hurt", "helps", "hurts"))


def test_negative_features_are_not_taken_for_relu_outputs():
    rng = np.random.default_rng(0)
    found = explain(rng.standard_normal((100, 5)), rng.standard_normal((100, 5)))
    assert "rectified" not in [finding.topic for finding in found.findings]


def test_the_page_renders_with_its_figures(tmp_path):
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    known, unknown = world()
    partly = np.where((known.labels < 2) & (np.arange(len(known)) < 60), known.labels, -1)
    found = explain(Activations(known.features, known.head, labels=partly), unknown, budget=12)
    html = found.page().write(tmp_path / "explain.html").read_text()
    for title in ("Which method?", "ReAct", "DICE", "k-NN", "Henze–Zirkler", "spectral", "What to label next"):
        assert title in html
    assert "<em>" not in html, "stars of a weighted sum are no emphasis"
    assert html.count('class="plot"') == sum(len(section.figures) for section in found.sections)


def test_plots_take_plain_values():
    pytest.importorskip("plotly")
    from offmap.plots import theory as plots

    np.testing.assert_allclose(plots.spectrum([1.0, 0.9, 0.2], gap=2).data[0].y, [1.0, 0.9, 0.2])
    assert len(plots.log_densities([1.0, 2.0]).data) == 1


def test_importing_the_theory_loads_nothing_heavy():
    code = "import sys, offmap.theory; print([m for m in ('sklearn', 'torch', 'plotly') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.data
def test_real_densenet_activations(data_folder):
    """The neighbours of a real network fill few dimensions, and its classes are not Gaussian."""
    with np.load(data_folder / "features" / "cifar10-densenet__cifar10_test.npz") as stored:
        known = Activations(stored["features"].astype(np.float32), labels=stored["labels"].astype(int))
    with np.load(data_folder / "features" / "cifar10-densenet__svhn_test10k.npz") as stored:
        unknown = Activations(stored["features"].astype(np.float32))
    found = {finding.topic: finding for finding in explain(known, unknown, most=1500).findings}
    assert found["neighbours"].numbers["intrinsic"] < 40
    assert found["neighbours"].verdict == "holds"
    assert found["normality"].verdict == "fails"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: clip_report(-np.ones((3, 2)), np.ones((3, 2))), "not be negative"),
        (lambda: explain(np.ones((20, 2)), most=3), "at least 10"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_findings_are_said_in_plain_words_first():
    found = explain(*world())
    lines = str(found).splitlines()
    assert lines[0].startswith("- Use `auto`: it puts together")
    assert all(finding.plain for finding in found.findings)
    assert lines.index("In numbers:") == len(found.findings)
    for finding in found.findings:
        assert not set(finding.plain) & set("σμεΔ=")
        assert "AUROC" not in finding.plain
    assert found.page().html().index("out of 100") < found.page().html().index("AUROC")
    assert found.to_dict()["findings"][0]["plain"] == found.findings[0].plain
