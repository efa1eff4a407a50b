"""`offmap discover` as a script uses it: arrays, texts with an encoder, and refusals in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ENCODER = """
import zlib
import numpy as np

def words(texts):
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts):
        for word in text.split():
            row[zlib.crc32(word.encode()) % 64] += 1
    return rows
"""

NETWORK = """
import torch

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(12, 3))
"""


def offmap(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offmap.cli", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_arrays_with_labels_give_labels_and_a_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 40)
    rows = rng.normal(size=(6, 8))[truth] + 0.05 * rng.normal(size=(240, 8))
    np.savez(tmp_path / "pile.npz", features=rows.astype(np.float32), labels=np.where(truth < 3, truth, -1))
    done = offmap("discover", "pile.npz", "--report", "page.html", "--out", "labels.csv", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["n_classes"] == 6
    assert result["novel_rows"] == 120
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 241
    assert "<html" in (tmp_path / "page.html").read_text()


def test_texts_are_encoded_and_name_their_classes(tmp_path: Path) -> None:
    (tmp_path / "encoder.py").write_text(ENCODER)
    lines = [
        f"{topic} word{i % 7}"
        for topic in ("refund money back", "lost card stolen", "opening hours today")
        for i in range(30)
    ]
    (tmp_path / "queries.txt").write_text("\n".join(lines))
    done = offmap("discover", "queries.txt", "--encoder", "encoder:words", "--k", "3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    labels = np.array(result["labels"]).reshape(3, 30)
    assert all(len(set(group)) == 1 for group in labels.tolist())
    assert any("refund" in name for name in result["names"].values())


def test_folders_of_texts_are_classes_and_one_of_them_holds_the_unknown(tmp_path: Path) -> None:
    (tmp_path / "encoder.py").write_text(ENCODER)
    topics = {"refunds": "refund money back", "cards": "lost card stolen", "hours": "opening hours today"}
    for name, topic in topics.items():
        for i in range(30):
            folder = tmp_path / "pile" / (name if name != "hours" and i % 2 else "unknown")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}{i:02}.txt").write_text(f"{topic} word{i % 7}")
    done = offmap(
        "discover", "pile", "--encoder", "encoder:words", "--out", "labels.csv", "--report", "page.html", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 classes")
    rows = (tmp_path / "labels.csv").read_text().splitlines()[1:]
    assert rows[0].split(",")[1] == "pile/cards/cards01.txt"
    names = [row.split(",")[2] for row in rows]
    assert names[:30] == ["cards"] * 15 + ["refunds"] * 15  # folders in the order of their names
    assert names[30:45] == ["cards"] * 15
    assert "opening" in names[45]
    assert names[75:] == ["refunds"] * 15
    assert "opening hours today" in (tmp_path / "page.html").read_text()


def test_folders_of_pictures_go_through_a_network_and_onto_the_page(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "mine.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    colours = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200), "grey": (120, 120, 120)}
    for name, colour in colours.items():
        for i in range(12):
            folder = tmp_path / "pile" / (name if name != "grey" and i % 2 else "nobody")
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.clip(np.array(colour) + rng.integers(-20, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}{i:02}.png")
    done = offmap(
        *("discover", "pile", "--model", "mine:network", "--unknown", "nobody", "--k", "4"),
        *("--report", "page.html", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["names"].values()) == ["blue", "green", "red", "new 3"]
    assert result["novel_rows"] == 12
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()


def test_labels_may_be_names_in_a_text_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 20)
    rows = rng.normal(size=(4, 8))[truth] + 0.05 * rng.normal(size=(80, 8))
    np.save(tmp_path / "pile.npy", rows.astype(np.float32))
    (tmp_path / "names.txt").write_text(
        "".join(f"{['ant', 'bee'][t] if t < 2 and i % 2 else ''}\n" for i, t in enumerate(truth))
    )
    done = offmap("discover", "pile.npy", "--labels", "names.txt", "--k", "4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["names"].values())[:2] == ["ant", "bee"]


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "pile.npz", features=np.ones((4, 2), np.float32))
    for arguments in (["--k", "many"], ["--k", "9"], ["--method", "guess"]):
        done = offmap("discover", "pile.npz", *arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("offmap: ")
        assert done.stderr.count("\n") == 1
