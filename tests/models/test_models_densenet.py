from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from offmap.data import scale_images, tiles
from offmap.errors import InputError
from offmap.models.densenet import DenseNet

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def plain_forward(state: dict[str, torch.Tensor], x: torch.Tensor, layers: int) -> torch.Tensor:
    """The paper's network written out on bare tensors."""

    def activated(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        shape = (1, -1, 1, 1)
        normal = (x - mean.reshape(shape)) / (var.reshape(shape) + 1e-5).sqrt()
        return (normal * state[f"{name}.weight"].reshape(shape) + state[f"{name}.bias"].reshape(shape)).clamp(min=0)

    x = torch.conv2d(x, state["conv1.weight"], padding=1)
    for block in (1, 2, 3):
        for layer in range(layers):
            name = f"block{block}.layer.{layer}"
            new = torch.conv2d(activated(x, f"{name}.bn1"), state[f"{name}.conv1.weight"])
            new = torch.conv2d(activated(new, f"{name}.bn2"), state[f"{name}.conv2.weight"], padding=1)
            x = torch.cat([x, new], 1)
        if block < 3:
            x = torch.conv2d(activated(x, f"trans{block}.bn1"), state[f"trans{block}.conv1.weight"])
            x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
    pooled = activated(x, "bn1").mean(dim=(2, 3))
    return pooled @ state["fc.weight"].T + state["fc.bias"]


def test_it_computes_the_network_of_the_paper() -> None:
    torch.manual_seed(3)
    model = DenseNet(7, layers=3, growth=5).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain_forward(model.state_dict(), x, 3), rtol=1e-4, atol=1e-5)


def test_its_depth_and_features_are_those_of_densenet_bc_100_12() -> None:
    model = DenseNet()
    depth = sum(isinstance(module, torch.nn.Conv2d | torch.nn.Linear) for module in model.modules())
    assert depth == 100
    assert model.fc.in_features == 342
    assert sum(parameter.numel() for parameter in model.parameters()) == 769_162  # 0.8 M in the paper


def test_the_seed_decides_the_weights_and_torch_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    a, b, c = DenseNet(3, 1, 2, seed=5), DenseNet(3, 1, 2, seed=5), DenseNet(3, 1, 2, seed=6)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a.conv1.weight, b.conv1.weight)
    assert not torch.equal(a.conv1.weight, c.conv1.weight)


def test_a_saved_network_is_loaded_whatever_its_shape(tmp_path: Path) -> None:
    model = DenseNet(4, layers=2, growth=3, seed=1).eval()
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    loaded = DenseNet.load(tmp_path / "net.safetensors")
    x = torch.randn(3, 3, 8, 8)
    assert not loaded.training
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize("content", ["missing", "garbage", "another network"])
def test_a_file_that_is_no_densenet_is_refused_by_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "net.safetensors"
    if content == "garbage":
        file.write_bytes(b"\x00" * 40)
    elif content == "another network":
        save_file({"fc.weight": torch.zeros(2, 2)}, file)
    with pytest.raises(InputError, match=r"net\.safetensors: not the weights of a DenseNet"):
        DenseNet.load(file)


@pytest.mark.data
def test_the_published_checkpoint_classifies_real_pictures(data_folder: Path) -> None:
    pictures = tiles("cifar10_test", data_folder)
    model = DenseNet.load(data_folder / "weights" / "densenet100bc_cifar10.safetensors")
    with torch.no_grad():
        x = torch.from_numpy(scale_images(pictures.arrays["inputs"][:500], MEAN, STD))
        features = torch.cat([model.features(part) for part in x.split(100)])
        right = model.fc(features).argmax(dim=1).numpy() == pictures.arrays["labels"][:500]
    stored = np.load(data_folder / "features" / "cifar10-densenet__cifar10_test.npz")["features"][:500]
    assert 0.93 < right.mean() < 0.97  # 94.54 % on all 10,000
    np.testing.assert_allclose(features.numpy(), stored, rtol=5e-3, atol=2e-3)  # those are float16
