"""Contrastive losses against plain double loops, by hand, and where numbers get extreme."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offmap.errors import InputError
from offmap.learning import losses


def views(n: int, d: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, d, generator=generator, dtype=torch.float64)
    second = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return first, second


def loop(z: Tensor, positives: list[list[int]], negatives: list[list[int]], tau: float) -> list[float]:
    """The formula of the thesis, section 8.2.1, eq. 8.1, term by term."""
    rows = z.tolist()
    rows = [[v / math.sqrt(sum(u * u for u in row)) for v in row] for row in rows]
    out = []
    for i, row in enumerate(rows):
        dots = [sum(a * b for a, b in zip(row, other, strict=True)) / tau for other in rows]
        if not positives[i] or not negatives[i]:
            out.append(0.0)
            continue
        below = math.log(sum(math.exp(dots[j]) for j in negatives[i]))
        out.append(-sum(dots[j] - below for j in positives[i]) / len(positives[i]))
    return out


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 6), st.floats(0.1, 2.0), st.integers(0, 1000))
def test_the_template_is_its_formula(n: int, tau: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    positives = torch.rand(n, n, generator=generator) < 0.4
    negatives = torch.rand(n, n, generator=generator) < 0.6
    lists = [[row.nonzero().flatten().tolist() for row in mask] for mask in (positives, negatives)]
    expected = loop(z, lists[0], lists[1], tau)
    assert losses.contrastive(z, positives, negatives, tau).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, -1], [0, 1, 2, 3, 4], [2, 2, 2, 2, 2], [-1, -1, 0, 0, 5]])
def test_supcon_is_its_definition(labels: list[int]) -> None:
    first, second = views(5)
    named = labels + labels
    members = [i for i, label in enumerate(named) if label >= 0]
    negatives = [[j for j in members if j != i] if i in members else [] for i in range(10)]
    positives = [[j for j in negatives[i] if named[j] == named[i]] for i in range(10)]
    each = loop(torch.cat([first, second]), positives, negatives, 0.2)
    expected = sum(each) / len(members)
    assert float(losses.supcon(first, second, torch.tensor(labels), 0.2)) == pytest.approx(expected, abs=1e-9)


def test_simclr_is_supcon_where_every_row_is_a_class() -> None:
    first, second = views(6)
    alone = losses.supcon(first, second, torch.arange(6), 0.3)
    assert torch.allclose(losses.simclr(first, second, 0.3), alone)


def test_simclr_by_hand() -> None:
    # Two samples at right angles, both views alike, τ = 1: every anchor has −log(e / (e + 1 + 1)).
    z = torch.eye(2, dtype=torch.float64)
    assert float(losses.simclr(z, z, 1.0)) == pytest.approx(math.log((math.e + 2) / math.e), abs=1e-12)


def test_supcon_takes_a_label_for_each_view() -> None:
    first, second = views(3)
    labels = torch.tensor([[0, 1, -1], [1, -1, 0]])  # views 0..5 have the labels 0, 1, none, 1, none, 0
    positives = [[5], [3], [], [1], [], [0]]
    negatives = [[1, 3, 5], [0, 3, 5], [], [0, 1, 5], [], [0, 1, 3]]
    each = loop(torch.cat([first, second]), positives, negatives, 0.2)
    assert float(losses.supcon(first, second, labels, 0.2)) == pytest.approx(sum(each) / 4, abs=1e-9)


def test_gcd_adds_its_two_parts() -> None:
    first, second = views(6)
    labels = torch.tensor([0, 0, 1, -1, -1, -1])
    parts = 0.65 * losses.simclr(first, second, 1.0) + 0.35 * losses.supcon(first, second, labels, 0.07)
    assert torch.allclose(losses.gcd(first, second, labels), parts)


def test_opencon_sees_the_rows_it_should() -> None:
    first, second = views(6)
    labels = torch.tensor([0, 0, 1, -1, -1, -1])
    pseudo = torch.tensor([9, 9, 9, 4, 4, -1])  # what stands beside labelled rows must not matter
    parts = losses.opencon(first, second, labels, pseudo, temperatures=(0.7, 0.1, 0.4))
    assert torch.allclose(parts.novel, losses.supcon(first[3:5], second[3:5], torch.tensor([4, 4]), 0.7))
    assert torch.allclose(parts.labelled, losses.supcon(first[:3], second[:3], labels[:3], 0.1))
    assert torch.allclose(parts.unlabelled, losses.simclr(first[3:], second[3:], 0.4))


def test_l_known_takes_rows_predicted_as_known() -> None:
    first, second = views(4)
    labels, pseudo = torch.tensor([0, 1, -1, -1]), torch.tensor([-1, -1, -2, 5])  # row 2 is taken for class 0
    parts = losses.opencon(first, second, labels, pseudo, known_too=True)
    assert torch.allclose(parts.labelled, losses.supcon(first[:3], second[:3], torch.tensor([0, 1, 0]), 0.1))


def test_divergence_from_the_prior_by_hand() -> None:
    probabilities = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    expected = 0.75 * math.log(0.75 / 0.4) + 0.25 * math.log(0.25 / 0.6)
    assert float(losses.prior_divergence(probabilities, torch.tensor([0.4, 0.6]))) == pytest.approx(expected, abs=1e-6)


NOBODY = torch.full((6,), -1)
CASES = {
    "simclr": lambda a, b: losses.simclr(a, b, 0.01),
    "supcon": lambda a, b: losses.supcon(a, b, torch.tensor([0, 0, 1, 2, -1, -1]), 0.01),
    "supcon without labels": lambda a, b: losses.supcon(a, b, NOBODY, 0.01),
    "gcd": lambda a, b: losses.gcd(a, b, torch.tensor([0, 1, 2, 3, 4, 5]), temperature=0.01, temperature_labelled=0.01),
    "opencon": lambda a, b: sum(
        losses.opencon(a, b, NOBODY, torch.tensor([0, 0, 1, -1, -1, 2]), temperatures=(0.01, 0.01, 0.01))
    ),
    "opencon, all labelled": lambda a, b: sum(losses.opencon(a, b, torch.arange(6), NOBODY)),
    "divergence": lambda a, b: losses.prior_divergence(
        losses.prototype_probabilities(a, b, 0.01), torch.full((6,), 1 / 6)
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 100.0, 0.0])
def test_finite_at_small_temperatures_and_in_half_precision(name: str, dtype: torch.dtype, size: float) -> None:
    first, second = (view.detach().to(dtype).mul(size).requires_grad_() for view in views(6))
    cast = torch.bfloat16 if dtype == torch.float32 else dtype
    with torch.autocast("cpu", dtype=cast):
        loss = CASES[name](first, second)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    loss.backward()
    assert torch.isfinite(first.grad).all()
    assert torch.isfinite(second.grad).all()


def test_gradients_agree_with_finite_differences() -> None:
    first, second = (view.requires_grad_() for view in views(4, 3))
    labels = torch.tensor([0, 0, 1, -1])
    assert torch.autograd.gradcheck(lambda a, b: losses.gcd(a, b, labels), (first, second))
    assert torch.autograd.gradcheck(lambda a, b: losses.sorl(a, b, labels), (first, second))


def test_what_makes_no_sense_is_refused() -> None:
    z = torch.eye(3)
    with pytest.raises(InputError, match="above 0"):
        losses.simclr(z, z, 0.0)
    with pytest.raises(InputError, match="two equal matrices"):
        losses.simclr(z, z[:2])
    with pytest.raises(InputError, match="one per row"):
        losses.supcon(z, z, torch.tensor([0, 1]))
