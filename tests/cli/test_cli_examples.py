"""The example under the help of every command: there is one, and it uses arguments that the command has."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.main import get_command

from offmap.cli import app
from offmap.cli.examples import EXAMPLES


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
