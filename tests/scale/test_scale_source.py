"""A shard of raw inputs becomes activations by running the network, and readings merge without any engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import offmap
from offmap import store
from offmap.activations import Activations, Head
from offmap.errors import StoreError
from offmap.scale import Source, readings

FACTORY = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
"""


def test_a_network_runs_over_raw_inputs(tmp_path, monkeypatch):
    (tmp_path / "scale_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    inputs = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    np.save(tmp_path / "shard.npy", inputs)
    source = Source(model="scale_factory:make", batch_size=7)
    found = source.activations(str(tmp_path / "shard.npy"), offmap.detector("energy").requirements)
    import scale_factory

    expected = scale_factory.make()(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(found.logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "spec",
    [
        "react(90)|energy",
        "react(90)|knn(5)",
        "knn(5, alpha=0.5)",
        "dice(0.7)|energy",
        "react(90)|energy + 0.5*knn(5)",
        "fisher(react(90)|react(80)|knn(5) + msp)",
    ],
)
def test_readings_of_shards_give_the_bits_of_one(tmp_path, spec):
    rng = np.random.default_rng(1)
    head = Head(rng.normal(size=(4, 10)))
    known = Activations(np.maximum(rng.normal(size=(400, 10)), 0) + 0.01, head=head, labels=rng.integers(4, size=400))
    shards = [known[:150], known[150:160], known[160:]]

    def read_all(start, requirements):
        return [readings.read(readings.unpack(start), shard) for shard in shards]

    whole = readings.fit(spec, read_all)
    whole.save(tmp_path / "shards")
    offmap.detector(spec).fit(known).save(tmp_path / "one")
    one, many = (store.load(tmp_path / name).tensors for name in ("one", "shards"))
    assert one.keys() == many.keys()
    for name in one:
        np.testing.assert_allclose(many[name], one[name], rtol=1e-6, atol=0 if "dice" not in spec else 1e-6)


def test_a_name_too_long_for_a_file_is_named():
    with pytest.raises(StoreError, match="too long"):
        readings.names(["a" * 250])
