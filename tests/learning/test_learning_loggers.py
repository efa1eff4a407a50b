"""The numbers of a run in the users' own tools: what the real packages read back is the history."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pytest
import wandb
from learning_blobs import blobs
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2

from offmap.errors import DependencyError, InputError
from offmap.learning import MLflowLogger, WandbLogger, learn

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 32, "progress": False}


class Listener:
    """A logger of one's own, as docs/howto/learn.md describes it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def start(self, settings: Mapping[str, Any]) -> None:
        self.heard.append(("start", dict(settings)))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.heard.append(("log", (step, dict(metrics))))

    def close(self) -> None:
        self.heard.append(("close", None))


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield MlflowClient()
    mlflow.set_tracking_uri(before)


def test_rounds_count_on_and_a_resumed_run_logs_what_it_still_trains(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=10)
    listener = Listener()
    options = {"objective": "self-training", "rounds": 2, "epochs": 2}
    model = learn(rows, labels, 6, out=tmp_path, log=listener, **options)
    steps = [what for kind, what in listener.heard if kind == "log"]
    assert [step for step, _ in steps] == [1, 2, 3, 4]
    assert [row["loss"] for _, row in steps] == [row["loss"] for row in model.history]
    assert listener.heard[0][1]["rounds"] == 2
    assert listener.heard[-1] == ("close", None)
    (tmp_path / "round-2.offmap").unlink()
    again = Listener()
    learn(rows, labels, 6, out=tmp_path, log=[again], **options)
    assert [what for kind, what in again.heard if kind == "log"] == steps[2:]


def test_a_failed_run_closes_what_was_started() -> None:
    rows, _, labels = blobs(size=10)
    listener = Listener()
    with pytest.raises(InputError, match=r"no longer finite|NaN"):
        learn(rows, labels, 6, objective="gcd", log=listener, learning_rate=1e30, **QUICK)
    assert [kind for kind, _ in listener.heard if kind != "log"] == ["start", "close"]


def test_event_files_hold_what_the_history_holds(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=10)
    model = learn(rows, labels, 6, objective="opencon", out=tmp_path, log="tensorboard", **QUICK)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([row["loss"] for row in model.history])
    assert [event.step for event in events.Scalars("novel")] == [1, 2]


def test_mlflow_holds_what_the_history_holds(tracking: MlflowClient) -> None:
    rows, _, labels = blobs(size=10)
    logger = MLflowLogger(run_name="gcd")
    model = learn(rows, labels, 6, objective="gcd", log=logger, **QUICK)
    kept = tracking.get_metric_history(logger.run.info.run_id, "loss")
    assert [(one.step, one.value) for one in kept] == [(i + 1, row["loss"]) for i, row in enumerate(model.history)]
    run = tracking.get_run(logger.run.info.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "gcd")
    assert run.data.params["objective"] == "gcd"
    with mlflow.start_run() as mine:  # a run of the user's own is used, and left open
        learn(rows, labels, 6, objective="gcd", log=MLflowLogger(), **QUICK)
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert tracking.get_run(mine.info.run_id).data.metrics["loss"] == kept[-1].value


def test_an_offline_run_of_weights_and_biases_holds_what_the_history_holds(tmp_path: Path) -> None:
    rows, _, labels = blobs(size=10)
    quiet = wandb.Settings(silent=True, disable_git=True, x_disable_stats=True, x_disable_machine_info=True)
    logger = WandbLogger(mode="offline", dir=str(tmp_path), settings=quiet)
    model = learn(rows, labels, 6, objective="gcd", log=logger, **QUICK)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for _ in range(2400):  # its own process writes the file, also after `finish`
        losses, ended = read_losses(file)
        if ended:
            break
        time.sleep(0.05)
    assert losses == pytest.approx([row["loss"] for row in model.history])


def read_losses(file: Path) -> tuple[list[float], bool]:
    """Read a run's file (after 7 bytes, blocks of 32 KiB with checksummed pieces of records), and if it has its end."""
    data, place, whole, ended = file.read_bytes(), 7, b"", False
    found: list[float] = []
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind not in (1, 4):  # neither a whole record nor the last piece of one
            continue
        record = wandb_internal_pb2.Record.FromString(whole)
        whole = b""
        ended = ended or record.WhichOneof("record_type") == "exit"
        found += [float(item.value_json) for item in record.history.item if "loss" in (item.key, *item.nested_key)]
    return found, ended


def test_what_is_missing_or_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _, labels = blobs(size=10)
    for module, name in (("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            patch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
            with pytest.raises(DependencyError, match=rf"pip install 'offmap\[{name}\]'"):
                learn(rows, labels, 6, objective="gcd", out=tmp_path, log=name, **QUICK)
    with pytest.raises(InputError, match="name a folder with out="):
        learn(rows, labels, 6, objective="gcd", log="tensorboard")
    for wrong in ("comet", 3, Listener, [print]):
        with pytest.raises(InputError, match="choose one of tensorboard, mlflow, wandb, or give an object with"):
            learn(rows, labels, 6, objective="gcd", log=wrong)
