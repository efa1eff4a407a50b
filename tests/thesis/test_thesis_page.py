"""docs/thesis.md says of every row that it works, and how, or why it is not here; what it names is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import offmap
import thesis_commands
from offmap.bench.open_world import list_open_world
from offmap.bench.suites import list_built_in
from offmap.cli.bench import bench
from offmap.errors import OffmapError
from offmap.learning import objective, registered
from offmap.learning.settings import PRESETS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "thesis.md").read_text()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:3]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| in the thesis")
]
CODE = re.findall(r"`([^`]+)`", PAGE)
HELD = json.loads((ROOT / "benchmarks/results/thesis_commands.json").read_text())
# The last number of each chapter, counted in the source of the thesis; definitions and the like share one counter.
NUMBERED = {
    "table": {"2": 2, "3": 5, "4": 5, "5": 6, "6": 2, "7": 1, "8": 6, "A": 6, "B": 4},
    "figure": {"1": 2, "3": 5, "4": 4, "5": 4, "6": 3, "7": 3, "8": 2, "A": 3, "B": 5},
    "theorem": {"4": 2, "5": 1, "6": 7, "7": 3, "8": 3, "A": 2, "B": 29},
}
STATEMENTS = ("theorem", "lemma", "proposition", "assumption", "definition")


def test_every_row_of_every_table_works_or_says_why_not() -> None:
    assert len(ROWS) > 95
    for name, state in ROWS:
        if not re.match(r"works: `[^`]+`", state):
            assert re.match(r"not here: \w+.{20}", state), name


def test_what_a_row_says_to_work_was_run() -> None:
    """At least one code of each row stands in the results, as itself or among the detectors of the one big run."""
    detectors = HELD["detectors of chapters 3 to 5"]["run"]
    open_ones = set(re.findall(r"`(.+?)`", " ".join(re.findall(r"^Not run so yet: (.+)$", PAGE, re.MULTILINE))))
    for name, state in ROWS:
        if state.startswith("works: "):
            codes = {code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", state)}
            found = [code for code in codes if code in HELD or code in open_ones]
            specs = [thesis_commands.runnable(code) for code in codes]
            assert found or any(spec in detectors for spec in specs), name


def test_every_table_figure_and_statement_of_the_thesis_has_a_row() -> None:
    named: dict[str, set[str]] = {kind: set() for kind in NUMBERED}
    for name, _ in ROWS:
        for kind, numbers in re.findall(r"\b([a-z]+?)s? ((?:[1-9AB]\.\d+(?:, )?)+)", name):
            kind = "theorem" if kind in STATEMENTS else kind
            named.get(kind, set()).update(numbers.rstrip(", ").split(", "))
    for kind, chapters in NUMBERED.items():
        wanted = {f"{chapter}.{n}" for chapter, last in chapters.items() for n in range(1, last + 1)}
        assert wanted - named[kind] == set(), kind
        assert named[kind] - wanted == set(), f"there is no such {kind}"


@pytest.mark.parametrize("code", sorted({code for code in CODE if code.startswith("offmap bench")}))
def test_every_suite_and_option_is_there(code: str) -> None:
    words = code.split()[2:]
    suites = list_built_in() | list_open_world()
    known = Path(bench.__code__.co_filename).read_text() + " ".join(bench.__annotations__)
    for word in words:
        if word.startswith("--"):
            assert word in known or word[2:].replace("-", "_") in bench.__annotations__, code
    if words and not words[0].startswith("--"):
        assert words[0] in suites, code


@pytest.mark.parametrize("code", sorted({code for code in CODE if "benchmarks/" in code}))
def test_every_script_and_option_is_there(code: str) -> None:
    found = re.search(r"benchmarks/[\w/]+\.py", code)
    assert found is not None
    text = (ROOT / found[0]).read_text()
    assert all(option in text for option in re.findall(r"--[\w-]+", code)), code


@pytest.mark.parametrize("name", sorted(set(re.findall(r'objective="([\w-]+)"', PAGE))))
def test_every_objective_is_there(name: str) -> None:
    assert name == "sorl-spectral" or objective(name).name == name


@pytest.mark.parametrize("name", sorted(set(re.findall(r'preset="(\w+)"', PAGE))))
def test_every_preset_is_there(name: str) -> None:
    assert name in PRESETS


def is_detector(spec: str) -> bool:
    try:
        offmap.detector(spec)
    except OffmapError:
        return False
    return True


def test_methods_of_the_first_chapters_are_detectors() -> None:
    """Chapters 3 to 5 are about detectors: every code that is no setting, function, script or suite is one."""
    chapters = PAGE.partition("## Chapters 6 and 7")[0].partition("## Chapter 3")[2]
    found = 0
    for line in chapters.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) < 4:
            continue
        for code in re.findall(r"`([^`]+)`", cells[2]):
            spec = code.replace("\\|", "|")
            if re.match(r"offmap[ .]|python |learn\(|fit\(", spec):
                continue
            made = re.sub(r"\[…\]", "['block1']", spec)
            assert is_detector(made) or is_detector(f"{made}|energy"), spec
            found += 1
    assert found >= 40


def test_all_that_the_page_names_was_run_or_is_said_not_to_be() -> None:
    assert {name: run["outcome"] for name, run in HELD.items() if run["outcome"] != "works"} == {}
    open_ones = set(re.findall(r"`(.+?)`", " ".join(re.findall(r"^Not run so yet: (.+)$", PAGE, re.MULTILINE))))
    named = {code for code in CODE if re.match(r"(offmap \w|python benchmarks/|benchmarks/|offmap\.)", code)}
    named -= {"python benchmarks/thesis_commands.py"} | {code for code in named if "--get" in code}
    assert named - set(HELD) == open_ones, "run python benchmarks/thesis_commands.py"
    assert {f"objective {name}" for name in registered()} <= set(HELD)
    detectors = HELD["detectors of chapters 3 to 5"]["run"]
    assert [spec for spec in thesis_commands.detectors_of_page() if spec not in detectors] == []
