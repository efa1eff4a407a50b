"""One file from any kind of model and its guard: it says what Python says, or it is not written."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from deploy_kit import CLASSES, WIDTH, Small, agrees, metadata, run, world
from torch import nn

import offmap
from offmap.detection import Score, register
from offmap.detection.registry import METHODS
from offmap.errors import InputError, NotFittedError, StoreError, VerificationError

OUTPUTS = ["logits", "score", "p_value", "known"]

ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("offmap", "torch", "onnx", "onnxscript", "onnx_ir", "sklearn", "scipy"):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Blocker())
import json
import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1])
x = np.load(sys.argv[2])
logits, score, p_value, known = session.run(None, {"input": x})
facts = session.get_modelmeta().custom_metadata_map
assert not {"offmap", "torch"} & {name.split(".")[0] for name in sys.modules}
print(json.dumps({"score": score.tolist(), "known": known.tolist(), "facts": facts}))
"""


def to_onnx(path: Path, **options: Any) -> Path:
    """The model as a user would have exported it."""
    x = torch.from_numpy(world().x[:2])
    torch.onnx.export(world().model, (x,), path, dynamo=True, verbose=False, dynamic_shapes=({0: "n"},), **options)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_onnx(tmp_path_factory.mktemp("plain") / "model.onnx", input_names=["pixels"], output_names=["out"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, offmap.Detector]:
    guard = world().guard("react(90)|energy")
    path = tmp_path_factory.mktemp("guarded") / "guarded.onnx"
    offmap.export(world().model, guard, path, world().x[:40], classes=["ant", "bee", "cat", "dög"])
    return path, guard


def test_it_runs_where_nothing_of_offmap_can_be_imported(guarded: tuple[Path, offmap.Detector], tmp_path: Path) -> None:
    path, guard = guarded
    np.save(tmp_path / "x.npy", world().strange)
    # -P and an empty home: nothing of this project is on the path but what the environment has installed
    ran = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, path, tmp_path / "x.npy"], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    expected = guard(world().net(world().strange))
    np.testing.assert_allclose(said["score"], expected.score, rtol=1e-4)
    assert said["known"] == expected.known.tolist()
    assert 0 < sum(said["known"]) < len(said["known"])


def test_any_batch_size(guarded: tuple[Path, offmap.Detector]) -> None:
    path, guard = guarded
    for size in (1, 2, 7, 100):
        agrees(path, world().net, guard, world().x[500 : 500 + size])
    got = run(path, world().x[:3])
    assert list(got) == OUTPUTS
    assert got["logits"].shape == (3, CLASSES)
    assert {name: value.dtype.name for name, value in got.items()} == {
        "logits": "float32", "score": "float32", "p_value": "float32", "known": "bool",
    }  # fmt: skip


def test_what_the_file_says_of_itself(guarded: tuple[Path, offmap.Detector]) -> None:
    path, guard = guarded
    facts = metadata(path)
    assert facts["offmap.method"] == "react(90)|energy"
    assert facts["offmap.version"] == offmap.__version__
    assert float(facts["offmap.threshold"]) == guard.threshold
    assert float(facts["offmap.tpr"]) == 0.9
    assert facts["offmap.features"] == "fc"
    assert json.loads(facts["offmap.classes"]) == ["ant", "bee", "cat", "dög"]
    assert facts["offmap.calibration_inputs"] == "200"


def test_the_file_holds_standard_operators_and_no_traces_of_where_it_was_made(
    guarded: tuple[Path, offmap.Detector],
) -> None:
    path, _ = guarded
    assert {node.domain for node in onnx.load(path).graph.node} <= {"", "ai.onnx"}
    content = path.read_bytes()
    for trace in (b"stack_trace", b".py", str(Path(offmap.__file__).parent).encode(), str(Path.home()).encode()):
        assert trace not in content


def test_broken_inputs_are_never_known(guarded: tuple[Path, offmap.Detector]) -> None:
    path, _ = guarded
    x = world().x[:4].copy()
    x[0, 0, 0, 0], x[1, 0, 0, 0] = np.nan, np.inf
    got = run(path, x)
    assert got["known"].tolist()[:2] == [False, False]
    assert np.isnan(got["score"][:2]).all()
    assert np.isfinite(got["score"][2:]).all()


@pytest.mark.slow
def test_the_same_call_writes_the_same_bytes(guarded: tuple[Path, offmap.Detector], tmp_path: Path) -> None:
    path, guard = guarded
    guard.save(tmp_path / "guard.offmap")
    offmap.export(
        world().net, tmp_path / "guard.offmap", tmp_path / "again.onnx", world().x[:40],
        classes=["ant", "bee", "cat", "dög"],
    )  # fmt: skip
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()


