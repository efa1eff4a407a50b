"""The registry: names, suggestions, refusals, and what other packages add through entry points."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import offmap
from offmap.errors import InputError
from offmap.registry import Registry


def test_names_are_sorted_and_found() -> None:
    registry: Registry[type] = Registry("thing")
    registry.register("two")(int)
    registry.register("one")(str)
    assert registry.names() == tuple(registry) == ("one", "two")
    assert registry.get("two") is registry["two"] is int
    assert registry.items() == [("one", str), ("two", int)]
    assert "one" in registry
    assert "three" not in registry
    assert len(registry) == 2
    registry.remove("one")
    registry.remove("one")
    assert registry.names() == ("two",)


def test_an_unknown_name_gets_suggestions_or_the_list() -> None:
    registry: Registry[type] = Registry("thing")
    registry.add("spectral", int)
    with pytest.raises(InputError, match=r"^there is no thing 'spectrl'; did you mean spectral\?$"):
        registry.get("spectrl")
    with pytest.raises(InputError, match=r"^there is no thing 'zzz'; choose one of auto, spectral$"):
        registry.get("zzz", also=("auto",))
    with pytest.raises(InputError, match=r"did you mean auto\?"):
        registry.get("aut", also=("auto",))
    with pytest.raises(InputError, match="`offmap methods` lists them all"):
        offmap.detection.registry.METHODS.get("zzz")


def test_a_taken_or_odd_name_is_refused_and_the_same_thing_may_come_again() -> None:
    registry: Registry[type] = Registry("thing")
    registry.add("one", int)
    registry.add("one", int)
    with pytest.raises(InputError, match=r"the name 'one' is taken by builtins\.int; choose another"):
        registry.add("one", str)
    assert registry.get("one") is int
    for name in ("", "two words", "a(1)", None):
        with pytest.raises(InputError, match="is one plain word"):
            registry.add(name, int)  # type: ignore[arg-type]


def _package(folder: Path, name: str, **modules: str) -> None:
    (folder / name).mkdir()
    for module, text in {"__init__": "", **modules}.items():
        (folder / name / f"{module}.py").write_text(text)


def test_a_new_file_in_the_package_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(
        tmp_path,
        "many_things",
        base="from offmap.registry import Registry\nTHINGS = Registry('thing', package='many_things')",
        first="from many_things.base import THINGS\n@THINGS.register('first')\ndef f(): ...",
        second="from many_things.base import THINGS\nassert 'nothing' not in THINGS\nTHINGS.add('second', print)",
    )
    monkeypatch.syspath_prepend(tmp_path)
    from many_things.base import THINGS  # type: ignore[import-not-found]

    seen: list[tuple[str, ...]] = []
    threads = [threading.Thread(target=lambda: seen.append(THINGS.names())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [("first", "second")] * 8, "a thread saw the registry half filled"


def test_a_module_that_fails_to_import_says_so_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, "broken_things", first="raise RuntimeError('broken on purpose')")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[type] = Registry("thing", package="broken_things")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken on purpose"):
            registry.names()


def _installed(folder: Path, name: str, entries: str) -> None:
    """A package as an installer leaves it."""
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text(entries)


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )


def test_other_packages_add_theirs_through_entry_points(tmp_path: Path) -> None:
    score = """
from offmap.detection import Score, register
@register
class LastLogit(Score):
    "The last logit."
    name = "last_logit"
    reads = ("logits",)
    def score(self, block, ready):
        return block.logits[:, -1]
"""
    (tmp_path / "their_score.py").write_text(score)
    (tmp_path / "their_reader.py").write_text("""
import numpy as np
from offmap.data import READERS, Samples
@READERS.register("numbers")
def read_numbers(path, max_bytes):
    "One row of numbers per line."
    return Samples({"features": np.loadtxt(path, ndmin=2)})
""")
    _installed(
        tmp_path, "theirs", "[offmap.methods]\nx = their_score\n[offmap.readers]\ny = their_reader:read_numbers\n"
    )
    code = """
import numpy as np, offmap
print(offmap.detector("last_logit").fit(offmap.Activations(None, logits=np.eye(3))).score(
    offmap.Activations(None, logits=np.arange(6.0).reshape(2, 3))))
open("a.numbers", "w").write("1 2\\n3 4\\n")
print(offmap.data.read("a.numbers"))
"""
    done = _run(f"import os; os.chdir({str(tmp_path)!r})\n{code}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[2. 5.]", "Samples(2: features 2)", ""]


def test_a_broken_package_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "their_energy.py").write_text("""
from offmap.detection import Score, register
@register
class Mine(Score):
    name = "energy"
""")
    _installed(tmp_path, "theirs", "[offmap.methods]\nx = their_energy\ny = not_there\n")
    done = _run("import offmap; print(offmap.detector('energy').score.__self__.__module__)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "x = their_energy of the package theirs 1.0 cannot be loaded" in done.stderr
    assert "the name 'energy' is taken by offmap.detection.scores.logits.Energy" in done.stderr
    assert "y = not_there of the package theirs 1.0 cannot be loaded" in done.stderr


def test_register_at_the_top_takes_each_kind_and_refuses_the_rest(tmp_path: Path) -> None:
    import numpy as np

    @offmap.register
    class TopHalve(offmap.detection.Shaper):
        """Halve every activation."""

        name = "top_halve"
        paper = "an example"
        reads = ("features", "head")
        shapes = "features"

        def shape(self, block, ready):  # type: ignore[no-untyped-def]
            return block.with_features(block.features / 2)

    @offmap.register
    class TopAgreement(offmap.learning.Objective):
        """Both views agree."""

        name = "top-agreement"

    @offmap.register(".topv")
    def read_topv(path: Path, max_bytes: int) -> offmap.data.Samples:
        return offmap.data.Samples({"features": np.loadtxt(path, ndmin=2)})

    try:
        assert str(offmap.detector("top_halve|energy")) == "top_halve|energy"
        assert offmap.learning.objective("top-agreement") is TopAgreement
        np.savetxt(tmp_path / "rows.topv", np.eye(3))
        assert offmap.data.read(tmp_path / "rows.topv").features.shape == (3, 3)
        for wrong in (int, 3, None, read_topv):
            with pytest.raises(InputError, match="it takes a subclass of Score, Shaper or Objective"):
                offmap.register(wrong)
    finally:
        offmap.detection.registry.METHODS.remove("top_halve")
        offmap.learning.objectives.OBJECTIVES.remove("top-agreement")
        offmap.data.READERS.remove("topv")
