"""Runs that are really killed, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offmap import store
from offmap.errors import StoreError

HERE = Path(__file__).parent
EPOCHS = 30


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return subprocess.Popen(
        [sys.executable, str(HERE / "learn_script.py"), str(folder), name, str(EPOCHS)], env=environment
    )


def test_killed_and_resumed_the_weights_are_the_same_bits(tmp_path: Path) -> None:
    name = "opencon"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(whole, name).wait() == 0
    process, file = start(broken, name), broken / "checkpoint.offmap"
    while process.poll() is None:
        if file.is_file() and _epoch(file) >= 3:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed; make it longer"
    assert 3 <= _epoch(file) < EPOCHS
    assert start(broken, name).wait() == 0
    assert (broken / "model.offmap").read_bytes() == (whole / "model.offmap").read_bytes()
    assert (broken / "history.csv").read_bytes() == (whole / "history.csv").read_bytes()


def _epoch(file: Path) -> int:
    return int(store.load(file).config["epoch"])


def test_a_truncated_checkpoint_is_refused_with_a_sentence(tmp_path: Path) -> None:
    from learning_blobs import blobs

    from offmap.learning import learn

    rows, _, labels = blobs(size=10)
    learn(rows, labels, 6, objective="gcd", out=tmp_path, epochs=1)
    file = tmp_path / "checkpoint.offmap"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StoreError, match=r"truncated|altered"):
        learn(rows, labels, 6, objective="gcd", out=tmp_path, epochs=1)
