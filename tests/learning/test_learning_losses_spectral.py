"""Spectral losses against plain loops, and against the matrix factorisation they stand for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from offmap.graph import augmentation_graph
from offmap.learning import losses

LABELS = [0, 0, 1, -1, 0, -1, 2]


def views(n: int, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))


def average(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@pytest.mark.parametrize("setting", ["sorl", "nscl"])
def test_terms_are_means_over_pairs(setting: str) -> None:
    first, second = views(len(LABELS))
    dot = (first @ second.T).tolist()
    rows = range(len(LABELS))
    free = [i for i in rows if setting == "sorl" or LABELS[i] < 0]
    classes = {c: [i for i in rows if LABELS[i] == c] for c in (0, 1, 2)}

    def mean_of(left: list[int], right: list[int], power: int) -> float:
        return average([dot[i][j] ** power for i in left for j in right if i != j])

    attract = sum(
        mean_of(members, members, 1) if len(members) > 1 else dot[members[0]][members[0]]
        for members in classes.values()
    )
    repel = sum(mean_of(one, two, 2) for one in classes.values() for two in classes.values())
    # A labelled row meets every free row but itself; its class weighs 1 in total, each free row alike.
    others = len(free) - (1 if setting == "sorl" else 0)
    mixed = 0.0
    for members in classes.values():
        for i in members:
            for j in free:
                if i != j:
                    mixed += (dot[i][j] ** 2 + dot[j][i] ** 2) / 2 / len(members) / others
    expected = [attract, average([dot[i][i] for i in free]), repel, mixed, mean_of(free, free, 2)]
    terms = losses.spectral_terms(first, second, torch.tensor(LABELS), setting=setting)
    assert [float(term) for term in terms] == pytest.approx(expected, abs=1e-9)


def test_authors_pairs() -> None:
    first, second = views(len(LABELS))
    dot = (first @ second.T).tolist()
    size = {0: 3, 1: 1, 2: 1}
    known = [i for i, label in enumerate(LABELS) if label >= 0]
    attract = sum(dot[i][j] / size[LABELS[i]] ** 2 for i in known for j in known if LABELS[i] == LABELS[j])
    repel = sum(dot[i][j] ** 2 / (size[LABELS[i]] * size[LABELS[j]]) for i in known for j in known if i != j)
    terms = losses.spectral_terms(first, second, torch.tensor(LABELS), setting="nscl", estimator="authors")
    assert float(terms.attract_labelled) == pytest.approx(attract, abs=1e-9)
    assert float(terms.repel_labelled) == pytest.approx(repel, abs=1e-9)


def test_weights_of_the_five_terms() -> None:
    first, second = views(len(LABELS))
    labels = torch.tensor(LABELS)
    one, two, three, four, five = losses.spectral_terms(first, second, labels, setting="nscl")
    expected = -2 * 0.5 * one - 2 * 3 * two + 0.25 * three + 2 * 0.5 * 3 * 2 * four + 9 * five
    loss = losses.nscl(first, second, labels, alpha=0.5, beta=3.0, factors=(1, 2, 1))
    assert torch.allclose(loss, expected)


def factorisation(graph: np.ndarray, f: Tensor) -> float:
    """``‖Ȧ − F Fᵀ‖²`` with rows ``sqrt(w_x) f(x)``."""
    degrees = graph.sum(axis=1)
    scaled = graph / np.sqrt(np.outer(degrees, degrees))
    rows = np.sqrt(degrees)[:, None] * f.numpy()
    return float(((scaled - rows @ rows.T) ** 2).sum())


def expected_loss(
    f: Tensor, transition: np.ndarray, labels: list[int], setting: str, weights: tuple[float, float]
) -> float:
    """The mean of the loss over all batches: every draw of two sources per part and every pair of their views."""
    nodes = range(len(transition))
    labelled = [s for s, label in enumerate(labels) if label >= 0]
    free = [s for s, label in enumerate(labels) if setting == "sorl" or label < 0]
    loss = losses.sorl if setting == "sorl" else losses.nscl
    names = ("eta_l", "eta_u") if setting == "sorl" else ("alpha", "beta")
    named = dict(zip(names, weights, strict=True))
    shares = torch.tensor([np.mean([labels[s] == c for s in labelled]) for c in range(max(labels) + 1)])

    def draws(sources: list[int]) -> list[tuple[tuple[int, ...], list[int], list[int], float]]:
        out = []
        for pair in itertools.product(sources, repeat=2):
            for views_of in itertools.product(nodes, repeat=4):
                chance = np.prod([transition[views_of[i], pair[i % 2]] for i in range(4)]) / len(sources) ** 2
                if chance > 0:
                    out.append((pair, list(views_of[:2]), list(views_of[2:]), float(chance)))
        return out

    total = 0.0
    if setting == "nscl":
        for (pair, one, two, p), (_, three, four, q) in itertools.product(draws(labelled), draws(free)):
            batch = torch.tensor([labels[s] for s in pair] + [-1, -1])
            total += p * q * float(loss(f[one + three], f[two + four], batch, shares=shares, **named))
        return total
    # In SORL every row is drawn from all sources; here all have labels, so that one draw serves both parts.
    for pair, one, two, p in draws(free):
        batch = torch.tensor([labels[s] for s in pair])
        total += p * float(loss(f[one], f[two], batch, shares=shares, **named))
    return total


@pytest.mark.parametrize(
    ("setting", "labels", "weights"),
    [("nscl", [0, 1, -1], (0.7, 1.3)), ("sorl", [0, 1, 0, 1], (0.4, 1.5)), ("sorl", [0, 0, 1], (1.0, 0.5))],
)
def test_in_expectation_a_loss_is_the_factorisation_plus_a_constant(
    setting: str, labels: list[int], weights: tuple[float, float]
) -> None:
    rng = np.random.default_rng(0)
    transition = rng.random((2, len(labels)))
    transition /= transition.sum(axis=0)
    graph = augmentation_graph(transition, labels, eta_u=weights[1], eta_l=weights[0], setting=setting).toarray()
    gaps = []
    for _ in range(3):
        f = torch.from_numpy(rng.normal(size=(2, 2)))
        gaps.append(factorisation(graph, f) - expected_loss(f, transition, labels, setting, weights))
    assert gaps == pytest.approx([gaps[0]] * 3, abs=1e-6)


def test_scl_in_expectation() -> None:
    rng = np.random.default_rng(1)
    transition = rng.random((3, 3))
    transition /= transition.sum(axis=0)
    graph = augmentation_graph(transition).toarray()
    gaps = []
    for _ in range(3):
        f = torch.from_numpy(rng.normal(size=(3, 2)))
        total = 0.0
        for a, b in itertools.product(range(3), repeat=2):
            for i, j, k, m in itertools.product(range(3), repeat=4):
                chance = transition[i, a] * transition[j, b] * transition[k, a] * transition[m, b] / 9
                total += chance * float(losses.scl(f[[i, j]], f[[k, m]]))
        gaps.append(factorisation(graph, f) - total)
    assert gaps == pytest.approx([gaps[0]] * 3, abs=1e-6)


@pytest.mark.parametrize("labels", [[-1, -1, -1], [0, 0, 0], [0, 1, 2], [0, -1, -1], [0]])
@pytest.mark.parametrize("name", ["sorl", "nscl"])
@pytest.mark.parametrize("with_shares", [False, True])
def test_finite_for_every_batch(labels: list[int], name: str, with_shares: bool) -> None:
    first = (1000 * torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(0))).half().requires_grad_()
    shares = torch.full((3,), 1 / 3) if with_shares else None
    loss = getattr(losses, name)(
        losses.clip_norm(first.float()), first.float() / 1000, torch.tensor(labels), shares=shares
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(first.grad).all()
