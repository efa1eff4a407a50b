"""Tables that can be matched with their inputs, one picture or a pattern, and checks before any work is done."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import offmap
from offmap.cli import app
from offmap.errors import InputError

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
"""


def run(*words) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"own_{tmp_path.name}.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for label in ("ant", "bee"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(12):
            Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(
                tmp_path / "pictures" / label / f"{i}.png"
            )
    (tmp_path / "new").mkdir()
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(tmp_path / "new" / f"{i}.png")
    (tmp_path / "new" / "broken.png").write_bytes(b"no picture")
    return tmp_path


def read(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_a_table_of_scores_names_files_and_classes(folder: Path) -> None:
    model = f"own_{folder.name}:make"
    code, out, error = run(
        "fit", "pictures", "energy", "--model", model, "--calibrate", "pictures", "--tpr", "0.5", "--out", "g.offmap"
    )
    assert code == 0, error
    (folder / "names.txt").write_text("ant\nbee\n")
    words = ["--model", model, "--classes", "names.txt"]
    code, out, error = run("score", "g.offmap", "new", *words, "--skip-unreadable", "--out", "scores.csv")
    assert code == 0, error
    rows = read(folder / "scores.csv")
    assert list(rows[0]) == ["path", "class", "known", "p_value", "score", "predicted"]
    assert [Path(row["path"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    assert {row["class"] for row in rows} <= {"ant", "bee"}
    code, out, error = run("score", "g.offmap", "new/0.png", *words)
    assert code == 0, error
    assert "new/0.png" in out
    for given in (["new/[0-9].png"], ["new/0.png", "new/1.png", "new/2.png"]):
        code, out, error = run("score", "g.offmap", *given, *words, "--json")
        assert code == 0, error
        assert np.allclose(json.loads(out)["score"], [float(row["score"]) for row in rows])


def test_the_guard_of_a_module_of_ones_own_is_used_by_naming_the_module(folder: Path) -> None:
    name = f"own_{folder.name}"
    begun = importlib.import_module(name).make().state_dict()
    torch.save({part: 2 * weights for part, weights in begun.items()}, folder / "w.pt")  # not what it begins with
    shared = ["--model", f"{name}:make"]
    code, out, error = run(
        "guard", *shared, "--weights", "w.pt", "--known", "pictures", "--detector", "knn(1)", "--tpr", "0.5",
        "--out", "made",
    )  # fmt: skip
    assert code == 0, error
    assert f"--model {name}:make" in out
    code, out, error = run("score", "made/guard.offmap", "new/0.png")
    assert code == 1
    assert "--model package.module:factory" in error
    code, out, error = run("score", "made/guard.offmap", "new/0.png", *shared, "--weights", "w.pt", "--json")
    assert code == 0, error
    code, same, error = run("score", "made/guard.offmap", "new/0.png", *shared, "--json")  # the file has the weights
    assert code == 0, error
    assert json.loads(same) == json.loads(out)
    code, out, error = run("recalibrate", "made/guard.offmap", "pictures", *shared, "--out", "made/later.offmap")
    assert code == 0, error
    assert offmap.store.load("made/later.offmap").kind == "deployment"
    code, out, error = run("export", f"{name}:make", "made/guard.offmap", "--out", "g.onnx", "--check", "pictures")
    assert code == 0, error


def test_a_table_is_scored_by_the_names_of_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal((0, 5, 50), size=(200, 3)), columns=["a", "b", "c"])
    frame = frame[frame["a"] > -1.5]  # so the index has gaps, and Parquet keeps it as a column
    frame.to_parquet("known.parquet")
    code, _, error = run("fit", "known.parquet", "knn(3, normalize=false)", "--out", "g.offmap")
    assert code == 0, error
    new = frame[["c", "a", "b"]].assign(id=np.arange(len(frame)) + 900, who="x")
    new.to_parquet("new.parquet")
    code, _, error = run("score", "g.offmap", "new.parquet", "--out", "scores.csv")
    assert code == 0, error
    rows = read(tmp_path / "scores.csv")
    assert list(rows[0]) == ["id", "who", "index", "score"]
    assert [int(row["index"]) for row in rows] == frame.index.tolist()
    expected = offmap.load("g.offmap").score(frame)
    np.testing.assert_allclose([float(row["score"]) for row in rows], expected, rtol=1e-6)
    new.drop(columns="b").to_parquet("new.parquet")
    code, _, error = run("score", "g.offmap", "new.parquet")
    assert code == 1
    assert "a table without 'b'" in error


def test_extract_says_how_many_labels_are_predicted(folder: Path) -> None:
    code, out, error = run("extract", "pictures", "--model", f"own_{folder.name}:make", "--to", "acts", "--json")
    assert code == 0, error
    acts = offmap.Activations.open(folder / "acts")
    assert json.loads(out)["accuracy"] == (acts.predictions == acts.labels).mean()


def test_extract_says_that_labels_are_no_classes_of_the_network(folder: Path) -> None:
    inputs = np.random.default_rng(0).random((4, 3, 4, 4), np.float32)
    np.savez("others.npz", inputs=inputs, labels=[0, 9, 9, 9])
    code, out, error = run("extract", "others.npz", "--model", f"own_{folder.name}:make", "--to", "other")
    assert code == 0, error
    assert "75% of the labels are none of the network's classes, 0 to " in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["score", "g.offmap", "x.npz", "--out", "x.xlsx"], ".parquet or .csv"),
        (["score", "g.offmap", "x.npz", "--out", "no/such/x.csv"], "must exist"),
        (["score", "g.offmap", "x.npz", "--device", "cuda:99x"], "no such device"),
        (["discover", "x.npz", "--report", "page.pdf"], "a report ends in .html"),
        (["discover", "x.npz", "--out", "x.xlsx"], ".parquet or .csv"),
        (["learn", "--data", "x.npz", "--out", "o", "--predictions", "x.xlsx"], ".parquet or .csv"),
        (["fit", "x.npz", "--out", "g", "--mean", "a,b"], "numbers separated by commas"),
        (["fit", "x.npz", "--out", "g", "--weights", "no.pt"], "--weights no.pt: there is no such file"),
        (["score", "g.offmap", "no/*.png", "--model", "torch.nn:Identity"], "g.offmap"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(words, said, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # none of the files exist: the check comes first
    code, _, error = run(*words)
    assert code == 1
    assert said in error
    assert "Traceback" not in error


def test_a_table_of_groups_names_texts_and_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 4
    rows = rng.normal(size=(80, 6)) + 8 * np.eye(4, 6)[labels]
    np.savez(tmp_path / "rows.npz", features=rows, labels=np.where((labels < 2) & (np.arange(80) < 40), labels, -1))
    code, _, error = run("discover", tmp_path / "rows.npz", "--k", "4", "--out", tmp_path / "found.csv")
    assert code == 0, error
    assert list(read(tmp_path / "found.csv")[0]) == ["class", "known", "label", "confidence"]


def test_one_verdict_some_verdicts_and_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    known = offmap.Activations(rng.normal(size=(200, 3)) + 4, offmap.Head(np.eye(3)))
    found = offmap.detector("energy").fit(known[:100]).calibrate(known[100:])(known[:5])
    assert found[-1] == list(found)[4]
    assert len(found[1:3]) == 2
    assert len(found[found.known]) == found.known.sum()
    table = found.to_pandas(["a", "b", "c"], path=["v", "w", "x", "y", "z"])
    assert list(table.columns) == ["path", "class", "known", "p_value", "score"]
    found.to_csv(tmp_path / "v.csv", path=range(5))
    assert [row["path"] for row in read(tmp_path / "v.csv")] == list("01234")
    with pytest.raises(IndexError):
        found[5]
    with pytest.raises(InputError, match="2 paths for 5 inputs"):
        found.columns(path=["a", "b"])