def test_a_calibration_by_class_compared_on_a_loader(plain: Path, tmp_path: Path) -> None:
    guard = world().guard("knn(5)", tpr=0.6, by_class=True)
    loader = [(torch.from_numpy(world().x[i : i + 30]), torch.zeros(30)) for i in range(0, 600, 30)]
    exported = offmap.export(plain, guard, tmp_path / "g.onnx", loader)
    assert exported.checked == 1 + 512 + 32
    assert exported.threshold is None
    assert str(exported).startswith(f"{exported.path}: knn(5) behind the model, accepting 60% of known inputs")
    agrees(tmp_path / "g.onnx", world().net, guard, world().x[500:])
    thresholds = json.loads(metadata(tmp_path / "g.onnx")["offmap.thresholds"])
    assert {int(name): value for name, value in thresholds.items()} == guard.calibration.thresholds()


def test_an_onnx_file_needs_no_example_and_keeps_the_name_of_its_input(plain: Path, tmp_path: Path) -> None:
    net = offmap.Network.onnx(plain)
    guard = world().guard("mahalanobis")
    exported = offmap.export(plain, guard, tmp_path / "g.onnx")
    assert exported.checked > 32
    agrees(exported.path, net, guard, world().x[500:])
    session_inputs = [value.name for value in onnx.load(exported.path).graph.input]
    assert session_inputs == ["pixels"]


def test_an_onnx_file_of_one_batch_size_in_an_old_opset_with_taken_names(tmp_path: Path) -> None:
    x = torch.from_numpy(world().x[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is the old way, as in old files
        torch.onnx.export(world().model, (x,), tmp_path / "old.onnx", dynamo=False, opset_version=13)
    model = onnx.load(tmp_path / "old.onnx")
    assert model.opset_import[0].version == 13
    inner = [node.output[0] for node in model.graph.node[:2]]
    taken = dict(zip(inner, ["score", "known"], strict=True))
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = taken.get(name, name)
    onnx.save(model, tmp_path / "old.onnx")
    guard = world().guard("vim")
    exported = offmap.export(tmp_path / "old.onnx", guard, tmp_path / "g.onnx", world().x[:5])
    got = run(exported.path, world().x[:2])
    np.testing.assert_allclose(got["score"], guard.score(world().acts[:2]), rtol=1e-4)
    assert list(got) == OUTPUTS


def test_a_named_layer_without_head(tmp_path: Path) -> None:
    net = offmap.Network(world().model, layer="body.0")
    acts = net(world().x[:500])
    guard = offmap.detector("knn(5)").fit(acts[:300]).calibrate(acts[300:])
    exported = offmap.export(net, guard, tmp_path / "g.onnx", world().x[:20])
    agrees(exported.path, net, guard, world().x[500:])
    assert metadata(exported.path)["offmap.features"] == "body.0"
    with pytest.raises(InputError, match=r"tapped at 'body.0', where there is none"):
        offmap.export(net, world().guard("energy"), tmp_path / "h.onnx", world().x[:20])


class Softened(nn.Module):
    """A softmax after the head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = world().model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return self.inner(x).softmax(1), "beside"


def test_a_model_that_ends_in_a_softmax_is_left_as_it_was(tmp_path: Path) -> None:
    guard, model = world().guard("react(90)|energy"), Softened()
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    exported = offmap.export(model, guard, tmp_path / "g.onnx", world().x[:20], layer="inner.fc")
    got = run(exported.path, world().x[:5])
    np.testing.assert_allclose(got["logits"], world().acts[:5].logits, atol=1e-5)  # not the probabilities
    np.testing.assert_allclose(got["score"], guard.score(world().acts[:5]), rtol=1e-5)
    assert model.training
    assert model.inner.fc.training
    assert not model.inner.fc._forward_hooks
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    model.eval()


class Tokens(nn.Module):
    """A head that answers for every token; the model picks the last one that is not padding."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed = nn.Embedding(20, 8)
            self.mix = nn.Linear(8, 8)
            self.score = nn.Linear(8, 3, bias=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.mix(self.embed(input_ids).cumsum(1)))
        last = attention_mask.sum(1) - 1
        return {"logits": self.score(hidden)[torch.arange(hidden.shape[0]), last]}


def test_a_text_classifier_with_two_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(0, 20, (200, 6)),
        "attention_mask": (np.arange(6) < rng.integers(1, 7, 200)[:, None]).astype(np.int64),
    }
    net = offmap.Network(Tokens().eval())
    acts = net(batch)
    guard = offmap.detector("dice(0.5)|energy").fit(acts[:100]).calibrate(acts[100:])
    few = {name: value[:30] for name, value in batch.items()}
    exported = offmap.export(net, guard, tmp_path / "g.onnx", few)
    assert exported.checked == 31  # tokens are not drawn at random: what a model says of nonsense may be anything
    got = run(exported.path, batch)
    np.testing.assert_allclose(got["score"], guard.score(acts), rtol=1e-5)


def test_a_learned_model_by_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(120, 6)) + 4 * np.eye(6)[np.arange(120) % 3]).astype(np.float32)
    labels = np.where(np.arange(120) % 3 == 2, -1, np.arange(120) % 3)
    model = offmap.learn(x, labels, objective="opencon", n_classes=3, epochs=1)
    model.save(tmp_path / "model.offmap")
    acts = model.network(x)
    guard = offmap.detector("energy").fit(acts).calibrate(acts)
    exported = offmap.export(tmp_path / "model.offmap", guard, tmp_path / "g.onnx")
    agrees(exported.path, model.network, guard, x)
    assert json.loads(metadata(exported.path)["offmap.classes"]) == list(model.class_names)


