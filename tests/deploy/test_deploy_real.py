"""A trained network, real pictures of known and unknown classes, and every method that the thesis compares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from deploy_kit import agrees, run

import offmap
from offmap.data import scale_images, tiles
from offmap.models.densenet import DenseNet
from offmap.models.weights import load_weights

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
METHODS = [
    "msp", "maxlogit", "energy", "react(90)|energy", "dice(0.7)|energy", "react(90)|dice(0.7)|energy",
    "ash_p(60)|energy", "ash_b(65)|energy", "ash_s(90)|energy", "scale(85)|energy", "mahalanobis(shrinkage=0.01)",
    "vim", "knn(20)", "gen", "kl_matching", "residual", "ssd", "she",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.data
def test_a_densenet_on_cifar_and_svhn(data_folder: Path, tmp_path: Path) -> None:
    known = tiles("cifar10_test", data_folder)[:1000]
    x = scale_images(known.inputs, MEAN, STD)
    strange = scale_images(tiles("svhn_test10k", data_folder)[:100].inputs, MEAN, STD)
    model = DenseNet(10)
    load_weights(model, data_folder / "weights" / "densenet100bc_cifar10.safetensors")
    model.eval()
    plain = tmp_path / "plain.onnx"
    torch.onnx.export(model, (torch.from_numpy(x[:2]),), plain, dynamo=True, dynamic_shapes=({0: "n"},), verbose=False)
    net, from_file = offmap.Network(model), offmap.Network.onnx(plain)
    acts = net.extract(x, labels=known.labels)
    asked = np.concatenate([x[900:], strange])
    seen = net(asked)  # a DenseNet is slow, and the same for all methods
    for spec in METHODS:
        guard = offmap.detector(spec).fit(acts[:700]).calibrate(acts[700:900], tpr=0.9)
        exported = offmap.export(from_file, guard, tmp_path / "guarded.onnx", asked[::4])
        assert exported.difference <= 1e-4, spec
        verdicts = agrees(exported.path, net, guard, asked, seen)["known"]
        assert verdicts[:100].mean() > 0.75, spec  # promised: 0.9 on average over calibrations
    from_torch = offmap.export(
        model, offmap.detector("energy").fit(acts).calibrate(acts), tmp_path / "t.onnx", asked[:8]
    )
    assert run(from_torch.path, x[:900])["known"].mean() >= 0.94
