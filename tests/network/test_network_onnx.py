"""ONNX classifiers, exported for real and built by hand, tapped as the models they come from."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_zoo import ConvHead, Ending, conv_net, images
from torch import nn

from offmap.errors import DependencyError, InputError, MissingError
from offmap.extra_passes import BatchStatistics, Clamp, Edited, Layer, Members, Passes, Perturbed, Request, Requirements
from offmap.network import Network

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def _export(model: nn.Module, x: torch.Tensor, file: Path, dynamic: bool = True) -> Path:
    shapes = {"x": {0: torch.export.Dim("batch")}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), (x,), file, dynamo=True, dynamic_shapes=shapes, input_names=["x"], verbose=False
        )
    return file


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _export(conv_net(), images(4), tmp_path_factory.mktemp("onnx") / "conv.onnx")


def test_an_exported_model_is_tapped_like_the_model(exported: Path, tmp_path: Path) -> None:
    net, twin = Network.onnx(exported), Network(conv_net())
    labels = np.arange(10) % 5
    acts = net.extract(images(), labels=labels, batch_size=4, to=tmp_path / "a")
    expected = twin.extract(images(), labels=labels, batch_size=4)
    np.testing.assert_allclose(acts.features, expected.features, atol=1e-5)
    np.testing.assert_allclose(acts.logits, expected.logits, atol=1e-5)
    np.testing.assert_array_equal(acts.labels, expected.labels)
    np.testing.assert_array_equal(net.head.weight, twin.head.weight)
    np.testing.assert_array_equal(net.head.bias, twin.head.bias)
    np.testing.assert_allclose(net(images().double().numpy()).logits, expected.logits, atol=1e-5)
    again = Network.onnx(exported)
    assert again.fingerprint() == net.fingerprint()
    assert len(again.extract(images(), labels=labels, batch_size=4, to=tmp_path / "a")) == 10


def test_inner_tensors_can_be_asked_for_and_tapped(exported: Path) -> None:
    net = Network.onnx(exported)
    relu = next(name for name, kind in net.layers().items() if kind == "Relu")
    twin = Network(conv_net())(
        images(), requirements=Requirements(extras=(Layer("stem", "mean"), Layer("stem", "gram", 2)))
    )
    requirements = Requirements(extras=(Layer(relu, "mean"), Layer(relu, "gram", 2)))
    acts = net(images(), requirements=requirements)
    np.testing.assert_allclose(acts.extras[f"layer({relu},mean)"], twin.extras["layer(stem,mean)"], atol=1e-5)
    np.testing.assert_allclose(acts.extras[f"layer({relu},gram,2)"], twin.extras["layer(stem,gram,2)"], rtol=1e-3)
    tapped = Network.onnx(exported, layer=relu)(images())
    np.testing.assert_allclose(tapped.features, twin.extras["layer(stem,mean)"], atol=1e-5)
    assert tapped.head is None
    with pytest.raises(MissingError, match="needs a linear head"):
        Network.onnx(exported, layer=relu)(images(), requirements=Requirements(head=True))
    node = next(node.name for node in onnx.load(exported).graph.node if node.output[0] == relu)
    by_node = net(images(), requirements=Requirements(extras=(Layer(node, "mean"),)))
    np.testing.assert_array_equal(by_node.extras[f"layer({node},mean)"], acts.extras[f"layer({relu},mean)"])


@pytest.mark.parametrize(
    "request_",
    [
        Perturbed(0.1, lambda features, logits: logits.amax(1), "odin"),
        Passes(2),
        Edited("x", Clamp(1)),
        Members(),
        BatchStatistics(),
    ],
    ids=lambda request: request.key,
)
def test_what_the_runtime_cannot_do_is_refused(exported: Path, request_: Request) -> None:
    with pytest.raises(InputError, match=r"without gradients, dropout or edited layers; .*Network\(model\)"):
        Network.onnx(exported)(images(), requirements=Requirements(extras=(request_,)))


def test_a_fixed_batch_size_is_filled_and_cut(tmp_path: Path) -> None:
    net = Network.onnx(_export(conv_net(), images(4), tmp_path / "fixed.onnx", dynamic=False))
    expected = Network(conv_net())(images())
    np.testing.assert_allclose(net(images()).logits, expected.logits, atol=1e-5)
    np.testing.assert_allclose(net(images(3)).features, Network(conv_net())(images(3)).features, atol=1e-5)


def test_a_softmax_at_the_end_is_left_out(tmp_path: Path) -> None:
    model, x = Ending("softmax"), torch.randn(4, 4)
    acts = Network.onnx(_export(model, x, tmp_path / "softmax.onnx"))(x)
    expected = Network(model, layer="fc")(x)
    np.testing.assert_allclose(acts.logits, expected.logits, atol=1e-5)
    np.testing.assert_allclose(acts.features, expected.features, atol=1e-5)
    assert acts.head is not None


def test_a_convolutional_head_is_refused(tmp_path: Path) -> None:
    file = _export(ConvHead(), images(4), tmp_path / "conv.onnx")
    with pytest.raises(InputError, match=r"The last tensors are .*net\.layers\(\)"):
        Network.onnx(file)(images(4))


def _hand_made(file: Path, nodes: list[Any], weights: dict[str, np.ndarray]) -> Path:
    graph = onnx.helper.make_graph(
        nodes,
        "hand made",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), file)
    return file


W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
B = np.array([0.5, -1, 2], np.float32)


@pytest.mark.parametrize(
    ("nodes", "scale", "shift"),
    [
        ([("Gemm", ["h", "W", "b"], ["out"], {})], 1, 1),
        ([("Gemm", ["h", "W", "b"], ["out"], {"alpha": 0.5, "beta": 2.0})], 0.5, 2),
        ([("Gemm", ["h", "Wt", "b"], ["out"], {"transB": 1})], 1, 1),
        ([("Gemm", ["h", "W"], ["out"], {})], 1, 0),
        ([("MatMul", ["h", "W"], ["m"], {}), ("Add", ["m", "b"], ["out"], {})], 1, 1),
        ([("MatMul", ["h", "W"], ["m"], {}), ("Add", ["b", "m"], ["a"], {}), ("Identity", ["a"], ["out"], {})], 1, 1),
        (
            [
                ("MatMul", ["h", "W"], ["m"], {}),
                ("Cast", ["m"], ["c"], {"to": 1}),
                ("Add", ["c", "b"], ["a"], {}),
                ("Cast", ["a"], ["out"], {"to": 1}),
            ],
            1,
            1,
        ),  # as Keras writes it
        ([("MatMul", ["h", "W"], ["out"], {})], 1, 0),
        ([("Transpose", ["Wt"], ["t"], {"perm": [1, 0]}), ("MatMul", ["h", "t"], ["out"], {})], 1, 0),
    ],
)
def test_every_way_to_write_a_linear_head(tmp_path: Path, nodes: list[Any], scale: float, shift: float) -> None:
    made = [onnx.helper.make_node("Relu", ["x"], ["h"])]
    made += [onnx.helper.make_node(kind, given, out, **options) for kind, given, out, options in nodes]
    file = _hand_made(tmp_path / "made.onnx", made, {"W": W, "Wt": np.ascontiguousarray(W.T), "b": B})
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    acts = Network.onnx(file)(x)
    np.testing.assert_array_equal(acts.features, np.maximum(x, 0))
    np.testing.assert_allclose(acts.head.weight, scale * W.T, rtol=1e-6)
    np.testing.assert_allclose(acts.head.bias, shift * B, rtol=1e-6)
    np.testing.assert_allclose(acts.head(acts.features), acts.logits, atol=1e-5)


def test_files_that_are_not_models_are_refused(tmp_path: Path, exported: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Network.onnx(tmp_path / "none.onnx")(images())
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(InputError, match="not a readable ONNX model"):
        Network.onnx(tmp_path / "bad.onnx")(images())
    with pytest.raises(InputError, match="no such node or tensor; close are"):
        Network.onnx(exported, layer="relux")(images())
    with pytest.raises(InputError, match="onnx"):
        Network.onnx(exported)(torch.zeros(2, 5, 8, 8))
    with pytest.raises(InputError, match="reads 'x', but the batch holds y"):
        Network.onnx(exported)({"y": images()})
    with pytest.raises(InputError, match="this ONNX Runtime offers"):
        Network.onnx(exported)(images(), device="tpu")


def test_without_the_packages_the_extra_is_named(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DependencyError, match=r"pip install offmap\[onnx\]"):
        Network.onnx(exported)(images())


def test_operators_of_others_are_refused_with_a_sentence(tmp_path: Path) -> None:
    helper, kinds = onnx.helper, onnx.TensorProto
    weight = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "W")
    nodes = [
        helper.make_node("Magic", ["x"], ["a"], domain="acme"),
        helper.make_node("MatMul", ["a", "W"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, kinds.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "custom.onnx")
    with pytest.raises(InputError, match=r"ONNX Runtime cannot run this model .*Magic.* must be replaced"):
        Network.onnx(tmp_path / "custom.onnx")(np.ones((2, 4), np.float32))
