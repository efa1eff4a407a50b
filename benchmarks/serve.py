"""The service under load: throughput against direct calls of the network, latency, and minutes of mixed requests.

``python benchmarks/serve.py`` measures throughput and writes ``results/serve.json``; ``--soak 60`` sends mixed requests
for an hour and writes ``results/serve-soak.json`` (with ``--clients`` and ``--pause`` for a machine that has other work
to do; what should not have happened is the exit status); ``--learning 3`` measures latency while the service learns, in
three turns with as long a time without after each, and writes ``results/serve-learning.json``. ``--busy`` is for a
machine whose other work comes and goes: there the process that learns is stopped and continued every 25 requests, so
that both kinds of time see the same load, and ``results/serve-learning-busy.json`` is written. How much the times
without scatter by themselves is measured beside it: the p99 of one half of them over that of the other. The server is a
real ``offmap serve`` on loopback; the clients are another process, so set ``OMP_NUM_THREADS`` to leave them a core.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

import offmap
from offmap.models import load_network
from offmap.report.page import versions
from offmap.service import open_unknown_store
from worker import THREADS, Worker

RESULTS = Path(__file__).with_name("results")
HERE = Path(__file__).parent
BATCH, BATCHES, INPUTS, TURNS = 64, 2, 192, 5
ENOUGH = 500
GROWTH = 1.1  # of memory after the warm-up, which is too much
NPY = {"content-type": "application/x-npy"}


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@contextlib.contextmanager
def serving(folder: Path, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of the guard in a folder, and its address."""
    paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    settings = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": os.pathsep.join(paths)} | environment
    command = [sys.executable, "-m", "offmap.cli", "serve", str(folder / "guard.offmap"), "--port", "0"]
    log = folder / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen([*command, *words], env=settings, stderr=stream, stdout=stream, cwd=folder)
    try:
        while not (found := re.search(r"http://\S+?:\d+", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield process, found.group()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        print(log.read_text()[-4000:], file=sys.stderr)


class Client:
    """One connection that is kept."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)

    def __call__(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        """Send a request; status and answer."""
        self._connection.request(method, path, body, headers or {})
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if "json" in (answer.getheader("content-type") or "") else content

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def together(clients: int, work: Callable[[int], None]) -> float:
    """Seconds that so many threads take."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def load(url: str, bodies: list[bytes], clients: int, requests: int) -> tuple[float, list[float]]:
    """Seconds for so many requests in all over so many connections, and the seconds of each."""
    taken: list[float] = []

    def work(number: int) -> None:
        client = Client(url)
        for k in range(number, requests, clients):
            began = time.perf_counter()
            status, answer = client("POST", "/v1/score", bodies[k % len(bodies)], NPY)
            taken.append(time.perf_counter() - began)
            assert status == 200, answer
        client.close()

    return together(clients, work), taken


def make_guard(folder: Path, network: offmap.Network, inputs: Any) -> Any:
    """A guard that knows half of these inputs, saved; and what it says of them."""
    acts = network.extract(inputs, progress=False)
    guard = offmap.detector("react(90)|energy").fit(acts).calibrate(acts, tpr=0.5)
    guard.save(folder / "guard.offmap")
    return guard(acts).known


def latency(seconds: list[float]) -> dict[str, Any]:
    """Median and 99th percentile of answers, the latter where there are enough to tell."""
    median = float(np.percentile(seconds, 50))
    slowest = float(np.percentile(seconds, 99)) if len(seconds) >= ENOUGH else None
    ratio = None if slowest is None else slowest / median
    return {"answers": len(seconds), "p50_seconds": median, "p99_seconds": slowest, "p99_over_p50": ratio}


def throughput() -> dict[str, Any]:
    """Inputs per second of the service over those of direct calls, turn by turn in one run."""
    with tempfile.TemporaryDirectory() as scratch, Worker(sys.executable, "serve_worker.py") as direct:
        folder = Path(scratch)
        inputs = np.random.default_rng(0).standard_normal((INPUTS, 3, 32, 32), np.float32)
        known = make_guard(folder, load_network("serve_worker:half_resnet18"), inputs)
        np.save(folder / "inputs.npy", inputs)
        direct("load", file=str(folder / "inputs.npy"), batch=BATCH)
        order = np.argsort(~known, kind="stable")  # the known first
        strange = BATCH // 16
        few = np.concatenate([inputs[order[-strange:]], inputs[order[: BATCH - strange]]])
        all_unknown = inputs[order[-BATCH:]]
        singles = [npy(few[k : k + 1]) for k in range(BATCH)]
        rows = BATCH * BATCHES
        cases: dict[str, tuple[list[bytes], int, int]] = {
            "batches of 64, one in 16 unknown, 2 connections": ([npy(few)], 2, BATCHES),
            "batches of 64, all unknown and stored, 2 connections": ([npy(all_unknown)], 2, BATCHES),
            "single inputs, one in 16 unknown, 128 connections": (singles, 2 * BATCH, rows),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ("direct", *cases)}
        latencies: dict[str, list[float]] = {name: [] for name in cases}
        with serving(
            folder,
            "--model",
            "serve_worker:half_resnet18",
            "--store",
            str(folder / "store"),
            "--batch-size",
            str(BATCH),
        ) as (_, url):
            for turn in range(TURNS + 1):
                direct("direct", batches=BATCHES)
                seconds["direct"].append(direct.seconds)
                for name, (bodies, clients, requests) in cases.items():
                    taken, each = load(url, bodies, clients, requests)
                    seconds[name].append(taken)
                    latencies[name] += each if turn else []
        medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
        return {
            "what": "ResNet-18 of half the width on 32×32, react(90)|energy; ratios of medians",
            "threads": THREADS,
            "inputs_per_turn": rows,
            "turns": TURNS,
            "versions": versions(),
            "inputs_per_second_direct": rows / medians["direct"],
            "cases": {
                name: {
                    "throughput_over_direct": medians["direct"] / medians[name],
                    "latency": latency(latencies[name]),
                    "seconds": seconds[name][1:],
                }
                for name in cases
            },
            "seconds_direct": seconds["direct"][1:],
        }


class Soak:
    """Clients that send good and bad requests, remember what was acknowledged, and count every answer."""

    def __init__(self, url: str, inputs: Any, pause: float) -> None:
        self.url, self.inputs, self.pause = url, inputs, pause
        self.acknowledged: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lock = threading.Lock()
        self.stop = threading.Event()
        out = io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)).save(out, "PNG")
        self.picture = out.getvalue()

    def good(self, rng: random.Random, client: Client) -> None:
        """A request as it should be."""
        paths = {"page": f"/v1/unknowns?limit={rng.randint(1, 500)}", "metrics": "/metrics", "triage": "/v1/triage"}
        kind = rng.choice(["npy", "npy", "json", "picture", *paths])
        if kind in paths:
            status, _ = client("GET", paths[kind])
        else:
            start, rows = rng.randrange(len(self.inputs) - 16), rng.randint(1, 16)
            part = self.inputs[start : start + rows]
            if kind == "json":
                body = json.dumps({"inputs": part[:2].tolist(), "references": ["a"] * len(part[:2])}).encode()
                status, answer = client("POST", "/v1/score", body, {"content-type": "application/json"})
            elif kind == "npy":
                status, answer = client("POST", "/v1/score", npy(part), NPY)
            else:
                status, answer = client("POST", "/v1/score", self.picture, {"content-type": "image/png"})
            if status == 200:
                with self.lock:
                    self.acknowledged.update(row["id"] for row in answer["results"] if not row["known"])
        self.note(f"good {kind}", status, {200})

    def bad(self, rng: random.Random, client: Client) -> None:
        """A request that must be refused."""
        bodies = {
            "text": (b"hello", {"content-type": "application/json"}),
            "nesting": (b"[" * 50_000, {"content-type": "application/json"}),
            "empty": (b'{"inputs": []}', {"content-type": "application/json"}),
            "nan": (npy(np.full((1, 3, 32, 32), np.nan, np.float32)), NPY),
            "shape": (npy(np.ones((2, 7), np.float32)), NPY),
            "broken npy": (npy(self.inputs[:4])[:-100], NPY),
            "broken picture": (self.picture[:-200], {"content-type": "image/png"}),
            "large": (b" " * 5_000_000, {"content-type": "application/json"}),
        }
        kind = rng.choice([*bodies, "garbage", "leave", "slow", "not found"])
        if kind in bodies:
            status, _ = client("POST", "/v1/score", *bodies[kind])
            self.note(f"bad {kind}", status, {400, 413, 422})
        elif kind == "not found":
            self.note("bad not found", client("GET", "/x" * rng.randint(1, 500))[0], {404})
        else:
            self.raw(kind)

    def raw(self, kind: str) -> None:
        """A client that does not speak HTTP, leaves in the middle, or is slow."""
        where = urlsplit(self.url)
        head = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
        sent = {"garbage": os.urandom(300) + b"\r\n\r\n", "leave": head + b"{" * 5000, "slow": head}[kind]
        with socket.create_connection((where.hostname, where.port), timeout=60) as sock:
            sock.sendall(sent)
            if kind == "leave":
                self.note("bad leave", 0, {0})
                return
            answer = sock.recv(100)
        self.note(f"bad {kind}", int(answer.split()[1]) if answer else 0, {400, 408, 0})

    def note(self, kind: str, status: int, expected: set[int]) -> None:
        """Count an answer, and remember one that should not have come."""
        with self.lock:
            self.answers[f"{kind}: {status}"] += 1
            if status not in expected and len(self.wrong) < 20:
                self.wrong.append(f"{kind}: {status}")

    def work(self, number: int) -> None:
        """Send until told to stop."""
        rng = random.Random(number)
        client = Client(self.url)
        while not self.stop.is_set():
            try:
                (self.good if rng.random() < 0.6 else self.bad)(rng, client)
            except (OSError, http.client.HTTPException) as error:
                self.note(f"connection lost: {type(error).__name__}", -1, set())
                client.close()
                client = Client(self.url)
            time.sleep(rng.uniform(0, 2 * self.pause))
        client.close()

    def post(self, path: str, body: bytes = b"") -> int:
        """Have the guard read again, or the unknown inputs grouped."""
        client = Client(self.url)
        status, _ = client("POST", path, body, {"content-type": "application/json"})
        client.close()
        return int(status)


