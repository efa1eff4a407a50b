"""Weights come in under the names that wrappers and other libraries give them, whole or, on request, in part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from offmap.errors import InputError
from offmap.models.resnet import ResNet
from offmap.models.vit import ViT
from offmap.models.weights import load_weights


def same(first, second, but=()):
    mine, other = first.state_dict(), second.state_dict()
    return all(torch.equal(mine[name], other[name]) for name in mine if not name.startswith(but or "no such"))


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.encoder_q.", "model.encoder."])
def test_prefixes_are_taken_off(tmp_path, prefix):
    source, target = ResNet(3, width=4, seed=1), ResNet(3, width=4, seed=2)
    save_file({prefix + name: value for name, value in source.state_dict().items()}, tmp_path / "w.safetensors")
    loaded = load_weights(target, tmp_path / "w.safetensors")
    assert not loaded.missing
    assert not loaded.unused
    assert same(source, target)


def test_part_of_a_momentum_checkpoint_without_its_head(tmp_path):
    source, target = ResNet(3, width=4, seed=1), ResNet(5, width=4, seed=2)
    state = {}
    for side, factor in (("encoder_q", 1), ("encoder_k", 2)):
        state |= {f"module.{side}.{name}": factor * value for name, value in source.state_dict().items()}
    torch.save({"epoch": 3, "arch": "resnet18", "state_dict": state}, tmp_path / "moco.pt")
    kept = target.fc.weight.clone()
    with pytest.raises(InputError, match=r"fc.weight is \(3, 32\) in the file, \(5, 32\)"):
        load_weights(target, tmp_path / "moco.pt")
    loaded = load_weights(target, tmp_path / "moco.pt", partial=True)
    assert loaded.missing == ("fc.weight", "fc.bias")
    assert "module.encoder_k.conv1.weight" in loaded.unused
    assert same(source, target, but="fc")
    assert torch.equal(target.fc.weight, kept)


def timm_name(name):
    """torchvision's names in timm's words, written down the other way round."""
    fixed = {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj": "patch_embed.proj",
        "encoder.ln": "norm",
        "heads.head": "head",
    }
    for own, other in fixed.items():
        if name == own or name.startswith(own + "."):
            return name.replace(own, other)
    block, rest = re.fullmatch(r"encoder\.layers\.encoder_layer_(\d+)\.(.*)", name).groups()
    inner = {
        "ln_": "norm",
        "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
    }
    for own, other in inner.items():
        rest = rest.replace(own, other)
    return f"blocks.{block}.{rest}"


@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_vision_transformers_of_timm_and_dino(tmp_path, prefix):
    source, target = (ViT(3, width=12, depth=11, n_heads=2, seed=seed) for seed in (1, 2))
    state = {prefix + timm_name(name): value for name, value in source.state_dict().items()}
    assert prefix + "blocks.10.attn.qkv.weight" in state
    torch.save({"teacher": state, "epoch": 1}, tmp_path / "dino.pth")
    load_weights(target, tmp_path / "dino.pth")
    assert same(source, target)
    headless_state = {name: value for name, value in state.items() if "head" not in name}
    torch.save(headless_state, tmp_path / "backbone.pth")
    loaded = load_weights(ViT(3, width=12, depth=11, n_heads=2), tmp_path / "backbone.pth", partial=True)
    assert loaded.missing == ("heads.head.weight", "heads.head.bias")


def test_files_without_counts_of_batches_load(tmp_path):
    source, target = ResNet(3, width=4, seed=1), ResNet(3, width=4, seed=2)
    state = {name: value for name, value in source.state_dict().items() if "num_batches" not in name}
    save_file(state, tmp_path / "old.safetensors")
    assert not load_weights(target, tmp_path / "old.safetensors").missing


def test_nothing_changes_when_a_file_is_refused(tmp_path):
    target = nn.Linear(2, 2)
    kept = target.weight.clone()
    weight, bias = torch.zeros(2, 2), torch.zeros(2)
    cases = [
        ({"weight": weight}, False),
        ({"weight": weight, "bias": bias, "more": bias}, False),
        ({"other": bias}, True),
        ({}, True),
    ]
    for state, partial in cases:
        torch.save(state, tmp_path / "w.pt")
        with pytest.raises(InputError, match=r"w\.pt"):
            load_weights(target, tmp_path / "w.pt", partial)
    assert torch.equal(target.weight, kept)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr", "cfloat"])
def test_sparse_and_complex_weights_are_refused(kind: str, tmp_path: Path) -> None:
    weight = getattr(torch.eye(4), kind)()
    torch.save({"weight": weight, "bias": torch.zeros(4)}, tmp_path / "w.pt")
    model = torch.nn.Linear(4, 4)
    before = model.weight.clone()
    with pytest.raises(InputError, match="save the weights as dense real numbers"):
        load_weights(model, tmp_path / "w.pt")
    assert torch.equal(model.weight, before)
