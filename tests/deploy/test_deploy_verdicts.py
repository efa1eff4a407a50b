"""P-values and verdicts inside a graph are those of `Calibration`, to the last rank."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.deploy.verdicts import VerdictModule
from offmap.detection.calibration import Calibration

FEW_VALUES = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 0.5000000001, 2.0, 7.0, -np.inf, np.inf])  # many ties


@settings(max_examples=200, deadline=None)
@given(scores=st.lists(FEW_VALUES, min_size=20, max_size=60), asked=st.lists(FEW_VALUES, min_size=1, max_size=20))
def test_one_calibration_for_all(scores: list[float], asked: list[float]) -> None:
    calibration = Calibration.of(np.array(scores), tpr=0.9)
    expected = calibration.verdicts(np.array(asked))
    values, known = VerdictModule(calibration, 3)(torch.tensor(asked, dtype=torch.float64), torch.zeros(len(asked), 3))
    np.testing.assert_array_equal(values.numpy(), expected.p_value)
    np.testing.assert_array_equal(known.numpy(), expected.known)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), asked=st.lists(FEW_VALUES, min_size=1, max_size=20), classes=st.integers(1, 5))
def test_one_calibration_per_class(seed: int, asked: list[float], classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rng.integers(5, 30, classes))
    calibration = Calibration.of(rng.integers(-3, 8, len(labels)).astype(float), 0.8, labels, classes)
    logits = rng.normal(size=(len(asked), classes + 1)).astype(np.float32)  # the last class was never calibrated
    expected = calibration.verdicts(np.array(asked), logits.argmax(axis=1))
    found = VerdictModule(calibration, classes + 1)(torch.tensor(asked, dtype=torch.float64), torch.from_numpy(logits))
    np.testing.assert_array_equal(found[0].numpy(), expected.p_value)
    np.testing.assert_array_equal(found[1].numpy(), expected.known)


def test_a_score_that_is_no_number_is_never_known() -> None:
    score = torch.tensor([np.nan], dtype=torch.float64)
    everything = Calibration.of(np.arange(50.0), tpr=0.9)
    seen_one_class = Calibration.of(np.arange(50.0), 0.9, np.zeros(50, int), 1)
    assert not VerdictModule(everything, 2)(score, torch.zeros(1, 2))[1].item()
    assert not VerdictModule(seen_one_class, 2)(score, torch.tensor([[0.0, 1.0]]))[1].item()


def test_the_promise_holds_on_many_scores() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration.of(rng.normal(size=10_007), tpr=0.95)
    asked = np.concatenate([rng.normal(size=5000), calibration.scores[::7]])
    expected = calibration.verdicts(asked)
    values, known = VerdictModule(calibration, 2)(torch.from_numpy(asked), torch.zeros(len(asked), 2))
    np.testing.assert_array_equal(values.numpy(), expected.p_value)
    np.testing.assert_array_equal(known.numpy(), expected.known)
