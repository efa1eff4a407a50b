"""Services for tests of the triage page: one over features in this process, one over digits in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np

import offmap
from offmap.service import Deployment, Service, Settings
from offmap.service.loading import DeploymentFiles
from offmap.service.triage.inputs import KnownData
from offmap.service.triage.triage import Triage

MODEL = "from offmap.models.cnn import CNN\n\n\ndef make():\n    return CNN(6, width=24)\n"
WIDTH, OLD = 8, 3


def write_digits(folder: Path) -> dict[str, np.ndarray]:
    """Files for `offmap serve`; returns the stream and the test digits with their truth."""
    from safetensors.torch import save_file

    from offmap.bench.digits_simulation import make_digits_scenario

    world = make_digits_scenario(known=6, rounds=1, seed=0, epochs=8)
    state, known = world.state, world.state.known
    (folder / "digitsnet.py").write_text(MODEL)
    save_file(state.network.model.state_dict(), folder / "net.safetensors")
    state.detector.save(folder / "guard.offmap")
    held = known.calibration + known.held_out
    np.savez(folder / "known.npz", inputs=known.train.inputs, labels=known.train.labels)
    np.savez(folder / "held.npz", inputs=held.inputs, labels=held.labels)
    (folder / "classes.txt").write_text("\n".join("012345"))
    stream = world.streams[0]
    return {
        "stream": stream.inputs, "stream_labels": stream.labels,
        "test": world.test.inputs, "test_labels": world.test.labels,
    }  # fmt: skip


class Server:
    """`offmap serve` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [
            sys.executable, "-m", "offmap.cli", "serve", "guard.offmap", "--store", "store", "--port", "0", *options,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment)
        line = self.process.stderr.readline()
        assert " on http" in line, line
        self.url = line.split(" on ")[1].split(",")[0]

    def call(self, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(self.url + path)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
        self.process.stderr.close()


class DigitsServer(Server):
    """The same for the network and the digits of `write_digits`."""

    def __init__(self, folder: Path, *options: str) -> None:
        network = ("--model", "digitsnet:make", "--weights", "net.safetensors", "--classes", "classes.txt")
        super().__init__(folder, *network, *options)

    def score(self, inputs: np.ndarray) -> list[dict]:
        found = []
        for start in range(0, len(inputs), 64):
            found += self.call("/v1/score", {"inputs": inputs[start : start + 64].tolist()})["results"]
        return found


def rows_of(labels, seed):
    rng = np.random.default_rng(seed)
    return (6 * np.eye(WIDTH)[labels] + rng.normal(size=(len(labels), WIDTH))).astype(np.float32)


class Scenario:
    """A service for features of three known classes, and unknown inputs of two others."""

    def __init__(self, folder, known=True, from_files=False, **settings):
        self.folder, self.settings = folder, settings
        labels = np.arange(450) % OLD
        np.savez(
            folder / "known.npz", features=rows_of(labels, 0), labels=labels, classes=np.array(["ant", "bee", "cat"])
        )
        acts = offmap.Activations(rows_of(labels, 0))
        self.guard = offmap.detector("knn(5)").fit(acts[:225]).calibrate(acts[225:])
        self.known = KnownData(folder / "known.npz") if known else None
        self.files = DeploymentFiles(folder / "guard.offmap") if from_files else None
        self.guard.save(folder / "guard.offmap")
        self.open()

    def open(self):
        settings = Settings(store=str(self.folder / "store"), **self.settings)
        self.service = Service(Deployment(self.guard), settings)
        self.triage = Triage(self.service, self.known, files=self.files)

    def close(self):
        self.triage.close()
        self.service.close()

    def again(self):
        """Stop and start, as after a crash: nothing is kept but what is on disk."""
        self.close()
        self.open()

    def meet(self, n=120, seed=1):
        labels = OLD + np.arange(n) % 2
        results = self.service.score(features=rows_of(labels, seed))
        return {one["id"]: int(label) for one, label in zip(results, labels, strict=True)}

    def grouped(self):
        self.triage.group()
        self.triage.tasks.wait()
        view = self.triage.view()
        assert view["job"]["error"] is None, view["job"]
        return view["board"]

    def learned(self):
        board = self.triage.view()["board"]
        self.triage.learn(board["number"])
        self.triage.tasks.wait()
        view = self.triage.view()
        assert view["job"]["error"] is None, view["job"]
        return view["versions"][-1]
