"""A score's formula in tensors says what its `score` says, for every method that has one of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detection_zoo import blobs
from hypothesis import given, settings
from hypothesis import strategies as st

import offmap
from offmap.detection.batch import ActivationBatch

SPECS = [
    "knn(5)",
    "knn(5, average=true)",
    "knn(20, alpha=0.5)",
    "knn(3, normalize=false)",
    "knn(7, average=true, normalize=false)",
    "nnguide(3, alpha=0.5)",
    "nnguide(10, alpha=0.02)",
    "lof(5)",
    "iforest",
    "iforest(trees=7, samples=50, features=3)",
    "iforest(samples=1)",
]


def both(spec: str, known: offmap.Activations, asked: offmap.Activations) -> tuple[np.ndarray, np.ndarray]:
    """The score, and what the formula gives for the same inputs."""
    guard = offmap.detector(spec).fit(known)
    assert guard.fitting is not None
    state = guard.states[-1]
    assert state is not None
    formula = guard.plan.components[-1].formula(state)  # type: ignore[attr-defined]  # the last part is a score
    block = ActivationBatch.of(asked, guard.fitting.tensor_head("cpu"))
    with torch.no_grad():
        return guard.score(asked), formula(block).double().numpy()


@pytest.mark.parametrize("spec", SPECS)
def test_the_formula_is_the_score(spec: str) -> None:
    known, asked = blobs(150), blobs(60, seed=1)
    score, formula = both(spec, known, asked)
    np.testing.assert_allclose(formula, score, rtol=1e-5, atol=1e-6)
    assert np.ptp(score) > 0 or "samples=1" in spec


@pytest.mark.parametrize("spec", ["slof(5)", "slof(3, normalize=false)", "slof(5, normalize=false, standardize=true)"])
def test_the_formula_of_a_ratio_is_the_score(spec: str) -> None:
    """A logarithm near 0 has the rounding of the distances, 1e-6 of them, as its own."""
    score, formula = both(spec, blobs(150), blobs(60, seed=1))
    np.testing.assert_allclose(formula, score, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(shift=st.sampled_from([0.0, 1e3, -1e4]), size=st.sampled_from([1e-3, 1.0, 1e3]), seed=st.integers(0, 99))
def test_distances_keep_their_digits_far_from_the_origin(shift: float, size: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(80, 5)) * size + shift).astype(np.float32)
    _, formula = both("knn(4, normalize=false)", offmap.Activations(rows[:60]), offmap.Activations(rows[60:]))
    wide = rows.astype(np.float64)
    apart = np.linalg.norm(wide[60:, None] - wide[None, :60], axis=2)
    np.testing.assert_allclose(formula, -np.sort(apart, axis=1)[:, 3], rtol=1e-4)


def test_a_copy_of_a_known_input_is_at_distance_zero_and_zeros_are_infinitely_far() -> None:
    known = blobs(50)
    asked = offmap.Activations(np.concatenate([known.features[:3], np.zeros((1, 6), np.float32)]))
    _, formula = both("knn(1)", known, asked)
    assert formula[:3].tolist() == [0, 0, 0]
    assert formula[3] == -np.inf
