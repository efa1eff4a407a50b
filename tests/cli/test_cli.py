"""The command line as scripts use it: files in, files and JSON out, exit codes, one-line errors."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import offmap
from offmap.cli import app

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )

instance = make()
needs_argument = lambda n: None
number = 3
"""


@pytest.fixture
def run():
    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)

    return call


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model by import path, pictures of two classes, and features with a head."""
    monkeypatch.chdir(tmp_path)
    name = f"model_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for label in ("ant", "bee"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(5):
            image = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / "pictures" / label / f"{i}.png")
    weight = rng.normal(size=(3, 8)).astype(np.float32)
    labels = np.arange(300) % 3
    features = np.abs(rng.normal(size=(300, 8)) + 3 * weight[labels]).astype(np.float32)
    for part, rows in {"known": slice(0, 100), "val": slice(100, 200), "test": slice(200, 300)}.items():
        np.savez(tmp_path / f"{part}.npz", features=features[rows], labels=labels[rows])
    np.savez(tmp_path / "far.npz", features=rng.exponential(0.3, size=(80, 8)).astype(np.float32))
    np.savez(tmp_path / "head.npz", weight=weight)
    return tmp_path, f"{name}:make"


def test_extract_pictures_then_fit_score_and_compare(run, folder):
    path, model = folder
    result = run(
        "extract", "pictures", "--model", model, "--to", "acts", "--mean", ".5,.5,.5", "--std", ".25", "--json"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "to": "acts",
        "inputs": 10,
        "features": 16,
        "classes": 3,
        "labels": True,
        "accuracy": 0.3,
    }
    acts = offmap.Activations.open(path / "acts")
    assert acts.labels is not None
    assert acts.labels.tolist() == [0] * 5 + [1] * 5

    sys.path.insert(0, str(path))
    try:
        module = __import__(model.split(":")[0])
    finally:
        sys.path.remove(str(path))
    first = np.asarray(Image.open(path / "pictures" / "ant" / "0.png")).transpose(2, 0, 1)[None] / 255
    expected = module.make()(torch.tensor((first - 0.5) / 0.25, dtype=torch.float32))
    np.testing.assert_allclose(acts.logits[:1], expected.detach().numpy(), atol=1e-5)

    assert run("fit", "acts", "energy", "--out", "guard.offmap").exit_code == 0
    scored = run("score", "guard.offmap", "acts", "--json")
    assert len(json.loads(scored.stdout)["score"]) == 10
    direct = run("score", "guard.offmap", "pictures", "--model", model, "--mean", ".5", "--std", ".25", "--json")
    np.testing.assert_allclose(json.loads(direct.stdout)["score"], json.loads(scored.stdout)["score"], rtol=1e-5)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_calibrate_and_score_features(run, folder, suffix):
    path, _ = folder
    result = run(
        "fit", "known.npz", "react(90)|energy", "--head", "head.npz", "--calibrate", "val.npz", "--tpr", ".9",
        "--out", "guard.offmap", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["detector"] == "react(90)|energy"
    guard = offmap.load(path / "guard.offmap")
    assert said["threshold"] == guard.threshold

    out = f"scores.{suffix}"
    words = run("score", "guard.offmap", "far.npz", "--head", "head.npz", "--out", out)
    assert words.exit_code == 0, words.output
    assert out in words.stdout
    verdicts = guard(offmap.data.read_activations(path / "far.npz", offmap.data.read_head(path / "head.npz")))
    if suffix == "csv":
        rows = list(csv.DictReader((path / out).open(newline="")))
        scores = [float(row["score"]) for row in rows]
        known = [row["known"] == "true" for row in rows]
    else:
        table = pq.read_table(path / out)
        scores, known = table.column("score").to_pylist(), table.column("known").to_pylist()
    np.testing.assert_array_equal(scores, verdicts.score)
    np.testing.assert_array_equal(known, verdicts.known)
    assert f"{int((~verdicts.known).sum())} of them unknown" in words.stdout


def test_compare_prints_writes_and_answers_in_json(run, folder):
    path, _ = folder
    words = [
        "compare", "msp, energy, knn(auto)", "--known", "known.npz", "--id-test", "test.npz", "--ood", "far=far.npz",
        "--head", "head.npz", "--val", "val.npz", "--outliers", "far.npz",
    ]  # fmt: skip
    printed = run(*words, "--out", "page.html")
    assert printed.exit_code == 0, printed.output
    assert "FPR95/AUROC" in printed.stdout
    assert (path / "page.html").read_text().startswith("<!doctype html>")
    rows = json.loads(run(*words, "--json", "--out", "table.json").stdout)["rows"]
    assert {row["method"] for row in rows} == {"msp", "energy", "knn(auto)"}
    assert {row["method"] for row in json.loads((path / "table.json").read_text())["rows"]} == {
        row["method"] for row in rows
    }


def test_noise_stands_in_for_outliers(run, folder):
    path, model = folder
    assert run("extract", "pictures", "--model", model, "--noise", 20, "--to", "noise").exit_code == 0
    assert len(offmap.Activations.open(path / "noise")) == 20
    fitted = run(
        "fit", "pictures", "react(auto)|energy", "--model", model, "--val", "pictures", "--noise", 30,
        "--out", "guard.offmap", "--json",
    )  # fmt: skip
    assert fitted.exit_code == 0, fitted.output
    said = json.loads(fitted.stdout)
    assert said["detector"] == "react(auto)|energy"
    assert said["chosen"] != said["detector"]


def test_explain_says_what_the_theory_finds(run, folder):
    path, _ = folder
    words = ["explain", "known.npz", "--unknown", "far.npz", "--head", "head.npz"]
    said = json.loads(run(*words, "--json").stdout)
    printed = run(*words, "--out", "why.html")
    assert printed.exit_code == 0, printed.output
    assert 'class="plot"' in (path / "why.html").read_text()
    assert said["findings"]
    for finding in said["findings"]:
        assert f"{finding['topic']} ({finding['verdict']}): " in printed.stdout


def test_methods_that_ask_for_more_than_one_pass(run, folder):
    _, model = folder
    words = ["--model", model]
    assert run("fit", "pictures", "odin", *words, "--out", "odin.offmap").exit_code == 0
    direct = run("score", "odin.offmap", "pictures", *words, "--json")
    for asked, to in [("odin, mahalanobis", "before"), ("odin.offmap", "after")]:
        assert run("extract", "pictures", *words, "--for", asked, "--to", to).exit_code == 0
        stored = run("score", "odin.offmap", to, "--json")
        np.testing.assert_allclose(json.loads(stored.stdout)["score"], json.loads(direct.stdout)["score"], rtol=1e-5)
    plain = run("extract", "pictures", *words, "--to", "plain")
    assert plain.exit_code == 0
    assert run("score", "odin.offmap", "plain").exit_code == 1


def test_an_onnx_file_is_a_model(run, folder):
    path, _ = folder
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    values = {"w1": (8, 4), "b1": (4,), "w2": (4, 3), "b2": (3,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in values.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["z"]),
        helper.make_node("Gemm", ["z", "w2", "b2"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path / "small.onnx")
    result = run("extract", "known.npz", "--model", "small.onnx", "--to", "acts")
    assert result.exit_code == 0, result.output
    acts = offmap.Activations.open(path / "acts")
    hidden = np.maximum(np.load(path / "known.npz")["features"] @ arrays["w1"] + arrays["b1"], 0)
    np.testing.assert_allclose(acts.features, hidden, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(acts.logits, hidden @ arrays["w2"] + arrays["b2"], rtol=1e-4, atol=1e-4)


def test_methods_lists_the_registry(run):
    rows = json.loads(run("methods", "--json").stdout)["methods"]
    assert {row["name"] for row in rows} >= set(offmap.detection.methods())
    assert "energy" in run("methods").stdout


def test_lists_and_help_name_what_is_registered(run):
    from offmap.cli.registered import REGISTRIES, registry

    for what in REGISTRIES:
        rows = json.loads(run("methods", what, "--json").stdout)[what]
        assert [row["name"] for row in rows] == list(registry(what))
        assert all(row["about"] for row in rows), what
    for command, what in (("discover", "discovery"), ("learn", "objectives"), ("loop", "learners")):
        told = "".join(run(command, "--help").stdout.replace("│", " ").split())
        assert ",".join(registry(what)) in told, command
    wrong = run("methods", "nonsense")
    assert wrong.exit_code == 1
    assert "there is no such list" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit", "known.npz", "nonsense", "--out", "g.offmap"], "there is no method 'nonsense'"),
        (["fit", "known.npz", "react(190)|energy", "--out", "g.offmap"], "react"),
        (["fit", "nowhere.npz", "energy", "--out", "g.offmap"], "nowhere.npz: there is no such file"),
        (["fit", "known.npz", "energy", "--out", "g.offmap"], "logits"),
        (["fit", "known.npz", "energy", "--head", "head.npz", "--out", "no/where/g.offmap"], "no folder no/where"),
        (["score", "known.npz", "known.npz"], "known.npz"),
        (["extract", "pictures", "--to", "acts"], "--model"),
        (["extract", "pictures", "--model", "MODULE:nothing", "--to", "acts"], "has no 'nothing'"),
        (["extract", "pictures", "--model", "MODULE:number", "--to", "acts"], "a torch.nn.Module is needed"),
        (["extract", "pictures", "--model", "MODULE:needs_argument", "--to", "acts"], "without arguments"),
        (["extract", "pictures", "--model", "no_such_module:make", "--to", "acts"], "cannot be imported"),
        (["extract", "pictures", "--model", "model", "--to", "acts"], "package.module:factory"),
        (["extract", "pictures", "--model", "MODULE:make", "--mean", "a", "--to", "acts"], "separated by commas"),
        (["extract", "pictures", "--model", "MODULE:make", "--weights", "head.npz", "--to", "acts"], "head.npz"),
        (
            ["compare", "msp", "--known", "known.npz", "--id-test", "test.npz", "--ood", "far=nowhere"],
            "nowhere: there is no such file or folder",
        ),
    ],
)
def test_refusals_are_one_line_on_stderr_and_exit_1(run, folder, words, sentence):
    _, model = folder
    result = run(*(word.replace("MODULE", model.split(":")[0]) for word in words))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("offmap: ")
    assert sentence in result.stderr


def test_damaged_pictures_are_skipped_on_request_and_counted(run, folder):
    path, model = folder
    (path / "pictures" / "ant" / "0.png").write_bytes(b"not a picture")
    words = ["extract", "pictures", "--model", model, "--to", "acts"]
    assert "0.png: not a readable picture" in run(*words).stderr
    skipped = run(*words, "--skip-unreadable", "--json")
    assert skipped.exit_code == 0, skipped.output
    assert "left out 1 damaged picture," in skipped.stderr
    assert json.loads(skipped.stdout)["inputs"] == 9


@pytest.mark.parametrize("words", [["nonsense"], ["fit"], ["fit", "x.npz", "energy", "--tpr", "much", "--out", "y"]])
def test_wrong_usage_exits_2(run, words):
    assert run(*words).exit_code == 2


def test_help_and_version_load_nothing_heavy():
    code = (
        "import sys\n"
        "from offmap.cli import app\n"
        "try:\n    app(['--help'])\n"
        "except SystemExit as done:\n    assert done.code in (0, None)\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'scipy', 'plotly', 'jinja2', 'PIL', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("demo", "extract", "fit", "compare", "score", "explain", "methods"):
        assert command in done.stdout
    version = subprocess.run([sys.executable, "-m", "offmap.cli", "--version"], capture_output=True, text=True)
    assert version.stdout.strip() == offmap.__version__


def test_an_interrupt_exits_130_with_one_line(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ndef make():\n    pathlib.Path('started').touch()\n    time.sleep(600)\n"
    )
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    process = subprocess.Popen(
        [sys.executable, "-m", "offmap.cli", "extract", "x.npy", "--model", "slow:make", "--to", "acts"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs inherit it ignored
    )  # fmt: skip
    while not (tmp_path / "started").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == "offmap: interrupted\n"


def test_promises_on_the_command_line(run, folder):
    path, _ = folder
    head = ("--head", "head.npz")
    fit = ("fit", "known.npz", "energy", *head, "--calibrate", "val.npz", "--tpr", ".9", "--out", "guard.offmap")
    assert run(*fit).exit_code == 0
    plain = offmap.load(path / "guard.offmap").threshold
    assert run(*fit, "--confidence", ".9").exit_code == 0
    assert offmap.load(path / "guard.offmap").threshold < plain
    assert run(*fit, "--recent", "test.npz").exit_code == 0
    assert offmap.load(path / "guard.offmap").calibration.weights is not None
    alone = run("fit", "known.npz", "energy", *head, "--confidence", ".9", "--out", "guard.offmap")
    assert alone.exit_code == 1
    assert "give --calibrate too" in alone.stderr
    assert run(*fit).exit_code == 0
    said = run("recalibrate", "guard.offmap", "test.npz", *head, "--window", "150", "--out", "newer.offmap", "--json")
    assert json.loads(said.stdout) == {"guard": "newer.offmap", "confirmed": 100, "calibrated_on": 150, "tpr": 0.9}
    np.savez("one.npz", features=np.load("test.npz")["features"][:1])
    said = run("recalibrate", "guard.offmap", "one.npz", *head, "--out", "newer.offmap")
    assert said.stdout.startswith("1 confirmed input taken in; newer.offmap is calibrated")
    assert run("score", "guard.offmap", "one.npz", *head).stdout.startswith("1 input, ")
    streamed = run("score", "guard.offmap", "far.npz", *head, "--fdr", ".2", "--stream", "--json")
    assert len(json.loads(streamed.stdout)["known"]) == 80
    assert "--fdr 0.1" in run("score", "guard.offmap", "far.npz", *head, "--stream").stderr
