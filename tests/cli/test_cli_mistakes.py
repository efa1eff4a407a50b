"""The mistakes that new users make: each is answered in one line that names the value and the way out, before work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import offmap
from offmap.cli import app
from offmap.data import image_folder

rng = np.random.default_rng(0)


def run(*words) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """Activations, pictures, texts, an ONNX file of a fixed size and a guard."""
    folder = tmp_path_factory.mktemp("material")
    labels = np.arange(120) % 3
    rows = (rng.normal(size=(120, 6)) + 4 * np.eye(3, 6)[labels]).astype(np.float32)
    offmap.Activations(rows, offmap.Head(np.eye(3, 6)), labels=labels).save(folder / "known")
    offmap.Activations(rows[:, ::-1].copy(), offmap.Head(np.eye(3, 6))).save(folder / "far")
    run("fit", folder / "known", "energy", "--calibrate", folder / "known", "--out", folder / "guard.offmap")
    for name in ("ant", "bee"):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(
                folder / "pictures" / name / f"{i}.png"
            )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    shapes = ({0: "batch"},)
    torch.onnx.export(model.eval(), (torch.zeros(2, 3, 4, 4),), folder / "m.onnx", dynamo=True, verbose=False,
                      input_names=["images"], dynamic_shapes=shapes)  # fmt: skip
    (folder / "texts.csv").write_text("message,intent\nhello,greet\nbye,leave\n")
    (folder / "broken.offmap").write_bytes((folder / "guard.offmap").read_bytes()[:200])
    np.savez(folder / "raw.npz", inputs=np.zeros((4, 3, 4, 4), np.float32))
    (folder / "unreadable").mkdir()
    (folder / "unreadable" / "0.png").write_bytes(b"no picture")
    return folder


MISTAKES = {
    "wrong path": (["fit", "nowhere", "msp", "--out", "g.offmap"], "nowhere: there is no such file or folder"),
    "wrong method": (["fit", "known", "mahalanobs", "--out", "g.offmap"], "did you mean mahalanobis"),
    "wrong column": (
        ["guard", "--texts", "texts.csv", "--text-column", "mesage", "--out", "g"],
        "texts.csv has no such column; there are 'message', 'intent'",
    ),
    "wrong size": (
        ["extract", "pictures", "--model", "m.onnx", "--to", "acts"],
        "'images' has the shape 3 × 4 × 4 in the graph, but 3 × 9 × 9 was given; bring pictures to its size with "
        "--image-size",
    ),
    "weights for a model": (
        ["extract", "pictures", "--model", "net.pth", "--to", "acts"],
        "'net.pth': such a file holds weights, and never a network; name a model as package.module:factory, or an "
        ".onnx file. With a function build() in my_model.py that makes the network: --model my_model:build "
        "--weights net.pth",
    ),
    "inputs without a network": (
        ["fit", "raw.npz", "--out", "g.offmap"],
        "there are no features here, only inputs; name an array 'features', or run a network over the inputs: --model",
    ),
    "no labels": (["fit", "far", "mahalanobis", "--out", "g.offmap"], "mahalanobis needs labels"),
    "no network": (["discover", "pictures"], "or name the network for pictures: --model file.onnx"),
    "no such class": (
        ["discover", "known", "--unknown", "blue"],
        "--unknown blue: there is no such class; the labels are numbers, -1 where unknown",
    ),
    "no folder": (["fit", "known", "msp", "--out", "nowhere/g.offmap"], "there is no folder nowhere; make it first"),
    "a folder for a file": (
        ["fit", "known", "msp", "--out", "pictures"],
        "pictures: a folder; give the name of a file",
    ),
    "a file for a folder": (
        ["guard", "--known", "known", "--out", "texts.csv"],
        "texts.csv: texts.csv is a file; a folder is needed here",
    ),
    "other activations there": (
        ["extract", "pictures", "--model", "m.onnx", "--image-size", "4", "--to", "known"],
        "choose another folder",
    ),
    "no such ending": (["score", "guard.offmap", "known", "--out", "s.xlsx"], "s.xlsx: the ending says how to write"),
    "no GPU": (
        ["extract", "pictures", "--model", "m.onnx", "--to", "acts", "--device", "cuda"],
        "--device cuda: this machine offers no cuda; leave it out to run on the CPU",
    ),
    "damaged guard": (["score", "broken.offmap", "known"], "not a file that offmap wrote, or it is damaged"),
    "no guard at all": (["score", "texts.csv", "known"], "not a file that offmap wrote"),
    "the graph for the guard": (["score", "m.onnx", "known"], "m.onnx: an ONNX graph; give the file of offmap"),
    "the folder for the guard": (["score", ".", "known"], ".: a folder; give the file inside, broken.offmap"),
    "a file for a module": (
        ["extract", "pictures", "--model", "nets/net.py:build", "--to", "acts"],
        "nets/net.py:build: a module is named without .py, and dots stand for folders: nets.net:build",
    ),
    "means of 0 to 255": (
        ["extract", "pictures", "--model", "m.onnx", "--to", "acts", "--mean", "123.7,116.3,103.5"],
        "--mean 123.7,116.3,103.5: pixels are read in [0, 1], so divide mean and std by 255",
    ),
    "damaged picture": (
        ["extract", "unreadable", "--model", "m.onnx", "--image-size", "4", "--to", "acts"],
        "leave such files out: --skip-unreadable",
    ),
    "one name twice": (
        ["compare", "msp", "--known", "known", "--id-test", "known", "--ood", "far", "--ood", "far"],
        "--ood far: every set needs a name of its own, as in --ood svhn=far",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line(material, monkeypatch, mistake):
    monkeypatch.chdir(material)
    words, answer = MISTAKES[mistake]
    if "cuda" in words and torch.cuda.is_available():
        words = ["nowhere" if word == "cuda" else word for word in words]
        answer = "no such device"
    code, out, error = run(*words)
    assert code == 1, out
    assert answer in error
    assert error.startswith("offmap: ")
    assert error.count("\n") == 1


def test_a_set_of_unknown_inputs_is_named_by_its_file(material, monkeypatch):
    monkeypatch.chdir(material)
    code, out, _ = run("compare", "msp", "--known", "known", "--id-test", "known", "--ood", "far", "--ood", "b=far")
    assert code == 0
    assert {"far", "b"} <= set(out.split())


def test_warnings_are_one_line_without_our_source(material, monkeypatch):
    monkeypatch.chdir(material)
    done = subprocess.run(
        [sys.executable, "-m", "offmap", "fit", "known", "knn(3)", "--calibrate", "known", "--out", "g.offmap"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "fitted on" in line]
    assert len(lines) == 1
    assert lines[0].startswith("offmap: warning: ")
    assert ".py:" not in done.stderr


def test_several_folders_are_scored_together(material):
    found = image_folder([material / "pictures" / "ant", material / "pictures" / "bee" / "0.png"])
    assert [file.name for file in found.files] == ["0.png", "1.png", "2.png", "0.png"]


def test_names_as_labels_say_how_to_number_them():
    names = np.array(["cat", "dog"] * 20)
    with pytest.raises(offmap.errors.InputError, match="return_inverse=True"):
        offmap.Activations(rng.normal(size=(40, 3)), labels=names)
    assert offmap.detector("mahalanobis").fit(rng.normal(size=(40, 3)), names).is_fitted
