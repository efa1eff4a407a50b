"""The faiss engines: Flat equals ours, the approximate ones say how approximate they are."""

from __future__ import annotations

import numpy as np
import pytest

from offmap.neighbors import Bank

pytest.importorskip("faiss", reason="needs faiss: pip install offmap[faiss]")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(20, 16))
    vectors = centers[rng.integers(20, size=4000)] + 0.5 * rng.normal(size=(4000, 16))
    return vectors, centers[rng.integers(20, size=50)] + 0.5 * rng.normal(size=(50, 16))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 100])
def test_flat_equals_ours(data, normalize, k):
    vectors, queries = data
    ours = Bank(normalize).add(vectors)
    flat = Bank(normalize, engine="faiss").add(vectors)
    np.testing.assert_allclose(flat.kth_distance(queries, k), ours.kth_distance(queries, k), rtol=1e-4)
    np.testing.assert_allclose(flat.search(queries, k)[0], ours.search(queries, k)[0], rtol=1e-4, atol=1e-6)
    assert flat.recall(k) == 1.0


@pytest.mark.parametrize("engine", ["hnsw", "ivf"])
def test_approximate_engines_report_their_recall(data, engine):
    vectors, queries = data
    bank = Bank(engine=engine).add(vectors)
    found = bank.search(queries, 10)[1]
    true = Bank().add(vectors).search(queries, 10)[1]
    by_hand = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), true.tolist(), strict=True)])
    assert bank.recall(10, queries) == pytest.approx(by_hand)
    assert by_hand > 0.7
    assert f"recall {bank.recall(50):.3f} at k=50" in bank.explain(50)


def test_an_index_is_built_anew_after_rows_were_added(data):
    vectors, _ = data
    bank = Bank(engine="hnsw").add(vectors)
    bank.kth_distance(vectors[:1], 1)
    bank.add(-vectors[:1])
    assert bank.kth_distance(-vectors[:1], 1)[0] < 1e-6


def test_neighbours_the_index_cannot_find_are_infinitely_far():
    bank = Bank(engine="ivf").add(np.random.default_rng(0).normal(size=(2000, 4)))
    distances, numbers = bank.search(np.eye(4), 2000)
    assert np.isinf(distances[numbers < 0]).all()
    assert (np.diff(np.where(numbers < 0, 1e9, distances), axis=1) >= 0).all()


def test_explain_names_the_engine():
    rows = np.eye(3)
    assert "exact with matrix products" in Bank().add(rows).explain()
    assert "faiss Flat" in Bank(engine="faiss").add(rows).explain()
    assert "HNSW" not in Bank(engine="hnsw").explain()
