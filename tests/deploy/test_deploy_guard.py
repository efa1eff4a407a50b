"""A guard in one call: real digits, a real network, real files; and the sentences for what cannot be done."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from typer.testing import CliRunner

import offmap
from offmap.cli import app
from offmap.deploy import build_guard, write_guard
from offmap.deploy.build import bound_by_chance
from offmap.deploy.thumbnails import Thumbnails
from offmap.detection.calibration import Calibration
from offmap.errors import InputError, OffmapWarning
from offmap.openworld import Deployment


def digits(known: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of the digits 0 to 5, or of the others."""
    data = load_digits()
    rows = (data.target < 6) == known
    return (data.images[rows][:, None] / 16).astype(np.float32), data.target[rows]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A small network that classifies the digits 0 to 5."""
    x, y = digits(known=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 6))
        optimiser = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(60):
            loss = nn.functional.cross_entropy(net(torch.tensor(x[:500])), torch.tensor(y[:500]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return net.eval()


def test_from_model_to_files(model: nn.Module, tmp_path: Path) -> None:
    x, y = digits(known=True)
    evidence = build_guard(
        model, [(x[:500], y[:500])], held_out=[(x[500:], y[500:])], unknown=digits(known=False)[0],
        detector="knn(10)", class_names=[f"digit {i}" for i in range(6)],
    )  # fmt: skip
    assert evidence.n_fitted == 500
    assert evidence.accuracy is not None
    assert evidence.accuracy > 0.9
    assert evidence.false_alarms is not None
    assert evidence.false_alarms < 0.12  # 5 % are promised on average; 290 inputs checked
    flagged = float((~evidence.unknown["unknown inputs that were given"].known).mean())
    assert flagged > 3 * evidence.false_alarms
    files = write_guard(evidence, tmp_path / "guard", example=x[:8])

    again = Deployment.load(files["guard.offmap"], network=offmap.Network(model))
    assert again.class_names[3] == "digit 3"
    assert again.detector.chosen == "knn(10)"
    page = Path(files["report.html"]).read_text()
    assert "data:image/png;base64," in page
    assert "digit 3" in page

    import onnxruntime

    session = onnxruntime.InferenceSession(files["guarded.onnx"])
    known = session.run(["known"], {session.get_inputs()[0].name: x[500:540]})[0]
    wanted = evidence.deployment.verdicts(x[500:540]).known
    np.testing.assert_array_equal(known, wanted)


def test_one_set_is_divided(model: nn.Module) -> None:
    x, y = digits(known=True)
    evidence = build_guard(model, [(x, y)], detector="energy", tpr=0.9)
    assert evidence.checked is not None
    assert (evidence.n_fitted, evidence.n_calibrated, len(evidence.checked)) == (650, 217, 216)
    again = build_guard(model, [(x, y)], detector="energy", tpr=0.9)
    np.testing.assert_array_equal(again.checked.score, evidence.checked.score)
    assert "10.0% of known inputs will be called unknown" in str(evidence)


def test_few_inputs_leave_nothing_to_check(model: nn.Module) -> None:
    x, _ = digits(known=True)
    evidence = build_guard(model, x[:60], detector="energy", tpr=0.9)
    assert evidence.checked is None
    assert evidence.n_calibrated == 24


def test_features_need_no_network() -> None:
    rng = np.random.default_rng(0)
    acts = offmap.Activations(rng.normal(size=(300, 5)))
    deployment = offmap.guard(None, acts, detector="knn(5)")
    assert deployment.network is None
    assert len(deployment.verdicts(rng.normal(size=(7, 5)), "features")) == 7
    with pytest.raises(InputError, match="without a model known must be"):
        offmap.guard(None, rng.normal(size=(300, 5)))


def test_what_cannot_be_exported_is_said(model: nn.Module, tmp_path: Path) -> None:
    x, y = digits(known=True)
    evidence = build_guard(model, [(x, y)], detector="odin")
    files = write_guard(evidence, tmp_path)
    assert files["guarded.onnx"].startswith("not written: ")
    assert not (tmp_path / "guarded.onnx").exists()
    assert Deployment.load(tmp_path / "guard.offmap", offmap.Network(model)).detector.chosen.startswith("odin")


def test_a_file_that_cannot_be_written_is_warned_of(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits(known=True)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)  # as in an installation without extras
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.warns(OffmapWarning) as said:
        offmap.guard(model, [(x, y)], detector="msp", out=tmp_path)
    words = "\n".join(str(one.message) for one in said)
    assert "report.html was not written: figures need plotly" in words
    assert "guarded.onnx was not written: offmap.export needs onnx" in words
    assert "pip install" in words
    assert (tmp_path / "guard.offmap").is_file()


@pytest.mark.parametrize(("n_calibrated", "n_checked", "alpha"), [(134, 134, 0.05), (60, 200, 0.1), (500, 50, 0.05)])
def test_what_chance_allows_is_what_thresholds_do(n_calibrated: int, n_checked: int, alpha: float) -> None:
    rng = np.random.default_rng(0)
    shares = np.empty(2000)
    for turn in range(len(shares)):
        calibration = Calibration.of(rng.normal(size=n_calibrated), 1 - alpha)
        shares[turn] = (rng.normal(size=n_checked) < calibration.threshold).mean()
    bound = bound_by_chance(n_calibrated, n_checked, alpha)
    assert (shares <= bound).mean() >= 0.94
    assert (shares < bound - 0.5 / n_checked).mean() <= 0.96  # no looser than it must be


def test_a_promise_that_flags_nothing_allows_nothing() -> None:
    assert bound_by_chance(10, 50, 0.05) == 0.0


def test_bad_input_gets_a_sentence(model: nn.Module) -> None:
    x, y = digits(known=True)
    with pytest.raises(InputError, match=r"tpr=1\.5: the share"):
        offmap.guard(model, x, tpr=1.5)
    with pytest.raises(InputError, match="label 15, but the network knows 6 classes"):
        offmap.guard(model, [(x, y + 10)], detector="energy")
    with pytest.warns(OffmapWarning, match="order of the network's classes"):
        offmap.guard(model, [(x, (y + 3) % 6)], detector="energy")


def test_thumbnails_keep_within_memory() -> None:
    batches = Thumbnails(np.random.default_rng(0).random((400, 3, 128, 128), np.float32), max_bytes=200_000)
    assert sum(map(len, batches)) == 400
    rows = sorted(batches.pictures)
    assert sum(kept.nbytes for kept in batches.pictures.values()) <= 200_000
    assert rows[0] == 0
    assert rows[-1] >= 300  # spread over the data
    assert batches.pictures[0].shape == (64, 64, 3)


def test_a_module_of_ones_own_becomes_a_graph_without_being_told_its_shape(model: nn.Module, tmp_path: Path) -> None:
    x, y = digits(known=True)
    offmap.guard(model, [(x[:300], y[:300])], held_out=[(x[500:800], y[500:800])], detector="msp", out=tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"guard.offmap", "guarded.onnx", "report.html"}


def test_command(model: nn.Module, tmp_path: Path) -> None:
    from PIL import Image

    x, y = digits(known=True)
    for i, (picture, label) in enumerate(zip(x[500:800], y[500:800], strict=True)):
        folder = tmp_path / "known" / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture[0] * 255).astype(np.uint8)).save(folder / f"{i:04}.png")
    file = tmp_path / "model.onnx"
    torch.onnx.export(model, (torch.tensor(x[:2]),), file, dynamo=True, dynamic_shapes=({0: torch.export.Dim("n")},))
    words = ["guard", "--model", file, "--known", tmp_path / "known", "--out", tmp_path / "guard", "--gray"]
    done = CliRunner().invoke(app, [*map(str, words), "--detector", "mahalanobis", "--tpr", "0.9", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout[done.stdout.index("{") :])
    assert said["accuracy"] > 0.9
    assert Path(said["files"]["guarded.onnx"]).is_file()
    assert offmap.load(said["files"]["guard.offmap"]).class_names == tuple(f"digit-{i}" for i in range(6))
