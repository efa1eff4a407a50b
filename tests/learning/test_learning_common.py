"""What every objective must do, whoever wrote it."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_blobs import blobs, pictures

import offmap
from offmap import store
from offmap.errors import InputError
from offmap.learning import OpenWorldModel, learn, objective, registered
from offmap.learning.closed_form import SPECTRAL
from offmap.learning.objectives import Task, TrainingProgress
from offmap.metrics.clustering import open_world_accuracy

ANY_INPUT = [name for name, kind in registered().items() if "embeddings" in kind.kinds]
NAMES = [*ANY_INPUT, SPECTRAL]
QUICK = {"epochs": 2, "batch_size": 64, "neighbours": 5}


def settings_of(name: str) -> dict[str, int]:
    return {"neighbours": 5} if name == SPECTRAL else QUICK


@pytest.mark.parametrize("name", NAMES)
def test_finds_plain_classes_keeps_numbers_and_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    rows, truth, labels = blobs()
    numbers = np.where(labels >= 0, 10 * labels + 3, -1)  # 3, 13, 23: numbers with gaps stay as they are
    model = learn(rows, numbers, 6, objective=name, seed=1, **settings_of(name))
    found = model.predict(rows)
    assert open_world_accuracy(truth, found, [0, 1, 2]).all > 0.95
    assert model.class_ids.tolist() == [3, 13, 23, 24, 25, 26]
    assert (found[labels >= 0] == numbers[labels >= 0]).mean() > 0.95
    novelty = model.novelty(rows)
    assert ((novelty >= 0) & (novelty <= 1)).all()
    assert novelty[truth >= 3].mean() > novelty[truth < 3].mean()
    embedded = model.transform(rows)
    assert np.linalg.norm(embedded, axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-4)

    model.save(tmp_path / "model.offmap")
    again = OpenWorldModel.restore(store.load(tmp_path / "model.offmap"))
    assert np.array_equal(again.transform(rows), embedded)
    assert np.array_equal(again.predict(rows), found)
    assert again.history == model.history
    assert again.config == model.config

    activations = model.network.extract(rows, labels=np.clip(labels, 0, 2))
    assert activations.features == pytest.approx(embedded, abs=1e-5)
    scores = offmap.detector("energy").fit(activations).score(activations)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_state_alone(name: str) -> None:
    rows, _, labels = blobs(size=12)
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        model = learn(rows, labels, 6, objective=name, seed=3, **settings_of(name))
        states.append((model.net.state_dict(), torch.rand(1)))
    assert all(torch.equal(states[0][0][key], states[1][0][key]) for key in states[0][0])
    assert torch.equal(states[0][1], states[1][1])


@pytest.mark.parametrize("name", registered())
@pytest.mark.parametrize("labels", [[-1, -1, -1, -1], [0, 1, 2, 2], [0, -1, -1, -1], [1, 1, 1, 1]])
def test_every_batch_has_a_finite_loss_and_gradient(name: str, labels: list[int]) -> None:
    kind = objective(name)
    task = Task(4, 5, 3, (0.5, 0.25, 0.25), 0.5)
    loss = kind(task, {**kind.settings, **kind.embeddings})
    loss.start(torch.eye(4), torch.tensor(labels), torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    rows = 4 * kind.copies
    first = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    second = torch.randn(rows, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    for step in range(2):
        parts = loss(first, second, torch.tensor(labels), TrainingProgress(step, 2))
        total = sum(parts.values())
        assert bool(torch.isfinite(total))
        total.backward()
        loss.after_step(first.detach(), second.detach(), torch.tensor(labels))
    assert torch.isfinite(first.grad).all()
    assert all(torch.isfinite(value).all() for value in loss.state_dict().values())


@pytest.mark.parametrize("name", ANY_INPUT)
@pytest.mark.parametrize("preset", ["thesis", "authors"])
def test_published_settings_run(name: str, preset: str) -> None:
    rows, _, labels = blobs(size=10)
    settings = {"objective": name, "preset": preset, "epochs": 1, "batch_size": 30, "projection": 8}
    if preset == "authors" and not objective(name).authors:
        with pytest.raises(InputError, match=f"no released code of {name} is followed here"):
            learn(rows, labels, 6, **settings)
        return
    model = learn(rows, labels, 6, **settings)
    assert len(model.history) == model.config["settings"].get("rounds", 1)
    assert all(np.isfinite(list(row.values())).all() for row in model.history)


@pytest.mark.parametrize("name", ["opencon", "sorl", "orca", *(name for name in registered() if name not in ANY_INPUT)])
def test_learns_from_pictures(name: str) -> None:
    images, truth = pictures()
    labels = np.where((truth < 2) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    model = learn(images, labels, 4, objective=name, epochs=2, batch_size=40, projection=16)
    assert model.predict(images).shape == truth.shape
    assert set(model.predict(images)) <= set(model.class_ids.tolist())
    assert np.isfinite(model.transform(images[..., None])).all()


def test_an_objective_of_ones_own_needs_one_class() -> None:
    from offmap.learning import Objective, register
    from offmap.learning.objectives import OBJECTIVES

    @register
    class Plain(Objective):
        """Both views agree."""

        name = "plain"
        settings = {"weight": 1.0}

        def forward(self, first, second, labels, moment):
            return {"plain": self.chosen["weight"] * (first - second).square().mean()}

    try:
        rows, _, labels = blobs(size=10)
        assert learn(rows, labels, 6, objective="plain", epochs=1).config["settings"] == {"weight": 1.0}
    finally:
        OBJECTIVES.remove("plain")


@pytest.mark.parametrize("name", registered())
def test_every_setting_can_be_given_by_its_name(name: str) -> None:
    taken = set(inspect.signature(learn).parameters)
    assert not taken & set(objective(name).settings), "an argument of learn has this name"


def test_unknown_names_are_answered_with_the_possible_ones() -> None:
    rows, _, labels = blobs(size=5)
    with pytest.raises(InputError, match="choose one of sorl-spectral, autonovel, ce"):
        learn(rows, labels, objective="nonsense")
    with pytest.raises(InputError, match="no setting 'balanced'; it has balance"):
        learn(rows, labels, objective="gcd", balanced=1)
    with pytest.raises(InputError, match="no setting 'tau'"):
        learn(rows, labels, objective=SPECTRAL, tau=1)
    with pytest.raises(InputError, match="a float is needed"):
        learn(rows, labels, objective="gcd", balance="much")
    with pytest.raises(InputError, match="epochs=-1"):
        learn(rows, labels, objective="gcd", epochs=-1)
