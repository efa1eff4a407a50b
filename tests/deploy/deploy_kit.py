"""Small models with calibrated guards, and ONNX Runtime to run what is exported."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import offmap

CLASSES, WIDTH = 4, 16


class Small(nn.Module):
    """Convolutions and a linear head whose answers are far apart."""

    def __init__(self, classes: int = CLASSES, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, WIDTH, 3), nn.ReLU())
            self.fc = nn.Linear(WIDTH, classes)
        with torch.no_grad():
            self.fc.weight.mul_(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).mean((2, 3)))


class World:
    """A model, inputs of several kinds, and what the model says of them."""

    def __init__(self) -> None:
        self.model = Small().eval()
        self.net = offmap.Network(self.model)
        rng = np.random.default_rng(0)
        patterns = 2 * rng.normal(size=(CLASSES, 3, 6, 6))
        labels = rng.integers(0, CLASSES, 600)
        self.x = (patterns[labels] + rng.normal(size=(600, 3, 6, 6))).astype(np.float32)
        with torch.no_grad():  # every class is predicted about as often
            middle = self.model(torch.from_numpy(self.x)).quantile(0.6, dim=0)
            self.model.fc.bias -= middle
        acts = self.net(self.x)
        # the classes are what the network says, but for a few: then methods that look at right answers have some
        labels = np.where(rng.random(600) < 0.1, rng.integers(0, CLASSES, 600), acts.predictions)
        self.acts = offmap.Activations(acts.features, acts.head, np.asarray(acts.logits), labels)
        self.strange = np.concatenate([4 * rng.normal(size=(30, 3, 6, 6)), self.x[570:]]).astype(np.float32)

    def guard(self, spec: str, tpr: float = 0.9, by_class: bool = False) -> offmap.Detector:
        """Fitted on the first inputs, calibrated on the next."""
        made = offmap.detector(spec).fit(self.acts[:300])
        return made.calibrate(self.acts[300:500], tpr=tpr, by_class=by_class)


@cache
def world() -> World:
    return World()


def run(path: Path | str, inputs: Any) -> dict[str, np.ndarray]:
    """What the file says in ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed = inputs if isinstance(inputs, dict) else {session.get_inputs()[0].name: inputs}
    return dict(zip(names, session.run(names, feed), strict=True))


def agrees(
    path: Path | str,
    net: offmap.Network,
    guard: offmap.Detector,
    x: np.ndarray,
    acts: offmap.Activations | None = None,
) -> dict[str, np.ndarray]:
    """The file and Python say the same of these inputs, except of scores as near the threshold as rounding.

    Returns what the file says. `acts` are what the network says of these inputs, where that was asked before.
    """
    got, acts = run(path, x), net(x) if acts is None else acts
    expected = guard(acts)
    assert guard.calibration is not None
    size = np.maximum(np.abs(expected.score), guard.calibration.scores.std())
    np.testing.assert_allclose(got["logits"], acts.logits, rtol=1e-4, atol=1e-4 * np.abs(acts.logits).max())
    assert np.all(np.abs(got["score"] - expected.score) <= 1e-4 * size)
    one_rank = 1.001 / (len(guard.calibration.scores) + 1)
    assert np.all(np.abs(got["p_value"] - expected.p_value) <= one_rank)
    clear = np.abs(expected.p_value - (1 - guard.calibration.tpr)) > one_rank
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(got["known"][clear], expected.known[clear])
    return got


def metadata(path: Path | str) -> dict[str, str]:
    """What the file says of itself."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(session.get_modelmeta().custom_metadata_map)
