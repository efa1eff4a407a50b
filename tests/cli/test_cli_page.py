"""Every command on the command line's page runs as it is printed there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from typer.testing import CliRunner

from offmap.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "command-line.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, preparation = blocks("python")
    assert source.startswith("# model.py")
    (tmp_path / "model.py").write_text(source)
    subprocess.run([sys.executable, "-c", preparation], check=True, cwd=tmp_path)
    commands = [line for block in blocks("console") for line in block.splitlines()]
    assert len(commands) == 15
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "offmap"
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)
        if words[-1] == "--json":
            assert len(json.loads(result.stdout)["known"]) == json.loads(result.stdout)["inputs"]
    assert pq.read_table(tmp_path / "scores.parquet").column_names == [
        "class",
        "known",
        "p_value",
        "score",
        "predicted",
    ]
    assert "<svg " in (tmp_path / "comparison.html").read_text()
    assert (tmp_path / "scores.csv").read_text().startswith("class,known,p_value,score,predicted\n")
