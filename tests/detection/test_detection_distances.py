"""Gaussian distances against NumPy's pseudo-inverse in loops, and singular covariances."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from detection_zoo import blobs, rebuilt

import offmap
from offmap import store
from offmap.detection.scores.few_inputs import shrink
from offmap.detection.scores.gaussians import whitening
from offmap.errors import InputError, OffmapWarning


def tied(features: np.ndarray, labels: np.ndarray) -> tuple[dict[int, np.ndarray], np.ndarray]:
    x = features.astype(np.float64)
    means = {c: x[labels == c].mean(axis=0) for c in np.unique(labels)}
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for row, label in zip(x, labels, strict=True):
        covariance += np.outer(row - means[label], row - means[label]) / len(x)
    return means, covariance


def looped(known: offmap.Activations, test: np.ndarray, shrinkage: float = 0.0) -> np.ndarray:
    means, covariance = tied(known.features, known.labels)
    width = len(covariance)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / width * np.eye(width)
    precision = np.linalg.pinv(covariance)
    return np.array(
        [-min((row - mean) @ precision @ (row - mean) for mean in means.values()) for row in test.astype(np.float64)]
    )


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_mahalanobis_against_loops(shrinkage: float) -> None:
    known, test = blobs(200, width=8), blobs(30, width=8, seed=4)
    found = offmap.detector(f"mahalanobis({shrinkage})").fit(known).score(test)
    np.testing.assert_allclose(found, looped(known, test.features, shrinkage), rtol=2e-5)


def test_mahalanobis_far_from_the_origin_and_badly_scaled() -> None:
    known, test = blobs(300, width=8), blobs(30, width=8, seed=4)
    stretch = (10.0 ** np.linspace(-3, 3, 8)).astype(np.float32)
    for change in (lambda f: f + 1000, lambda f: f * stretch):
        moved = rebuilt(known, features=change(known.features))
        found = offmap.detector("mahalanobis").fit(moved).score(change(test.features))
        np.testing.assert_allclose(found, looped(moved, change(test.features)), rtol=2e-2)


def test_a_class_that_is_missing_does_not_count_as_the_origin() -> None:
    known = blobs(200)
    some = known[known.labels != 1]
    origin = np.zeros((1, 6), np.float32)
    found = offmap.detector("mahalanobis").fit(some).score(origin)
    np.testing.assert_allclose(found, looped(some, origin), rtol=1e-4)


@pytest.mark.parametrize("spec", ["mahalanobis", "rmds", "ssd", "ssd(tied=true)"])
def test_singular_covariances(spec: str) -> None:
    """Dead units, copied units, fewer inputs than features: the directions without variance do not count."""
    rng = np.random.default_rng(0)
    full = blobs(200, width=6)
    dead = np.concatenate([full.features, np.zeros((200, 3), np.float32)], axis=1)
    copied = np.concatenate([full.features, full.features[:, :3]], axis=1)
    few = rng.normal(size=(12, 40)).astype(np.float32)
    labels = full.labels
    plain = offmap.detector(spec).fit(full).score(full)
    if not spec.startswith("ssd"):
        for features in (dead, copied):
            acts = offmap.Activations(features, labels=labels)
            found = offmap.detector(spec).fit(acts).score(acts)
            np.testing.assert_allclose(found, plain, rtol=1e-3, atol=1e-3)
    small = offmap.Activations(few, labels=np.arange(12) % 2)
    whole = offmap.detector(spec).fit(small)
    cut = offmap.detector(spec)
    for start in range(0, 12, 4):
        cut.update(small[start : start + 4])
    test = rng.normal(size=(5, 40)).astype(np.float32)
    found = whole.score(test)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(
        cut.finalize().score(test), found, rtol=1e-3, err_msg="noise must not become a direction"
    )


def test_rmds_against_loops() -> None:
    known, test = blobs(200, width=5), blobs(20, width=5, seed=4)
    x = known.features.astype(np.float64)
    background = np.linalg.pinv(np.cov(x.T, bias=True))
    centre = x.mean(axis=0)
    own = looped(known, test.features)
    wanted = [own[i] + (row - centre) @ background @ (row - centre) for i, row in enumerate(test.features)]
    np.testing.assert_allclose(offmap.detector("rmds").fit(known).score(test), wanted, rtol=1e-4, atol=1e-4)


def normalized(features: np.ndarray) -> np.ndarray:
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def test_ssd_has_one_gaussian_per_class() -> None:
    known, test = blobs(400), blobs(20, seed=4)
    x, y = normalized(known.features).astype(np.float64), known.labels
    assert y is not None
    wanted = np.full(len(test), np.inf)
    for label in np.unique(y):
        away = normalized(test.features).astype(np.float64) - x[y == label].mean(axis=0)
        precision = np.linalg.pinv(np.cov(x[y == label].T, bias=True))
        wanted = np.minimum(wanted, np.einsum("nd,de,ne->n", away, precision, away))
    found = offmap.detector("ssd").fit(known).score(test)
    np.testing.assert_allclose(found, -wanted, rtol=1e-3)
    assert not np.allclose(found, offmap.detector("ssd(tied=true)").fit(known).score(test), rtol=1e-2)


@pytest.mark.parametrize("spec", ["ssd", "ssd(tied=true)"])
def test_ssd_without_labels_is_one_gaussian(spec: str) -> None:
    known, test = blobs(200), blobs(20, seed=4)
    single = rebuilt(known, features=normalized(known.features), labels=np.zeros(200, int))
    found = offmap.detector(spec).fit(rebuilt(known, labels=None)).score(test)
    np.testing.assert_allclose(found, looped(single, normalized(test.features)), rtol=1e-3)


def test_tied_ssd_is_mahalanobis_on_directions() -> None:
    known, test = blobs(200), blobs(20, seed=4)
    directions = rebuilt(known, features=normalized(known.features))
    found = offmap.detector("ssd(tied=true)").fit(known).score(test)
    np.testing.assert_allclose(found, looped(directions, normalized(test.features)), rtol=1e-3)


def test_files_of_ssd_written_before_the_option_score_as_they_did(tmp_path: Path) -> None:
    known, test = blobs(200), blobs(20, seed=4)
    tied = offmap.detector("ssd(tied=true)").fit(known)
    tied.save(tmp_path / "tied.offmap")
    stored = store.load(tmp_path / "tied.offmap")
    older = {**stored.config, "spec": "ssd", "chosen": "ssd"}
    store.save(tmp_path / "old.offmap", stored.kind, older, stored.tensors)
    np.testing.assert_array_equal(offmap.load(tmp_path / "old.offmap").score(test), tied.score(test))


def test_more_covariances_than_memory_are_refused_with_the_way_out() -> None:
    many = offmap.Activations(np.random.default_rng(0).normal(size=(4, 2048)), labels=np.array([0, 1, 2, 999]))
    with pytest.raises(InputError, match=r"1000 classes of 2048 features takes 33.6 GB.*ssd\(tied=true\)"):
        offmap.detector("ssd").fit(many)


def test_whitening_and_shrinking() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 5))
    covariance = torch.from_numpy(a @ a.T)
    root = whitening(covariance).double()
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(covariance.numpy()), rtol=1e-4, atol=1e-5)
    assert whitening(torch.zeros(3, 3, dtype=torch.float64)).shape == (3, 0)
    assert torch.allclose(torch.trace(shrink(covariance, 0.7)), torch.trace(covariance))
    ill = torch.diag(torch.tensor([1.0, 1e-12], dtype=torch.float64))
    assert whitening(ill).dtype == torch.float64, "an ill-conditioned covariance is kept in float64"


@pytest.mark.parametrize("smallest", [1e-2, 1e-6, 1e-9])
def test_whitening_is_the_inverse_whichever_decomposition_is_taken(smallest: float) -> None:
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    values = np.geomspace(1, smallest, 40)
    root = whitening(torch.from_numpy(turn * values @ turn.T)).double().numpy()
    rows = rng.normal(size=(30, 40))
    expected = (rows @ turn) ** 2 @ (1 / values)
    np.testing.assert_allclose(((rows @ root) ** 2).sum(axis=1), expected, rtol=1e-3)


def test_labels_are_read_as_classes_not_as_numbers() -> None:
    known = blobs(120)
    shifted = rebuilt(known, labels=np.array([7, 0, 3])[known.labels], head=None)
    np.testing.assert_allclose(
        offmap.detector("mahalanobis").fit(shifted).score(known.features),
        offmap.detector("mahalanobis").fit(rebuilt(known, head=None)).score(known.features),
        rtol=1e-5,
    )


def test_a_singular_covariance_is_handled_and_said() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 6)).astype(np.float32)
    features[:, 4] = 0
    known = offmap.Activations(features, labels=np.arange(200) % 2)
    with pytest.warns(OffmapWarning, match="singular: 1 of 6 directions"):
        made = offmap.detector("mahalanobis").fit(known)
    assert np.isfinite(made.score(known)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("mahalanobis(0.1)").fit(known)
