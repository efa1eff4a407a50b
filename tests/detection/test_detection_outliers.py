"""Classical outlier detectors and OpenMax: each formula beside scikit-learn, SciPy or loops from the paper."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import OneClassSVM

import offmap
from offmap.detection.scores.openmax import fit_weibull, openmax
from offmap.detection.scores.projections import histograms, mean_log_density, minor_components, sparse_projections
from offmap.errors import InputError, OffmapWarning
from offmap.sampling import Reservoir

ON_FEATURES = ["iforest", "lof(20)", "loda", "pca(5)", "ocsvm", "gmm(3)"]


@pytest.fixture(scope="module")
def known() -> offmap.Activations:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    features = np.abs(rng.normal(size=(400, 12)) + 3 * np.eye(4, 12)[labels])
    head = offmap.Head(np.eye(4, 12) + 0.1 * rng.normal(size=(4, 12)))
    return offmap.Activations(features.astype(np.float32), head=head, labels=labels)


@pytest.fixture(scope="module")
def queries(known) -> offmap.Activations:
    rng = np.random.default_rng(1)
    inside = known.features[:20] + 0.1 * rng.normal(size=(20, 12))
    return offmap.Activations(np.concatenate([inside, 5 * rng.random((20, 12))]).astype(np.float32), head=known.head)


def in_order(known):
    """The rows as the seeded reservoir gives them to an estimator."""
    return Reservoir(10_000, seed=0).update(known.features).rows


def test_iforest_is_scikit_learn_on_the_sample_with_the_thesis_settings(known, queries):
    forest = IsolationForest(n_estimators=100, max_samples=256, max_features=12, random_state=0).fit(in_order(known))
    expected = forest.score_samples(queries.features)
    np.testing.assert_array_equal(offmap.detector("iforest").fit(known).score(queries), expected)


def test_lof_is_scikit_learn(known, queries):
    expected = LocalOutlierFactor(n_neighbors=20, novelty=True).fit(in_order(known)).score_samples(queries.features)
    np.testing.assert_allclose(offmap.detector("lof(20)").fit(known).score(queries), expected, rtol=1e-5)


def test_ocsvm_is_the_logarithm_of_scikit_learns_kernel_sum(known, queries):
    svm = OneClassSVM(kernel="rbf", gamma=1 / 512, nu=0.5).fit(in_order(known).astype(np.float64))
    scores = offmap.detector("ocsvm").fit(known).score(queries)
    np.testing.assert_allclose(np.exp(scores), svm.score_samples(queries.features), rtol=1e-8)


def test_ocsvm_goes_on_where_the_kernel_is_zero(known):
    far = offmap.Activations(np.array([[1e4] * 12, [2e4] * 12], dtype=np.float32))
    near, farther = offmap.detector("ocsvm").fit(known).score(far)
    assert near > farther


@pytest.mark.parametrize("covariance", ["tied", "full"])
def test_gmm_is_scikit_learns_log_likelihood(known, queries, covariance):
    rows = in_order(known).astype(np.float64)
    regular = 1e-6 * rows.var(axis=0).mean()
    mixture = GaussianMixture(3, covariance_type=covariance, reg_covar=regular, max_iter=300, random_state=0).fit(rows)
    scores = offmap.detector(f"gmm(3, covariance={covariance})").fit(known).score(queries)
    np.testing.assert_allclose(scores, mixture.score_samples(queries.features.astype(np.float64)), rtol=1e-8)


def test_loda_by_plain_loops(known, queries):
    bins, rows = 10, in_order(known).astype(np.float64)
    directions = sparse_projections(12, 100, seed=0).numpy()
    expected = np.zeros(len(queries))
    for direction in directions.T:
        values = rows @ direction
        edges = np.linspace(values.min(), values.max(), bins + 1)
        counts, _ = np.histogram(values, edges)
        width = edges[1] - edges[0]
        for row, query in enumerate(queries.features.astype(np.float64) @ direction):
            count = counts[np.flatnonzero(query >= edges[:-1])[-1]] if edges[0] <= query <= edges[-1] else 0
            expected[row] += math.log((count + 0.5) / (len(values) + 0.5 * (bins + 2)) / width) / 100
    np.testing.assert_allclose(offmap.detector("loda").fit(known).score(queries), expected, rtol=1e-9)


def test_densities_of_a_histogram_add_up_to_one_and_hold_its_own_extremes():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3)))
    found = histograms(values, bins=7)
    mass = (found["log_density"].exp() * found["width"][:, None]).sum(dim=1)
    torch.testing.assert_close(mass, torch.ones(3, dtype=torch.float64))
    ends = torch.stack([values.amin(dim=0), values.amax(dim=0)])
    emptiest = found["log_density"][:, 0].mean()
    assert bool((mean_log_density(ends, found) > emptiest).all())
    torch.testing.assert_close(mean_log_density(ends + 1e3, found)[0], emptiest)


def test_loda_gives_a_number_where_known_features_are_constant():
    same = offmap.Activations(np.ones((20, 5), dtype=np.float32))
    assert np.isfinite(offmap.detector("loda").fit(same).score(same)).all()


def test_pca_by_plain_loops(known, queries):
    x = known.features.astype(np.float64)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    values, vectors = np.linalg.eigh(z.T @ z / len(z))
    expected = []
    for query in queries.features:
        standard = (query - x.mean(axis=0)) / x.std(axis=0)
        expected.append(-sum((standard @ vectors[:, i]) ** 2 / values[i] for i in range(5)))
    np.testing.assert_allclose(offmap.detector("pca(5)").fit(known).score(queries), expected, rtol=1e-6)


def test_pca_leaves_out_what_does_not_vary():
    covariance = torch.diag(torch.tensor([4.0, 1.0, 0.0], dtype=torch.float64))
    deviations, root = minor_components(covariance, 50)
    assert deviations.tolist() == [2.0, 1.0, math.inf]
    assert root.shape == (3, 2)
    dead = np.random.default_rng(0).normal(size=(30, 3)) * [2, 1, 0]
    assert np.isfinite(offmap.detector("pca").fit(offmap.Activations(dead)).score(dead + 1)).all()


def test_pca_with_fewer_inputs_than_features_counts_directions_that_none_of_them_takes():
    rng = np.random.default_rng(0)
    few = rng.normal(size=(12, 20)).astype(np.float32)
    with pytest.warns(OffmapWarning, match="12 inputs are few for the correlations of 20 features"):
        fitted = offmap.detector("pca(3)").fit(offmap.Activations(few))
    x = few.astype(np.float64)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    correlation = z.T @ z / len(z)
    square, trace = np.square(correlation).sum(), np.trace(correlation)
    share = ((1 - 2 / 20) * square + trace**2) / ((11 + 1 - 2 / 20) * (square - trace**2 / 20))
    values, vectors = np.linalg.eigh(correlation)
    values = values + min(share, 1) * (1 - values)
    queries = rng.normal(size=(5, 20)).astype(np.float32)
    along = (queries - x.mean(axis=0)) / x.std(axis=0) @ vectors[:, :9]  # 20 - 11 directions that no input takes
    np.testing.assert_allclose(fitted.score(queries), -(along**2 / values[:9]).sum(axis=1), rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector("pca(3)").fit(offmap.Activations(rng.normal(size=(21, 20)).astype(np.float32)))


def test_weibull_of_largest_likelihood_as_scipy_finds_it():
    distances = stats.weibull_min.rvs(3.0, scale=2.0, size=40, random_state=0)
    shape, _, scale = stats.weibull_min.fit(distances, floc=0)
    np.testing.assert_allclose(fit_weibull(distances), (shape, scale), rtol=1e-3)
    likelihood = stats.weibull_min.logpdf(distances, *np.insert(fit_weibull(distances), 1, 0)).sum()
    assert likelihood >= stats.weibull_min.logpdf(distances, shape, 0, scale).sum() - 1e-9


@pytest.mark.parametrize("distances", [[2.0, 2.0, 2.0], [0.0, 0.0], [3.0], [0.0, 1.0]])
def test_weibull_of_degenerate_distances_is_finite(distances):
    shape, scale = fit_weibull(np.array(distances))
    assert 0 < shape < math.inf
    assert 0 < scale < math.inf


def test_openmax_by_plain_loops(known, queries):
    logits, labels = known.logits, known.labels
    right = logits.argmax(axis=1) == labels
    means, weibulls = [], []
    for c in range(4):
        mine = logits[right & (labels == c)].astype(np.float64)
        means.append(mine.mean(axis=0))
        tail = np.sort(np.linalg.norm(mine - means[c], axis=1))[-20:]
        shape, scale = fit_weibull(tail)
        weibulls.append(stats.weibull_min(shape, scale=scale))
    expected = []
    for v in queries.logits.astype(np.float64):
        revised, unknown = v.copy(), 0.0
        for rank, c in enumerate(np.argsort(-v)[:3]):
            weight = 1 - (3 - rank) / 3 * weibulls[c].cdf(np.linalg.norm(v - means[c]))
            revised[c] = v[c] * weight
            unknown += v[c] * (1 - weight)
        everything = np.exp(np.append(revised, unknown))
        expected.append(everything[-1] / everything.sum())
    scores = offmap.detector("openmax(top=3)").fit(known).score(queries)
    np.testing.assert_allclose(1 / (1 + np.exp(scores)), expected, rtol=1e-5)


def test_openmax_leaves_a_class_without_right_answers_as_it_is(known):
    some = known[known.labels != 2]
    detector = offmap.detector("openmax").fit(some)
    assert np.isfinite(detector.score(known)).all()
    v = torch.tensor([[1.0, 5.0]])
    untouched = openmax(v, torch.zeros(2, 2).double(), torch.ones(2).double(), torch.full((2,), math.inf).double(), 2)
    torch.testing.assert_close(untouched, torch.logsumexp(v.double(), dim=1))


def test_openmax_without_any_right_answer_is_refused(known):
    wrong = offmap.Activations(known.features, known.head, labels=(known.predictions + 1) % 4)
    with pytest.raises(InputError, match="no known input was classified rightly"):
        offmap.detector("openmax").fit(wrong)


@pytest.mark.parametrize("spec", [*ON_FEATURES, "openmax", "react(c=2.5)|lof(20)", "react(c=2.5)|openmax"])
def test_blocks_shards_and_files_change_nothing(spec, known, queries, tmp_path):
    whole = offmap.detector(spec).fit(known)
    merged = offmap.detector(spec).update(known[:130]).update(known[130:170])
    merged.merge(offmap.detector(spec).update(known[170:])).finalize()
    np.testing.assert_allclose(merged.score(queries), whole.score(queries), rtol=1e-9)
    whole.save(tmp_path / "guard.offmap")
    np.testing.assert_array_equal(offmap.load(tmp_path / "guard.offmap").score(queries), whole.score(queries))


@pytest.mark.parametrize("spec", ON_FEATURES)
def test_scores_do_not_depend_on_the_batch(spec, known, queries):
    detector = offmap.detector(spec).fit(known)
    one_by_one = np.concatenate([detector.score(queries[i]) for i in range(len(queries))])
    np.testing.assert_allclose(one_by_one, detector.score(queries), rtol=1e-9)


@pytest.mark.parametrize(("spec", "count"), [("lof(50)", 50), ("gmm(10)", 10)])
def test_a_sample_that_is_too_small_is_refused(spec, count, known):
    with pytest.raises(InputError, match=f"more than {count} known inputs"):
        offmap.detector(spec).fit(known[:count])


@pytest.mark.parametrize("spec", ["iforest(0)", "lof(0)", "loda(0)", "pca(0)", "ocsvm(nu=0.0)", "gmm(0)", "openmax(0)"])
def test_nonsense_is_refused(spec):
    with pytest.raises(InputError, match=r"at least|above|from 1"):
        offmap.detector(spec)
