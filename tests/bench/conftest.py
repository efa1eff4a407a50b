"""Tiny suites of real files: features of two known blobs and an unknown one, and a model of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

SUITE = """
about = "blobs"
methods = ["msp", "energy", "mahalanobis", "knn(auto)", "random_k(0.5)|energy"]

[network.own]
kind = "linear"
c = 1.0

[train]
path = "known.npz"

[known]
path = "known.npz"

[test]
path = "test.npz"

[ood.far]
path = "far.npz"

[protocol]
noise = 50
held_out = 40

[thesis.far]
"msp" = [12.5, 90.25]
"""


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(3, 6))
    for name, n in (("known", 150), ("test", 90)):
        labels = np.arange(n) % 3
        np.savez(
            tmp_path / f"{name}.npz", features=(centres[labels] + rng.normal(size=(n, 6))).astype("f4"), labels=labels
        )
    np.savez(tmp_path / "far.npz", features=(3 * rng.normal(size=(80, 6))).astype("f4"))
    (tmp_path / "blobs.toml").write_text(SUITE)
    return tmp_path
