"""`offmap export` as scripts use it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from deploy_kit import metadata, run
from typer.testing import CliRunner

from offmap.cli import app
from offmap.data import scale_images

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
"""


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A model by import path with a calibrated guard beside it."""
    monkeypatch.chdir(tmp_path)
    name = f"exported_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for part in ("known", "held"):
        np.savez(f"{part}.npz", images=rng.integers(0, 256, (60, 4, 4, 3), dtype=np.uint8))
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    model = f"{name}:make"
    code, _, error = call(
        "fit", "known.npz", "react(90)|energy", "--out", "guard.offmap", "--calibrate", "held.npz", "--model", model
    )
    assert code == 0, error
    return tmp_path, model


def test_from_a_model_to_a_file(folder: tuple[Path, str]) -> None:
    path, model = folder
    words = ["export", model, "guard.offmap", "-o", "g.onnx", "--check", "held.npz", "--classes", "names.txt", "--json"]
    code, out, error = call(*words)
    assert code == 0, error
    said = json.loads(out)
    assert said["graph"] == "g.onnx"
    assert said["checked"] == 1 + 60 + 32
    assert said["difference"] <= 1e-4
    assert json.loads(metadata(path / "g.onnx")["offmap.classes"]) == ["ant", "bee", "cat"]
    x = scale_images(np.load("held.npz")["images"])
    assert run(path / "g.onnx", x)["known"].mean() >= 0.9  # what it was calibrated on


@pytest.mark.slow
def test_the_shape_is_enough_and_words_are_for_people(folder: tuple[Path, str]) -> None:
    _, model = folder
    code, out, _ = call("export", model, "guard.offmap", "-o", "g.onnx", "--shape", "3,4,4")
    assert code == 0
    assert out.startswith("g.onnx: react(90)|energy behind the model, accepting 95% of known inputs")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--shape", "3,x"], "sizes of one input"),
        ([], "the shape of the model's inputs is not known"),
        (["--shape", "3,4,4", "--weights", "none.safetensors"], "none.safetensors"),
        (["--check", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_refusals_are_one_line(folder: tuple[Path, str], words: list[str], reason: str) -> None:
    path, model = folder
    code, _, error = call("export", model, "guard.offmap", "-o", "g.onnx", *words)
    assert code == 1
    assert error.count("\n") == 1
    assert reason in error
    assert not (path / "g.onnx").exists()
