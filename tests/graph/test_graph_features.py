"""Features without training: the thesis' optimum as a special case, what diffusion changes, and small piles."""

from __future__ import annotations

import numpy as np
import pytest

from offmap.graph import add_labels, knn_graph, spectral_embedding, spectral_features


def pile(n: int = 60, seed: int = 0):
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 4
    rows = 3 * np.eye(4)[truth] + rng.normal(size=(n, 4))
    return rows.astype(np.float32), np.where((truth < 2) & (rng.random(n) < 0.5), truth, -1)


def test_half_a_power_is_the_optimum_of_the_thesis():
    rows, codes = pile()
    graph = knn_graph(rows, 5)
    labelled = (codes >= 0).sum()
    whole = add_labels(graph / graph.sum(), codes, eta_l=4.0 * labelled / len(rows) / 2)
    factor = spectral_embedding(whole, 4).factor
    got = spectral_features(rows, codes, 4, neighbours=5, diffusion=0.5, columns=4)
    np.testing.assert_allclose(got, factor / np.linalg.norm(factor, axis=1, keepdims=True), atol=1e-5)


def test_diffusion_keeps_directions_of_the_first_eigenvectors_only():
    rows, codes = pile()
    calm = spectral_features(rows, codes, 4, neighbours=5, diffusion=50.0)
    plain = spectral_features(rows, codes, 4, neighbours=5, diffusion=0.0)
    assert calm.shape == plain.shape == (60, 6)
    assert np.abs(calm[:, 4:]).mean() < 0.1 * np.abs(plain[:, 4:]).mean()


@pytest.mark.parametrize("n", [3, 5])
def test_more_neighbours_and_columns_than_rows(n):
    rows, _ = pile(n)
    features = spectral_features(rows, np.full(n, -1), 4)
    assert features.shape == (n, n - 1)
    assert np.isfinite(features).all()
