"""SHE, fDBD, NCI, pNML and GradNorm against loops, GradNorm against a real gradient."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from detection_zoo import blobs, rebuilt

import offmap
from offmap.errors import InputError


@pytest.fixture(scope="module")
def known() -> offmap.Activations:
    wrong = blobs(150)
    return rebuilt(wrong, labels=np.where(np.arange(150) % 9 == 0, (wrong.labels + 1) % 3, wrong.labels))


@pytest.fixture(scope="module")
def test() -> offmap.Activations:
    return blobs(25, seed=3)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def test_she(known: offmap.Activations, test: offmap.Activations) -> None:
    patterns = []
    for c in range(3):
        right = [
            row
            for row, label, logits in zip(known.features, known.labels, known.logits, strict=True)
            if label == c and np.argmax(logits) == c
        ]
        patterns.append(np.mean(right, axis=0, dtype=np.float64))
    wanted = [row @ patterns[np.argmax(logits)] for row, logits in zip(test.features, test.logits, strict=True)]
    np.testing.assert_allclose(offmap.detector("she").fit(known).score(test), wanted, rtol=1e-5)


def test_she_without_any_right_input_is_refused(known: offmap.Activations) -> None:
    wrong = rebuilt(known, labels=(known.predictions + 1) % 3)
    with pytest.raises(InputError, match="no known input was classified rightly"):
        offmap.detector("she").fit(wrong)


def test_fdbd(known: offmap.Activations, test: offmap.Activations) -> None:
    mean = known.features.astype(np.float64).mean(axis=0)
    weight = known.head.weight.astype(np.float64)
    wanted = []
    for row, logits in zip(test.features, test.logits, strict=True):
        top = int(np.argmax(logits))
        distances = [(logits[top] - logits[c]) / np.linalg.norm(weight[top] - weight[c]) for c in range(3) if c != top]
        wanted.append(np.mean(distances) / np.linalg.norm(row - mean))
    np.testing.assert_allclose(offmap.detector("fdbd").fit(known).score(test), wanted, rtol=1e-4)


def test_fdbd_with_two_equal_classes_is_a_number(known: offmap.Activations) -> None:
    twin = offmap.Head(known.head.weight[[0, 0, 1]], known.head.bias)
    acts = rebuilt(known, head=twin)
    assert np.isfinite(offmap.detector("fdbd").fit(acts).score(acts)).all()


def test_fdbd_of_ten_thousand_classes_needs_no_table_of_all_pairs() -> None:
    """All pairs of classes would be 800 MB in double precision; the peak is measured in a process of its own."""
    script = """
        import resource, numpy as np, offmap
        rng = np.random.default_rng(0)
        head = offmap.Head(rng.normal(size=(10_000, 8)).astype("float32"))
        acts = offmap.Activations(rng.normal(size=(64, 8)).astype("float32"), head)
        offmap.detector("energy").fit(acts).score(acts)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert np.isfinite(offmap.detector("fdbd").fit(acts).score(acts)).all()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 * 1024


def test_nci(known: offmap.Activations, test: offmap.Activations) -> None:
    mean = known.features.astype(np.float64).mean(axis=0)
    wanted = []
    for row, logits in zip(test.features, test.logits, strict=True):
        w = known.head.weight[int(np.argmax(logits))]
        wanted.append((row - mean) @ w / np.linalg.norm(row - mean) + 0.01 * np.abs(row).sum())
    np.testing.assert_allclose(offmap.detector("nci(alpha=0.01)").fit(known).score(test), wanted, rtol=1e-4)


def test_pnml(known: offmap.Activations, test: offmap.Activations) -> None:
    x = known.features.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    inverse = np.linalg.inv(x.T @ x)
    wanted = []
    for row in test.features.astype(np.float64):
        row = row / np.linalg.norm(row)
        p = softmax(row @ known.head.weight.T + known.head.bias)
        support = row @ inverse @ row
        weakness = support / (1 + support)
        wanted.append(-np.log(sum(q / (q + q**weakness * (1 - q)) for q in p)))
    np.testing.assert_allclose(offmap.detector("pnml").fit(known).score(test), wanted, rtol=1e-4, atol=1e-7)


def test_gradnorm_is_the_norm_of_a_real_gradient(known: offmap.Activations, test: offmap.Activations) -> None:
    wanted = []
    for row in test.features:
        weight = torch.tensor(known.head.weight, dtype=torch.float64, requires_grad=True)
        logits = torch.tensor(row, dtype=torch.float64) @ weight.T + torch.tensor(known.head.bias)
        # as the authors': targets of ones, Σ_c -log p_c
        loss = -torch.log_softmax(logits, dim=0).sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        wanted.append(gradient.abs().sum().item())
    np.testing.assert_allclose(offmap.detector("gradnorm").fit(known).score(test), wanted, rtol=1e-5)


def test_scores_of_the_mean_itself_are_numbers(known: offmap.Activations) -> None:
    mean = known.features.astype(np.float64).mean(axis=0, keepdims=True).astype(np.float32)
    for spec in ("fdbd", "nci", "pnml", "she", "gradnorm"):
        assert np.isfinite(offmap.detector(spec).fit(known).score(mean)).all(), spec


def test_fdbd_with_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a thousand classes only the distances that occur are worked out, in blocks; the scores are the same."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(300, 8)).astype(np.float32)
    weight[7] = weight[250]  # no boundary between these two
    acts = offmap.Activations(rng.random((50, 8)), offmap.Head(weight, rng.normal(size=300)))
    fitted = offmap.detector("fdbd").fit(acts)
    whole = fitted.score(acts)
    monkeypatch.setattr("offmap.detection.scores.geometry.ALL_PAIRS", 64)
    np.testing.assert_allclose(fitted.score(acts), whole, rtol=1e-5)


def test_fdbd_with_ten_thousand_classes_holds_no_table_of_pairs() -> None:
    rng = np.random.default_rng(0)
    acts = offmap.Activations(rng.random((20, 16)), offmap.Head(rng.normal(size=(10_000, 16))))
    fitted = offmap.detector("fdbd").fit(acts)
    with torch.profiler.profile(profile_memory=True) as profile:
        fitted.score(acts)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest < 50 * 2**20, "a table of all pairs has 800 MB"
