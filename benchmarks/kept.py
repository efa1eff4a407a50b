"""Result files that several runs may add to at a time: what is there and not measured again stays."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any


def read(file: Path) -> dict[str, Any]:
    """What a result file holds; nothing if there is none."""
    held: dict[str, Any] = json.loads(file.read_text() or "{}") if file.is_file() else {}
    return held


def add(file: Path, part: dict[str, Any]) -> None:
    """Put new results, however deep, beside or in the place of old ones."""
    with file.open("a+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        held = json.loads(opened.read() or "{}")
        _merge(held, part)
        opened.truncate(0)
        opened.write(json.dumps(held, indent=1) + "\n")


def holds(file: Path, keys: list[str]) -> bool:
    """Tell whether there is a result under these keys, each within the one before."""
    held: Any = read(file)
    for key in keys:
        held = held.get(key, {})
    return bool(held)


def nest(keys: list[str], found: dict[str, Any]) -> dict[str, Any]:
    """Put a result under these keys, for `add`."""
    for key in reversed(keys):
        found = {key: found}
    return found


def _merge(held: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(held.get(key), dict):
            _merge(held[key], value)
        else:
            held[key] = value
