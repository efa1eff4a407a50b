"""Deep k-nearest neighbours against a full table of distances."""

from __future__ import annotations

import numpy as np
import pytest
from detection_zoo import blobs, rebuilt

import offmap
from offmap.detection.scores.neighbors import scale_k
from offmap.errors import InputError


def table(bank: np.ndarray, queries: np.ndarray, normalize: bool) -> np.ndarray:
    b, q = bank.astype(np.float64), queries.astype(np.float64)
    if normalize:
        b, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (b, q))
    return np.array([np.sort([np.sqrt(((row - other) ** 2).sum()) for other in b]) for row in q])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 7, 120])
def test_kth_and_average_distance(k: int, normalize: bool) -> None:
    known, test = blobs(), blobs(20, seed=3)
    distances = table(known.features, test.features, normalize)
    kth = offmap.detector(f"knn({k}, normalize={normalize})").fit(known).score(test)
    np.testing.assert_allclose(kth, -distances[:, k - 1], rtol=1e-5, atol=1e-6)
    mean = offmap.detector(f"knn({k}, average=True, normalize={normalize})").fit(known).score(test)
    np.testing.assert_allclose(mean, -distances[:, :k].mean(axis=1), rtol=1e-4, atol=1e-5)


def test_known_inputs_are_their_own_first_neighbour() -> None:
    known = blobs()
    assert np.allclose(offmap.detector("knn(1)").fit(known).score(known), 0, atol=1e-6)
    twice = rebuilt(known, features=np.repeat(known.features[:60], 2, axis=0))
    assert np.allclose(offmap.detector("knn(2)").fit(twice).score(twice), 0, atol=1e-6)


def test_a_share_of_the_bank_scales_k() -> None:
    known, test = blobs(1000), blobs(20, seed=3)
    assert [scale_k(k, 0.01) for k in (1, 49, 100, 1000)] == [1, 1, 1, 10]
    made = offmap.detector("knn(100, alpha=0.1)").fit(known)
    vectors = made.states[0]["vectors"].numpy()
    assert len(vectors) == 100
    unit = known.features / np.linalg.norm(known.features, axis=1, keepdims=True)
    assert all(np.isclose(unit, row, atol=1e-6).all(axis=1).any() for row in vectors), "rows of the data"
    distances = table(vectors, test.features, normalize=True)
    np.testing.assert_allclose(made.score(test), -distances[:, 9], rtol=1e-4, atol=1e-6)
    other = offmap.detector("knn(100, alpha=0.1, seed=1)").fit(known)
    assert not np.array_equal(other.states[0]["vectors"].numpy(), vectors)


def test_k_beyond_the_bank_is_refused_with_the_largest_k() -> None:
    known = blobs(30)
    assert offmap.detector("knn(30)").fit(known).is_fitted
    with pytest.raises(InputError, match="the bank holds 30 inputs; choose k at most 30"):
        offmap.detector("knn(31)").fit(known)


def test_inputs_without_direction() -> None:
    known = blobs()
    zeros = np.zeros((2, 6), np.float32)
    assert (offmap.detector("knn(5)").fit(known).score(zeros) == -np.inf).all()
    assert np.isfinite(offmap.detector("knn(5, normalize=False)").fit(known).score(zeros)).all()
    some = rebuilt(known, features=np.where(np.arange(120)[:, None] % 60 == 0, 0, known.features).astype(np.float32))
    with pytest.raises(InputError, match="2 of 120 known inputs have all-zero features"):
        offmap.detector("knn(5)").fit(some)
    verdict = offmap.detector("knn(5)").fit(known).calibrate(known, tpr=0.5)(zeros)
    assert not verdict.known.any()


def test_directions_only() -> None:
    known, test = blobs(), blobs(20, seed=3)
    made = offmap.detector("knn(5)").fit(known)
    longer = rebuilt(test, features=test.features * np.linspace(0.1, 90, 20, dtype=np.float32)[:, None])
    np.testing.assert_allclose(made.score(longer), made.score(test), rtol=1e-4, atol=1e-6)
