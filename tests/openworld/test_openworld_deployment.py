"""A deployment: the same answers after saving, whatever network is in it; and one ONNX graph."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

import offmap
from offmap.errors import InputError, OffmapError, StoreError
from offmap.network import Network
from offmap.openworld import ClassifierUpdate, Deployment
from offmap.openworld.network_files import restore_network

NAMES = ("ant", "bee", "cat")


def rows(n=200, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


def deploy(network, inputs, names=NAMES, method="energy"):
    """A detector fitted and calibrated on what the network says of some inputs."""
    acts = network.extract(inputs, progress=False)
    return Deployment(offmap.detector(method).fit(acts[:100]).calibrate(acts[100:]), network, names)


def foreign(seed=0, classes=3):
    torch.manual_seed(seed)
    return Network(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, classes)))


def same_answers(one, two, inputs):
    mine, theirs = one.verdicts(inputs), two.verdicts(inputs)
    np.testing.assert_allclose(theirs.score, mine.score, rtol=1e-5)
    np.testing.assert_array_equal(theirs.known, mine.known)
    np.testing.assert_array_equal(two.predict(inputs), one.predict(inputs))
    assert two.class_names == one.class_names


def test_features_alone(tmp_path):
    head = offmap.Head(np.random.default_rng(1).normal(size=(3, 6)))
    acts = offmap.Activations(rows(), head)
    made = Deployment(offmap.detector("energy").fit(acts[:100]).calibrate(acts[100:]), class_names=NAMES)
    made.save(tmp_path / "deployment.offmap")
    back = offmap.load(tmp_path / "deployment.offmap")
    assert isinstance(back, Deployment)
    found = back.predict(rows(50, seed=2), "features")
    np.testing.assert_array_equal(found, made.predict(rows(50, seed=2), "features"))
    known = made.verdicts(rows(50, seed=2), "features").known
    np.testing.assert_array_equal(found == -1, ~known)
    assert back.class_name(1) == "bee"
    with pytest.raises(InputError, match="no network in this deployment"):
        back.predict(rows(5))


def test_a_cnn_comes_back_whole(tmp_path):
    from offmap.models.cnn import CNN

    pictures = np.random.default_rng(0).normal(size=(200, 1, 8, 8)).astype(np.float32)
    made = deploy(Network(CNN(3, width=4)), pictures)
    made.save(tmp_path / "d.offmap")
    same_answers(made, offmap.load(tmp_path / "d.offmap"), pictures[:40])


def test_an_extended_network_comes_back_whole(tmp_path):
    from offmap.models.cnn import CNN

    pictures = np.random.default_rng(0).normal(size=(200, 1, 8, 8)).astype(np.float32)
    head = offmap.Head(np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32))
    extended = ClassifierUpdate(NAMES, head).deployable(Network(CNN(2, width=4)))
    made = deploy(extended, pictures)
    made.save(tmp_path / "d.offmap")
    same_answers(made, offmap.load(tmp_path / "d.offmap"), pictures[:40])


def test_a_graph_inside_a_file_reads_no_file_beside_it(tmp_path, monkeypatch):
    """Where all programs keep temporary files, anyone could put its weights."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "weights.bin").write_bytes(np.ones(18, np.float32).tobytes())
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[6, 3])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "72")):
        weight.external_data.add(key=key, value=value)
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", n]) for name, n in (("x", 6), ("y", 3))
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    content = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()
    parts = {"kind": "onnx", "layer": None}, {"graph": np.frombuffer(content, np.uint8)}
    network = restore_network(*parts, None)
    with pytest.raises(OffmapError, match="not a readable ONNX model"):
        network.extract(rows(2), progress=False)
    del network
    gc.collect()
    assert [file.name for file in tmp_path.iterdir()] == ["weights.bin"]  # and nothing is left behind


def test_an_onnx_network_comes_back_whole(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    network = foreign()
    torch.onnx.export(
        network.model.eval(),
        (torch.zeros(2, 6),),
        tmp_path / "m.onnx",
        dynamo=True,
        dynamic_shapes=({0: "n"},),
        verbose=False,
    )
    made = deploy(Network.onnx(tmp_path / "m.onnx"), rows())
    made.save(tmp_path / "d.offmap")
    (tmp_path / "m.onnx").unlink()
    same_answers(made, offmap.load(tmp_path / "d.offmap"), rows(40, seed=3))


def test_a_foreign_module_needs_a_network_of_its_kind(tmp_path):
    made = deploy(foreign(), rows())
    made.save(tmp_path / "d.offmap")
    with pytest.raises(StoreError, match="weights of a Sequential, which is not offmap's own"):
        offmap.load(tmp_path / "d.offmap")
    same_answers(made, Deployment.load(tmp_path / "d.offmap", foreign(seed=5)), rows(40, seed=3))
    other = Network(torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3)))
    with pytest.raises(StoreError, match="not of this network"):
        Deployment.load(tmp_path / "d.offmap", other)


def test_what_cannot_answer_is_refused():
    acts = offmap.Activations(rows(), offmap.Head(np.eye(3, 6)))
    detector = offmap.detector("energy").fit(acts)
    with pytest.raises(InputError, match="it has no threshold"):
        Deployment(detector)
    detector.calibrate(acts)
    with pytest.raises(InputError, match="2 class names, but the detector was fitted on 3 classes"):
        Deployment(detector, class_names=("ant", "bee"))
    with pytest.raises(InputError, match="two classes have the same name"):
        replace(Deployment(detector), class_names=("ant", "ant", "bee"))


@pytest.mark.parametrize("extended", [False, True])
def test_a_deployment_is_exported_as_one_graph(tmp_path, extended):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = foreign()
    if extended:
        head = offmap.Head(np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32))
        network = ClassifierUpdate(NAMES, head).deployable(network)
    made = deploy(network, rows())
    exported = offmap.export(made, path=tmp_path / "guarded.onnx", example=rows(8))
    assert exported.checked >= 8
    session = ort.InferenceSession(tmp_path / "guarded.onnx")
    fresh = rows(30, seed=4)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: fresh}), strict=True))
    np.testing.assert_array_equal(found["known"], made.verdicts(fresh).known)


def test_features_alone_are_exported_as_one_graph(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    acts = offmap.Activations(rows(), offmap.Head(np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)))
    made = Deployment(offmap.detector("energy").fit(acts[:100]).calibrate(acts[100:]), class_names=NAMES)
    made.save(tmp_path / "d.offmap")
    offmap.export(tmp_path / "d.offmap", path=tmp_path / "guarded.onnx")
    session = ort.InferenceSession(tmp_path / "guarded.onnx")
    fresh = rows(30, seed=4)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {session.get_inputs()[0].name: fresh}), strict=True))
    np.testing.assert_array_equal(found["known"], made.verdicts(fresh, "features").known)
