"""A deployment for pictures says how to prepare them: scored, served and exported without saying it again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import offmap
from offmap.cli import app
from offmap.models.cnn import CNN
from offmap.openworld import Deployment, PictureSettings
from offmap.service.loading import DeploymentFiles
from offmap.service.settings import load_settings, with_pictures


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(map(str, words)))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Grey pictures of 16 pixels a side, and a deployment whose network reads 8."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    torch.manual_seed(0)
    network = offmap.Network(CNN(3, channels=1, width=4))
    acts = network.extract(rng.random((80, 1, 8, 8)).astype(np.float32), progress=False)
    detector = offmap.detector("energy").fit(acts[:40]).calibrate(acts[40:])
    Deployment(detector, network, pictures=PictureSettings(8, True, (0.5,), (0.25,))).save(tmp_path / "d.offmap")
    Deployment(detector, network).save(tmp_path / "silent.offmap")
    return tmp_path


def test_score_prepares_pictures_as_the_deployment_says(folder: Path) -> None:
    asked = ["--image-size", "8", "--gray", "--mean", "0.5", "--std", "0.25"]
    code, by_hand, error = run("score", folder / "silent.offmap", folder / "photos", "--json", *asked)
    assert code == 0, error
    code, found, error = run("score", folder / "d.offmap", folder / "photos", "--json")
    assert code == 0, error
    assert json.loads(found)["score"] == json.loads(by_hand)["score"]
    code, found, _ = run("score", folder / "d.offmap", folder / "photos", "--json", "--image-size", "8", "--gray")
    assert json.loads(found)["score"] != json.loads(by_hand)["score"]  # the options win


def test_pictures_of_the_wrong_shape_are_refused_in_one_line(folder: Path) -> None:
    code, _, error = run("score", folder / "silent.offmap", folder / "photos")
    assert code == 1
    assert "does not take inputs of shape (3, 16, 16)" in error
    assert "--gray" in error


def test_the_service_and_export_prepare_them_the_same_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = DeploymentFiles(folder / "d.offmap")
    settings = with_pictures(load_settings(), files.read_pictures())
    assert (settings.image_size, settings.gray, settings.mean, settings.std) == (8, True, (0.5,), (0.25,))
    assert with_pictures(load_settings(image_size=32), files.read_pictures()).gray is False
    assert with_pictures(load_settings(), DeploymentFiles(folder / "silent.offmap").read_pictures()).image_size is None
    monkeypatch.setenv("OFFMAP_IMAGE_SIZE", "32")
    assert with_pictures(load_settings(), files.read_pictures()).image_size == 32
    code, out, error = run("export", folder / "d.offmap", "--out", folder / "g.onnx", "--check", folder / "photos")
    assert code == 0, error
    assert "agree with Python's" in out
    code, out, error = run("export", folder / "d.offmap", "--out", folder / "noise.onnx")
    assert code == 0, error  # the deployment says how large its inputs are


@pytest.mark.parametrize("command", [["serve", "d.offmap"], ["bench", "digits"]])
def test_a_device_that_is_not_there_is_refused_at_once(command: list[str]) -> None:
    code, _, error = run(*command, "--device", "nowhere")
    assert code == 1
    assert "--device nowhere: no such device" in error


def test_a_network_moves_for_good() -> None:
    network = offmap.Network(torch.nn.Linear(3, 2))
    assert network.to("meta") is network
    assert network.backend.torch_model.weight.device.type == "meta"


def test_an_encoder_that_is_not_there_is_refused_before_anything_is_read() -> None:
    code, _, error = run("discover", "missing.csv", "--encoder", "nowhere")
    assert code == 1
    assert "--encoder nowhere: no such file or folder; the packaged encoders are minilm" in error