def anonymous(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def soak(minutes: float, clients_at_once: int, pause: float) -> dict[str, Any]:
    """Memory, lost items and wrong answers over some minutes of mixed requests, with reloads and groupings."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, store = Path(scratch), Path(scratch) / "store"
        inputs = np.random.default_rng(0).random((256, 3, 32, 32), np.float32)
        make_guard(folder, load_network("serve_worker:small_cnn"), inputs)
        limits = {"OFFMAP_MAX_BODY": "2000000", "OFFMAP_BODY_SECONDS": "3", "OFFMAP_PILE_BYTES": str(8 * 2**30)}
        limits["OFFMAP_PILE_ITEMS"] = "10000000"
        words = ("--model", "serve_worker:small_cnn", "--store", str(store))
        memory: list[int] = []
        reloads: Counter[int] = Counter()
        groupings: Counter[int] = Counter()
        with serving(folder, *words, **limits) as (process, url):
            clients = Soak(url, inputs, pause)
            threads = [threading.Thread(target=clients.work, args=(number,)) for number in range(clients_at_once)]
            for thread in threads:
                thread.start()
            seconds = int(60 * minutes)
            period = max(seconds // 10, 30)
            for second in range(seconds):
                time.sleep(1)
                memory.append(anonymous(process.pid))
                if second % 20 == 19:
                    reloads[clients.post("/v1/guard/reload")] += 1
                if second % period == period // 2:
                    groupings[clients.post("/v1/triage/group", b"{}")] += 1
            clients.stop.set()
            for thread in threads:
                thread.join()
            alive = process.poll() is None
        unknowns = open_unknown_store(store)
        kept = {item.id for block in unknowns.iter_blocks(4096, status=None, contents=False) for item in block}
        unknowns.close()
        fifth = max(seconds // 5, 1)
        early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
        good = sum(count for name, count in clients.answers.items() if name.startswith("good"))
        return {
            "what": "small CNN on 32×32, good and bad requests, a reload every 20 seconds, ten groupings",
            "minutes": minutes,
            "clients": clients_at_once,
            "pause_seconds": pause,
            "versions": versions(),
            "requests": {"good": good, "bad": sum(clients.answers.values()) - good},
            "answers": dict(sorted(clients.answers.items())),
            "unexpected_answers": clients.wrong,
            "reloads": {str(status): count for status, count in reloads.items()},
            "groupings": {str(status): count for status, count in groupings.items()},
            "acknowledged_unknowns": len(clients.acknowledged),
            "lost": len(clients.acknowledged - kept),
            "alive_at_the_end": alive,
            "memory_last_fifth_over_second_fifth": late / early,
            "memory_mib": {"second_fifth": early / 2**20, "last_fifth": late / 2**20, "most": max(memory) / 2**20},
        }


MODEL = "from offmap.models.cnn import CNN\n\n\ndef make():\n    return CNN(6, width=24)\n"
PAUSE = 0.01  # between requests, as of a client that is not in a hurry
LEARNABLE = ("--model", "digitsnet:make", "--weights", "net.safetensors", "--store", "store", "--known", "known.npz")


def write_digits(folder: Path) -> Any:
    """Write what the server of a network that knows six digits reads; return a stream with the other four."""
    from safetensors.torch import save_file

    from offmap.bench.digits_simulation import make_digits_scenario

    world = make_digits_scenario(known=6, rounds=1, seed=0, epochs=8)
    state, known = world.state, world.state.known
    assert state.network is not None
    assert state.network.model is not None
    (folder / "digitsnet.py").write_text(MODEL)
    save_file(state.network.model.state_dict(), folder / "net.safetensors")
    state.detector.save(folder / "guard.offmap")
    np.savez(folder / "known.npz", inputs=known.train.inputs, labels=known.train.labels)
    return world.streams[0].inputs


def wait_for_task(client: Client) -> dict[str, Any]:
    """Wait until nothing runs in the background."""
    while True:
        _, view = client("GET", "/v1/triage")
        if not view["job"]["running"]:
            assert view["job"]["error"] is None, view["job"]
            return dict(view)
        time.sleep(0.1)


def is_learning(client: Client) -> bool:
    _, view = client("GET", "/v1/triage")
    return bool(view["job"]["running"])


def find_child(pid: int) -> int:
    """The process that a server has started."""
    while True:
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                    return int(status.parent.name)
        time.sleep(0.05)


def learning(turns: int, busy: bool) -> dict[str, Any]:
    """Latency of single inputs while the service learns, over that without, turn by turn in one run."""
    js = {"content-type": "application/json"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stream = write_digits(folder)
        with serving(folder, *LEARNABLE, "--learner", "finetune", "--max-forgetting", "1") as (server, url):
            client, other = Client(url), Client(url)
            for start in range(0, len(stream), 64):
                assert client("POST", "/v1/score", npy(stream[start : start + 64]), NPY)[0] == 200
            client("POST", "/v1/triage/group", b"{}", js)
            board = wait_for_task(client)["board"]
            for number, group in enumerate(board["groups"]):
                body = {"board": board["number"], "action": "name", "group": group["id"], "name": f"new {number}"}
                assert client("POST", "/v1/triage/act", json.dumps(body).encode(), js)[0] == 200
            bodies = [npy(stream[k : k + 1]) for k in range(64)]
            taken: dict[str, list[float]] = {"while learning": []}
            halves: dict[str, list[float]] = {"first": [], "second": []}
            seconds, loads = [], []

            def send_some() -> list[float]:
                found: list[float] = []
                for _ in range(25):
                    began = time.perf_counter()
                    status, _ = client("POST", "/v1/score", bodies[len(found) % 64], NPY)
                    found.append(time.perf_counter() - began)
                    assert status == 200
                    time.sleep(PAUSE)
                return found

            def send(until: Callable[[], bool]) -> list[float]:
                found: list[float] = []
                while not until():
                    found += send_some()
                return found

            def take_turns() -> None:
                learner, half = find_child(server.pid), 0
                while is_learning(other):
                    taken["while learning"] += send_some()
                    with contextlib.suppress(ProcessLookupError):  # it is done
                        os.kill(learner, signal.SIGSTOP)
                        list(halves.values())[half].extend(send_some())
                        os.kill(learner, signal.SIGCONT)
                    half = 1 - half

            for _ in range(turns):
                order = json.dumps({"board": board["number"]}).encode()
                assert other("POST", "/v1/triage/learn", order, js)[0] == 200
                began = time.monotonic()
                if busy:
                    take_turns()
                else:
                    taken["while learning"] += send(lambda: not is_learning(other))
                lasted = time.monotonic() - began
                wait_for_task(other)
                for half in halves.values() if not busy else ():
                    end = time.monotonic() + lasted / 2
                    half += send(lambda end=end: is_learning(other) or time.monotonic() > end)
                seconds.append(lasted)
                loads.append(os.getloadavg()[0])
            client.close()
            other.close()
        joined = {"without": halves["first"] + halves["second"], **taken}
        p99 = {name: float(np.percentile(all_, 99)) for name, all_ in joined.items()}
        p50 = {name: float(np.percentile(all_, 50)) for name, all_ in joined.items()}
        return {
            "what": "single inputs to a small CNN on digits, one client; it is fine-tuned in a process of its own",
            "cores": os.cpu_count(),
            "load_average": loads,
            "threads": THREADS,
            "turns": turns,
            "stopped_every_25_requests": busy,
            "seconds_of_learning": seconds,
            "versions": versions(),
            "requests": {name: len(all_) for name, all_ in joined.items()},
            "p50_seconds": p50,
            "p99_seconds": p99,
            "p99_second_half_without_over_first": float(
                np.percentile(halves["second"], 99) / np.percentile(halves["first"], 99)
            ),
            "p50_while_learning_over_without": p50["while learning"] / p50["without"],
            "p99_while_learning_over_without": p99["while learning"] / p99["without"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--clients", type=int, default=8, help="Of the soak.")
    parser.add_argument(
        "--pause", type=float, default=0.02, help="Seconds between two requests of a client, on average."
    )
    parser.add_argument("--learning", type=int, metavar="TURNS")
    parser.add_argument("--busy", action="store_true", help="With --learning: the machine has other work to do.")
    chosen = parser.parse_args()
    if chosen.learning is not None:
        name = "serve-learning-busy" if chosen.busy else "serve-learning"
        found = learning(chosen.learning, chosen.busy)
    elif chosen.soak is not None:
        name, found = "serve-soak", soak(chosen.soak, chosen.clients, chosen.pause)
    else:
        name, found = "serve", throughput()
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if name == "serve-soak" and (found["unexpected_answers"] or found["lost"] or not found["alive_at_the_end"]):
        raise SystemExit("answers that should not have come, lost inputs, or a service that ended")
    if name == "serve-soak" and found["memory_last_fifth_over_second_fifth"] > GROWTH:
        raise SystemExit("the memory of the service grows")


if __name__ == "__main__":
    main()
