"""Memory of the service after each grouping, reload and learned version: does it grow?

A real ``offmap serve`` of the digits network, with labelled data. After a warm-up the same round is repeated: unknown
inputs are sent, the store is grouped, the groups are named and learned, the version is deployed and rolled back, the
guard is read again five times. The store keeps a bounded number of inputs, so that every round does the same work.
After each step the anonymous memory of the server is noted. Beside it stands the memory of a process that groups in a
thread of its own. ``results/serve-memory.json`` holds all of them.

``python benchmarks/serve_memory.py --rounds 9`` ends with a status when the memory of the last third is more than a
tenth above that of the third after the warm-up.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import offmap
import serve
from offmap.report.page import versions

RELOADS = 5
JS = {"content-type": "application/json"}


class Rounds:
    """The steps of a round, with what the server's memory is after each."""

    def __init__(self, url: str, pid: int, stream: Any) -> None:
        self.client, self.pid, self.stream = serve.Client(url), pid, stream
        self.memory: dict[str, list[float]] = {}
        self.counts: Counter[str] = Counter()
        self.peak = 0

    def step(self, name: str, work: Callable[[], None]) -> None:
        """Do something, then note the memory."""
        work()
        self.memory.setdefault(name, []).append(serve.anonymous(self.pid) / 2**20)
        self.counts[name] += 1

    def post(self, path: str, **body: Any) -> Any:
        """Send JSON; the answer must be good."""
        status, answer = self.client("POST", path, json.dumps(body).encode(), JS)
        assert status == 200, answer
        return answer

    def score(self) -> None:
        """Send the whole stream, which holds unknown digits, in parts of different sizes."""
        start = 0
        for number in range(10_000):
            size = 1 + 37 * number % 97
            part = self.stream[start : start + size]
            if not len(part):
                return
            status, answer = self.client("POST", "/v1/score", serve.npy(part), serve.NPY)
            assert status == 200, answer
            start += size

    def group(self) -> None:
        """Group the unknown inputs and look at the page."""
        self.post("/v1/triage/group")
        self.board = serve.wait_for_task(self.client)["board"]

    def learn(self) -> None:
        """Name the two largest groups and learn them."""
        for number, group in enumerate(self.board["groups"][:2]):
            body = {"board": self.board["number"], "action": "name", "group": group["id"], "name": f"new {number}"}
            self.post("/v1/triage/act", **body)
        self.post("/v1/triage/learn", board=self.board["number"])
        self.version = serve.wait_for_task(self.client)["versions"][-1]["id"]

    def deploy(self) -> None:
        """Put the version in service, score, and roll it back."""
        self.post("/v1/triage/deploy", version=self.version)
        self.score()
        self.post("/v1/triage/rollback")

    def reload(self) -> None:
        """Read the guard again, several times."""
        for _ in range(RELOADS):
            self.post("/v1/guard/reload")

    def run(self) -> None:
        """Do one round."""
        for name in ("score", "group", "learn", "deploy", "reload"):
            self.step(name, getattr(self, name))


def measure(rounds: int) -> dict[str, Any]:
    """Memory after each step of each round, in MiB."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stream = serve.write_digits(folder)
        words = [*serve.LEARNABLE, "--learner", "prototypes", "--max-forgetting", "1"]
        with serve.serving(folder, *words, OFFMAP_PILE_ITEMS="800") as (process, url):
            done = Rounds(url, process.pid, stream)
            stop = threading.Event()

            def watch() -> None:
                while not stop.wait(0.05):
                    done.peak = max(done.peak, serve.anonymous(process.pid))

            watcher = threading.Thread(target=watch)
            watcher.start()
            began = time.monotonic()
            for number in range(rounds):
                done.run()
                print(number, {name: round(values[-1]) for name, values in done.memory.items()}, flush=True)
            seconds = time.monotonic() - began
            stop.set()
            watcher.join()
    after = done.memory["reload"]
    third = max(rounds // 3, 1)
    early, late = statistics.median(after[third : 2 * third]), statistics.median(after[-third:])
    return {
        "what": "a small CNN of digits; each round sends the stream, groups, learns, deploys, rolls back and reloads",
        "rounds": rounds,
        "seconds": seconds,
        "versions": versions(),
        "done": {**done.counts, "reload": RELOADS * done.counts["reload"]},
        "memory_mib_after": {name: [round(value, 1) for value in values] for name, values in done.memory.items()},
        "memory_mib_most": done.peak / 2**20,
        "memory_mib": {"second_third": early, "last_third": late},
        "memory_last_third_over_second_third": late / early,
    }


def in_thread(groupings: int) -> dict[str, Any]:
    """Memory of this process, in MiB, after each grouping of 1,600 inputs in a thread of it: how it was done before."""
    import numpy as np

    from offmap.models import load_network
    from offmap.service import Deployment, Service, Settings
    from offmap.service.triage.triage import Triage

    def now() -> float:
        return round(serve.anonymous(os.getpid()) / 2**20, 1)

    with tempfile.TemporaryDirectory() as scratch:
        folder, inputs = Path(scratch), np.random.default_rng(0).random((256, 3, 32, 32), np.float32)
        network = load_network("serve_worker:small_cnn")
        serve.make_guard(folder, network, inputs)
        deployment = Deployment(offmap.load(folder / "guard.offmap"), network)
        with Service(deployment, Settings(store=str(folder / "store"), pile_items=1600)) as service:
            triage = Triage(service)
            for start in range(0, 25_600, 64):
                service.score(inputs=inputs[np.arange(start, start + 64) % 256])
            before, after, trimmed = now(), [], []
            for _ in range(groupings):
                triage.group()
                triage.tasks.wait()
                assert triage.view()["job"]["error"] is None
                after.append(now())
                gc.collect()
                ctypes.CDLL("libc.so.6").malloc_trim(0)
                trimmed.append(now())
    return {"before": before, "after": after, "after_collection_and_malloc_trim": trimmed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--groupings", type=int, default=8, help="In a thread of this process, for comparison.")
    chosen = parser.parse_args()
    found = {**measure(chosen.rounds), "grouping_in_a_thread": in_thread(chosen.groupings)}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (serve.RESULTS / "serve-memory.json").write_text(text + "\n")
    print(text)
    if found["memory_last_third_over_second_third"] > serve.GROWTH:
        raise SystemExit("the memory of the service grows")


if __name__ == "__main__":
    main()
