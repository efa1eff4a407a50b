"""Self-training: the loss against its formula, what the rounds gain, and runs that are killed between rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from learning_blobs import blobs, thirty_intents
from scipy.special import log_softmax

from offmap.discovery import discover
from offmap.errors import InputError
from offmap.learning import learn
from offmap.learning.objectives import Task, TrainingProgress
from offmap.learning.objectives.self_training import SelfTraining
from offmap.metrics.clustering import open_world_accuracy


def prepared_loss(mixup: float) -> SelfTraining:
    loss = SelfTraining(Task(4, 3, 1, (1.0,), 0.5), {"rounds": 1, "mixup": mixup})
    loss.start(torch.eye(4), torch.zeros(4), torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    return loss


def test_without_mixing_it_is_the_cross_entropy_of_both_views_on_the_groups() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 5, 4))
    groups = np.array([0, 1, 2, 1, 0])
    loss = prepared_loss(mixup=0.0).double()
    found = loss(torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(groups), TrainingProgress(0, 1))
    rows = np.concatenate([first, second])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    logits = 10 * rows @ loss.weight.detach().numpy().T
    expected = -log_softmax(logits, axis=1)[np.arange(10), np.tile(groups, 2)].mean()
    assert float(found["groups"].detach()) == pytest.approx(expected)


def test_mixing_lies_between_the_losses_of_both_partners() -> None:
    loss = prepared_loss(mixup=1.0)
    rows = torch.eye(4)[[0, 0, 0]]  # equal rows: mixing changes the targets only
    torch.manual_seed(0)
    mixed = float(loss(rows, rows, torch.tensor([0, 1, 2]), TrainingProgress(0, 1))["groups"].detach())
    plain = float(prepared_loss(0.0)(rows, rows, torch.tensor([0, 1, 2]), TrainingProgress(0, 1))["groups"].detach())
    assert mixed == pytest.approx(plain, abs=1e-5)  # the mean over rows does not depend on who is mixed with whom


def test_a_run_that_was_killed_between_rounds_ends_in_the_same_weights(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=12)
    settings = {"rounds": 3, "epochs": 2, "batch_size": 32, "out": tmp_path}
    whole = learn(rows, labels, 6, objective="self-training", **settings)
    assert {file.name for file in tmp_path.iterdir()} >= {f"round-{n}.offmap" for n in (1, 2, 3)}
    assert [(row["round"], row["epoch"]) for row in whole.history] == [(n, e) for n in (1, 2, 3) for e in (1, 2)]
    for name in ("round-3.offmap", "model.offmap"):
        (tmp_path / name).unlink()
    again = learn(rows, labels, 6, objective="self-training", **settings)
    assert again.history == whole.history
    assert all(torch.equal(a, b) for a, b in zip(again.net.parameters(), whole.net.parameters(), strict=True))


def test_rounds_below_one_are_refused() -> None:
    rows, _, labels = blobs(size=10)
    with pytest.raises(InputError, match="rounds=0: at least one"):
        learn(rows, labels, 6, objective="self-training", rounds=0)


def test_wide_embeddings_are_learned_slower() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 40)
    rows = (rng.normal(size=(6, 1536))[truth] + 4 * rng.normal(size=(240, 1536))).astype(np.float32)
    labels = np.where((truth < 3) & (rng.random(240) < 0.5), truth, -1)
    settings = {"rounds": 1, "epochs": 2, "batch_size": 32, "progress": False}
    slow, same, narrow = (
        learn(part, labels, 6, **settings, **more)
        for part, more in ((rows, {}), (rows, {"rate_columns": 0}), (rows[:, :384], {}))
    )
    rates = [model.config["training"]["learning_rate"] for model in (slow, same, narrow)]
    assert rates == pytest.approx([3e-3 / 4, 3e-3, 3e-3])


def test_the_objective_may_stand_first() -> None:
    rows, _, labels = blobs(size=10)
    first, named = learn("sorl-spectral", rows, labels), learn(rows, labels, objective="sorl-spectral")
    assert repr(first) == repr(named)
    assert (first.predict(rows) == named.predict(rows)).all()


def test_it_is_above_the_discovery_it_starts_from_on_real_sentences(data_folder: Path) -> None:
    rows, truth, labels = thirty_intents(data_folder)
    free = labels < 0
    before = discover(rows, labels, 30, "spectral").labels
    after = learn(rows, labels, 30).predict(rows)
    accuracies = [open_world_accuracy(truth[free], found[free], range(15)).all for found in (before, after)]
    assert accuracies[1] > accuracies[0]


def test_small_classes_are_learned_no_worse_than_they_are_found() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(30), 12)  # fewer rows of a class than thirty neighbours
    rows = (rng.normal(size=(30, 64))[truth] + 1.5 * rng.normal(size=(360, 64))).astype(np.float32)
    labels = np.where((truth < 15) & (np.arange(360) % 2 == 0), truth, -1)
    free = labels < 0
    found = discover(rows, labels, 30).labels
    learned = learn(rows, labels, 30, objective="self-training").predict(rows)
    reached, start = (open_world_accuracy(truth[free], one[free], range(15)).all for one in (learned, found))
    assert reached >= start - 0.02
