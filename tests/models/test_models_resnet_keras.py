"""Keras' ResNet-50 in PyTorch gives the numbers of its ONNX file, and what a forward run alone cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

import offmap
from offmap.errors import InputError
from offmap.models.resnet_keras import STAGES, load_keras_resnet50

WIDTH = 4


class KerasGraph:
    """An ONNX file as Keras' ResNet-50 is converted to, with few channels and random weights."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        scale = 1.0 if len(shape) < 2 else (2.0 / np.prod(shape[1:])) ** 0.5
        values = (scale * self.rng.uniform(low, high, shape)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, kind: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(self, x: str, name: str, norm: str, inputs: int, outputs: int, side: int, stride: int = 1) -> str:
        pads = [side // 2] * 4
        names = [x, self.weight(f"{name}_w", outputs, inputs, side, side), self.weight(f"{name}_b", outputs)]
        y = self.add("Conv", names, f"{name}_y", strides=[stride] * 2, pads=pads)
        bounds = {"g": (0.5, 1.5), "b": (-0.5, 0.5), "m": (-0.5, 0.5), "v": (1.0, 3.0)}
        parts = [self.weight(f"{norm}_{key}", outputs, low=low, high=high) for key, (low, high) in bounds.items()]
        return self.add("BatchNormalization", [y, *parts], f"{norm}_y", epsilon=1e-3)

    def save(self, file: Path) -> Path:
        x = self.add("Relu", [self.conv("images", "conv1", "bn_conv1", 3, WIDTH, 7, 2)], "stem")
        x = self.add("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        inputs = WIDTH
        for stage, (ours, blocks) in STAGES.items():
            inner = WIDTH * 2 ** (ours - 1)
            for place, letter in enumerate(blocks):
                name, stride = f"{stage}{letter}", 2 if place == 0 and stage > 2 else 1
                y = self.conv(x, f"res{name}_branch2a", f"bn{name}_branch2a", inputs, inner, 1, stride)
                y = self.add("Relu", [y], f"r{name}a")
                y = self.add(
                    "Relu", [self.conv(y, f"res{name}_branch2b", f"bn{name}_branch2b", inner, inner, 3)], f"r{name}b"
                )
                y = self.conv(y, f"res{name}_branch2c", f"bn{name}_branch2c", inner, 4 * inner, 1)
                if place == 0:
                    x = self.conv(x, f"res{name}_branch1", f"bn{name}_branch1", inputs, 4 * inner, 1, stride)
                x = self.add("Relu", [self.add("Add", [y, x], f"s{name}")], f"o{name}")
                inputs = 4 * inner
        x = self.add("Flatten", [self.add("GlobalAveragePool", [x], "mean")], "features")
        self.add("Gemm", [x, self.weight("fc1000_w", inputs, 7), self.weight("fc1000_b", 7)], "logits")
        ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("features", "logits")]
        start = helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["N", 3, 64, 64])
        graph = helper.make_graph(self.nodes, "resnet", [start], ends, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
        return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KerasGraph().save(tmp_path_factory.mktemp("keras") / "resnet.onnx")


@pytest.fixture
def pictures() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(3, 3, 64, 64)).astype(np.float32)


def test_features_and_logits_are_those_of_the_file(file: Path, pictures: np.ndarray) -> None:
    features, logits = onnxruntime.InferenceSession(file).run(["features", "logits"], {"images": pictures})
    model = load_keras_resnet50(file)
    with torch.no_grad():
        np.testing.assert_allclose(model.features(torch.from_numpy(pictures)), features, atol=1e-4)
        np.testing.assert_allclose(model(torch.from_numpy(pictures)), logits, atol=1e-4)
        turned = load_keras_resnet50(file, channels="rgb")(torch.from_numpy(pictures[:, ::-1].copy()))
    np.testing.assert_allclose(turned, logits, atol=1e-4)


def test_methods_that_need_more_than_a_forward_run_work(file: Path, pictures: np.ndarray) -> None:
    net = offmap.Network(load_keras_resnet50(file))
    for spec in ("odin", "react(90)|odin", "batchnorm_oracle"):
        made = offmap.detector(spec)
        made.fit(net(pictures, requirements=made.requirements))
        assert np.isfinite(made.score(net(pictures, requirements=made.requirements))).all()


def test_other_files_are_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_keras_resnet50(tmp_path / "none.onnx")
    (tmp_path / "noise.onnx").write_bytes(b"\x00\x01 not a graph")
    with pytest.raises(InputError, match=r"not readable as ONNX|no fc1000_w"):
        load_keras_resnet50(tmp_path / "noise.onnx")
    with pytest.raises(InputError, match="'bgr' or 'rgb'"):
        load_keras_resnet50(file, channels="grey")  # type: ignore[arg-type]
    torch.onnx.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), tmp_path / "linear.onnx", dynamo=False)
    with pytest.raises(InputError, match="not Keras' ResNet-50: there is no fc1000_w"):
        load_keras_resnet50(tmp_path / "linear.onnx")
