"""Activations are found again by content: changed weights, inputs or passes never meet an old folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from offmap.bench.cache import Extractor, hold_out
from offmap.bench.networks import BenchNetwork, make_network
from offmap.bench.sets import LoadedSet, StoredFeatures, checksum_files, load_set
from offmap.bench.suites import NetworkSpec, SetSpec, load_suite
from offmap.data import Samples
from offmap.data.idx import read_idx
from offmap.errors import InputError
from offmap.extra_passes import Layer
from offmap.network import Network


class Counted(torch.nn.Module):
    """A classifier that counts the inputs it was shown."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.body, self.fc = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.fc(torch.relu(self.body(x)))


def inputs(seed: int = 0) -> LoadedSet:
    values = np.random.default_rng(seed).normal(size=(20, 4)).astype(np.float32)
    return LoadedSet("some", Samples({"inputs": values, "labels": np.arange(20) % 3}))


def extractor(folder: Path, model: torch.nn.Module | None = None) -> Extractor:
    return Extractor(BenchNetwork("net", Network(model or Counted())), folder, batch_size=8)


def test_a_second_run_finds_the_first(tmp_path):
    model = Counted()
    first = extractor(tmp_path, model).extract_plain(inputs())
    shown = model.seen
    again = extractor(tmp_path, model).extract_plain(inputs())
    assert model.seen == shown
    np.testing.assert_array_equal(first.features, again.features)


def test_changed_weights_inputs_or_passes_are_run_anew(tmp_path):
    model = Counted()
    made = extractor(tmp_path, model)
    made.extract_plain(inputs())
    old = {folder.name for folder in tmp_path.iterdir()}
    with torch.no_grad():
        model.body.weight[0, 0] += 1e-3
    changed = extractor(tmp_path, model).extract_plain(inputs())
    np.testing.assert_allclose(changed.logits, model(torch.from_numpy(inputs().samples.inputs)).detach(), atol=1e-6)
    made.extract_plain(inputs(seed=1))
    acts = made.extract_passes(inputs(), (Layer("body"),))
    assert acts.extras.keys() == {"layer(body,mean)"}
    assert len({folder.name for folder in tmp_path.iterdir()} - old) == 3


def stored(folder: Path, model: torch.nn.Module) -> tuple[LoadedSet, Path]:
    """A set whose features stand in a file beside the weights' file."""
    weights, file, pictures = folder / "w.bin", folder / "f.npz", folder / "x.bin"
    weights.write_bytes(b"weights")
    pictures.write_bytes(b"pictures")
    given = inputs()
    features = extractor(folder / "other", model).extract_plain(given).features
    np.savez(file, features=features.astype(np.float16))
    content = checksum_files((weights, pictures, file))
    return LoadedSet("some", given.samples, StoredFeatures(file, (pictures,), content, np.arange(20))), weights


def test_stored_features_serve_only_what_they_were_made_from(tmp_path):
    model = Counted()
    given, weights = stored(tmp_path, model)
    made = Extractor(BenchNetwork("net", Network(model), weights), tmp_path / "c", batch_size=8)
    made.extract_plain(given)
    assert made.log["some"]["from"].startswith("stored")
    (tmp_path / "x.bin").write_bytes(b"other pictures")
    made.extract_plain(given)
    assert made.log["some"]["from"] == "the network"
    (tmp_path / "x.bin").write_bytes(b"pictures")
    weights.write_bytes(b"other weights")
    made.extract_plain(given)
    assert made.log["some"]["from"] == "the network"


def test_stored_features_that_the_network_does_not_say_are_refused(tmp_path):
    model = Counted()
    given, weights = stored(tmp_path, model)
    with torch.no_grad():
        model.body.bias += 1
    made = Extractor(BenchNetwork("net", Network(model), weights), tmp_path / "c", batch_size=8)
    with pytest.raises(InputError, match="differ by"):
        made.extract_plain(given)


def test_parts_lie_within_each_other():
    whole = inputs()
    small, large = whole.part(5), whole.part(12)
    rows = {row.tobytes() for row in large.samples.inputs}
    assert {row.tobytes() for row in small.samples.inputs} <= rows
    assert len(whole.part(None)) == len(whole.part(99)) == 20


def test_held_out_inputs_are_in_neither_part_twice(tmp_path):
    known = extractor(tmp_path).extract_plain(inputs())
    rest, held = hold_out(known, 6)
    both = np.concatenate([rest.features, held.features])
    assert len(rest) == 14
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(known.features, axis=0))


def test_a_trained_network_is_kept_by_data_and_options(tmp_path):
    suite = load_suite("digits")
    assert suite.train is not None
    train = load_set(suite.train, None).part(60)
    spec = NetworkSpec("cnn", "cnn", {"width": 4, "epochs": 1})
    first = make_network(spec, train, None, tmp_path).net.fingerprint()
    assert make_network(spec, train, None, tmp_path).net.fingerprint() == first
    assert len(list(tmp_path.glob("weights-*"))) == 1
    other = make_network(NetworkSpec("cnn", "cnn", {"width": 4, "epochs": 1, "seed": 1}), train, None, tmp_path)
    assert other.net.fingerprint() != first
    make_network(spec, train.part(50), None, tmp_path)
    assert len(list(tmp_path.glob("weights-*"))) == 3


def extractor_of(network: BenchNetwork, folder: Path) -> Extractor:
    return Extractor(network, folder, batch_size=64)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "must say where it is"),
        ({"path": "nowhere.npz"}, "no such file"),
        ({"digits": "some"}, "'train', 'val'"),
        ({"noise": "pink"}, "'gaussian' or 'uniform'"),
        ({"path": "a", "noise": "uniform"}, "must say where it is"),
    ],
)
def test_a_wrong_set_is_refused_by_name(source, words):
    with pytest.raises(InputError, match=words):
        load_set(SetSpec("some", source), None)


def test_idx_files_are_checked(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4]))
    np.testing.assert_array_equal(read_idx(file), [[1, 2], [3, 4]])
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="truncated"):
        read_idx(file)
    file.write_bytes(b"PNG")
    with pytest.raises(InputError, match="IDX"):
        read_idx(file)
