"""Real servers for tests, started in a tenth of a second: one process imports everything and forks one per server."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

WIDTH, CLASSES = 6, 3
KNOWN = [[5.0, 0, 0, 1, 1, 1]]
UNKNOWN = [[-9.0, -9, -9, 0, 0, 0]]


def make_guard(seed=0, tpr=0.95, width=WIDTH):
    import offmap

    rng = np.random.default_rng(seed)
    rows = rng.random((400, width)) + 4 * np.eye(width)[np.arange(400) % CLASSES]
    known = offmap.Activations(rows, head=offmap.Head(np.eye(width)[:CLASSES]))
    return offmap.detector("energy").fit(known[:200]).calibrate(known[200:], tpr=tpr)


def make_network():
    """A network for inputs of 3×4×4; its head reads WIDTH features."""
    import torch

    from offmap.network import Network

    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(48, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, CLASSES)]
    return Network(torch.nn.Sequential(*layers))


def guard_of(network):
    """A guard for that network, calibrated so that about half of random inputs are unknown."""
    import offmap

    inputs = np.random.default_rng(1).random((400, 3, 4, 4), np.float32)
    acts = network.extract(inputs, progress=False)
    return offmap.detector("energy").fit(acts[:200]).calibrate(acts[200:], tpr=0.5)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def call(url, method, path, body=None, headers=None, timeout=30.0):
    """Status, headers and decoded body of one request."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=timeout)
    if isinstance(body, dict | list):
        body, headers = json.dumps(body), {"content-type": "application/json", **(headers or {})}
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, answer.headers, json.loads(content) if is_json else content


def wait_until(happened, seconds=60.0):  # a busy machine is no failure
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class Server:
    def __init__(self, process, url, log):
        self.pid, self.url, self.log = process, url, log

    def call(self, method, path, body=None, headers=None, timeout=30.0):
        return call(self.url, method, path, body, headers, timeout)

    def score(self, **body):
        status, _, answer = self.call("POST", "/v1/score", body)
        assert status == 200, answer
        return answer["results"]

    def unknown_ids(self):
        ids, after = [], ""
        while after is not None:
            _, _, page = self.call("GET", "/v1/unknowns?limit=1000" + (f"&after={after}" if after else ""))
            ids += [item["id"] for item in page["items"]]
            after = page["next"]
        return ids

    @property
    def alive(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def send(self, number):
        os.kill(self.pid, number)

    def end(self, number=signal.SIGKILL):
        """Send a signal and wait for the end."""
        if self.alive:
            self.send(number)
            wait_until(lambda: not self.alive)


class Launcher:
    """Starts servers from a process that has imported everything already."""

    def __init__(self, folder):
        self.folder = Path(folder)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip
        self._count = 0

    def start(self, store, guard="features", known=None, **settings):
        """A server that listens, with these settings; `guard` is "features" or "network" or a guard's file.

        With a file of known inputs it has the triage page, and learns in a thread; "" is the page without known inputs.
        """
        self._count += 1
        log = self.folder / f"server{self._count}.log"
        order = {"store": str(store), "guard": str(guard), "known": known, "log": str(log), "settings": settings}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "url" in answer, f"{answer}\n{log.read_text()}"
        return Server(answer["pid"], answer["url"], log)

    def close(self):
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


def _serve_one(order, files):
    """In the forked process: become the server."""
    from offmap.service import Deployment, Service, bind_socket, serve
    from offmap.service.loading import DeploymentFiles
    from offmap.service.settings import load_settings

    os.dup2(os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    tell = os.dup(1)
    os.dup2(2, 1)
    try:
        chosen = load_settings(port=0, store=order["store"], **order["settings"])
        bound = bind_socket(chosen)
        if order["guard"] == "network":
            network = make_network()
            service = Service(Deployment(guard_of(network), network, ["ant", "bee", "cat"]), chosen)
        else:
            source = DeploymentFiles(Path(files["features"] if order["guard"] == "features" else order["guard"]))
            service = Service(source.load(), chosen, source.load)

        def ready(url):
            os.write(tell, (json.dumps({"pid": os.getpid(), "url": url}) + "\n").encode())

        routers = []
        if order["known"] is not None:
            from offmap.service.triage.inputs import KnownData
            from offmap.service.triage.routes import create_triage_router
            from offmap.service.triage.triage import Triage

            known = KnownData(Path(order["known"])) if order["known"] else None
            routers.append(create_triage_router(Triage(service, known)))
        serve(service, bound, ready, routers)
    except BaseException as error:
        os.write(tell, (json.dumps({"error": str(error)}) + "\n").encode())
        raise
    finally:
        os._exit(0)


def _fork_forever(folder):
    import offmap.learning
    import offmap.models
    import offmap.service.run  # noqa: F401 - imported so that forked processes need not

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    guard = Path(folder) / "launched.offmap"
    make_guard().save(guard)
    children = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve_one(json.loads(line), {"features": guard})
        children.append(pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _fork_forever(sys.argv[1])
