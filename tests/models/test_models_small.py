"""Small networks train to the same weights by seed and leave torch alone; models load by name, weights alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from offmap.errors import InputError
from offmap.models import load_model, load_network
from offmap.models.classify import train_classifier
from offmap.models.cnn import CNN

SOURCE = """
import torch

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)

class Box:
    inner = Net()
"""


def bits(model):
    return torch.cat([value.double().reshape(-1) for value in model.state_dict().values()])


def test_training_is_repeatable_and_leaves_the_random_state_alone():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    inputs = rng.normal(size=(90, 1, 8, 8)).astype(np.float32) + labels[:, None, None, None]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    losses: list[float] = []
    models = [
        train_classifier(
            CNN(3, width=4, seed=seed),
            inputs,
            labels,
            epochs=4,
            seed=seed,
            on_epoch=lambda _, loss: losses.append(loss),
        )
        for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(bits(models[0]), bits(models[1]))
    assert not torch.equal(bits(models[0]), bits(models[2]))
    assert not models[0].training
    assert losses[3] < losses[0]


def test_cnn_takes_other_sizes_and_refuses_none():
    assert CNN(4, channels=3, width=2)(torch.zeros(2, 3, 32, 32)).shape == (2, 4)
    with pytest.raises(InputError, match="at least 1"):
        CNN(0)
    with pytest.raises(InputError, match="one label for each"):
        train_classifier(CNN(2), np.zeros((3, 1, 8, 8)), [0, 1])


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"nets_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    return name


def test_models_by_class_and_by_nested_instance(module):
    assert load_model(f"{module}:Net").in_features == 3
    assert not load_model(f"{module}:Box.inner").training
    assert load_network(f"{module}:Net")(np.zeros((2, 3), np.float32)).logits.shape == (2, 2)


@pytest.mark.parametrize("form", ["safetensors", "plain", "nested", "parallel"])
def test_weights_in_the_forms_people_save_them(module, tmp_path, form):
    state = {"weight": torch.full((2, 3), 2.0), "bias": torch.tensor([1.0, -1.0])}
    file = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    if form == "safetensors":
        save_file(state, file)
    elif form == "plain":
        torch.save(state, file)
    elif form == "nested":
        torch.save({"epoch": 3, "state_dict": state}, file)
    else:
        torch.save({f"module.{name}": value for name, value in state.items()}, file)
    assert torch.equal(load_model(f"{module}:Net", file).weight, state["weight"])


def test_weights_that_do_not_fit_or_hold_code_are_refused(module, tmp_path):
    save_file({"weight": torch.zeros(2, 9)}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="not the weights of this Net"):
        load_model(f"{module}:Net", tmp_path / "w.safetensors")
    torch.save(torch.nn.Linear(3, 2), tmp_path / "whole.pt")
    with pytest.raises(InputError, match=r"weights alone.*save torch\.save\(model\.state_dict\(\)"):
        load_model(f"{module}:Net", tmp_path / "whole.pt")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(InputError, match="state dict"):
        load_model(f"{module}:Net", tmp_path / "list.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(InputError, match=r"junk\.pt"):
        load_model(f"{module}:Net", tmp_path / "junk.pt")
    with pytest.raises(InputError, match="no such file"):
        load_model(f"{module}:Net", tmp_path / "none.pt")
    with pytest.raises(InputError, match="holds its weights"):
        load_network("m.onnx", tmp_path / "junk.pt")
