"""Exchanged groups: sizes against an independent density, what stays as it is, and errors that are undone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from offmap.discovery.exchanging import SizePrior, exchange_groups, part_rows
from offmap.graph import knn_graph

KNOWN, CLASSES, SIZE = 6, 10, 40


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(CLASSES), SIZE)
    rows = (8 * np.eye(CLASSES)[truth] + rng.normal(size=(len(truth), CLASSES))).astype(np.float32)
    codes = np.where((truth < KNOWN) & (rng.random(len(truth)) < 0.5), truth, -1)
    return rows, truth, codes


def confuse(truth: np.ndarray, codes: np.ndarray, at: int, seed: int = 0) -> np.ndarray:
    """Put the last class into group `at` and leave the one before it in two groups."""
    labels = np.where((truth == CLASSES - 1) & (codes < 0), at, truth)
    halves = np.random.default_rng(seed).random(len(truth)) < 0.5
    labels[truth == CLASSES - 2] = np.where(halves, CLASSES - 2, CLASSES - 1)[truth == CLASSES - 2]
    return labels


@pytest.mark.parametrize("at", [0, KNOWN])
def test_a_shared_group_and_a_divided_class_are_put_right(blobs: tuple, at: int) -> None:
    rows, truth, codes = blobs
    found = exchange_groups(confuse(truth, codes, at), rows, knn_graph(rows, 15), codes, KNOWN)
    assert len({*zip(truth.tolist(), found.tolist(), strict=True)}) == CLASSES
    assert (found[truth < KNOWN] == truth[truth < KNOWN]).all()


@pytest.mark.parametrize("at", [0, KNOWN])
def test_half_of_a_class_in_a_wrong_group_goes_home(blobs: tuple, at: int) -> None:
    rows, truth, codes = blobs
    wrong = np.where((truth == CLASSES - 1) & (np.arange(len(truth)) % 2 == 0), at, truth)
    graph = knn_graph(rows, 15)
    assert (exchange_groups(wrong, rows, graph, codes, KNOWN, moves=True) == truth).all()
    assert (exchange_groups(truth, rows, graph, codes, KNOWN, moves=True) == truth).all()


def test_groups_that_are_right_stay_and_so_do_labels(blobs: tuple) -> None:
    rows, truth, codes = blobs
    graph = knn_graph(rows, 15)
    assert (exchange_groups(truth, rows, graph, codes, KNOWN) == truth).all()
    rng = np.random.default_rng(1)
    noise = np.where(codes >= 0, codes, rng.integers(0, CLASSES, len(truth)))
    found = exchange_groups(noise, rows, graph, codes, KNOWN)
    assert (found[codes >= 0] == codes[codes >= 0]).all()
    assert set(found) == set(range(CLASSES))
    assert (exchange_groups(noise, rows, graph, codes, KNOWN) == found).all()


def test_few_known_classes_say_nothing_about_sizes(blobs: tuple) -> None:
    rows, truth, codes = blobs
    few = np.where(codes < 4, codes, -1)
    wrong = confuse(truth, codes, 0)
    assert (exchange_groups(wrong, rows, knn_graph(rows, 15), few, 4) == wrong).all()


def test_the_density_of_sizes_is_log_normal() -> None:
    prior = SizePrior(np.array([10.0, 30.0]), 0.2, 0.3, 3.5, 0.4)
    sizes = np.array([14.0, 30.0, 50.0])
    found = prior.log_density(np.array([0, 1, 2]), sizes)
    centres, spreads = np.array([np.log(10) + 0.2, np.log(30) + 0.2, 3.5]), np.array([0.3, 0.3, 0.4])
    expected = norm.logpdf(np.log(sizes), centres, spreads) - norm.logpdf(centres, centres, spreads)
    np.testing.assert_allclose(found, expected)
    assert prior.log_density(np.array([2]), np.array([1e9])) == -12.5  # beyond five deviations all are equally odd


def test_one_class_that_holds_another_does_not_move_the_estimate(blobs: tuple) -> None:
    _, truth, codes = blobs
    right, wrong = (SizePrior.estimate(labels, codes, KNOWN) for labels in (truth, confuse(truth, codes, 0)))
    assert abs(right.ratio - wrong.ratio) < right.ratio_spread
    assert abs(right.size - wrong.size) < right.size_spread


def test_labelled_rows_do_not_leave_their_group() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(30, 3)), 9 + rng.normal(size=(30, 3))]).astype(np.float32)
    labelled = rng.random(60) < 0.3
    leaving = part_rows(rows, labelled & (np.arange(60) < 30), rng)
    assert leaving[30:].all()
    assert not leaving[:30].any()
    assert not (part_rows(rows, labelled, rng) & labelled).any()
