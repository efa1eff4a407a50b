import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.cluster import KMeans as Reference
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from offmap.discovery import KMeans, SemiSupervisedKMeans
from offmap.discovery.assign import Assignment, Rows, distances, margins, sweep
from offmap.discovery.kmeans import lloyd, plus_plus
from offmap.errors import InputError, NotFittedError
from offmap.metrics.clustering import adjusted_rand
from offmap.neighbors import cores
from offmap.neighbors.vectors import unit


def blobs(n=300, k=6, width=10, spread=0.4, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    return (rng.normal(size=(k, width))[truth] + spread * rng.normal(size=(n, width))).astype(np.float32), truth


def plain_lloyd(rows, centres, forced=None, iterations=40):
    """Lloyd's algorithm as on paper, in float64."""
    rows, centres = rows.astype(np.float64), centres.astype(np.float64)
    for _ in range(iterations):
        found = ((rows[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        if forced is not None:
            found = np.where(forced >= 0, forced, found)
        centres = np.stack(
            [rows[found == j].mean(axis=0) if (found == j).any() else centres[j] for j in range(len(centres))]
        )
    return found, centres


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.booleans(), st.floats(0.1, 3))
def test_bounds_never_change_the_answer(seed, k, with_labels, spread):
    rows, truth = blobs(200, k, 4, spread, seed)
    rng = np.random.default_rng(seed)
    forced = np.where((truth < k // 2) & (rng.random(200) < 0.5), truth, -1) if with_labels else None
    start = rows[rng.choice(200, k, replace=False)]
    state, centres = Assignment.empty(200, k, 4), start
    for _ in range(15):
        sweep(Rows(rows), centres, state, forced)
        gaps = ((rows[:, None] - centres[None].astype(np.float64)) ** 2).sum(axis=2)
        found = gaps.argmin(axis=1) if forced is None else np.where(forced >= 0, forced, gaps.argmin(axis=1))
        own = gaps[np.arange(200), state.labels]
        np.testing.assert_allclose(own, gaps[np.arange(200), found], rtol=1e-4, atol=1e-4)
        assert (state.sizes == np.bincount(state.labels, minlength=k)).all()
        sums = np.zeros((k, 4))
        np.add.at(sums, state.labels, rows)
        np.testing.assert_allclose(state.sums, sums, atol=1e-3)
        new = state.centres(centres, "euclidean")
        state.move(centres, new)
        centres = new


def test_lloyd_ends_where_the_textbook_ends():
    rows, truth = blobs()
    start = rows[:6]
    fit = lloyd(Rows(rows), start, tol=0)
    found, centres = plain_lloyd(rows, start)
    np.testing.assert_array_equal(fit.labels, found)
    np.testing.assert_allclose(fit.centres, centres, atol=1e-4)
    forced = np.where(truth == 2, 0, -1)
    fit = lloyd(Rows(rows), start, forced=forced, tol=0)
    assert (fit.labels[truth == 2] == 0).all()
    np.testing.assert_array_equal(fit.labels, plain_lloyd(rows, start, forced)[0])


def test_inertia_is_as_low_as_scikit_learns():
    rows, _ = blobs(1000, 12, 16, 0.8)
    ours = KMeans(12).fit(rows)
    theirs = Reference(12, n_init=5, random_state=0).fit(rows)
    assert ours.inertia_ <= 1.0001 * theirs.inertia_
    exact = ((rows - ours.cluster_centers_[ours.labels_]) ** 2).sum()
    assert ours.inertia_ == pytest.approx(exact, rel=1e-4)
    assert KMeans(12, init="k-means++", n_init=5).fit(rows).inertia_ <= 1.02 * theirs.inertia_


def test_groups_too_many_for_a_tree_start_by_drawing():
    rows = np.random.default_rng(0).normal(size=(4100, 2)).astype(np.float32)
    assert len(np.unique(KMeans(4050, max_iter=1).fit(rows).labels_)) > 4000


def test_the_answer_does_not_depend_on_cores_or_on_the_kind_of_array(tmp_path, monkeypatch):
    rows, _ = blobs(20_000, 5, 8)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    one = KMeans(5, n_init=2).fit(rows)
    np.testing.assert_array_equal(KMeans(5, n_init=2).fit(mapped).labels_, one.labels_)

    def single(work, threads):
        for number in range(threads):
            work(number)

    monkeypatch.setattr("offmap.discovery.assign.in_threads", single)
    again = KMeans(5, n_init=2).fit(rows)
    np.testing.assert_array_equal(again.cluster_centers_, one.cluster_centers_)
    assert cores.in_threads is not single


def test_cosine_ignores_length():
    rows, _ = blobs(200, 4, 6)
    scale = np.random.default_rng(1).uniform(0.1, 10, size=(200, 1)).astype(np.float32)
    one = KMeans(4, metric="cosine", n_init=3).fit(rows)
    other = KMeans(4, metric="cosine", n_init=3).fit(rows * scale)
    assert adjusted_rand(one.labels_, other.labels_) == 1
    np.testing.assert_allclose(np.linalg.norm(one.cluster_centers_, axis=1), 1, rtol=1e-5)


def test_empty_groups_are_filled_again():
    rows = np.concatenate([np.zeros((20, 2)), np.eye(2) * 5, [[9.0, 9.0]]]).astype(np.float32)
    far_away = np.array([[0, 0], [500, 500], [600, 600], [700, 700]], np.float32)
    fit = lloyd(Rows(rows), far_away)
    assert len(np.unique(fit.labels)) == 4
    assert fit.inertia == pytest.approx(0, abs=1e-6)


def test_fewer_distinct_rows_than_groups_ends_quietly():
    fit = lloyd(Rows(np.ones((10, 3), np.float32)), np.ones((4, 3), np.float32))
    assert fit.inertia == 0


def test_tight_groups_far_from_zero_keep_their_distances():
    rng = np.random.default_rng(0)
    rows = (1000 + 0.01 * rng.normal(size=(50, 3))).astype(np.float32)
    centre = rows.mean(axis=0, keepdims=True)
    got = distances(Rows(rows), centre, np.zeros(50, np.int64))
    np.testing.assert_allclose(got, ((rows - centre) ** 2).sum(axis=1), rtol=1e-4)


def test_margins_match_a_dense_computation():
    rows, _ = blobs(100, 5, 4)
    centres = rows[:5]
    first, near, second, after = margins(Rows(rows), centres)
    gaps = np.sqrt(((rows[:, None] - centres[None]) ** 2).sum(axis=2))
    order = np.argsort(gaps, axis=1, kind="stable")
    np.testing.assert_array_equal(first, order[:, 0])
    np.testing.assert_array_equal(second, order[:, 1])
    np.testing.assert_allclose(near, np.sort(gaps, axis=1)[:, 0], atol=2e-3)
    np.testing.assert_allclose(after, np.sort(gaps, axis=1)[:, 1], atol=2e-3)


def test_plus_plus_keeps_given_centres_and_draws_only_free_rows():
    rows, _ = blobs(50, 3, 2)
    free = np.arange(10, 50)
    start = plus_plus(Rows(rows), 5, np.random.default_rng(0), given=rows[:2], free=free)
    np.testing.assert_array_equal(start[:2], rows[:2])
    assert all((rows[free] == centre).all(axis=1).any() for centre in start[2:])


def test_balanced_groups_are_nearly_equal():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(180, 2)), rng.normal(size=(20, 2)) + 6]).astype(np.float32)
    free = np.bincount(KMeans(4, n_init=3).fit(rows).labels_, minlength=4)
    even = np.bincount(KMeans(4, n_init=3, balanced=True).fit(rows).labels_, minlength=4)
    assert even.std() < free.std()
    assert even.min() >= 25


def test_semi_supervised_keeps_labels_and_numbers():
    rows, truth = blobs(400, 5, 8, 0.2)
    labels = np.where((truth < 2) & (np.arange(400) % 2 == 0), truth * 10 + 3, -1)
    for init in ("ward", "kmeans", "k-means++", "farthest"):
        model = SemiSupervisedKMeans(5, init=init, n_init=3).fit(rows, labels)
        assert (model.labels_[labels >= 0] == labels[labels >= 0]).all()
        assert set(model.labels_) == {3, 13, 14, 15, 16}
        np.testing.assert_array_equal(model.predict(rows[labels < 0]), model.labels_[labels < 0])


def test_the_authors_variant_freezes_known_centres():
    rows, truth = blobs(200, 4, 5)
    labels = np.where(truth < 2, truth, -1)
    model = SemiSupervisedKMeans.authors(4).fit(rows, labels)
    for known in (0, 1):
        np.testing.assert_allclose(model.cluster_centers_[known], rows[labels == known].mean(axis=0), atol=1e-5)


def test_estimators_work_with_scikit_learn():
    rows, _ = blobs(60, 3, 4)
    copied = clone(SemiSupervisedKMeans(3, frozen=True))
    assert copied.get_params()["frozen"] is True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        piped = make_pipeline(StandardScaler(), KMeans(3)).fit(rows)
    assert piped.predict(rows).shape == (60,)
    assert piped.transform(rows).shape == (60, 3)
    np.testing.assert_array_equal(piped.transform(rows).argmin(axis=1), piped.predict(rows))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rows: KMeans(0).fit(rows), "between 1 and the number of rows"),
        (lambda rows: KMeans(99).fit(rows), "between 1 and the number of rows"),
        (lambda rows: KMeans(2, metric="l1").fit(rows), "'euclidean' or 'cosine'"),
        (lambda rows: KMeans(2, init="best").fit(rows), "init='best'"),
        (lambda rows: KMeans(2, n_init=0).fit(rows), "at least one start"),
        (lambda rows: KMeans(2).fit(np.full((4, 2), np.nan)), "row 0 holds NaN"),
        (lambda rows: SemiSupervisedKMeans(1).fit(rows, np.arange(20) % 3), "already name 3"),
        (lambda rows: SemiSupervisedKMeans(5).fit(rows, np.arange(20) % 3), "cannot come out of 0 unlabelled"),
    ],
)
def test_bad_parameters_are_named(make, message):
    rows, _ = blobs(20, 3, 4)
    with pytest.raises(InputError, match=message):
        make(rows)


def test_predict_before_fit_says_so():
    with pytest.raises(NotFittedError, match="call fit"):
        KMeans(2).predict(np.ones((2, 2)))


def test_unit_leaves_zeros():
    np.testing.assert_array_equal(unit(np.array([[0.0, 0.0], [3.0, 4.0]])), [[0, 0], [0.6, 0.8]])
