"""A network with learned classes is a network like any other: loaders, labels, folders, mappings of arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from offmap.activations import Head
from offmap.errors import InputError, StoreError
from offmap.extra_passes import Layer, Requirements
from offmap.network import Network
from offmap.openworld.extended_network import ClassifierUpdate, ExtendedNetwork


def _base() -> Network:
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval())


def _extended(base: Network, seed: int = 0) -> ExtendedNetwork:
    rng = np.random.default_rng(seed)
    return ExtendedNetwork(ClassifierUpdate(("a", "b", "c", "d"), Head(rng.normal(size=(4, 6)), np.arange(4.0))), base)


def test_logits_are_the_new_head_on_the_old_features() -> None:
    base = _base()
    net, x = _extended(base), torch.randn(10, 4)
    features, head = base(x).features, net.update.head
    assert head is not None
    acts = net(x)
    np.testing.assert_array_equal(acts.features, features)
    np.testing.assert_allclose(acts.logits, features @ head.weight.T + head.bias, rtol=1e-5)
    assert net.head is head
    assert net.model is base.model
    assert net.layers() == base.layers()


def test_loaders_labels_extras_and_folders(tmp_path: Path) -> None:
    net, x, y = _extended(_base()), torch.randn(9, 4), torch.arange(9) % 4
    asked = Requirements(extras=(Layer("1", "mean"),))
    whole = net.extract([(x[:5], y[:5]), (x[5:], y[5:])], asked)
    assert whole.n_classes == 4
    np.testing.assert_array_equal(whole.labels, y.numpy())
    assert whole.extras[asked.extras[0].key].shape == (9, 6)
    mapped = net.extract(x, asked, to=tmp_path / "acts", labels=y, batch_size=5)
    np.testing.assert_array_equal(mapped.logits, whole.logits)
    assert _extended(_base()).fingerprint() == net.fingerprint() != _extended(_base(), seed=1).fingerprint()
    with pytest.raises(StoreError, match="of another network"):
        _extended(_base(), seed=1).extract(x, asked, to=tmp_path / "acts", labels=y, batch_size=5)


def test_a_backend_has_its_own_layer() -> None:
    with pytest.raises(InputError, match="a layer and an ensemble of its own"):
        Network(_base().backend, layer="0")
    assert Network(_base().backend)(torch.zeros(2, 4)).n_classes == 3
