"""Extraction: what loaders may give, folders that survive a crash, and folders that are refused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from extract_script import BATCHES, NEEDS, batches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from network_zoo import Tokens, conv_net, images
from torch.utils.data import DataLoader, TensorDataset

from offmap.activation_files import META
from offmap.activations import Activations
from offmap.errors import InputError, MissingError, StoreError
from offmap.extra_passes import Layer, Members, Passes, Requirements
from offmap.network import Network, writer
from offmap.network.writer import JOURNAL

LABELS = np.arange(10) % 5


def _same(a: Activations, b: Activations) -> None:
    np.testing.assert_array_equal(a.features, b.features)
    np.testing.assert_array_equal(a.logits, b.logits)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.extras.keys() == b.extras.keys()
    for name in a.extras:
        np.testing.assert_array_equal(a.extras[name], b.extras[name])


def _files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


class Counting(torch.nn.Module):
    """Counts its passes outside of what is put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.passes: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.append(len(x))
        return self.model(x)


def _loader(n: int = 10, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(images(n), torch.arange(n) % 5), batch_size=batch_size, **options)


def test_all_kinds_of_loaders_give_the_same() -> None:
    net = Network(conv_net())
    expected = net.extract(_loader())
    assert expected.labels is not None
    x = images()
    _same(net.extract(x, labels=LABELS, batch_size=4), expected)
    _same(net.extract(x.numpy(), labels=list(LABELS), batch_size=4), expected)
    _same(net.extract([(x[i : i + 4], LABELS[i : i + 4], "more") for i in (0, 4, 8)]), expected)
    _same(net.extract({"x": x[i : i + 4], "labels": LABELS[i : i + 4]} for i in (0, 4, 8)), expected)
    _same(net.extract([x[i : i + 4] for i in (0, 4, 8)], labels=LABELS), expected)
    whole = net(x)
    assert whole.labels is None
    np.testing.assert_allclose(whole.logits, expected.logits, rtol=1e-5, atol=1e-6)


def test_a_text_model_reads_mappings() -> None:
    torch.manual_seed(0)
    ids = torch.randint(1, 20, (6, 5))
    batches = [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(4)]
    net = Network(Tokens())
    acts = net.extract(batches)
    np.testing.assert_allclose(acts.features, net(ids).features, atol=1e-5)


@pytest.mark.parametrize(
    ("loader", "labels", "says"),
    [
        ([], None, "no inputs"),
        ("folder", None, "give a DataLoader"),
        ({"x": images()}, None, r"call net\(x\)"),
        ([{"x": 3}], None, "holds no array"),
        ([()], None, "empty tuple"),
        ([{"x": images(3), "y": images(4)}], None, r"\[3, 4\] rows"),
        ([(images(3), [0, 1])], None, "one label per input"),
        ([(images(3), [[0], [1], [2]])], None, "one whole number per input"),
        ([(images(3), [0.5, 1, 2])], None, "one whole number per input"),
        ([(images(3), [0, 1, 2]), images(3)], None, "some without"),
        (images(10), [0, 1], "one label per input"),
        (images(10), [0] * 11, "11 labels for 10 inputs"),
    ],
)
def test_loaders_that_cannot_be_read_are_refused(loader: Any, labels: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Network(conv_net()).extract(loader, labels=labels, batch_size=4)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    net = Network(conv_net())
    with pytest.raises(InputError, match="float32"):
        net.extract(images(), dtype="float64")
    with pytest.raises(InputError, match="at least one input"):
        net.extract(images(), batch_size=0)
    with pytest.raises(MissingError, match=r"net\.extract\(loader, labels=y"):
        net.extract(images(), requirements=Requirements(labels=True), to=tmp_path / "a")
    with pytest.raises(InputError, match="beyond 65504"):
        net.extract(images() * 1e9, dtype="float16")
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_folder_holds_what_memory_would(tmp_path: Path, dtype: str) -> None:
    net = Network(conv_net())
    mapped = net.extract(_loader(), NEEDS, to=tmp_path / "a", dtype=dtype)
    assert isinstance(mapped.features, np.memmap)
    assert mapped.features.dtype == dtype
    _same(mapped, net.extract(_loader(), NEEDS, dtype=dtype))
    assert mapped.head is not None
    np.testing.assert_array_equal(mapped.head.weight, net.head.weight)
    _same(Activations.open(tmp_path / "a"), mapped)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_interrupted_anywhere_any_number_of_times_it_ends_in_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("resume")
    parts = [(images(size, seed=i), torch.arange(size) % 5) for i, size in enumerate(sizes)]
    whole = Network(conv_net()).extract(parts, NEEDS, to=root / "whole")
    counting = Counting(conv_net())
    net = Network(counting)
    requirements = Requirements(extras=(Passes(2), Layer("model.block", "mean")))
    stops = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=3).map(sorted))
    for stop in stops:
        with pytest.raises(ConnectionError):
            net.extract(_until(parts, stop), requirements, to=root / "cut")
    finished = net.extract(parts, requirements, to=root / "cut")
    np.testing.assert_array_equal(finished.features, whole.features)
    np.testing.assert_array_equal(finished.extras["passes(2,0)/logits"], whole.extras["passes(2,0)/logits"])
    assert len(counting.passes) == 3 * len(sizes) + 1  # the plain pass and two more each, and once the probe
    for name in ("features.npy", "logits.npy", "labels.npy"):
        assert (root / "cut" / name).read_bytes() == (root / "whole" / name).read_bytes()


