"""Losses of classification heads against loops and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.learning import losses


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_cross_entropy_skips_rows_without_a_label() -> None:
    logits, labels = random(4, 3), [2, -1, 0, -1]
    rows = [math.log(sum(math.exp(v) for v in logits[i].tolist())) - float(logits[i, labels[i]]) for i in (0, 2)]
    assert float(losses.cross_entropy(logits, torch.tensor(labels))) == pytest.approx(sum(rows) / 2, abs=1e-9)
    assert float(losses.cross_entropy(logits, torch.full((4,), -1))) == 0


def test_orca_margin_by_the_formula() -> None:
    cosines, labels, u, s = torch.tanh(random(3, 4)), [0, 3, -1], 0.3, 10.0
    each = []
    for i in (0, 1):
        right = math.exp(s * (float(cosines[i, labels[i]]) + u))
        wrong = sum(math.exp(s * float(cosines[i, j])) for j in range(4) if j != labels[i])
        each.append(-math.log(right / (right + wrong)))
    loss = losses.orca_margin(cosines, torch.tensor(labels), u, s)
    assert float(loss) == pytest.approx(sum(each) / 2, abs=1e-9)


def test_partners_share_the_class_or_lie_nearest() -> None:
    rows, labels = random(20, 4), torch.tensor([0, 1, 2, 0, 1, 0] + [-1] * 14)
    found = losses.nearest_partners(rows, labels).tolist()
    directions = (rows / rows.norm(dim=1, keepdim=True)).numpy()
    for i, j in enumerate(found):
        if labels[i] >= 0:
            assert labels[j] == labels[i]
            assert (j != i) == (int((labels == labels[i]).sum()) > 1)
        else:
            dots = directions @ directions[i]
            dots[i] = -2
            assert j == int(np.argmax(dots))


def test_pairs_and_entropy_by_the_formula() -> None:
    p, q = torch.softmax(random(5, 3), 1), torch.softmax(random(5, 3, seed=1), 1)
    partners = torch.tensor([1, 0, 4, 3, 2])
    expected = -sum(math.log(float(p[i] @ q[j])) for i, j in enumerate(partners.tolist())) / 5
    assert float(losses.orca_pairs(p, q, partners)) == pytest.approx(expected, abs=1e-9)
    same = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = (
        -sum(math.log(float(p[i] @ q[j]) if same[i, j] else 1 - float(p[i] @ q[j])) for i in range(5) for j in range(5))
        / 25
    )
    assert float(losses.autonovel_pairs(p, q, same)) == pytest.approx(expected, abs=1e-9)
    mean = p.mean(0).tolist()
    assert float(losses.mean_entropy(p)) == pytest.approx(-sum(v * math.log(v) for v in mean), abs=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 30), st.integers(2, 6), st.integers(0, 99))
def test_sinkhorn_reaches_both_margins(n: int, k: int, seed: int) -> None:
    plan = losses.sinkhorn(random(n, k, seed=seed), epsilon=0.5, iterations=200)
    assert torch.allclose(plan.sum(1), torch.ones(n, dtype=torch.float64))
    assert torch.allclose(plan.sum(0), torch.full((k,), n / k, dtype=torch.float64), rtol=1e-3)


def test_uno_swaps_the_views() -> None:
    first, second = torch.tanh(random(6, 3)), torch.tanh(random(6, 3, seed=1))
    labels = torch.tensor([0, 2, -1, -1, -1, -1])
    total = 0.0
    for view, other in ((first, second), (second, first)):
        plan = losses.sinkhorn(other[2:])
        for i in range(6):
            target = [float(labels[i] == c) for c in range(3)] if i < 2 else plan[i - 2].tolist()
            below = math.log(sum(math.exp(v / 0.1) for v in view[i].tolist()))
            total -= sum(t * (float(view[i, c]) / 0.1 - below) for c, t in enumerate(target))
    assert float(losses.uno(first, second, labels)) == pytest.approx(total / 12, abs=1e-9)


def test_rank_statistics_compare_sets() -> None:
    rows = random(12, 8)
    sets = [set(np.argsort(-row)[:3]) for row in rows.numpy()]
    expected = [[one == two for two in sets] for one in sets]
    assert losses.rank_statistics(rows, 3).tolist() == expected
    with pytest.raises(InputError, match="1 to 8"):
        losses.rank_statistics(rows, 9)


def test_deconf_divides_cosines_by_the_gate() -> None:
    rows, weight, gate = random(3, 4), random(2, 4, seed=1), random(3, seed=2)
    logits = losses.deconf_logits(rows, weight, gate)
    for i in range(3):
        for c in range(2):
            cosine = float(rows[i] @ weight[c] / rows[i].norm() / weight[c].norm())
            assert float(logits[i, c]) == pytest.approx(cosine * (1 + math.exp(-float(gate[i]))), abs=1e-9)


NOBODY = torch.full((4,), -1)
CASES = {
    "ce": lambda a, b: losses.cross_entropy(a * 100, torch.tensor([0, 1, -1, 2])),
    "ce without labels": lambda a, b: losses.cross_entropy(a, NOBODY),
    "orca": lambda a, b: losses.orca_margin(a * 100, torch.tensor([0, 0, -1, -1]), 0.5),
    "orca pairs": lambda a, b: losses.orca_pairs(torch.softmax(a * 100, 1), torch.softmax(b * 100, 1), NOBODY + 1),
    "uno": lambda a, b: losses.uno(a, b, NOBODY, temperature=0.01, epsilon=0.01),
    "uno, all labelled": lambda a, b: losses.uno(a, b, torch.arange(4), temperature=0.01),
    "autonovel": lambda a, b: losses.autonovel_pairs(
        torch.softmax(a * 100, 1), torch.softmax(b * 100, 1), torch.eye(4, dtype=torch.bool)
    ),
    "godin": lambda a, b: losses.cross_entropy(losses.deconf_logits(a, b, b[:, 0]), torch.arange(4)),
    "entropy": lambda a, b: losses.mean_entropy(torch.softmax(a * 100, 1)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_in_half_precision_and_for_empty_parts(name: str, dtype: torch.dtype) -> None:
    first, second = (random(4, 4, seed=s).to(dtype).requires_grad_() for s in (0, 1))
    loss = CASES[name](first, second)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(first.grad).all()
