"""Prototypes against a plain loop, and the gate against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offmap.errors import InputError
from offmap.learning.objectives.base import Task, TrainingProgress
from offmap.learning.objectives.opencon import OpenCon
from offmap.learning.prototypes import RECENT, Prototypes, moved


def directions(n: int, d: int, seed: int) -> torch.Tensor:
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.0, 1.0), st.integers(0, 99))
def test_one_batch_moves_each_class_by_its_rows(n: int, k: int, momentum: float, seed: int) -> None:
    vectors, rows = directions(k, 4, seed), directions(n, 4, seed + 1)
    classes = torch.randint(-1, k, (n,), generator=torch.Generator().manual_seed(seed))
    new = moved(vectors, rows, classes, momentum)
    for c in range(k):
        mine = rows[classes == c].numpy()
        expected = vectors[c].numpy()
        if len(mine):
            keep = momentum ** len(mine)
            expected = keep * expected + (1 - keep) * mine.mean(axis=0)
            expected = expected / max(np.linalg.norm(expected), 1e-8)
        assert new[c].numpy() == pytest.approx(expected, abs=1e-9)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(moved(vectors, rows[order], classes[order], momentum), new)


def test_a_single_row_moves_as_the_thesis_says() -> None:
    vectors, row = directions(3, 5, 0), directions(1, 5, 1)
    new = moved(vectors, row, torch.tensor([1]), 0.9)
    step = 0.9 * vectors[1] + 0.1 * row[0]
    assert torch.allclose(new[1], step / step.norm())
    assert torch.equal(new[[0, 2]], vectors[[0, 2]])


@pytest.mark.parametrize("percentile", [50.0, 70.0, 90.0])
def test_the_gate_leaves_so_many_labelled_rows_above(percentile: float) -> None:
    prototypes = Prototypes(6, 3, 8, percentile=percentile)
    prototypes.place(directions(6, 8, 0).float())
    rows = directions(400, 8, 1).float()
    labels = torch.where(torch.arange(400) < 200, torch.arange(400) % 3, -1)
    novel = prototypes.is_novel(rows, labels)
    scores = (rows @ prototypes.vectors[:3].T).amax(dim=1)
    gate = np.percentile(scores[:200].numpy(), 100 - percentile)
    assert novel.tolist() == ((scores.numpy() < gate) & (labels.numpy() < 0)).tolist()


def test_the_gate_remembers_recent_labelled_rows_and_forgets_old_ones() -> None:
    prototypes = Prototypes(2, 1, 2, percentile=100)
    prototypes.place(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    at = torch.tensor([[0.6, 0.8]])
    assert bool(prototypes.is_novel(at, torch.tensor([-1])))  # no labelled row so far
    prototypes.is_novel(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    assert not bool(prototypes.is_novel(at, torch.tensor([-1])))  # the lowest labelled score is 0
    for _ in range(RECENT // 512):
        prototypes.is_novel(torch.tensor([[1.0, 0.0]]).repeat(512, 1), torch.zeros(512, dtype=torch.long))
    assert bool(prototypes.is_novel(at, torch.tensor([-1])))


def test_the_authors_gate_is_standardised_within_rows_and_batches() -> None:
    prototypes = Prototypes(5, 2, 6, percentile=70, rule="authors")
    prototypes.place(directions(5, 6, 0).float())
    rows = directions(50, 6, 1).float()
    labels = torch.where(torch.arange(50) < 20, torch.arange(50) % 2, -1)
    novel = prototypes.is_novel(rows, labels)
    cosines = 10 * (rows @ prototypes.vectors.T).numpy()
    scores = (cosines - cosines.mean(axis=1, keepdims=True)) / cosines.std(axis=1, ddof=1, keepdims=True)
    best = scores[:, :2].max(axis=1)
    expected = (best < np.percentile(best[:20], 30)) & (labels.numpy() < 0)
    assert novel.tolist() == expected.tolist()


def test_novel_rows_move_novel_prototypes_only() -> None:
    prototypes = Prototypes(4, 2, 5)
    prototypes.place(directions(4, 5, 0).float())
    before = prototypes.vectors.clone()
    rows = before[[0, 1, 1]] + 0.01
    prototypes.update(rows, torch.tensor([0, -1, -1]), torch.tensor([False, True, False]))
    assert not torch.equal(prototypes.vectors[0], before[0])
    assert torch.equal(prototypes.vectors[1], before[1])  # an unlabelled row never moves a known class
    assert int((prototypes.vectors[2:] != before[2:]).any(dim=1).sum()) == 1


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="0 to 100"):
        Prototypes(2, 1, 3, percentile=190)


def opencon(**chosen: object) -> OpenCon:
    """Two classes, the first one known, prototypes along the axes, a gate at cosine .5."""
    made = OpenCon(Task(2, 2, 1, (1.0,), 0.5), {**OpenCon.settings, "percentile": 100.0, **chosen})
    made.prototypes.place(torch.eye(2))
    return made


def test_each_view_passes_the_gate_by_its_own_embedding() -> None:
    labels = torch.tensor([0, -1, -1])
    known, novel, gate = [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]
    first, second = torch.tensor([gate, known, novel]), torch.tensor([known, novel, novel])
    both = opencon()
    assert both._predict(first, second, labels).tolist() == [[-1, -1, 1], [-1, 1, 1]]
    alone = opencon(gate_views="first")
    assert alone._predict(first, second, labels).tolist() == [[-1, -1, 1], [-1, -1, 1]]
    with_known = opencon(known_too=True)
    assert with_known._predict(first, second, labels).tolist() == [[-1, -2, 1], [-1, 1, 1]]


def test_a_view_taken_for_novel_moves_its_prototype() -> None:
    labels = torch.tensor([0, -1])
    first, second = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    for views, moves in (("both", True), ("first", False)):
        made = opencon(gate_views=views)
        made(first, second, labels, TrainingProgress(0, 1))
        made.after_step(first, second, labels)
        assert bool((made.prototypes.vectors[1] != torch.tensor([0.0, 1.0])).any()) is moves


def test_the_authors_move_prototypes_by_the_first_view_alone() -> None:
    labels = torch.tensor([0, -1, -1])
    first = torch.tensor([[1.0, 0.2], [0.1, 1.0], [1.0, 0.1]])
    moved = []
    for second in (torch.rand(3, 2), torch.rand(3, 2)):
        made = opencon(gate="authors", gate_views="first")
        made(first, second, labels, TrainingProgress(0, 1))
        made.after_step(first, second, labels)
        moved.append(made.prototypes.vectors)
    assert torch.equal(moved[0], moved[1])
    rows = torch.nn.functional.normalize(first, dim=1)
    for place, row in ((0, rows[0]), (1, rows[1])):  # the third is nearest to a known prototype and moves none
        own = torch.nn.functional.normalize(0.9 * torch.eye(2)[place] + 0.1 * row, dim=0)
        torch.testing.assert_close(moved[0][place], own)


def test_choices_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="gate_views='second': choose one of both, first"):
        opencon(gate_views="second")
