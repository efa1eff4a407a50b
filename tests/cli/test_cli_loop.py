"""`offmap loop` as a script uses it: features and pictures of one's own, several rounds, refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import offmap
from offmap.cli import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 6
    rows = 6 * np.eye(8)[truth] + rng.normal(size=(600, 8))
    old = truth < 4
    np.savez(tmp_path / "all.npz", features=rows, labels=np.where(old, truth, -1))
    np.savez(tmp_path / "known.npz", features=rows[old], labels=np.array(["ant", "bee", "cat", "dog"])[truth[old]])
    np.savez(tmp_path / "five.npz", features=rows[truth == 4])
    np.savez(tmp_path / "six.npz", features=rows[truth == 5])
    return tmp_path


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["loop", *words])
    return done.exit_code, done.stdout, done.stderr


def test_rows_without_a_label_are_the_pile(folder: Path) -> None:
    code, out, error = run("--data", str(folder / "all.npz"), "--out", str(folder / "out"), "--detector", "knn(5)")
    assert code == 0, error
    assert "2 new classes beside 4" in out
    assert "deployed: accuracy on 80 held-out inputs of known classes" in out
    assert (folder / "out" / "round-1.html").read_text().startswith("<!doctype html>")
    made = offmap.load(folder / "out" / "deployment.offmap")
    assert made.n_classes == 6
    given = np.load(folder / "all.npz")
    assert (made.predict(given["features"], "features") == given["labels"])[given["labels"] >= 0].mean() > 0.85


def test_each_stream_is_a_round(folder: Path) -> None:
    words = [
        "--data",
        str(folder / "known.npz"),
        "--stream",
        str(folder / "five.npz"),
        "--stream",
        str(folder / "six.npz"),
    ]
    code, out, error = run(*words, "--new", "1", "--json", "--out", str(folder / "out"))
    assert code == 0, error
    first, second = json.loads(out)["rounds"]
    assert first["round"]["classes"][:4] == ["ant", "bee", "cat", "dog"]
    assert [len(one["round"]["classes"]) for one in (first, second)] == [5, 6]
    assert second["round"]["after"]["known"] > 0.95


def test_rounds_in_which_little_comes_in_only_judge(folder: Path) -> None:
    streams = [str(folder / "five.npz"), *[str(folder / f"little-{number}.npz") for number in range(3)]]
    rng = np.random.default_rng(1)
    for file in streams[1:]:
        np.savez(file, features=6 * np.eye(8)[[4] * 5] + rng.normal(size=(5, 8)))
    words = ["--data", str(folder / "known.npz"), "--out", str(folder / "out")]
    for file in streams:
        words += ["--stream", file]
    code, out, error = run(*words)
    assert code == 0, error
    assert out.count("not grouped again: since 100 were, ") == 2  # after the last stream all are grouped
    code, out, error = run(*words, "--growth", "1")
    assert code == 0, error
    assert "not grouped again" not in out


def test_held_out_inputs_calibrate_and_measure(folder: Path) -> None:
    given = np.load(folder / "all.npz")
    features, labels = given["features"], given["labels"]
    half = np.arange(len(labels)) // 6 % 2 == 0
    np.savez(folder / "train.npz", features=features[half], labels=labels[half])
    np.savez(folder / "held.npz", features=features[~half], labels=labels[~half])
    words = ["--data", str(folder / "train.npz"), "--held-out", str(folder / "held.npz"), "--json"]
    code, out, error = run(*words, "--out", str(folder / "out"))
    assert code == 0, error
    by_class = json.loads(out)["rounds"][0]["round"]["before"]["by_class"]
    known = int(((labels >= 0) & ~half).sum())
    assert sum(count for _, count, _ in by_class[:4]) == pytest.approx(known / 2, abs=2)


def test_pictures_train_a_small_network_first(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, corner in {"known/a": (0, 0), "known/b": (0, 4), "known/c": (4, 0), "new": (4, 4)}.items():
        (tmp_path / name).mkdir(parents=True)
        for number in range(80):
            pixels = rng.integers(0, 60, (8, 8), dtype=np.uint8)
            pixels[corner[0] : corner[0] + 4, corner[1] : corner[1] + 4] += 150
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    words = ["--data", str(tmp_path / "known"), "--stream", str(tmp_path / "new"), "--gray", "--new", "1", "--json"]
    code, out, error = run(*words, "--out", str(tmp_path / "out"))
    assert code == 0, error
    (only,) = json.loads(out)["rounds"]
    assert only["round"]["settings"]["learner"] == "finetune"
    assert only["round"]["accepted"], only
    assert only["round"]["after"]["new"] > 0.9
    made = offmap.load(tmp_path / "out" / "deployment.offmap")
    assert made.class_names[:3] == ("a", "b", "c")
    exported = offmap.export(made, path=tmp_path / "guarded.onnx", shape=(1, 8, 8))
    assert exported.path.is_file()
    words = ["score", str(tmp_path / "out" / "deployment.offmap"), str(tmp_path / "new"), "--json"]
    scored = CliRunner().invoke(app, words)  # it knows by itself that the pictures are grey
    assert scored.exit_code == 0, scored.stderr
    table = (tmp_path / "out" / "stream.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in table] == json.loads(scored.stdout)["class"]


def test_the_demo_ends_in_a_deployment_that_is_better_than_before(tmp_path: Path) -> None:
    """What `make demo` runs last: without a label for them, four digits are learned beside the six that were taught."""
    code, out, error = run("--data", "digits", "--json", "--out", str(tmp_path))
    assert code == 0, error
    found = json.loads(out)
    assert found["deployed"]
    assert found["before"] + 0.2 < found["after"] <= found["oracle"] + 0.02
    assert found["still_wrong"].startswith("It has ")
    assert found["known_after"] >= found["known_before"] - 0.03
    assert found["rounds"][0]["flagged_unknown"] <= found["rounds"][0]["flagged"]
    page = (tmp_path / "report.html").read_text()
    for words in ("A network that knows 6 digits meets 10", "What is still wrong", "The oracle"):
        assert words in page
    from sklearn.datasets import load_digits

    bunch = load_digits()
    made = offmap.load(tmp_path / "deployment.offmap")
    pictures = (bunch.images[:, None] / 16).astype(np.float32)
    pictures = (pictures - pictures.mean()) / pictures.std()
    taught = bunch.target < 6
    assert (made.predict(pictures) == bunch.target)[taught].mean() > 0.85
    assert len(set(made.predict(pictures[~taught]).tolist()) - {-1, 0, 1, 2, 3, 4, 5}) >= 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "nothing.npz"], "there is no such file"),
        (["--new", "many"], "a whole number or auto"),
        (["--known", "1"], "2 to 9 digits are known"),
        (["--rounds", "9"], "every round brings a new one"),
    ],
)
def test_refusals_are_one_line(words: list[str], sentence: str, tmp_path: Path) -> None:
    code, out, error = run(*words, "--out", str(tmp_path / "out"))
    assert code == 1
    assert out == ""
    assert sentence in error
    assert error.count("\n") == 1


def test_labelled_rows_without_a_pile_are_refused(folder: Path) -> None:
    code, _, error = run("--data", str(folder / "known.npz"), "--out", str(folder / "out"))
    assert code == 1
    assert "name a file of others with --stream" in error
    code, _, error = run("--data", str(folder / "five.npz"), "--out", str(folder / "out"))
    assert code == 1
    assert "it has no labels" in error
