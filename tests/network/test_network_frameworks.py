"""Models as their users have them: a Lightning module after training, a Keras model as an ONNX file, TorchScript."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import offmap
from offmap.errors import InputError

KERAS = """
import sys
import keras
import numpy as np

keras.utils.set_random_seed(0)
layers = [
    keras.Input((8, 8, 1)),
    keras.layers.Conv2D(6, 3, activation="relu"),
    keras.layers.GlobalAveragePooling2D(),
    keras.layers.Dense(16, activation="relu"),
    keras.layers.Dense(4, activation="softmax"),
]
model = keras.Sequential(layers)
images = np.random.default_rng(0).random((20, 8, 8, 1)).astype(np.float32)
np.savez(sys.argv[2], images=images, answers=model(images).detach().numpy())
model.export(sys.argv[1], format="onnx", verbose=False)
"""


@pytest.mark.slow
def test_a_keras_model_as_an_onnx_file(tmp_path: Path) -> None:
    """The file that Keras writes casts every tensor to the type it has; the head is found behind casts and softmax."""
    files = [str(tmp_path / "model.onnx"), str(tmp_path / "answers.npz")]
    environment = {**os.environ, "KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KERAS, *files], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    held = np.load(files[1])
    network = offmap.Network.onnx(files[0])
    acts = network.extract(held["images"], progress=False)
    assert (acts.features.shape[1], acts.n_classes) == (16, 4)
    shares = np.exp(acts.logits) / np.exp(acts.logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, held["answers"], atol=1e-5)
    np.testing.assert_allclose(acts.head(acts.features), acts.logits, atol=1e-5)
    guard = offmap.detector("react(90)|energy").fit(acts).calibrate(network.extract(held["images"] + 0.01))
    made = offmap.export(files[0], guard, tmp_path / "guarded.onnx", held["images"])
    assert made.difference < 1e-4


@pytest.mark.slow
def test_a_lightning_module_after_training() -> None:
    import lightning

    class Digits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 12), nn.ReLU())
            self.classifier = nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.classifier(self.body(x))

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    rows, labels = torch.randn(64, 8), torch.arange(64) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, labels), batch_size=16)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    model = Digits()
    lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(model, loader)
    network = offmap.Network(model)
    acts = network.extract(loader, progress=False)
    assert "'classifier'" in str(network)
    assert acts.labels.tolist() == labels.tolist()
    with torch.no_grad():
        np.testing.assert_allclose(acts.logits, model.eval()(rows).numpy(), rtol=1e-5, atol=1e-6)


def test_a_scripted_model_goes_through_an_onnx_file(tmp_path: Path) -> None:
    """TorchScript hides its layers; the way out that the message names works."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)).eval()
    rows = torch.randn(30, 6)
    scripted = torch.jit.trace(model, rows[:2])
    with pytest.raises(InputError, match="export it to ONNX"):
        offmap.Network(scripted)
    torch.onnx.export(scripted, (rows[:2],), tmp_path / "model.onnx", dynamo=False, dynamic_axes={"rows": {0: "n"}},
                      input_names=["rows"])  # fmt: skip
    acts = offmap.Network.onnx(tmp_path / "model.onnx").extract(rows.numpy(), progress=False)
    np.testing.assert_allclose(acts.logits, model(rows).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert acts.features.shape[1] == 9
