"""Scores on logits against plain loops in higher precision, and that confident inputs keep their order."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from detection_zoo import blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import offmap
from offmap.detection.scores.logits import energy, log_probabilities
from offmap.errors import OffmapWarning

LOGITS = hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-40, 40, width=32))


def softmax(row: np.ndarray) -> list[float]:
    """Probabilities by longdouble, largest first to be subtracted."""
    top = max(row)
    weights = [np.exp(np.longdouble(value) - np.longdouble(top)) for value in row]
    return [weight / sum(weights) for weight in weights]


def score(spec: str, logits: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    fit_on = offmap.Activations(None, logits=logits if known is None else known)
    return offmap.detector(spec).fit(fit_on).score(offmap.Activations(None, logits=logits))


@settings(max_examples=60, deadline=None)
@given(LOGITS)
def test_formulas_against_loops(logits: np.ndarray) -> None:
    msp, entropy, gen, temperature = [], [], [], []
    for row in logits:
        p = softmax(row)
        msp.append(math.log(max(p)))
        entropy.append(float(sum(q * np.log(q) for q in p if q > 0)))
        kept = sorted(p, reverse=True)[:3]
        gen.append(-float(sum((q * (1 - q)) ** np.longdouble("0.1") for q in kept)))
        temperature.append(2.5 * float(np.log(sum(np.exp(np.longdouble(value) / 2.5) for value in row))))
    np.testing.assert_allclose(score("msp", logits), msp, rtol=1e-7, atol=1e-15)
    np.testing.assert_allclose(score("maxlogit", logits), logits.max(axis=1))
    np.testing.assert_allclose(score("entropy", logits), entropy, rtol=1e-7, atol=1e-13)
    np.testing.assert_allclose(score("gen(m=3)", logits), gen, rtol=1e-4, atol=2e-2)  # 1-q is what the loop rounds
    np.testing.assert_allclose(score("energy(2.5)", logits), temperature, rtol=1e-7, atol=1e-7)


def test_gen_by_hand() -> None:
    p = np.array([0.7, 0.2, 0.1])
    found = score("gen(gamma=0.5, m=2)", np.log(p)[None].astype(np.float64))
    assert found[0] == pytest.approx(-(math.sqrt(0.7 * 0.3) + math.sqrt(0.2 * 0.8)), rel=1e-6)


@pytest.mark.parametrize("spec", ["msp", "entropy", "gen", "maxlogit", "energy"])
def test_confident_inputs_keep_their_order(spec: str) -> None:
    """A plain float32 softmax calls all of these 1."""
    gaps = np.linspace(20, 600, 59, dtype=np.float32)
    logits = np.stack([gaps, np.zeros_like(gaps), np.zeros_like(gaps)], axis=1)
    assert (np.diff(score(spec, logits)) > 0).all()


def test_log_probabilities_of_almost_one() -> None:
    for gap in (5.0, 30.0, 90.0, 700.0):
        found = log_probabilities(torch.tensor([[gap, 0.0]], dtype=torch.float64))[0, 0].item()
        assert found == pytest.approx(-math.log1p(math.exp(-gap)), rel=1e-12)


@pytest.mark.parametrize("spec", ["msp", "maxlogit", "energy", "entropy", "gen", "kl_matching"])
def test_extreme_logits_are_numbers(spec: str) -> None:
    logits = np.array([[3e38, -3e38, 0], [-3e38, -3e38, -3e38], [0, 0, 0], [1e-45, 0, -1e-45]], dtype=np.float32)
    assert np.isfinite(score(spec, logits)).all()


def test_energy_goes_to_the_largest_logit_as_the_temperature_falls() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert energy(logits, 1e-3).item() == pytest.approx(3.0)
    assert Fraction(energy(torch.zeros(1, 4), 1.0).item()) == Fraction(math.log(4))


def test_kl_matching_against_loops() -> None:
    known, test = blobs(90).logits, blobs(15, seed=3).logits
    templates = []
    for c in range(3):
        mine = [softmax(row) for row in known if row.argmax() == c]
        templates.append([float(sum(p[j] for p in mine)) / len(mine) for j in range(3)])
    wanted = []
    for row in test:
        p = softmax(row)
        divergences = [
            sum(float(p[j] * (np.log(p[j]) - np.log(max(t[j], 1e-12)))) for j in range(3) if p[j] > 0)
            for t in templates
        ]
        wanted.append(-min(divergences))
    np.testing.assert_allclose(score("kl_matching", test, known), wanted, rtol=1e-6, atol=1e-9)


def test_kl_matching_knows_sure_inputs_of_classes_never_predicted() -> None:
    known = np.array([[5.0, 0, -30], [4, 1, -30], [0, 5, -30]] * 10, dtype=np.float32)
    made = offmap.detector("kl_matching").fit(offmap.Activations(None, logits=known))
    sure, unsure = made.score(offmap.Activations(None, logits=np.array([[0.0, 0, 40], [0, 0, 1]], dtype=np.float32)))
    assert sure == pytest.approx(0, abs=1e-6)
    assert unsure < -0.1


def test_temperature_fits_the_labels() -> None:
    """Logits three times too large are scaled back; the temperature is the best on a fine grid."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=(4000, 5))
    p = np.exp(true) / np.exp(true).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(5, p=row) for row in p])
    known = offmap.Activations(None, logits=3 * true, labels=labels)
    made = offmap.detector("temperature_scaling|energy").fit(known)
    temperature = float(made.states[0]["temperature"])
    assert temperature == pytest.approx(3, rel=0.1)

    def loss(t: float) -> float:
        scaled = 3 * true / t
        return float(np.mean(np.log(np.exp(scaled).sum(axis=1)) - scaled[np.arange(4000), labels]))

    grid = temperature * np.array([0.98, 0.99, 1.0, 1.01, 1.02])
    assert int(np.argmin([loss(t) for t in grid])) == 2
    scaled = score("energy", (3 * true / temperature).astype(np.float32))
    np.testing.assert_allclose(made.score(known), scaled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "shift", "reason"),
    [
        (30, 0, "all 30 inputs are classified rightly"),
        (30, 1, "no more about the labels than chance"),
        (9, 0, "9 .* few"),
    ],
)
def test_temperature_stays_1_where_none_is_best(count: int, shift: int, reason: str) -> None:
    logits = np.eye(3, dtype=np.float32)[np.arange(count) % 3] * 4
    known = offmap.Activations(None, logits=logits, labels=(np.arange(count) + shift) % 3)
    with pytest.warns(OffmapWarning, match=f"temperature_scaling: .*{reason}.* left as they are"):
        made = offmap.detector("temperature_scaling|msp").fit(known)
    assert float(made.states[0]["temperature"]) == 1
    sure = np.linspace(6, 60, 10)[:, None] * np.eye(3)[0]  # divided by e^-5, all their probabilities are 1
    scores = made.score(offmap.Activations(None, logits=sure.astype(np.float32)))
    assert (np.diff(scores) > 0).all()


def test_one_mistake_is_enough_for_a_temperature() -> None:
    logits = np.eye(3, dtype=np.float32)[np.arange(30) % 3] * 4
    labels = np.arange(30) % 3
    labels[0] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = offmap.detector("temperature_scaling|msp").fit(offmap.Activations(None, logits=logits, labels=labels))
    expected = 4 / math.log(58)  # 29 of 30 are right, and e^x / (e^x + 2) = 29/30 at x = 4/T = log 58
    assert float(made.states[0]["temperature"]) == pytest.approx(expected, rel=1e-4)
