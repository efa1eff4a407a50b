"""The simplified local outlier factor and PLDA, against loops over inputs and independent formulas."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from detection_zoo import blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import offmap
from offmap.errors import InputError, OffmapWarning
from offmap.metrics.detection import auroc


@pytest.mark.parametrize("spec", ["slof(4)", "slof(4, normalize=false)", "slof(4, normalize=false, standardize=true)"])
def test_slof_is_a_ratio_of_mean_distances(spec: str) -> None:
    known, asked = blobs(60), blobs(10, seed=3)
    rows, queries = known.features.astype(np.float64), asked.features.astype(np.float64)
    if "normalize" not in spec:
        rows, queries = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (rows, queries))
    if "standardize" in spec:
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        rows, queries = (rows - mean) / spread, (queries - mean) / spread
    between = np.linalg.norm(rows[:, None] - rows, axis=2)
    own = np.sort(between, axis=1)[:, 1:5].mean(axis=1)
    wanted = []
    for query in queries:
        far = np.linalg.norm(rows - query, axis=1)
        near = np.argsort(far)[:4]
        wanted.append(np.log(own[near].mean() / far[near].mean()))
    np.testing.assert_allclose(offmap.detector(spec).fit(known).score(asked), wanted, rtol=1e-3, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10))
def test_slof_does_not_depend_on_units(scale: float, shift: float) -> None:
    known, asked = blobs(50), blobs(10, seed=3)

    def moved(acts: offmap.Activations) -> offmap.Activations:
        return offmap.Activations((acts.features * scale + shift * scale).astype(np.float32))

    plain = offmap.detector("slof(5, normalize=false)")
    wanted = plain.fit(known).score(asked)
    np.testing.assert_allclose(plain.fit(moved(known)).score(moved(asked)), wanted, rtol=1e-2, atol=1e-2)


def test_slof_stays_finite_where_known_inputs_coincide() -> None:
    rows = np.ones((30, 3), np.float32)
    made = offmap.detector("slof(5, normalize=false)").fit(offmap.Activations(rows))
    same, other = made.score(offmap.Activations(np.array([[1, 1, 1], [2, 1, 1]], np.float32)))
    assert np.isfinite([same, other]).all()
    assert same > other


def test_slof_says_what_it_lacks() -> None:
    with pytest.raises(InputError, match="20 neighbours need more than 20 known inputs, got 20"):
        offmap.detector("slof").fit(blobs(20))
    with pytest.raises(InputError, match="1 of 4 known inputs have all-zero features"):
        offmap.detector("slof(2)").fit(offmap.Activations(np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32)))
    with pytest.raises(InputError, match="k must be a whole number from 1"):
        offmap.detector("slof(0)")


def likelihood_ratio(known: offmap.Activations, queries: np.ndarray, isotropic: float) -> np.ndarray:
    """PLDA by densities of full covariance matrices, one class and one input after the other."""
    rows = known.features.astype(np.float64)
    classes = np.unique(known.labels)
    counts = np.array([(known.labels == c).sum() for c in classes])
    means = np.stack([rows[known.labels == c].mean(axis=0) for c in classes])
    centred = rows - means[known.labels]
    within = centred.T @ centred / len(rows)
    root = np.linalg.cholesky(np.linalg.inv(within))
    spread = (means - rows.mean(axis=0)) @ root
    values, vectors = np.linalg.eigh(spread.T @ spread / (len(classes) - 1))
    values = np.where(values > 1e-9, np.maximum(values - (1 / counts).mean(), 0), 0)
    total = values.sum() / len(values)
    between = (vectors * ((1 - isotropic) * values + isotropic * total)) @ vectors.T
    identity, found = np.eye(len(values)), []
    for query in (queries - rows.mean(axis=0)) @ root:
        logs = []
        for count, mean in zip(counts, spread, strict=True):
            posterior = np.linalg.inv(np.linalg.inv(between) + count * identity)
            logs.append(multivariate_normal(count * posterior @ mean, identity + posterior).logpdf(query))
        found.append(logsumexp(logs) - multivariate_normal(np.zeros(len(values)), identity + between).logpdf(query))
    return np.array(found)


@pytest.mark.parametrize("isotropic", [0.2, 1.0])
def test_plda_is_a_ratio_of_predictive_densities(isotropic: float) -> None:
    known, asked = blobs(150), blobs(25, seed=3)
    order = np.argsort(known.labels, kind="stable")[: 3 * (len(known) // 3)]
    even = known[order]  # classes of about one size: off the axes a class counts by the mean number of inputs
    found = offmap.detector(f"plda({isotropic})").fit(even).score(asked)
    wanted = likelihood_ratio(even, asked.features.astype(np.float64), isotropic)
    assert np.corrcoef(found, wanted)[0, 1] > 0.9999
    np.testing.assert_allclose(found - found.mean(), wanted - wanted.mean(), rtol=0.01, atol=0.02)


def test_plda_with_one_class_is_a_distance() -> None:
    rng = np.random.default_rng(0)
    known = offmap.Activations(rng.normal(size=(200, 4)).astype(np.float32), labels=np.zeros(200, int))
    asked = offmap.Activations(rng.normal(size=(50, 4)).astype(np.float32) * 3)
    plain, ratio = (offmap.detector(spec).fit(known).score(asked) for spec in ("mahalanobis", "plda"))
    assert (np.argsort(plain) == np.argsort(ratio)).all()


def test_plda_tells_new_classes_where_a_distance_does_not() -> None:
    """Directions in which inputs differ within classes and classes do not drown a plain distance."""
    rng = np.random.default_rng(0)
    means = np.zeros((30, 60))
    means[:, :8] = 3 * rng.normal(size=(30, 8))
    labels = np.arange(2000) % 20
    known = offmap.Activations((means[labels] + rng.normal(size=(2000, 60))).astype(np.float32), labels=labels)
    test = offmap.Activations((means[labels[:400]] + rng.normal(size=(400, 60))).astype(np.float32))
    new = offmap.Activations((means[20 + np.arange(400) % 10] + rng.normal(size=(400, 60))).astype(np.float32))
    areas = {
        spec: auroc(made.score(test), made.score(new))
        for spec, made in ((spec, offmap.detector(spec).fit(known)) for spec in ("plda", "mahalanobis"))
    }
    assert areas["plda"] > 0.97
    assert areas["plda"] > areas["mahalanobis"]


def test_plda_checks_its_shares() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        offmap.detector("plda(isotropic=1.5)")
    few = offmap.Activations(np.eye(6, dtype=np.float32), labels=np.arange(6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffmapWarning)
        assert np.isfinite(offmap.detector("plda").fit(few).score(few)).all()
