"""One test over the whole registry, and newcomers that must fail it with a readable sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detection_checks import CHECKS, Check
from detection_zoo import World

import offmap
from offmap.detection import Score, register
from offmap.detection.registry import METHODS, example_specs
from offmap.detection.statistics import Mean

SPECS = [
    *example_specs(),
    "react(c=0.1)|energy",
    "react(90)|dice(0.7)|energy",
    "react(90)|mahalanobis",
    "react(90)|react(80)|vim",
    "react(90)|knn(5)",
    "react(90)|react(80)|knn(5, alpha=0.5)",
    "ash_s(90)|nnguide",
    "react(90)|temperature_scaling|msp",
    "dice(0.5)|dice(0.9)|entropy",
    "react(c=0.1, layer='features.5')|energy",
    "react(c=0.1, layer='features.5')|knn(5)",
    "scale(85)|react(c=0.1, layer='features.5')|mahalanobis",
    "react(c=0.1)|odin",
    "mahalanobis(epsilon=0.01)",
    "knn(5) + energy",
    "0.5*vim(8) + rmds + lts(95)|energy + mahalanobis",
    "react(90)|(energy + 2*mahalanobis) + react(90)|react(80)|knn(5) + knn(3)",
    "odin + mc_dropout(n=3) + msp",
    "scale(85)|react(c=0.1, layer='features.5')|(energy + knn(5)) + scale(85)|energy",
    "fisher(knn(5) + energy)",
    "stouffer(0.5*knn(5) + msp + ssd)",
    "cauchy(knn(5) + energy)",
    "harmonic(knn(5) + energy)",
    "tail(knn(5) + 0.5*energy)",
]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("spec", SPECS)
def test_every_method(spec: str, check: Check, world: World, tmp_path: Path) -> None:
    check(spec, world, tmp_path)


# A choice needs the data in hand and takes what they hold: what it does instead is tested in test_detection_auto.py.
OF_ONE_METHOD = {
    "streams_and_shards_agree",
    "comes_back_half_way",
    "shifted_logits",
    "missing_parts_are_named",
    "wrong_widths_are_refused",
}


@pytest.mark.parametrize("check", [check for check in CHECKS if check.__name__ not in OF_ONE_METHOD])
@pytest.mark.parametrize("spec", ["auto", "auto(fast)"])
def test_auto(spec: str, check: Check, world: World, tmp_path: Path) -> None:
    check(spec, world, tmp_path)


class _Newcomer(Score):
    """A method that someone adds."""

    name = "newcomer"
    paper = "a preprint"
    reads = ("features",)
    invariant_to_shift = None


class _Undocumented(_Newcomer):
    paper = ""

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return block.features.sum(dim=1)


class _NotANumber(_Newcomer):
    """NaN."""

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return (-block.features.abs() - 1).sum(dim=1).log()


class _ByBatch(_Newcomer):
    """Centred in its batch."""

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        total = block.features.sum(dim=1)
        return total - total.mean()


class _Random(_Newcomer):
    """Unseeded."""

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return torch.rand(len(block))


class _Silent(_Newcomer):
    """Statistics of it does not say what."""

    def statistics(self) -> dict[str, Any]:
        return {"mean": Mean()}

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return block.features.sum(dim=1)


class _LastBlock(_Newcomer):
    """Remembers only the last block."""

    fits = ("features",)

    def statistics(self) -> dict[str, Any]:
        return {"mean": Mean()}

    def observe(self, statistics: Any, block: Any) -> None:
        statistics["mean"].count = 0
        statistics["mean"].update(block.features)

    def solve(self, statistics: Any, context: Any) -> dict[str, Any]:
        return {"mean": statistics["mean"].value.float()}

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return -(block.features - ready["mean"]).norm(dim=1)


class _Shifty(_Newcomer):
    """Says that a shift of the logits leaves it as it is."""

    reads = ("logits",)
    invariant_to_shift = True

    def score(self, block: Any, ready: Any) -> torch.Tensor:
        return block.logits.amax(dim=1)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (_Undocumented, "newcomer: no docstring|newcomer: `paper` does not say where the method comes from"),
        (_NotANumber, "gives no number|gives NaN"),
        (_ByBatch, "newcomer: scores depend on the batch: in batches of 1 they differ"),
        (_Random, "newcomer: two fits of the same data differ|two scorings of the same data differ"),
        (_Silent, "newcomer: it has statistics, but `fits` does not say what they are made from"),
        (_LastBlock, "newcomer: fit in small blocks differs from fit in one go"),
        (_Shifty, "newcomer: a constant added to all logits does not do what `invariant_to_shift` says"),
    ],
)
def test_newcomer_fails_with_a_sentence(kind: type[Score], sentence: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, offmap.errors.OffmapError), match=sentence):
        _run_all(kind, tmp_path)


class Right(_LastBlock):
    """Minus the distance to the mean."""

    def observe(self, statistics: Any, block: Any) -> None:
        statistics["mean"].update(block.features)


def test_a_right_newcomer_passes(tmp_path: Path) -> None:
    _run_all(Right, tmp_path)


def _run_all(kind: type[Score], folder: Path) -> None:
    world = World()
    made = register(kind)
    try:
        for check in CHECKS:
            check(made.name, world, folder)
    finally:
        METHODS.remove(made.name)


def test_a_method_cannot_take_anothers_name_or_an_odd_one() -> None:
    class Energy(Score):
        name = "energy"

    with pytest.raises(offmap.errors.InputError, match="the name 'energy' is taken"):
        register(Energy)
    Energy.name = "two words"
    with pytest.raises(offmap.errors.InputError, match="a plain word"):
        register(Energy)


def test_every_spec_scores_known_above_far_away(world: World) -> None:
    """A sanity check of the direction: distance scores put noise far away below known inputs."""
    for spec in ("mahalanobis", "knn(5)", "ssd", "gmm(4)", "lof(10)", "ocsvm", "iforest", "vim", "residual", "pca"):
        made, test = world.fitted(spec)
        far = offmap.Activations(
            test.features[:, ::-1] * 4 + np.random.default_rng(0).normal(size=test.features.shape), test.head
        )
        assert made.score(test).mean() > made.score(far).mean(), spec