def test_weights_in_a_file_beside_it(plain: Path, tmp_path: Path) -> None:
    guard = world().guard("knn(5)")
    (tmp_path / "a").mkdir()
    exported = offmap.export(plain, guard, tmp_path / "a" / "g.onnx", world().x[:8], external_data=True)
    assert exported.data is not None
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == sorted(["g.onnx", exported.data.name])
    assert exported.data.stat().st_size > 300 * WIDTH * 4  # the bank
    (tmp_path / "a").rename(tmp_path / "b")  # the two are moved together
    agrees(tmp_path / "b" / "g.onnx", world().net, guard, world().x[500:])


@pytest.fixture
def newcomer() -> Any:
    """Methods registered in a test leave with it."""
    before = METHODS.names()
    yield register
    for name in set(METHODS) - set(before):
        METHODS.remove(name)


def test_a_graph_that_says_something_else_is_not_written(plain: Path, newcomer: Any, tmp_path: Path) -> None:
    @newcomer
    class Twofaced(Score):
        name = "twofaced"
        reads = ("logits",)

        def score(self, block: Any, ready: Any) -> torch.Tensor:
            return block.logits[:, 0]

        def formula(self, state: Any) -> Any:
            return lambda block: block.logits[:, 0] * 1.001

    (tmp_path / "g.onnx").write_bytes(b"what was there before")
    with pytest.raises(VerificationError, match=r"more than 0.0001 of its size apart; nothing was written"):
        offmap.export(plain, world().guard("twofaced"), tmp_path / "g.onnx", world().x[:8])
    assert [file.name for file in tmp_path.iterdir()] == ["g.onnx"]
    assert (tmp_path / "g.onnx").read_bytes() == b"what was there before"
    assert offmap.export(
        plain, world().guard("twofaced"), tmp_path / "g.onnx", world().x[:8], tolerance=0.01
    ).difference == pytest.approx(1e-3, rel=0.1)


