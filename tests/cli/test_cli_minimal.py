"""Without extras: a command that needs one says which, in one line, before any work."""

from __future__ import annotations

import importlib.util

import pytest
from typer.testing import CliRunner

from offmap.cli import app


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (["demo", "--out", "out"], "plotly", "report"),
        (["explain", "known", "--out", "e.html"], "jinja2", "report"),
        (["compare", "msp", "--known", "a", "--id-test", "b", "--out", "c.html"], "plotly", "report"),
        (["discover", "known", "--report", "d.html"], "plotly", "report"),
        (["serve", "guard.offmap", "--store", "unknown"], "fastapi", "serve"),
    ],
)
def test_the_missing_extra_is_named(monkeypatch, tmp_path, words, package, extra):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == package else found(name, *more)
    )
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 1
    assert f"needs {package}, not installed: pip install 'offmap[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1
