"""`offmap learn` as a script uses it: embeddings, pictures, an experiment with hidden labels, refusals in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import offmap
from offmap.cli import app

QUICK = ["--set", "epochs=2", "--set", "batch_size=64", "--set", "neighbours=5"]


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 30)
    rows = (rng.normal(size=(6, 8))[truth] + 0.05 * rng.normal(size=(180, 8))).astype(np.float32)
    np.savez(tmp_path / "all.npz", features=rows, labels=truth)
    np.savez(tmp_path / "pile.npz", features=rows, labels=np.where(truth < 3, truth, -1))
    return tmp_path


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["learn", *words])
    return done.exit_code, done.stdout, done.stderr


def test_a_pile_becomes_a_model_in_a_process_of_its_own(pile: Path) -> None:
    words = ["opencon", "--data", "pile.npz", "--out", "run", "--k", "6", "--predictions", "found.csv", *QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "offmap.cli", "learn", *words], cwd=pile, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OpenWorldModel(opencon, 3 known classes, 3 novel), saved as run/model.offmap")
    model = offmap.load(pile / "run" / "model.offmap")
    rows = np.load(pile / "pile.npz")["features"]
    table = (pile / "found.csv").read_text().splitlines()
    assert table[0] == "class,known,label,novelty"
    assert [int(line.split(",")[2]) for line in table[1:]] == model.predict(rows).tolist()
    assert (pile / "run" / "history.csv").read_text().startswith("epoch,loss,")


def test_data_may_stand_first_as_for_other_commands(pile: Path) -> None:
    code, out, error = run(str(pile / "pile.npz"), "--k", "6", "--set", "epochs=1", "--out", str(pile / "run"))
    assert code == 0, error
    assert "self-training, 3 known classes, 3 novel" in out
    for words, named in ((["gcd"], "gcd"), ([], "auto"), (["none.csv"], "none.csv")):
        code, _, error = run(*words, "--out", str(pile / "other"))
        assert (code, error) == (
            1, f"offmap: learn {named}: name the inputs with --data; there is no file or folder {named}\n"
        )  # fmt: skip


def test_hidden_labels_measure_what_is_found(pile: Path) -> None:
    words = ["gcd", "--data", str(pile / "all.npz"), "--known", "0,2,4", "--ratio", "0.4", "--k", "6", "--json", *QUICK]
    code, out, error = run(*words, "--out", str(pile / "run"))
    assert code == 0, error
    result = json.loads(out)
    assert result["n_known"] == 3
    assert result["accuracy"]["v2"]["all"] > 0.95
    assert set(result["accuracy"]) == {"v2", "orca"}
    code, out, _ = run("sorl-spectral", "--data", str(pile / "all.npz"), "--known", "0.5", "--out", str(pile / "fast"))
    assert code == 0
    assert "accuracy on inputs whose label was hidden (v2): all" in out


def test_settings_are_chosen_on_known_classes(pile: Path) -> None:
    words = ["gcd", "--data", str(pile / "all.npz"), "--known", "4", "--k", "6", "--tune", "--json"]
    code, out, error = run(*words, "--set", "epochs=1", "--out", str(pile / "run"))
    assert code == 0, error
    assert "offmap: chosen: " in error
    assert json.loads(out)["settings"]["epochs"] == 1


def test_pictures_in_folders_whose_names_are_the_classes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for place, name in enumerate(("ant", "bee", "cat")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 40, (8, 8, 3)).astype(np.uint8)
            pixels[..., place] += 200
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    (tmp_path / "pictures" / "bee" / "0.png").write_bytes(b"no picture")
    words = ["simclr", "--data", str(tmp_path / "pictures"), "--known", "ant,bee", "--k", "3", "--set", "epochs=1"]
    code, out, error = run(*words, "--set", "projection=8", "--skip-unreadable", "--out", str(tmp_path / "run"))
    assert code == 0, error
    assert "left out 1 damaged picture," in error
    assert "2 known classes, 1 novel" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "there is no objective 'nonsense'; choose one of"),
        (["gcd", "--set", "epochs"], "--set epochs: name=value is needed"),
        (["gcd", "--set", "epoch=3"], "there is no setting 'epoch'"),
        (["gcd", "--k", "many"], "--k many: a whole number or auto"),
        (["gcd", "--known", "9"], "known=9"),
        (["gcd", "--preset", "cifar"], "preset='cifar': choose one of auto"),
    ],
)
def test_refusals_are_one_line(pile: Path, words: list[str], message: str) -> None:
    code, _, error = run(*words, "--data", str(pile / "all.npz"), "--out", str(pile / "run"))
    assert code == 1
    assert error.startswith("offmap: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_page_shows_the_novel_classes_first(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    few = np.flatnonzero(digits.target < 4)[:240]
    np.savez(tmp_path / "d.npz", inputs=digits.images[few, None].astype(np.float32) / 16, labels=digits.target[few])
    words = ["--data", str(tmp_path / "d.npz"), "--known", "2", "--k", "4", "--out", str(tmp_path / "run")]
    code, out, error = run("opencon", *words, "--report", str(tmp_path / "page.html"), *QUICK)
    assert code == 0, error
    assert f"The report is {tmp_path / 'page.html'}" in out
    page = (tmp_path / "page.html").read_text()
    assert page.index("Novel classes") < page.index("All classes") < page.index("How learning went")
    assert page.count("data:image/png;base64,") >= 8
    assert "Against the labels that were hidden" in page
    code, _, error = run("opencon", *words, "--report", str(tmp_path / "page.txt"), *QUICK)
    assert (code, "ends in .html" in error) == (1, True)
