"""The whole detection job on built-in data: train, extract once, compare, calibrate, judge, report.

A small network learns six digits and then meets all ten. Within a run nothing is decided on test inputs: parameters are
chosen on validation digits against noise, the guard is named in advance, and its threshold comes from digits that were
used for nothing else. The figures are for showing how it works, not evidence for a method.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offmap.activations import Activations
from offmap.data import Samples, digits
from offmap.detection import Detector, Verdicts, detector
from offmap.detection.comparison import Comparison, compare
from offmap.errors import InputError
from offmap.network import Network

METHODS = (
    "auto",
    "msp",
    "maxlogit",
    "energy",
    "entropy",
    "gen",
    "odin",
    "react(auto)|energy",
    "dice(auto)|energy",
    "ash_s|energy",
    "scale|energy",
    "gradnorm",
    "kl_matching",
    "mahalanobis",
    "rmds",
    "vim",
    "she",
    "nnguide(10, alpha=1.0)",  # its usual hundredth would leave five guides here
    "fdbd",
    "knn(auto)",
)
GUARD = "auto"
NOISE = 300
EPOCHS = 12
WIDTH = 24
TPR = 0.95


@dataclass(frozen=True)
class Demo:
    """Everything the demonstration found.

    Attributes
    ----------
    comparison : Comparison
        All methods, measured on test digits of known classes against digits of unknown ones.
    guard : Detector
        The calibrated detector.
    verdicts : Verdicts
        Its verdicts on each test input: known ones first, then unknown ones.
    test, unknown : Samples
        The test inputs, with labels; `classes` of either names the digits.
    test_acts, unknown_acts : Activations
        Their activations.
    accuracy : float
        Accuracy of the network on test digits of known classes.
    settings : dict
        Settings, by name.
    """

    comparison: Comparison
    guard: Detector
    verdicts: Verdicts
    test: Samples
    unknown: Samples
    test_acts: Activations
    unknown_acts: Activations
    accuracy: float
    settings: dict[str, Any]

    @property
    def accepted(self) -> float:
        """Share of known test inputs that the guard accepts; promised is at least `tpr`, on average."""
        return float(np.mean(self.verdicts.known[: len(self.test)]))

    @property
    def flagged(self) -> float:
        """Share of unknown inputs that the guard flags."""
        return float(np.mean(~self.verdicts.known[len(self.test) :]))

    def draw_rows(self, each: int = 6) -> npt.NDArray[np.intp]:
        """Draw a few test inputs to look at, known and unknown: rows of `verdicts`."""
        rng = np.random.default_rng(self.settings["seed"])
        known = rng.choice(len(self.test), each, replace=False)
        unknown = len(self.test) + rng.choice(len(self.unknown), each, replace=False)
        return np.concatenate([np.sort(known), np.sort(unknown)])

    def picture(self, row: int) -> npt.NDArray[np.uint8]:
        """Return the picture of a row of `verdicts`, dark ink on white."""
        inside = row < len(self.test)
        pixels = (self.test if inside else self.unknown).inputs[row if inside else row - len(self.test)]
        return (255 - 255 * pixels[0]).astype(np.uint8)

    def name_truth(self, row: int) -> str:
        """Name the digit that a row of `verdicts` really shows."""
        inside = row < len(self.test)
        part, place = (self.test, row) if inside else (self.unknown, row - len(self.test))
        assert part.labels is not None
        return part.classes[part.labels[place]]

    def describe(self, row: int) -> str:
        """Describe the verdict on a row in words."""
        predicted = self.verdicts.predicted
        assert predicted is not None
        verdict = f"a known {self.test.classes[predicted[row]]}" if self.verdicts.known[row] else "unknown"
        sign = "✓" if self.is_right(row) else "✗"
        return f"{sign} {self.name_truth(row)}: {verdict}, p = {self.verdicts.p_value[row]:.3f}"

    def is_right(self, row: int) -> bool:
        """Return True if the verdict on a row is right: a known digit named, an unseen one flagged."""
        predicted = self.verdicts.predicted
        assert predicted is not None
        if not self.verdicts.known[row]:
            return bool(row >= len(self.test))
        return self.name_truth(row) == self.test.classes[predicted[row]]


def run_demo(seed: int = 0, known: int = 6, on_step: Callable[[str], None] = lambda words: None) -> Demo:
    """Train, extract, compare, calibrate and judge. The same seed gives the same numbers, apart from the seconds.

    Parameters
    ----------
    seed : int, default=0
        Seed of the split, the initial weights, the training and the noise.
    known : int, default=6
        How many digits, from 0 on, the network is taught; the others are the unknown.
    on_step : callable, optional
        Called with a short text when a step begins.

    Returns
    -------
    Demo
    """
    if not 2 <= known <= 9:
        raise InputError(f"known={known}: 2 to 9 digits can be known, so that some are left unknown")
    from offmap.models.threads import one_thread

    with one_thread():
        return _run(seed, known, on_step)


def _run(seed: int, known: int, on_step: Callable[[str], None]) -> Demo:
    from offmap.models.classify import train_classifier
    from offmap.models.cnn import CNN

    split = digits(known, seed)
    centre, spread = float(split.train.inputs.mean()), float(split.train.inputs.std())

    def ready(part: Samples) -> npt.NDArray[np.float32]:
        return (part.inputs - np.float32(centre)) / np.float32(spread)  # so that noise N(0, 1) is of the data's size

    on_step(f"training a small network on {len(split.train)} pictures of {known} digits")
    model = train_classifier(
        CNN(known, width=WIDTH, seed=seed), ready(split.train), split.train.labels, epochs=EPOCHS, seed=seed
    )
    on_step("running it once over every set")
    net = Network(model)
    requirements = reduce(or_, [detector(spec).requirements for spec in METHODS])
    train, val, test, unknown = (
        net.extract(ready(part), requirements, labels=part.labels, progress=False)
        for part in (split.train, split.val, split.test, split.unknown)
    )
    noise = net.noise(NOISE, split.train.inputs.shape[1:], seed, requirements)
    choosing, calibrating = val[: len(val) // 2], val[len(val) // 2 :]
    on_step(f"comparing {len(METHODS)} detectors")
    comparison = compare(
        METHODS, known=train, id_test=test, ood={"unseen digits": unknown}, val=choosing, outliers=noise
    )
    on_step("calibrating the guard and judging the test inputs")
    guard = comparison.detectors[GUARD].calibrate(calibrating, tpr=TPR)
    verdicts = _join(guard(test), guard(unknown))
    return Demo(
        comparison=comparison,
        guard=guard,
        verdicts=verdicts,
        test=split.test,
        unknown=split.unknown,
        test_acts=test,
        unknown_acts=unknown,
        accuracy=float(np.mean(test.predictions == test.labels)),
        settings={
            "seed": seed,
            "known digits": list(range(known)),
            "inputs": {
                "train": len(train),
                "to choose parameters": len(choosing),
                "to calibrate": len(calibrating),
                "test": len(test),
                "unknown": len(unknown),
                "noise": NOISE,
            },
            "network": {"kind": "CNN", "width": WIDTH, "epochs": EPOCHS, "features": train.features.shape[1]},
            "guard": {"detector": GUARD, "chosen": guard.chosen, "tpr": TPR, "threshold": guard.threshold},
        },
    )


def _join(first: Verdicts, second: Verdicts) -> Verdicts:
    """Put the verdicts on two sets one after the other."""
    assert first.predicted is not None
    assert second.predicted is not None
    return Verdicts(
        np.concatenate([first.score, second.score]),
        np.concatenate([first.p_value, second.p_value]),
        np.concatenate([first.known, second.known]),
        np.concatenate([first.predicted, second.predicted]),
    )


def write_demo(demo: Demo, folder: str | os.PathLike[str]) -> Path:
    """Write the report, the numbers and the guard of a demonstration into a folder.

    Parameters
    ----------
    demo : Demo
        What `run_demo` found.
    folder : str or path
        Created when it does not exist.

    Returns
    -------
    Path
        The report.
    """
    from offmap.bench.demo_page import build_demo_page

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    demo.comparison.to_json(target / "results.json")
    demo.guard.save(target / "guard.offmap")
    return build_demo_page(demo).write(target / "report.html")
