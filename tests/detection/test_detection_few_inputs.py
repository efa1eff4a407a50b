"""Class-wise methods with one to five inputs per class: never below chance without a word."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import offmap
from offmap.bench.runner import expand_methods
from offmap.detection.scores.few_inputs import optimal_shrinkage, shrink
from offmap.errors import InputError, OffmapWarning
from offmap.extra_passes import Layer
from offmap.metrics.detection import detection_report

GRAM = "gram(['a'], powers=1)"
DISTANCES = ("mahalanobis", "mahalanobis_pp", "rmds", "rmds_pp", "plda", "ssd", "ssd(tied=true)", "grood")
PREDICTED = ("she", "cadref", "openmax", "kl_matching", "temperature_scaling|msp", GRAM)
PLENTY = 60


def few(
    per_class: int, width: int, classes: int, seed: int
) -> tuple[offmap.Activations, offmap.Activations, offmap.Activations]:
    """Rectified features of classes apart from each other, a head that knows them, and as many classes it does not."""
    rng = np.random.default_rng(seed)
    centres = np.abs(rng.normal(size=(2 * classes, width))) + 0.2
    stretch = rng.uniform(0.3, 1.0, size=width)
    head = offmap.Head(4 * (centres[:classes] - centres[:classes].mean(axis=0)), np.zeros(classes))

    def drawn(of: np.ndarray) -> offmap.Activations:
        rows = np.maximum(centres[of] + 0.35 * stretch * rng.normal(size=(len(of), width)), 0).astype(np.float32)
        sums = {Layer("a", "gram", 1).key: (rows * rows.sum(axis=1, keepdims=True))[:, None]}  # of maps of one pixel
        return offmap.Activations(rows, head, labels=of if of.max() < classes else None, extras=sums)

    known, test = np.repeat(np.arange(classes), per_class), np.arange(240) % classes
    return drawn(known), drawn(test), drawn(classes + test)


def auroc(spec: str, known: offmap.Activations, test: offmap.Activations, far: offmap.Activations) -> float:
    fitted = offmap.detector(spec).fit(known)
    scores = fitted.score(test), fitted.score(far)
    assert all(np.isfinite(part).all() for part in scores)
    return detection_report(*scores).auroc


def test_every_method_that_reads_labels_is_tried_here() -> None:
    specs = [spec for spec in expand_methods(["all"]) if not offmap.detector(spec).requirements.extras]
    reads = {spec for spec in specs if offmap.detector(spec).requirements.labels}
    assert reads - {"temperature_scaling|energy"} <= {*DISTANCES, *PREDICTED}  # with msp in place of energy
    assert len(reads) > 7


@settings(max_examples=12)
@given(st.integers(1, 5), st.integers(6, 96), st.integers(2, 24), st.integers(0, 99))
def test_distances_stay_above_chance(per_class: int, width: int, classes: int, seed: int) -> None:
    known, test, far = few(per_class, width, classes, seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", OffmapWarning)
        found = {spec: auroc(spec, known, test, far) for spec in DISTANCES}
    if classes == 2:
        assert any("unknown inputs may count as known" in str(each.message) for each in said), "grood says it cannot"
        del found["grood"]
    assert min(found.values()) > 0.5, found


@settings(max_examples=12)
@given(st.integers(1, 3), st.integers(20, 96), st.integers(3, 24), st.integers(0, 99))
def test_fewer_inputs_than_features_do_not_turn_pca_round(per_class: int, width: int, classes: int, seed: int) -> None:
    """Judged only by directions that known inputs take, unknown ones seemed the most usual: .00 to .46 came of it."""
    assume(2 * per_class * classes < width)
    with pytest.warns(OffmapWarning, match="directions that no known input takes count too"):
        assert auroc("pca", *few(per_class, width, classes, seed)) > 0.5


@settings(max_examples=8)
@given(st.integers(1, 5), st.integers(6, 96), st.integers(2, 24), st.integers(0, 99))
def test_scores_of_the_predicted_class_lose_little(per_class: int, width: int, classes: int, seed: int) -> None:
    """Some are no better than chance on these data however many inputs there are; few must not turn them round.

    With ever fewer inputs they approach the largest probability, so they may fall with it where the head misleads.
    """
    known, test, far = few(per_class, width, classes, seed)
    many = few(PLENTY, width, classes, seed)[0]
    answers = auroc("msp", known, test, far)
    for spec in PREDICTED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OffmapWarning)
            try:
                found = auroc(spec, known, test, far)
            except InputError:  # the sentences are tested below
                assert spec in ("openmax", "she")
                continue
            assert found > min(0.5, answers, auroc(spec, many, test, far)) - 0.2, spec


def test_one_unsure_input_does_not_make_sure_ones_look_far() -> None:
    known = offmap.Activations(None, logits=np.array([[1.0, 0.5, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]))
    with pytest.warns(OffmapWarning, match="ordered by their largest probability"):
        fitted = offmap.detector("kl_matching").fit(known)
    sure, unsure = fitted.score(offmap.Activations(None, logits=np.array([[9.0, 0.0, 0.0], [1.0, 0.5, 0.0]])))
    assert sure > unsure


def test_a_temperature_of_one_input_a_class_is_none() -> None:
    """Both are right: the best temperature would be 0, where sure inputs are all alike; .34 came of it."""
    known, test, far = few(1, 24, 2, 89)
    with pytest.warns(OffmapWarning, match="2 inputs are too few for a temperature"):
        scaled = auroc("temperature_scaling|msp", known, test, far)
    assert scaled == auroc("msp", known, test, far) > 0.5


@pytest.mark.parametrize("spec", ["mahalanobis", "mahalanobis_pp", "rmds", "rmds_pp", "plda", "ssd", "ssd(tied=true)"])
def test_few_inputs_are_warned_about_and_many_are_not(spec: str) -> None:
    with pytest.warns(OffmapWarning, match="few (inputs )?for a covariance of 40 features"):
        offmap.detector(spec).fit(few(2, 40, 10, 0)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector(spec).fit(few(120, 6, 4, 0)[0])


def test_a_shrinkage_that_is_chosen_is_kept() -> None:
    known, test, _ = few(2, 30, 10, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half, whole = (offmap.detector(f"mahalanobis({share})").fit(known).score(test) for share in (0.5, 1.0))
    means = np.stack([known.features[known.labels == label].mean(axis=0) for label in range(10)]).astype(np.float64)
    spread = np.square(known.features - means[known.labels]).sum(axis=1).mean()
    nearest = np.square(test.features[:, None] - means).sum(axis=2).min(axis=1)
    np.testing.assert_allclose(whole, -nearest * 30 / spread, rtol=1e-3)
    assert not np.allclose(half, whole)
    with pytest.raises(InputError, match="between 0 and 1"):
        offmap.detector("rmds(shrinkage=1.5)")


def test_one_input_in_all_gives_the_euclidean_distance() -> None:
    known, test, _ = few(1, 8, 1, 0)
    with pytest.warns(OffmapWarning):
        found = offmap.detector("mahalanobis").fit(known).score(test)
    np.testing.assert_allclose(found, -np.square(test.features - known.features[0]).sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("n", [5, 20, 80])
def test_the_shrinkage_is_near_the_best_one(n: int) -> None:
    """Independent check: over many draws the estimate loses little against the best share, found by trying."""
    rng = np.random.default_rng(0)
    truth = np.diag(np.linspace(0.2, 3, 20))
    lost, best = 0.0, 0.0
    for _ in range(30):
        rows = rng.normal(size=(n, 20)) @ np.sqrt(truth)
        covariance = torch.from_numpy(rows.T @ rows / n)
        errors = [float(np.square(shrink(covariance, share).numpy() - truth).sum()) for share in np.linspace(0, 1, 51)]
        chosen = shrink(covariance, optimal_shrinkage(covariance, n)).numpy()
        lost, best = lost + float(np.square(chosen - truth).sum()), best + min(errors)
    assert lost < 1.35 * best


def test_classes_that_were_never_right_borrow_the_mean_pattern() -> None:
    known, test, _ = few(3, 60, 6, 0)
    wrong = np.where(known.labels >= 4, 0, known.labels)  # classes 4 and 5 have no rightly classified input
    mislabelled = offmap.Activations(known.features, known.head, labels=wrong)
    fitted = offmap.detector("she").fit(mislabelled)
    predicted = test.predictions
    right = known.predictions == wrong
    patterns = np.stack([known.features[right & (wrong == label)].mean(axis=0) for label in range(4)])
    patterns = np.concatenate([patterns, np.repeat(patterns.mean(axis=0)[None], 2, axis=0)])
    np.testing.assert_allclose(fitted.score(test), (test.features * patterns[predicted]).sum(axis=1), rtol=1e-4)
    gap = offmap.Activations(known.features, known.head, labels=np.where(known.labels == 2, 0, known.labels))
    with pytest.warns(OffmapWarning, match=r"she: 1 of 6 classes have no rightly classified input"):
        offmap.detector("she").fit(gap)
    with pytest.raises(InputError, match="no known input was classified rightly"):
        offmap.detector("she").fit(offmap.Activations(known.features, known.head, labels=(known.predictions + 1) % 6))


def test_openmax_shares_one_distribution_or_says_that_it_cannot() -> None:
    with pytest.raises(InputError, match="no class has two rightly classified inputs"):
        offmap.detector("openmax").fit(few(1, 20, 5, 0)[0])
    with pytest.warns(OffmapWarning, match="share one distribution"):
        offmap.detector("openmax").fit(few(2, 20, 5, 0)[0])
    known, test, far = few(2, 47, 2, 53)
    with pytest.warns(OffmapWarning, match="of 4 distances there is none"):
        assert auroc("openmax", known, test, far) > 0.5
    many = few(40, 20, 5, 0)[0]
    rows = np.flatnonzero((many.labels != 2) | (np.cumsum(many.labels == 2) == 1))  # one input of class 2 is left
    with pytest.warns(OffmapWarning, match="1 class with fewer than 10"):
        fitted = offmap.detector("openmax").fit(many[rows])
    assert np.isfinite(fitted.score(many)).all()


def test_nac_takes_bins_for_covered_from_fewer_inputs() -> None:
    """From 50 on, as with many, no bin was ever covered: .18 came of it, and the commonest state counted most."""
    sets = [few(4, 40, 5, seed) for seed in range(6)]
    with pytest.warns(OffmapWarning, match="nac: 20 known inputs for 50 bins of each neuron's states"):
        found = [auroc("nac", *each) for each in sets]
    assert min(found) > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffmapWarning)
        assert np.mean(found) > np.mean([auroc("nac(full=50)", *each) for each in sets]) + 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for per_class, full in ((10, 1), (30, 3), (600, 50)):
            known, test, _ = few(per_class, 10, 5, 0)
            scores = [offmap.detector(spec).fit(known).score(test) for spec in ("nac", f"nac(full={full})")]
            np.testing.assert_array_equal(*scores)


def test_gram_takes_the_widest_range_for_classes_of_few_inputs() -> None:
    known, _, far = few(1, 20, 5, 0)
    with pytest.warns(OffmapWarning, match="classes were predicted for fewer than 10 known inputs"):
        fitted = offmap.detector(GRAM).fit(known)
    sums = (known.features * known.features.sum(axis=1, keepdims=True)).astype(np.float64)
    low, high = sums.min(axis=0), sums.max(axis=0)

    def deviation(acts: offmap.Activations) -> np.ndarray:
        rows = (acts.features * acts.features.sum(axis=1, keepdims=True)).astype(np.float64)
        below, above = np.maximum(low - rows, 0) / (low + 1e-6), np.maximum(rows - high, 0) / (high + 1e-6)
        return np.asarray((below + above).sum(axis=1))

    scores, expected = -fitted.score(far), deviation(far)
    np.testing.assert_allclose(scores / scores.max(), expected / expected.max(), rtol=1e-3, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offmap.detector(GRAM).fit(few(40, 20, 1, 0)[0])
