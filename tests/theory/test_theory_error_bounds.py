"""SORL's bound of K-means errors, NSCL's of probe errors, KNN's convergence, ReAct's outputs: each by another way."""

import numpy as np
import pytest
from scipy import integrate, stats

from offmap.errors import InputError
from offmap.theory import (
    clustering_error,
    density_convergence,
    make_row_sums_positive,
    output_reduction_gap,
    probe_error_bound,
    ratio_coverage,
)
from offmap.theory.residuals import average_labelled


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_errors_of_clusters_by_plain_loops_and_never_above_the_bound():
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(60):
        sizes = rng.integers(3, 15, size=int(rng.integers(2, 5)))
        labels = np.repeat(np.arange(len(sizes)), sizes)
        rows = rng.normal(size=(len(sizes), 3))[labels] * rng.uniform(0.1, 0.8) + rng.normal(size=(len(labels), 3))
        found = clustering_error(rows, labels)
        means = [rows[labels == c].mean(axis=0) for c in range(len(sizes))]
        total = 0.0
        for a in range(len(sizes)):
            for b in range(len(sizes)):
                if a != b:
                    wrong = sum(
                        np.linalg.norm(row - means[a]) >= np.linalg.norm(row - means[b]) for row in rows[labels == a]
                    )
                    total += (sizes[a] + sizes[b]) / wrong if wrong else np.inf
        assert found.error == pytest.approx(len(sizes) * (len(sizes) - 1) / total)
        assert found.error <= found.bound + 1e-12
        seen += found.error > 0
    assert seen > 20
    with pytest.raises(InputError, match="at least two"):
        clustering_error([[0.0], [1.0]], [0, 0])


def test_probe_errors_stay_below_their_bounds():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(60):
        half = rng.random((12, 12)) ** 3
        noise = 2e-4 * rng.normal(size=(12, 12))  # labelled nodes nearly alike, as the theorem needs
        matrix = average_labelled(half @ half.T / 12, 2) + noise + noise.T
        found = probe_error_bound(matrix, np.arange(10) % 3, n_labelled=2, k=int(rng.integers(2, 6)))
        assert found.errors <= found.twice_residual + 1e-9
        assert found.as_printed > 0
        if found.bound is not None:
            held += 1
            assert found.twice_residual <= found.bound + 1e-6
    assert held > 5


def test_the_floor_by_ratios_is_below_the_cosine():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(400):
        half = rng.random((7, 7))
        matrix = half @ half.T
        y = np.array([1, 1, 1, 0, 0])
        cosine, floor = ratio_coverage(matrix, y, n_labelled=2, k=3)
        eta = matrix[2:, :2].mean(axis=1)
        values, vectors = np.linalg.eigh(matrix[2:, 2:])
        rest = vectors[:, np.argsort(-values)[3:]]
        assert cosine == pytest.approx(
            np.dot(y @ rest, eta @ rest) / np.linalg.norm(y @ rest) / np.linalg.norm(eta @ rest)
        )
        if floor is not None:
            held += 1
            assert cosine >= floor - 1e-9
    assert held > 20
    with pytest.raises(InputError, match="at least one labelled"):
        ratio_coverage(np.eye(3), [1, 0, 0], n_labelled=0, k=1)


def test_the_density_converges_and_not_when_k_stays():
    found = density_convergence([100, 1000, 10_000, 40_000], ambient=4)
    assert (np.diff(found.error) < 0).all()
    assert (found.error < found.rate).all()
    fixed = density_convergence([100, 40_000], ambient=4, neighbours=lambda n: 5)
    assert fixed.error[1] > found.error[-1]  # the part 1/√k of the rate does not vanish
    with pytest.raises(InputError, match="between 1 and n"):
        density_convergence([10], neighbours=lambda n: 11)


def test_a_constant_added_to_weights_changes_no_probability_and_makes_the_prediction_positive():
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(5, 8)) - 1
    shifted = make_row_sums_positive(weight)
    assert (shifted.sum(axis=1) > 0).all()
    known, unknown = rng.exponential(size=(50, 8)), rng.exponential(2.0, size=(60, 8))
    assert softmax(known @ shifted.T) == pytest.approx(softmax(known @ weight.T))
    assert np.array_equal(make_row_sums_positive(np.ones((2, 3))), np.ones((2, 3)))
    gap, predicted = output_reduction_gap(shifted, known, unknown, c=1.0)
    plain = [(part @ shifted.T - np.minimum(part, 1.0) @ shifted.T).mean(axis=0) for part in (unknown, known)]
    assert gap == pytest.approx(plain[0] - plain[1])
    assert (predicted > 0).all()
    with pytest.raises(InputError, match="that width"):
        output_reduction_gap(weight, known[:, :3], unknown, 1.0)
    with pytest.raises(InputError, match="margin"):
        make_row_sums_positive(weight, margin=0)


@pytest.mark.parametrize("k", [3, 10, 25])
def test_density_does_not_converge_with_k_fixed(k: int) -> None:
    """Lemma A.2 asks for k/n → 0 only. With k fixed p̂/p tends to k/G, G ~ Gamma(k), so the error stays."""
    grid = np.linspace(1e-3, 8 * k, 200_001)
    chance = stats.gamma.pdf(grid, k)
    left = float(integrate.trapezoid(np.abs(k / grid - 1) * chance, grid))
    found = density_convergence([2000, 40_000], ambient=3, neighbours=lambda n: k, seed=1)
    assert np.abs(found.error - left).max() < 0.25 * left
    assert found.error[1] > 0.5 * found.rate[1]  # of the order of the rate, not below it
    assert 0.7 < left * k**0.5 < 1.4