def _until(parts: list[Any], stop: int) -> Iterator[Any]:
    yield from parts[:stop]
    raise ConnectionError("the network drive is gone")


@pytest.mark.parametrize("after", [3, 8])
def test_a_killed_process_is_resumed_to_identical_bytes(tmp_path: Path, after: int) -> None:
    script = Path(__file__).with_name("extract_script.py")
    command = [sys.executable, str(script), str(tmp_path / "killed"), "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == f"batch {after}":
                os.kill(process.pid, signal.SIGKILL)
                break
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / META).exists()
    kept = len((tmp_path / "killed" / JOURNAL).read_bytes().splitlines()) - 1
    assert after - 1 <= kept <= after
    with pytest.raises(StoreError, match="resumed by running it again"):
        Activations.open(tmp_path / "killed")
    torch.set_num_threads(1)
    Network(conv_net()).extract(batches(), NEEDS, to=tmp_path / "killed")
    Network(conv_net()).extract(batches(), NEEDS, to=tmp_path / "whole")
    assert _files(tmp_path / "killed") == _files(tmp_path / "whole")
    assert len(Activations.open(tmp_path / "killed")) == 7 * BATCHES


def test_a_torn_write_is_cut_off(tmp_path: Path) -> None:
    net = Network(conv_net())
    whole = net.extract(_loader(), to=tmp_path / "whole")
    with pytest.raises(ConnectionError):
        net.extract(_until(list(_loader()), 2), to=tmp_path / "torn")
    with (tmp_path / "torn" / "features.npy").open("ab") as file:
        file.write(b"half a row")
    last = (tmp_path / "torn" / JOURNAL).read_bytes().splitlines(keepends=True)[-1]
    with (tmp_path / "torn" / JOURNAL).open("ab") as file:
        file.write(last + b'01234567 {"rows": 4, "inp')
    _same(net.extract(_loader(), to=tmp_path / "torn"), whole)
    assert _files(tmp_path / "torn") == _files(tmp_path / "whole")


def test_killed_after_the_last_batch_only_the_end_is_written(tmp_path: Path) -> None:
    Network(conv_net()).extract(_loader(), to=tmp_path / "a")
    before = _files(tmp_path / "a")
    (tmp_path / "a" / META).unlink()
    (tmp_path / "a" / "head.offmap").unlink()
    Network(conv_net()).extract(_loader(), to=tmp_path / "a")
    assert _files(tmp_path / "a") == before


def test_a_finished_folder_is_reused_without_running_the_network(tmp_path: Path) -> None:
    model = Counting(conv_net())
    first = Network(model).extract(_loader(), to=tmp_path / "a")
    model.passes.clear()
    _same(Network(model).extract(_loader(), to=tmp_path / "a"), first)
    assert model.passes == []


def _changed() -> DataLoader[Any]:
    x = images()
    x[9, 0, 0, 0] += 1e-6
    return DataLoader(TensorDataset(x, torch.arange(10) % 5), batch_size=4)


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (_loader(shuffle=True, generator=torch.Generator().manual_seed(1)), "batch 0 is not the one"),
        (_loader(batch_size=5), "batch 0 is not the one"),
        (_changed(), "batch 2 is not the one"),
        (_loader(8), "gives 2"),
    ],
)
def test_other_data_are_refused(tmp_path: Path, loader: Any, says: str, finished: bool) -> None:
    net = Network(conv_net())
    net.extract(_loader(), to=tmp_path / "a")
    if not finished:
        (tmp_path / "a" / META).unlink()
    with pytest.raises(StoreError, match=says):
        net.extract(loader, to=tmp_path / "a")


