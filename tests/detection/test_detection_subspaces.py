"""Residual and ViM against loops with singular value decompositions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detection_zoo import blobs, rebuilt

import offmap
from offmap.detection.batch import TensorHead
from offmap.detection.scores.subspaces import default_dimension, origin
from offmap.errors import InputError


def null_space(known: offmap.Activations, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """The authors' way: o = -pinv(W) b, then the directions of least second moment about o."""
    o = -np.linalg.pinv(known.head.weight.astype(np.float64)) @ known.head.bias
    x = known.features.astype(np.float64) - o
    _, _, directions = np.linalg.svd(x, full_matrices=True)
    return o, directions[dimension:].T


@pytest.mark.parametrize("dimension", [1, 3, 7])
def test_residual_and_vim_against_svd(dimension: int) -> None:
    known, test = blobs(150, width=8), blobs(20, width=8, seed=3)
    o, rest = null_space(known, dimension)

    def length(features: np.ndarray) -> np.ndarray:
        return np.array([np.linalg.norm((row - o) @ rest) for row in features.astype(np.float64)])

    found = offmap.detector(f"residual(dimension={dimension})").fit(known).score(test)
    np.testing.assert_allclose(found, -length(test.features), rtol=1e-4, atol=1e-5)
    alpha = known.logits.astype(np.float64).max(axis=1).mean() / length(known.features).mean()
    energy = np.log(np.exp(test.logits.astype(np.float64)).sum(axis=1))
    found = offmap.detector(f"vim({dimension})").fit(known).score(test)
    np.testing.assert_allclose(found, energy - alpha * length(test.features), rtol=1e-4, atol=1e-4)


def test_vims_score_orders_like_the_virtual_logits_probability() -> None:
    known, test = blobs(150, width=8), blobs(40, width=8, seed=3)
    o, rest = null_space(known, 4)
    alpha = known.logits.max(axis=1).mean() / np.linalg.norm((known.features - o) @ rest, axis=1).mean()
    virtual = alpha * np.linalg.norm((test.features - o) @ rest, axis=1)
    all_logits = np.concatenate([test.logits, virtual[:, None]], axis=1).astype(np.float64)
    probability = np.exp(virtual) / np.exp(all_logits).sum(axis=1)
    found = offmap.detector("vim(4)").fit(known).score(test)
    assert np.array_equal(np.argsort(found), np.argsort(-probability))


def test_the_bias_vanishes_at_the_origin() -> None:
    known = blobs(width=8)
    head = TensorHead.of(known.head)
    o = origin(head)
    np.testing.assert_allclose(head.weight.double() @ o + head.bias, 0, atol=1e-1 * np.abs(known.head.bias).max())
    square = TensorHead(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([4.0, 3.0]))
    np.testing.assert_allclose(square.weight.double() @ origin(square) + square.bias, 0, atol=1e-12)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (20, 20)])
@pytest.mark.parametrize("rank", [0, 3, 12])
def test_the_origin_is_that_of_the_pseudo_inverse(shape: tuple[int, int], rank: int) -> None:
    rng = np.random.default_rng(rank)
    weight = rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))
    bias = rng.normal(size=shape[0])
    found = origin(TensorHead(torch.from_numpy(weight), torch.from_numpy(bias)))
    np.testing.assert_allclose(found, -np.linalg.pinv(weight, rcond=1e-12) @ bias, rtol=1e-8, atol=1e-10)


def test_dimensions() -> None:
    assert [default_dimension(width) for width in (1, 2, 5, 767, 768, 2047, 2048, 4096)] == [
        1, 1, 2, 383, 512, 512, 1000, 1000,
    ]  # fmt: skip
    for spec in ("vim(6)", "residual(dimension=99)"):
        with pytest.raises(InputError, match="leave nothing of 6 features"):
            offmap.detector(spec).fit(blobs())
    single = blobs(width=1)
    with pytest.raises(InputError, match="leave nothing of 1 features"):
        offmap.detector("vim").fit(single)


def test_inputs_inside_the_subspace_have_no_residual() -> None:
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(2, 7))
    head = offmap.Head(rng.normal(size=(3, 7)))
    flat = offmap.Activations((rng.normal(size=(80, 2)) @ basis).astype(np.float32), head)
    off = rebuilt(flat, features=flat.features + rng.normal(size=(80, 7)).astype(np.float32))
    made = offmap.detector("residual(dimension=2)").fit(flat)
    assert made.score(flat).min() > -1e-4
    assert made.score(off).max() < -0.1
    assert np.isfinite(offmap.detector("vim(2)").fit(flat).score(off)).all()
