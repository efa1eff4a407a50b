"""The toys run at any size, keep what is done, and do not mix results of several sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import kept
import toy
from offmap.models.encoders import remove_last_layer
from offmap.models.resnet import ResNet
from thesis.small_maps import SmallMapConv2d, speed_up


def test_what_is_done_is_kept_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, size = tmp_path / "toy.json", toy.Size(per_type=6, epochs=1, pixels=8, batch_size=10, projection=8)
    first = dict(list(toy.RUNS.items())[:3])
    monkeypatch.setattr(toy, "RUNS", {**first, ("sorl", "cubes labelled"): stopped})
    with pytest.raises(KeyboardInterrupt):
        toy.run_all(size, 1, ["SimSiam's"], file, tmp_path / "work")
    half = json.loads(file.read_text())
    assert list(half["seeds"]["0"]["SimSiam's"]["sorl"]) == ["no labels"]
    monkeypatch.undo()
    asked = []
    monkeypatch.setattr(toy.Size, "learn", noted(toy.Size.learn, asked))
    toy.run_all(size, 1, ["SimSiam's"], file, tmp_path / "work")
    whole = json.loads(file.read_text())
    assert asked == ["0-0-sorl-cubes-labelled"], "only what was missing is learned"
    assert whole["seeds"]["0"]["SimSiam's"]["nscl"] == half["seeds"]["0"]["SimSiam's"]["nscl"]
    with pytest.raises(SystemExit, match="another size"):
        toy.run_all(toy.THESIS, 1, ["SimSiam's"], file, tmp_path / "work")


def stopped(*given: object) -> tuple[dict[str, float], toy.Points]:
    raise KeyboardInterrupt


def noted(learn, asked):
    def call(self, data, seed, views, out, **given):
        asked.append(out.name)
        return learn(self, data, seed, views, out, **given)

    return call


def test_the_thesis_size_is_what_the_thesis_says() -> None:
    size = toy.THESIS
    assert (size.per_type, size.epochs, size.network, size.learning_rate, size.schedule) == (
        2500, 40, "resnet18", 0.005, "constant",
    )  # fmt: skip
    committed = kept.read(toy.HERE / "results" / "toy.json")
    assert committed["setting"]["per_type"] == toy.Size().per_type


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (4, 2), (8, 1)])
@pytest.mark.parametrize("size", [1, 3])
def test_small_maps_are_convolved_as_torch_does(side: int, stride: int, size: int) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(5, 7, size, stride, padding=size // 2, bias=False).double()
    fast = SmallMapConv2d(5, 7, size, stride, padding=size // 2, bias=False).double()
    fast.load_state_dict(plain.state_dict())
    pair = [torch.randn(3, 5, side, side, dtype=torch.float64).requires_grad_() for _ in range(2)]
    pair[1].data.copy_(pair[0].data)
    outs = [layer(inputs) for layer, inputs in zip((plain, fast), pair, strict=True)]
    torch.testing.assert_close(outs[1], outs[0])
    weights = torch.randn_like(outs[0])
    for out in outs:
        (out * weights).sum().backward()
    torch.testing.assert_close(pair[1].grad, pair[0].grad)
    torch.testing.assert_close(fast.weight.grad, plain.weight.grad)


def test_the_faster_network_is_the_same_network() -> None:
    plain, fast = (remove_last_layer(ResNet(1, depth=18, stem="imagenet", width=8, seed=0))[0].eval() for _ in range(2))
    speed_up(fast)
    assert sum(isinstance(part, SmallMapConv2d) for part in fast.modules()) == 20
    pictures = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fast(pictures), plain(pictures), rtol=1e-4, atol=1e-5)
    assert list(fast.state_dict()) == list(plain.state_dict())


def test_a_killed_run_at_the_thesis_network_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    options = ["--thesis-size", "--per-type", "4", "--epochs", "3", "--workers", "2"]
    file, work = tmp_path / "killed.json", tmp_path / "killed"
    command = [sys.executable, str(toy.HERE / "toy.py"), *options, "--out", str(file), "--work", str(work)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=threads)
    while not any(place.is_file() for place in work.rglob("*")) and killed.poll() is None:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL, "it was stopped on its way"
    size = replace(toy.THESIS, per_type=4, epochs=3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        toy.run_all(size, 1, ["SimSiam's"], file, work)
        toy.run_all(size, 1, ["SimSiam's"], tmp_path / "whole.json", tmp_path / "whole")
    finally:
        torch.set_num_threads(before)
    whole = kept.read(tmp_path / "whole.json")
    assert [len(runs) for runs in whole["seeds"]["0"]["SimSiam's"].values()] == [2, 2]
    assert kept.read(file) == whole
