"""NNGuide beside plain loops, and its search by inner product beside sorting."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import offmap
from offmap.detection.scores.neighbors import inner_product_bank
from offmap.errors import InputError


@pytest.fixture(scope="module")
def known() -> offmap.Activations:
    rng = np.random.default_rng(0)
    head = offmap.Head(rng.normal(size=(3, 6)), rng.normal(size=3))
    return offmap.Activations(rng.random((500, 6)).astype(np.float32), head=head)


def by_loops(known, queries, k):
    units = known.features / np.linalg.norm(known.features, axis=1, keepdims=True)
    guides = units * logsumexp(known.logits.astype(np.float64), axis=1)[:, None]
    scores = []
    for feature, logits in zip(queries.features, queries.logits, strict=True):
        products = sorted(guides @ (feature / np.linalg.norm(feature)))
        scores.append(logsumexp(logits.astype(np.float64)) * np.mean(products[-k:]))
    return np.array(scores)


def test_nnguide_by_plain_loops(known):
    queries = offmap.Activations(np.random.default_rng(1).random((30, 6)).astype(np.float32), head=known.head)
    scores = offmap.detector("nnguide(10, alpha=1.0)").fit(known).score(queries)
    np.testing.assert_allclose(scores, by_loops(known, queries, 10), rtol=1e-5)


def test_nnguide_reads_given_logits_where_there_is_no_head(known):
    bare = offmap.Activations(known.features, logits=known.logits)
    scores = offmap.detector("nnguide(10, alpha=1.0)").fit(bare).score(bare[:10])
    np.testing.assert_allclose(scores, by_loops(known, known[:10], 10), rtol=1e-5)


def test_nnguide_averages_over_a_bank_smaller_than_k(known):
    detector = offmap.detector("nnguide").fit(known)  # a hundredth of 500 inputs is 5
    few = offmap.detector("nnguide(5)").fit(known)
    np.testing.assert_array_equal(detector.score(known[:10]), few.score(known[:10]))


def test_nnguide_shapes_its_bank_as_its_queries(known):
    c = 0.4
    cut = offmap.Activations(np.minimum(known.features, np.float32(c)), head=known.head)
    shaped = offmap.detector(f"react(c={c})|nnguide(7, alpha=1.0)").fit(known).score(known[:20])
    np.testing.assert_allclose(shaped, by_loops(cut, cut[:20], 7), rtol=1e-5)


def test_nnguide_scores_a_feature_of_zeros(known):
    nothing = offmap.Activations(np.zeros((1, 6), dtype=np.float32), head=known.head)
    assert offmap.detector("nnguide").fit(known).score(nothing) == 0


def test_nnguide_shards_and_files_change_nothing(known, tmp_path):
    whole = offmap.detector("nnguide(5, alpha=0.1)").fit(known)
    merged = offmap.detector("nnguide(5, alpha=0.1)").update(known[:200])
    merged.merge(offmap.detector("nnguide(5, alpha=0.1)").update(known[200:])).finalize()
    np.testing.assert_array_equal(merged.score(known), whole.score(known))
    whole.save(tmp_path / "guard.offmap")
    np.testing.assert_array_equal(offmap.load(tmp_path / "guard.offmap").score(known), whole.score(known))


def test_nearest_in_the_bank_is_largest_in_inner_product():
    rng = np.random.default_rng(3)
    guides = rng.normal(size=(200, 5)).astype(np.float32) * rng.random((200, 1)).astype(np.float32) * 20
    queries = rng.normal(size=(40, 5)).astype(np.float32)
    found = inner_product_bank(torch.from_numpy(guides)).search(np.pad(queries, ((0, 0), (0, 1))), 4)[1]
    expected = np.argsort(-(queries @ guides.T), axis=1)[:, :4]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("spec", ["nnguide(0)", "nnguide(alpha=0.0)", "nnguide(alpha=1.5)"])
def test_nonsense_is_refused(spec):
    with pytest.raises(InputError, match="nnguide"):
        offmap.detector(spec)
