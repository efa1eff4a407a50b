"""A guard in MLflow: logged, and loaded by the real package where nothing of offmap or torch can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import onnx
import pytest
from deploy_kit import world

import offmap
from offmap.deploy import log_guard
from offmap.errors import InputError, StoreError

CLASSES = ["ant", "bee", "cat", "dög"]
ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("offmap", "torch", "onnx", "sklearn", "scipy"):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Blocker())
import json
import mlflow.pyfunc
import numpy as np

answer = mlflow.pyfunc.load_model(sys.argv[1]).predict(np.load(sys.argv[2]))
assert not {"offmap", "torch"} & {name.split(".")[0] for name in sys.modules}
print(json.dumps({name: values.tolist() for name, values in answer.items()}))
"""


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(before)


def test_a_logged_guard_answers_alone_as_in_python(tracking: str, tmp_path: Path) -> None:
    guard = world().guard("react(90)|energy")
    file = tmp_path / "guarded.onnx"
    offmap.export(world().model, guard, file, world().x[:40], classes=CLASSES, external_data=True)
    with mlflow.start_run():
        info = log_guard(file)
    kept = mlflow.artifacts.download_artifacts(info.model_uri)
    np.save(tmp_path / "x.npy", world().strange)
    command = [sys.executable, "-P", "-c", ALONE, kept, tmp_path / "x.npy"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin"})
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    expected = guard(world().net(world().strange))
    np.testing.assert_allclose(said["score"], expected.score, rtol=1e-4)
    assert said["known"] == expected.known.tolist()
    assert {name for name, known in zip(said["name"], said["known"], strict=True) if not known} == {"unknown"}
    assert [CLASSES[label] for label in said["class"] if label >= 0] == [
        one for one in said["name"] if one != "unknown"
    ]
    requirements = (Path(kept) / "requirements.txt").read_text()
    assert "onnxruntime==" in requirements
    assert "torch" not in requirements


def test_a_table_is_taken_and_wrong_files_are_named(tracking: str, tmp_path: Path) -> None:
    import pandas as pd
    import torch

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)).astype(np.float32)
    model = torch.nn.Linear(3, 2).eval()
    net = offmap.Network(model)
    guard = offmap.detector("energy").fit(net.extract(rows[:100])).calibrate(net.extract(rows[100:]))
    done = offmap.export(model, guard, tmp_path / "rows.onnx", rows[:20])
    loaded = mlflow.pyfunc.load_model(log_guard(done, name="rows").model_uri)
    new = rng.normal(size=(100, 3)).astype(np.float32)  # a calibration input may lie on the threshold itself
    table = pd.DataFrame(new.astype(np.float64), columns=list("abc"))
    assert loaded.predict(table)["known"].tolist() == guard(net(new)).known.tolist()
    with pytest.raises(ValueError, match=r"\['input'\] are missing; given are \['x'\]"):
        loaded.predict({"x": rows})
    with pytest.raises(InputError, match=r"there is no such file; offmap\.export writes one"):
        log_guard(tmp_path / "no.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="ONNX Runtime does not take the graph"):
        log_guard(tmp_path / "bad.onnx")
    onnx.save(identity(), tmp_path / "plain.onnx")
    with pytest.raises(InputError, match="it has no known, logits, p_value, score"):
        log_guard(tmp_path / "plain.onnx")


def identity() -> onnx.ModelProto:
    sides = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in ("input", "out")]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["input"], ["out"])], "plain", *([s] for s in sides)
    )
    return onnx.helper.make_model(graph, ir_version=9, opset_imports=[onnx.helper.make_opsetid("", 17)])
