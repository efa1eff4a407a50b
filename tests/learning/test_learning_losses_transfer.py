"""Losses of the compared methods against plain loops, and what their objectives promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offmap.errors import InputError
from offmap.learning import losses
from offmap.learning.objectives import Task, TrainingProgress, objective


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_fixmatch_by_plain_loops() -> None:
    weak, strong = 3 * draw(20, 4), draw(20, 4, seed=1)
    total = 0.0
    for w, s in zip(weak.numpy(), strong.numpy(), strict=True):
        p = np.exp(w) / np.exp(w).sum()
        if p.max() >= 0.8:
            total -= s[p.argmax()] - np.log(np.exp(s).sum())
    assert float(losses.fixmatch(weak, strong, 0.8)) == pytest.approx(total / 20, rel=1e-5)


def test_dtcs_assignments_by_plain_loops() -> None:
    rows, centres = draw(6, 3), draw(4, 3, seed=1)
    q = np.array([[1 / (1 + float((row - c).square().sum())) for c in centres] for row in rows])
    q /= q.sum(axis=1, keepdims=True)
    assert losses.student_t(rows, centres).numpy() == pytest.approx(q, abs=1e-6)
    p = q**2 / q.sum(axis=0)
    p /= p.sum(axis=1, keepdims=True)
    assert losses.sharpen_assignments(torch.from_numpy(q)).numpy() == pytest.approx(p, abs=1e-6)


def test_words_of_parts_by_plain_loops() -> None:
    parts, words = draw(3, 5, 4), draw(7, 4, seed=1)
    squares = np.array([[[float((part - w).square().sum()) for w in words] for part in row] for row in parts])
    soft = np.exp(-2 * squares / squares.min(axis=2).mean())
    expected = (soft / soft.sum(axis=2, keepdims=True)).mean(axis=0)
    assert losses.word_shares(parts, words, 2.0).numpy() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match="above 0"):
        losses.word_shares(parts, words, 0.0)


def test_agreement_of_branches_by_plain_loops() -> None:
    rows = [draw(6, 3, seed=seed) for seed in range(4)]
    scaled = [(row / row.norm(dim=1, keepdim=True)).numpy().astype(np.float64) for row in rows]
    p, q = (np.exp(a @ b.T / 0.5) for a, b in (scaled[:2], scaled[2:]))
    p, q = (part / part.sum(axis=1, keepdims=True) for part in (p, q))
    expected = ((p - q) * (np.log(p) - np.log(q))).sum(axis=1).mean()
    found = losses.mutual_divergence((rows[0], rows[1]), (rows[2], rows[3]), 0.5)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_parts_are_quarters_and_words_are_the_latest_parts() -> None:
    kind = objective("dualrank")
    picture = torch.zeros(1, 1, 4, 4)
    picture[..., :2, 2:] = 7
    assert kind.copy_inputs(picture, 0) is picture
    assert [float(kind.copy_inputs(picture, number).mean()) for number in range(1, 5)] == [0, 7, 0, 0]
    made = kind(Task(3, 4, 2, (0.5, 0.5), 0.5), {**kind.settings, "words": 6})
    features = draw(5 * 4, 3)
    for _ in range(2):
        made.after_step(features, features, torch.tensor([0, 1, -1, -1]))
    assert int(made.filled) == 8
    near = (made.words @ (features / features.norm(dim=1, keepdim=True)).T).amax(dim=1)
    assert near.numpy() == pytest.approx(np.ones(6), abs=1e-5)


def test_kcl_by_plain_loops() -> None:
    p, q = (torch.softmax(2 * draw(5, 3, seed=seed), dim=1) for seed in (0, 1))
    same = torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) > 0.5
    total = 0.0
    for i in range(5):
        for j in range(5):
            for a, b in ((p[i].numpy(), q[j].numpy()), (q[j].numpy(), p[i].numpy())):
                divergence = float((a * np.log(a / b)).sum())
                total += divergence if same[i, j] else max(0.0, 0.7 - divergence)
    assert float(losses.kcl_pairs(p, q, same, 0.7)) == pytest.approx(total / 50, rel=1e-4)


def test_winners_by_plain_loops() -> None:
    rows = draw(8, 6)
    orders = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(seed)) for seed in range(9)])
    found = losses.winners_agree(rows, orders, window=3, share=0.5)
    for i in range(8):
        for j in range(8):
            equal = sum(int(rows[i, o[:3]].argmax() == rows[j, o[:3]].argmax()) for o in orders)
            assert bool(found[i, j]) == (equal > 4.5)
    with pytest.raises(InputError, match="window=7"):
        losses.winners_agree(rows, orders, window=7)


def test_comex_shares_targets_of_both_experts() -> None:
    first, second = draw(6, 4), draw(6, 4, seed=1)
    cosines = [draw(6, 3, seed=seed) for seed in (2, 3, 4, 5)]
    labels = torch.tensor([0, 1, -1, -1, -1, 2])
    loss = losses.comex((first, second), ((cosines[0], cosines[1]), (cosines[2], cosines[3])), labels)
    free = labels < 0
    total = 0.0
    for own, other, view in ((cosines[:2], cosines[2:], second), (cosines[2:], cosines[:2], first)):
        shared = (losses.sinkhorn(other[0][free]) + losses.sinkhorn(other[1][free])) / 2
        unit = view[free] / view[free].norm(dim=1, keepdim=True)
        for place, row in enumerate(labels.tolist()):
            if row >= 0:
                target = torch.eye(3)[row]
            else:
                i = int(free[:place].sum())
                weights = torch.exp(unit @ unit[i] / 0.1)
                weights[i] = 0
                target = shared[i] / 2 + (weights / weights.sum()) @ shared / 2
            for part in own:
                total -= float(target @ torch.log_softmax(part[place] / 0.1, dim=0))
    assert float(loss) == pytest.approx(total / 24, rel=1e-4)


def test_ds3l_learns_to_leave_out_rows_that_mislead() -> None:
    """Rows of a third direction agree only if the head gives up a known class: their weight must fall."""
    kind = objective("ds3l")
    made = kind(Task(3, 3, 2, (0.5, 0.5), 0.5), {"scale": 10.0, "consistency": 50.0, "step": 1.0})
    made.start(torch.eye(3), torch.tensor([0, 1, -1]), torch.eye(3))
    good = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    bad = torch.tensor([[0.6, 0.4, 1.0], [0.4, 0.6, 1.0]])
    first = torch.cat([good, good, bad])
    second = torch.cat([good, good, bad.flip(0)])
    labels = torch.tensor([0, 1, -1, -1, -1, -1])
    optimizer = torch.optim.Adam(made.weighing.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        made(first, second, labels, TrainingProgress(0, 1))["outer"].backward()
        optimizer.step()
    weights = torch.sigmoid(made.weighing(torch.nn.functional.normalize(first[2:], dim=1))).flatten().detach()
    assert float(weights[2:].mean()) < float(weights[:2].mean())
    assert made.weight.grad is None  # the outer loss trains the weights of rows only


def test_the_predictor_of_pairs_learns_from_labelled_rows_only() -> None:
    kind = objective("mcl")
    made = kind(Task(4, 3, 2, (0.5, 0.5), 0.5), dict(kind.settings))
    made.start(torch.eye(4), torch.tensor([0, 1, -1, -1]), torch.eye(4)[:3])
    first = draw(6, 4).requires_grad_()
    parts = made(first, draw(6, 4, seed=1), torch.tensor([0, 0, 1, 1, -1, -1]), TrainingProgress(0, 1))
    parts["similarity"].backward(retain_graph=True)
    assert first.grad is None
    assert made.importance.grad is not None
    made.importance.grad = None
    parts["pairs"].backward()
    assert made.importance.grad is None
