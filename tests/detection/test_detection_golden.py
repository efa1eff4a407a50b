"""Known numbers on real networks: the DICE authors' DenseNets and their features, see the README of the data folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import offmap
from offmap.detection.shapers.dice import contribution, largest, n_kept
from offmap.metrics import auroc, fpr_at_tpr

pytestmark = pytest.mark.data

# FPR95 and AUROC with SVHN as OOD, in per cent, computed independently and published in the data README.
README = {
    "cifar10": {
        "msp": (47.44, 93.47),
        "energy": (41.06, 93.95),
        "dice(0.9)|energy": (30.15, 94.58),
        "react(c=1.0)|energy": (44.30, 94.02),
        "knn(10)": (4.20, 99.23),
    },
    "cifar100": {
        "msp": (81.82, 75.28),
        "energy": (87.29, 81.85),
        "dice(0.9)|energy": (60.06, 88.45),
        "knn(40)": (18.75, 96.26),
    },
}


class Real:
    """One DenseNet: its head, its features and the mean activation over its training set."""

    def __init__(self, folder: Path, name: str) -> None:
        weights = load_file(folder / "weights" / f"densenet100bc_{name}.safetensors")
        self.head = offmap.Head(weights["fc.weight"], weights["fc.bias"])
        self.mean = np.load(folder / "weights" / f"densenet100bc_{name}_mean_activation.npy").reshape(-1)
        self.sets = {}
        for short, file in (("train", f"{name}_train10k"), ("test", f"{name}_test"), ("svhn", "svhn_test10k")):
            held = np.load(folder / "features" / f"{name}-densenet__{file}.npz")
            labels = held["labels"] if short != "svhn" else None
            self.sets[short] = offmap.Activations(held["features"].astype(np.float32), self.head, labels=labels)

    def fitted(self, spec: str) -> offmap.Detector:
        """Fitted on training features; DICE on the mean activation over all of them, which is what the README used."""
        known = self.sets["train"]
        if "dice" in spec:
            known = offmap.Activations(self.mean[None].astype(np.float32), self.head)
        return offmap.detector(spec).fit(known)


@pytest.fixture(scope="module", params=["cifar10", "cifar100"])
def real(request: pytest.FixtureRequest, data_folder: Path) -> tuple[str, Real]:
    return request.param, Real(data_folder, request.param)


def test_published_numbers(real: tuple[str, Real]) -> None:
    name, network = real
    for spec, (fpr, area) in README[name].items():
        made = network.fitted(spec)
        inside, outside = made.score(network.sets["test"]), made.score(network.sets["svhn"])
        assert 100 * auroc(inside, outside) == pytest.approx(area, abs=0.05), spec
        assert 100 * fpr_at_tpr(inside, outside) == pytest.approx(fpr, abs=0.1), spec
        # The README takes the ID score next below the threshold, of rank 499 from 0 where ours has 500.
        below = np.sort(inside)[499]
        assert 100 * np.mean(outside >= below) == pytest.approx(fpr, abs=0.05), spec


def test_accuracy_is_the_networks(real: tuple[str, Real]) -> None:
    name, network = real
    test = network.sets["test"]
    accuracy = np.mean(test.predictions == test.labels)
    assert 100 * accuracy == pytest.approx({"cifar10": 94.54, "cifar100": 75.06}[name], abs=0.05)


def test_dice_mask(real: tuple[str, Real]) -> None:
    name, network = real
    weight = network.head.weight.astype(np.float64)
    values = contribution(torch.from_numpy(network.mean.astype(np.float64)), torch.from_numpy(weight))
    mask = largest(values, n_kept(0.9, values.numel())).numpy()
    made = network.fitted("dice(0.9)|energy")
    # The mean passes through float32 in activations, which can swap the very last weights that tie.
    assert (made.states[0]["mask"].numpy() != mask).sum() <= 2
    assert mask.sum() == round(0.1 * weight.size)
    by_percentile = network.mean * weight > np.percentile(network.mean * weight, 90)
    assert (by_percentile != mask).sum() <= 1
    if name == "cifar10":
        assert mask.sum(axis=1).min() >= 26
        assert mask.sum(axis=1).max() <= 40


def test_msp_does_not_saturate(real: tuple[str, Real]) -> None:
    """A quarter of CIFAR-10's test inputs are 1.0 in a plain float32 softmax."""
    name, network = real
    test = network.sets["test"]
    scores = offmap.detector("msp").fit(test).score(test)
    assert len(np.unique(scores)) > 0.98 * len(np.unique(test.features, axis=0))
    if name == "cifar10":
        logits = torch.from_numpy(test.logits)
        assert (torch.softmax(logits, dim=1).amax(dim=1) == 1).float().mean() > 0.1


def test_react_percentile_must_be_validated(real: tuple[str, Real]) -> None:
    name, network = real
    made = network.fitted("react(90)|energy")
    if name == "cifar10":  # the network for which the figure is known
        assert float(made.states[0]["c"]) == pytest.approx(0.41, abs=0.01)
    assert fpr_at_tpr(made.score(network.sets["test"]), made.score(network.sets["svhn"])) > 0.9
