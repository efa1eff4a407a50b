"""Examples of commands, under their help and on the pages: they use arguments that the command has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from offmap.cli import app
from offmap.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[2]
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "offmap " in page.read_text()]


def _commands() -> dict[str, Any]:
    root: Any = get_command(app)
    found: dict[str, Any] = {}
    for name, command in root.commands.items():
        parts = {f"{name} {part}": one for part, one in getattr(command, "commands", {}).items()}
        found |= parts or {name: command}
    return found


def test_every_command_has_one() -> None:
    assert set(EXAMPLES) == set(_commands())


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_it_gives_what_the_command_takes(name: str) -> None:
    command = _commands()[name]
    words = shlex.split(EXAMPLES[name])
    given = words[1 + len(name.split()) :]
    assert words[0] == "offmap"
    assert words[1 : 1 + len(name.split())] == name.split()
    context = command.context_class(command, info_name=name)
    values, left, _ = command.make_parser(context).parse_args(list(given))  # refuses options that do not exist
    assert not left
    missing = [param.name for param in command.params if param.required and not values.get(str(param.name))]
    assert not missing
    assert EXAMPLES[name].split()[-1] in " ".join((command.epilog or "").split())


@pytest.mark.parametrize("words", [[], *([*name.split()] for name in sorted(EXAMPLES))], ids=" ".join)
def test_a_flag_is_shown_without_a_value(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120"}, catch_exceptions=False)
    assert done.exit_code == 0
    assert "Example: " in done.stdout
    assert "bool" not in done.stdout
    assert "list[str]" not in done.stdout


def _written_commands(page: Path) -> list[str]:
    """Commands of offmap on a page: lines of its blocks of code, and what stands in the text as code."""
    words = page.read_text()
    blocks = re.findall(r"```[a-z]*\n(.*?)```", words, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    text = re.sub(r"```.*?```", "", words, flags=re.DOTALL)
    found = [*lines, *(" ".join(code.split()) for code in re.findall(r"`(offmap [^`]*)`", text))]
    return [line for line in found if line.startswith("offmap ") and "…" not in line and " | " not in line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_a_page_take_the_options_they_are_given(page: Path) -> None:
    commands = _commands()
    for line in _written_commands(page):
        words = shlex.split(line, comments=True)[1:]
        name = next((name for name in commands if words[: len(name.split())] == name.split()), None)
        given = words[len((name or "").split()) :]
        if name is None or len(given) < 2 or "--help" in given:
            continue  # named in a sentence, not shown as a command
        command = commands[name]
        _, left, _ = command.make_parser(command.context_class(command, info_name=name)).parse_args(given)
        assert not left, line
