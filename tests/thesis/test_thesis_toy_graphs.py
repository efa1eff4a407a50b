"""The theorems on the thesis' toy graphs, over grids of τ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.theory.residuals import residual
from thesis.toy_graphs import nscl_residual, nscl_threshold, nscl_toy, sorl_toy

ratios = st.floats(1.02, 1.48)
colours = st.floats(0.05, 0.3)


@given(ratios, colours, st.floats(0.02, 0.98))
@settings(max_examples=80, deadline=None)
def test_toy_theorem_over_a_grid_of_tau(ratio, tau_c, share):
    tau_s = ratio * tau_c
    bar = nscl_threshold(tau_s, tau_c)
    assert nscl_toy(tau_s, tau_c, 0.0).residual == pytest.approx(1.0)
    weak = nscl_toy(tau_s, tau_c, share * bar).residual
    assert 0 < weak < 1
    assert weak == pytest.approx(nscl_residual(tau_s, tau_c, share * bar), abs=1e-7)
    strong = bar + (tau_s - bar) * share if bar < tau_s else 1.01 * bar
    if strong > bar * 1.0001:
        assert nscl_toy(tau_s, tau_c, strong).residual == pytest.approx(0.0, abs=1e-9)
        assert nscl_residual(tau_s, tau_c, strong) == 0.0


@given(ratios, colours)
@settings(max_examples=40, deadline=None)
def test_no_help_is_needed_when_colour_is_the_stronger_bond(ratio, tau_s):
    tau_c = ratio * tau_s
    assert nscl_toy(tau_s, tau_c, 0.0).residual == pytest.approx(0.0, abs=1e-9)
    harmful = nscl_toy(tau_s, tau_c, tau_s, known="shape")
    assert harmful.residual == pytest.approx(1.0)
    assert "cannot" in str(harmful)


def test_toy_is_the_printed_matrix():
    toy = nscl_toy(0.3, 0.2, 0.1, tau_1=0.9, tau_0=0.01)
    expected = [
        [0.9, 0.1, 0.1, 0.01, 0.01],
        [0.1, 0.9, 0.2, 0.3, 0.01],
        [0.1, 0.2, 0.9, 0.01, 0.3],
        [0.01, 0.3, 0.01, 0.9, 0.2],
        [0.01, 0.01, 0.3, 0.2, 0.9],
    ]
    np.testing.assert_allclose(toy.transition, expected)
    square = toy.transition @ toy.transition  # A = T²
    np.testing.assert_allclose(square @ toy.vectors, toy.vectors * toy.values**2, atol=1e-12)
    assert toy.embedding.shape == (4, 2)
    assert (np.sort(np.linalg.eigvalsh(square))[::-1][:2] == pytest.approx(toy.values**2)) is True


def test_sorl_toy_matches_the_approximations_of_the_thesis():
    tau_c, tau_s = 0.012, 0.008
    tau_1 = 1 - tau_c - tau_s
    toy = sorl_toy(tau_1, tau_c, tau_s)
    T = np.zeros((6, 6))
    T[:2, :2] = [[tau_1, tau_s], [tau_s, tau_1]]
    T[2:4, 2:4] = T[:2, :2]
    T[0, 2] = T[2, 0] = T[1, 3] = T[3, 1] = tau_c
    T[4:, 4:] = tau_1
    np.testing.assert_allclose(toy.adjacency_before, T @ T)
    bond = T[:, 0] + T[:, 1]
    np.testing.assert_allclose(toy.adjacency_after, T @ T + np.outer(bond, bond))
    ratio = tau_c / tau_1
    np.testing.assert_allclose(toy.values_after, [1, 1, 1 - 16 / 3 * ratio], atol=30 * ratio**2)
    np.testing.assert_allclose(toy.values_before, [1, 1, 1 - 4 * tau_s / tau_1], atol=30 * ratio**2)
    root = np.sqrt(3)
    span = np.array([[0, 0, 0, 0, 1, 1], [root, root, 1, 1, 0, 0], [1, 1, -root, -root, 0, 0]]).T
    span = span / np.linalg.norm(span, axis=0)
    overlap = np.linalg.svd(span.T @ toy.after, compute_uv=False)
    assert overlap.min() > 0.99
    assert residual(toy.after, [1, 1, 0, 0, 0, 0]) < 0.05 < 0.9 < residual(toy.before, [1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: nscl_threshold(0.1, 0.3), "the theorem needs"),
        (lambda: nscl_toy(0.1, 0.1, 0.1, known="size"), "'colour' or 'shape'"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()
