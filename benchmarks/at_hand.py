"""What of a suite can be measured here: its unknown sets that the data folder holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from offmap.bench.sets import load_set
from offmap.bench.suites import Suite
from offmap.errors import InputError


def keep_sets_at_hand(suite: Suite, data: Path) -> Suite:
    """The suite with those unknown sets that can be read; the others are named."""
    found = []
    for ood in suite.ood:
        try:
            load_set(ood, data)
        except InputError as error:
            print(f"left out: {ood.name} ({error})", flush=True)
        else:
            found.append(ood)
    return replace(suite, ood=tuple(found))
