"""Pages whose tables and sentences are made from committed results: what `gen_*.py` share.

A made part stands between ``<!-- table: name -->`` (or ``text``) and ``<!-- end -->``; all else is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

MADE = re.compile(r"(<!-- (table|text): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: Path, makers: Mapping[str, Callable[[str], str]]) -> str:
    """The page with its parts made anew, each by the maker of its kind from its name."""
    return MADE.sub(lambda found: f"{found[1]}{makers[found[2]](found[3])}\n{found[4]}", page.read_text())
