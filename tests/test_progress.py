"""Progress: silent when it is not wanted or work is short, a line now and then where there is no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import numpy as np
import pytest

import offmap
from offmap.progress import Lines, show_progress


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_half_minute_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    advance = Lines("learning", 100, clock=clock)
    for epoch in range(1, 9):
        clock.now = 10.0 * epoch
        advance(note=f"loss {epoch}")
    assert capsys.readouterr().err.splitlines() == [
        "offmap: learning 3 of 100, about 16 min left; loss 3",
        "offmap: learning 6 of 100, about 16 min left; loss 6",
    ]


def test_what_an_earlier_run_did_does_not_count_as_speed(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    advance = Lines("learning", 20, done=10, clock=clock)
    clock.now = 40.0
    advance()
    assert capsys.readouterr().err == "offmap: learning 11 of 20, about 6 min left\n"


def test_an_unknown_total_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    advance = Lines("extracting", None, clock=clock)
    clock.now = 31.0
    advance(5000)
    assert capsys.readouterr().err == "offmap: extracting 5,000\n"


@pytest.mark.parametrize("wanted", [False, None])
def test_short_work_says_nothing(wanted: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("extracting", 3, wanted) as advance:
        advance()
        advance(2, "done")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar() -> None:
    code = "from offmap.progress import show_progress\nwith show_progress('extracting', 2) as go:\n go(1, 'half')\n"
    master, slave = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", code], stderr=slave, check=True, timeout=60, env=os.environ | {"TERM": "xterm"}
    )
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert "extracting" in shown
    assert "/2" in shown


def test_work_within_work_draws_one_bar() -> None:
    code = (
        "from offmap.progress import say_nothing, show_progress\n"
        "with show_progress('outer', 2) as outer:\n"
        " with show_progress('inner', 2) as inner:\n"
        "  assert inner is say_nothing and outer is not inner\n"
        "with show_progress('later', 1) as later:\n"
        " assert later is not say_nothing\n"
    )
    master, slave = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=slave, timeout=60, env=os.environ | {"TERM": "xterm"})
    os.close(slave)
    os.close(master)
    assert done.returncode == 0


def test_choosing_and_comparing_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("offmap.progress.EVERY", 0.0)
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    known = offmap.Activations(rng.normal(size=(90, 4)) + 4 * np.eye(4)[labels], offmap.Head(np.eye(4)), labels=labels)
    offmap.compare(["auto(fast)", "msp"], known[:60], known[60:])
    said = capsys.readouterr().err
    assert "offmap: choosing a detector, candidate 1 of " in said
    assert " left; msp\n" in said
    assert "offmap: comparing, method 2 of 2, about 0 s left; msp" in said
