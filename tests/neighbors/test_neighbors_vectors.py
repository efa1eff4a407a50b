"""Rows of length 1, for arrays and tensors alike."""

from __future__ import annotations

import numpy as np
import torch

from offmap.neighbors.vectors import unit, unit_and_length


def test_arrays_and_tensors_agree_and_zeros_stay() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 7))
    rows[3] = 0
    expected = np.array([row / np.sqrt((row**2).sum()) if row.any() else row for row in rows])
    np.testing.assert_allclose(unit(rows), expected, rtol=1e-12)
    np.testing.assert_allclose(unit(torch.from_numpy(rows)).numpy(), expected, rtol=1e-12)
    scaled, length = unit_and_length(rows.astype(np.float32))
    np.testing.assert_allclose(scaled * length[:, None], rows, rtol=1e-5)
    assert unit(rows.astype(np.float32)).dtype == np.float32


def test_the_gradient_of_a_row_of_zeros_is_finite() -> None:
    rows = torch.zeros(2, 3, requires_grad=True)
    unit(rows).sum().backward()
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()
