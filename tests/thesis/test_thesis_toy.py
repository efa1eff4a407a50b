"""The toys run at any size, keep what is done, and do not mix results of several sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kept
import toy


def test_what_is_done_is_kept_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, size = tmp_path / "toy.json", toy.Size(per_type=6, epochs=1, pixels=8, batch_size=10, projection=8)
    first = dict(list(toy.RUNS.items())[:3])
    monkeypatch.setattr(toy, "RUNS", {**first, ("sorl", "cubes labelled"): stopped})
    with pytest.raises(KeyboardInterrupt):
        toy.run_all(size, 1, ["SimSiam's"], file, tmp_path / "work")
    half = json.loads(file.read_text())
    assert list(half["seeds"]["0"]["SimSiam's"]["sorl"]) == ["no labels"]
    monkeypatch.undo()
    asked = []
    monkeypatch.setattr(toy.Size, "learn", noted(toy.Size.learn, asked))
    toy.run_all(size, 1, ["SimSiam's"], file, tmp_path / "work")
    whole = json.loads(file.read_text())
    assert asked == ["0-0-sorl-cubes-labelled"], "only what was missing is learned"
    assert whole["seeds"]["0"]["SimSiam's"]["nscl"] == half["seeds"]["0"]["SimSiam's"]["nscl"]
    with pytest.raises(SystemExit, match="another size"):
        toy.run_all(toy.THESIS, 1, ["SimSiam's"], file, tmp_path / "work")


def stopped(*given: object) -> tuple[dict[str, float], toy.Points]:
    raise KeyboardInterrupt


def noted(learn, asked):
    def call(self, data, seed, views, out, **given):
        asked.append(out.name)
        return learn(self, data, seed, views, out, **given)

    return call


def test_the_thesis_size_is_what_the_thesis_says() -> None:
    size = toy.THESIS
    assert (size.per_type, size.epochs, size.network, size.learning_rate, size.schedule) == (
        2500, 40, "resnet18", 0.005, "constant",
    )  # fmt: skip
    committed = kept.read(toy.HERE / "results" / "toy.json")
    assert committed["setting"]["per_type"] == toy.Size().per_type
