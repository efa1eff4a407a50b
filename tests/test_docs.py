"""Every Python example in README and docs runs, top to bottom, in a folder of its own."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^(<!-- not run -->\s*)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN_SESSION = (
    "import doctest; raise SystemExit(doctest.testfile({!r}, module_relative=False, optionflags={}).failed > 0)"
)


BOXES = ("known_boxed", "unknown_boxed", "known_flagged", "unknown_flagged", "known_right")
PEERS = ("detect", "suite", "guarantees")


def examples(page: Path) -> list[str]:
    """The page's blocks; one after the comment ``<!-- not run -->`` needs what only the reader has."""
    return [code for marked, code in BLOCK.findall(page.read_text()) if not marked]


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if examples(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Scripts run as they are; a page of interactive sessions also gives the answers it prints."""
    blocks = examples(page)
    if blocks[0].startswith(">>>"):
        session = tmp_path / "page.txt"
        session.write_text("\n".join(blocks))
        code = RUN_SESSION.format(str(session), doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    else:
        code = "\n".join(blocks)
    environment = {name: value for name, value in os.environ.items() if name != "OFFMAP_DATA"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_the_page_of_methods_is_what_the_registry_says() -> None:
    code = "import gen_methods; raise SystemExit(gen_methods.PAGE.read_text() != gen_methods.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0, "docs/reference/methods.md is out of date: run python docs/gen_methods.py"


def test_the_page_which_method_follows_the_results() -> None:
    code = "import gen_which as g; raise SystemExit(any(p.read_text() != g.page(p) for p in g.PAGES))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=False)
    assert done.returncode == 0, "README.md or a page about auto is out of date: run python docs/gen_which.py"


def resolve(name: str) -> object:
    """The module, class or function of a dotted name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize(("page", "least"), [("design.md", 25), ("thesis.md", 15)])
def test_a_map_of_the_code_names_what_is_there(page: str, least: int) -> None:
    names = re.findall(r"`(offmap(?:\.\w+)+)`", (ROOT / "docs" / page).read_text())
    assert len(names) > least
    for name in names:
        resolve(name)


def test_files_that_pages_name_are_there() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"`((?:offmap|benchmarks|examples|tests)/[\w./-]+\.(?:py|json|toml))`", page.read_text())
    }
    assert len(named) > 20
    assert [each for each in named if not ((ROOT / each[1]).exists() or (ROOT / "src" / each[1]).exists())] == []


def test_the_reference_shows_every_public_name_where_users_import_it() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = re.findall(r"^::: (offmap\S*)$", pages, re.MULTILINE)
    for name in shown:
        resolve(name)
    assert {f"offmap.{name}" for name in importlib.import_module("offmap").__all__} <= set(shown)


def test_the_design_lists_every_package_and_the_layers_that_ci_keeps() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    source = ROOT / "src" / "offmap"
    there = {path.name + ("/" if path.is_dir() else "") for path in source.iterdir() if not path.name.startswith("_")}
    listed = set(re.findall(r"^  (\w+(?:/|\.py)) ", text, re.MULTILINE))
    assert listed == there - {"py.typed"}
    kept = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = [re.findall(r"\w+", layer) for layer in kept if layer != "__main__"]
    block = re.search(r"```\n(cli\n.*?)```", text, re.DOTALL)
    assert block is not None
    assert [line.split() for line in block[1].splitlines()] == rows


def test_the_table_beside_peers_is_what_was_measured() -> None:
    results = {name: json.loads((ROOT / f"benchmarks/results/{name}.json").read_text()) for name in PEERS}
    cases, suite, sets = results["detect"]["cases"], results["suite"]["suites"], results["guarantees"]["p_values"]
    measured = [
        *(f"{cases[name]['ratio']:.0f}" for name in ("mahalanobis", "gradnorm", "dice")),
        f"{suite['cifar10-densenet']['times_faster_in_cpu_time']:.1f}",
        f"{suite['cifar10-densenet']['times_faster_than_by_hand']:.1f}",
        f"{sets['crepes']['over_offmap']:.0f}",
        f"{sets['nonconform']['over_offmap']:.1f}",
    ]
    table = (ROOT / "README.md").read_text().split("their time over offmap's |")[1].split("\n\n")[0]
    assert [line.rsplit("|", 2)[1].strip() for line in table.splitlines()[2:]] == measured


def test_the_table_of_boxes_is_what_was_measured() -> None:
    means = json.loads((ROOT / "benchmarks/results/boxes.json").read_text())["means"]
    page = (ROOT / "docs/howto/boxes.md").read_text()
    for method, found in means.items():
        cells = [f"{found[name]:.1f}" for name in BOXES]
        assert f"| `{method}` | {' | '.join(cells)} |" in page