def test_other_networks_layers_types_and_needs_are_refused(tmp_path: Path) -> None:
    model = conv_net()
    Network(model).extract(_loader(), Requirements(extras=(Layer("stem"), Layer("block"))), to=tmp_path / "a")
    Network(model).extract(_loader(), Requirements(extras=(Layer("block"),)), to=tmp_path / "a")
    for net, options, says in (
        (Network(conv_net(1)), {}, "another network"),
        (Network(model, ensemble=[conv_net(1)]), {}, "another network"),
        (Network(model, layer="block"), {}, "layer=None, now 'block'"),
        (Network(model), {"dtype": "float16"}, "dtype='float32', now 'float16'"),
        (Network(model), {"requirements": Requirements(extras=(Passes(2),))}, "all needs united"),
    ):
        with pytest.raises(StoreError, match=says):
            net.extract(_loader(), to=tmp_path / "a", **options)
    Network(model).extract(_loader(8), to=tmp_path / "eight")
    with pytest.raises(StoreError, match="the loader gives more"):
        Network(model).extract(_loader(12), to=tmp_path / "eight")


def test_damage_is_noticed(tmp_path: Path) -> None:
    net = Network(conv_net())
    harms: list[tuple[str, Callable[[bytes], bytes], str]] = [
        ("features.npy", lambda b: b[:300] + bytes([b[300] ^ 1]) + b[301:], "batch 0 are damaged"),
        ("logits.npy", lambda b: b[:-5], "shorter than the journal"),
        (JOURNAL, lambda b: b[:-5], "damaged"),
        (JOURNAL, lambda b: b"", "damaged"),
    ]
    for i, (name, harm, says) in enumerate(harms):
        path = tmp_path / str(i)
        net.extract(_loader(), to=path)
        file = path / name
        file.write_bytes(harm(file.read_bytes()))
        with pytest.raises(StoreError, match=says):
            net.extract(_loader(), to=path)


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    net = Network(conv_net())
    net(images()).save(tmp_path / "saved")
    with pytest.raises(StoreError, match="already holds activations"):
        net.extract(_loader(), to=tmp_path / "saved")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "features.npy").write_text("precious")
    with pytest.raises(StoreError, match="is in the way"):
        net.extract(_loader(), to=tmp_path / "mine")
    assert (tmp_path / "mine" / "features.npy").read_text() == "precious"


def test_two_extractions_into_one_folder_are_kept_apart(tmp_path: Path) -> None:
    net, other = Network(conv_net()), Network(conv_net())

    def nested() -> Iterator[torch.Tensor]:
        yield images()
        with pytest.raises(StoreError, match="another process"):
            other.extract([images()], to=tmp_path / "a")

    assert len(net.extract(nested(), to=tmp_path / "a")) == 10


def test_a_disk_without_room_is_said_and_the_run_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    torch.manual_seed(0)
    net = Network(torch.nn.Linear(64, 3))
    x = torch.randn(20, 64)
    net.extract(x, batch_size=4, to=tmp_path / "whole")
    monkeypatch.setattr(writer, "_COMMIT_BYTES", 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 + 2 * 4 * 64 * 4 + 100, before[1]))  # room for two batches
    try:
        with pytest.raises(StoreError, match=r"File too large.*run it again"):
            net.extract(x, batch_size=4, to=tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len((tmp_path / "full" / JOURNAL).read_bytes().splitlines()) == 1 + 2
    net.extract(x, batch_size=4, to=tmp_path / "full")
    assert _files(tmp_path / "full") == _files(tmp_path / "whole")


def test_memory_is_bounded_when_writing_to_a_folder(tmp_path: Path) -> None:
    import tracemalloc

    def many() -> Iterator[torch.Tensor]:
        for seed in range(200):
            yield torch.full((500, 64), float(seed))

    net = Network(torch.nn.Linear(64, 10))
    tracemalloc.start()
    acts = net.extract(many(), to=tmp_path / "big")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert acts.features.nbytes > 20 * 2**20
    assert peak < 5 * 2**20


def test_extras_named_with_any_characters_are_found_again(tmp_path: Path) -> None:
    net = Network(conv_net(), ensemble=[conv_net(1)])
    acts = net.extract(_loader(), Requirements(extras=(Members(), Layer("stem.0", "gram", 2))), to=tmp_path / "a")
    assert acts.extras["members/logits"].shape == (10, 2, 5)
    assert acts.extras["layer(stem.0,gram,2)"].shape == (10, 2, 6)


def test_progress_is_shown_on_a_terminal_only(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Network(conv_net())
    net.extract(_loader(), progress=True)
    assert capfd.readouterr() == ("", "")
    screen, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        net.extract(_loader(), progress=False)
        net.extract(_loader())
        monkeypatch.undo()
    shown = b""
    with contextlib.suppress(OSError):  # how the end of what was written to a terminal is told
        while part := os.read(screen, 10_000):
            shown += part
    os.close(screen)
    assert b"extracting" in shown
    assert b"3/3" in shown