def test_a_method_that_leaves_torch_is_told_what_to_add(plain: Path, newcomer: Any, tmp_path: Path) -> None:
    @newcomer
    class Elsewhere(Score):
        name = "elsewhere"
        reads = ("logits",)

        def score(self, block: Any, ready: Any) -> torch.Tensor:
            return torch.tensor([math.sin(float(row.sum())) for row in block.logits])

    with pytest.raises(InputError, match=r"elsewhere cannot be drawn as a graph .* needs a formula\(\)"):
        offmap.export(plain, world().guard("elsewhere"), tmp_path / "g.onnx", world().x[:8])
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    """Depends on its data in a way that no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = world().model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x if float(x.sum()) > 0 else -x)


def test_mistakes_are_told_in_a_sentence(plain: Path, tmp_path: Path) -> None:
    here, out = world(), tmp_path / "out" / "g.onnx"
    (tmp_path / "out").mkdir()
    guard, x = here.guard("react(90)|energy"), here.x[:8]
    narrow = offmap.detector("knn(3)").fit(np.ones((20, 5))).calibrate(np.ones((20, 5)))
    more = Small(classes=6).eval()

    def refused(kind: type[Exception], words: str, *args: Any, **options: Any) -> None:
        with pytest.raises(kind, match=words):
            offmap.export(*args, **options)

    refused(NotFittedError, "not fitted", here.model, offmap.detector("energy"), out, x)
    refused(NotFittedError, "calibrate", here.model, offmap.detector("energy").fit(here.acts), out, x)
    refused(InputError, "fitted on another network", Small(seed=1).eval(), guard, out, x)
    refused(InputError, "another network: the model's head .*6 classes", more, guard, out, x)
    refused(InputError, "16 features per input; .* fitted on 5", here.model, narrow, out, x)
    refused(InputError, "shape of the model's inputs is not known", here.model, guard, out)
    refused(InputError, r"does not take inputs of the shape \(5,\)", here.model, guard, out, shape=(5,))
    refused(InputError, "sizes of one input", here.model, guard, out, shape=(3, 0, 6))
    refused(InputError, "give an array of inputs", here.model, guard, out, "pictures")
    refused(InputError, "3 names for 4 logits", here.model, guard, out, x, classes=["a", "b", "c"])
    refused(InputError, "tolerance=2", here.model, guard, out, x, tolerance=2)
    refused(InputError, "weights", here.model, guard, out, x, weights="w.pt")
    refused(InputError, "export\\(int\\)", 3, guard, out, x)
    refused(InputError, "is tapped at None", here.net, guard, out, x, layer="fc")
    refused(InputError, "cannot be drawn as a graph by torch.onnx", Branching(), guard, out, x)
    refused(InputError, "there is no such file", "nowhere.onnx", guard, out)
    refused(StoreError, "no such file", here.model, "nowhere.offmap", out, x)
    refused(StoreError, "does not exist", here.model, guard, tmp_path / "nowhere" / "g.onnx", x)
    refused(StoreError, "holds a detector, not a open-world-model", _saved(guard, tmp_path), guard, out, x)
    refused(InputError, "an input called 'score'", _renamed(plain, tmp_path), guard, out)
    assert not list((tmp_path / "out").iterdir())


def _saved(guard: offmap.Detector, folder: Path) -> Path:
    guard.save(folder / "guard.offmap")
    return folder / "guard.offmap"


def _renamed(plain: Path, folder: Path) -> Path:
    model = onnx.load(plain)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = "score" if name == "pixels" else name
    model.graph.input[0].name = "score"
    onnx.save(model, folder / "renamed.onnx")
    return folder / "renamed.onnx"


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['onnxscript'] = None\n"
        "import torch, offmap\n"
        "acts = offmap.Network(torch.nn.Linear(4, 3))(torch.randn(50, 4))\n"
        "guard = offmap.detector('energy').fit(acts).calibrate(acts)\n"
        "offmap.export(torch.nn.Linear(4, 3), guard, 'g.onnx', torch.randn(2, 4))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "offmap.errors.DependencyError" in ran.stderr
    assert "pip install offmap[onnx]" in ran.stderr


def test_half_precision_is_told_which_tolerance_to_give(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 4))
    inputs = torch.randn(400, 1, 8, 8).half()
    acts = offmap.Network(model.half()).extract(inputs, progress=False)
    guard = offmap.detector("energy").fit(acts[:200]).calibrate(acts[200:])
    with pytest.raises(
        VerificationError, match="Half precision rounds about that much: allow it with tolerance"
    ) as said:
        offmap.export(model, guard, tmp_path / "half.onnx", inputs[:32], tolerance=1e-5)
    named = float(str(said.value).rsplit("=", 1)[1])
    assert offmap.export(model, guard, tmp_path / "half.onnx", inputs[:32], tolerance=named).path.is_file()


def test_inputs_that_a_network_sees_as_nearly_the_same(tmp_path: Path) -> None:
    """As after training until classes coincide: products in float32 do not say which neighbour is the k-th."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 500)
    inputs = (np.eye(CLASSES, 32)[labels] + 0.004 * rng.normal(size=(500, 32))).astype(np.float32)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, CLASSES)).eval()
    net = offmap.Network(model)
    acts = net.extract(inputs, labels=labels, progress=False)
    guard = offmap.detector("maxlogit + knn(5)").fit(acts[:300]).calibrate(acts[300:400], tpr=0.95)

    alone = np.concatenate([guard.score(net(row[None])) for row in inputs[400:420]])
    np.testing.assert_allclose(alone, guard.score(net(inputs[400:420])), rtol=0, atol=1e-4)
    made = offmap.export(model, guard, tmp_path / "guarded.onnx", inputs[400:])
    assert made.difference < 1e-4
