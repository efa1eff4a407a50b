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


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "pile.npz", features=np.ones((4, 2), np.float32))
    for arguments in (["--k", "many"], ["--k", "9"], ["--method", "guess"]):
        done = offmap("discover", "pile.npz", *arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("offmap: ")
        assert done.stderr.count("\n") == 1
