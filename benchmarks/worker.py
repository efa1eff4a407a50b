"""Child processes that measure: each library runs in one of its own, side by side, and is told what to do line by line.

The child calls `serve` with its tasks; the parent holds a `Worker`. Requests and answers are JSON lines, arrays go
through files. This module needs nothing but the standard library, so that it runs in every environment.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
REPEATS = 5

READY = "ready"  # the task of doing nothing


def serve(tasks: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests on standard input until it closes; anything printed goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        started, used = time.perf_counter(), time.process_time()
        result = None if request["task"] == READY else tasks[request["task"]](**request["arguments"])
        answer = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - used, "result": result}
        print(json.dumps(answer), file=out, flush=True)


class Worker:
    """A child process that carries out tasks.

    Parameters
    ----------
    python
        The interpreter of its environment.
    script
        A file of this folder that calls `serve`.
    """

    def __init__(self, python: str | Path, script: str) -> None:
        pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(THREADS))
        self.process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | pinned,
        )  # fmt: skip
        self.seconds, self.cpu, self.result = 0.0, 0.0, None  # of the last task

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def __call__(self, task: str, **arguments: Any) -> Any:
        """Carry out a task and return its result; how long the child took is in `seconds`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"task": task, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended during {task} with {self.process.wait()}")
        answer = json.loads(line)
        self.seconds, self.cpu, self.result = answer["seconds"], answer["cpu"], answer["result"]
        return self.result

    def anonymous_bytes(self) -> int:
        """How much anonymous memory the child holds now: its own, without the pages of files it maps."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split()[0])

    def idle(self) -> int:
        """What it holds once everything is imported and nothing was done."""
        self(READY)
        return self.anonymous_bytes()

    def peak(self, task: str, above: int | None = None, **arguments: Any) -> int:
        """Carry out a task and watch it from outside: the most anonymous memory held, above what was held before.

        What earlier tasks freed may still be held, so after other tasks `above` should be what the idle child held.
        """
        most = self.anonymous_bytes()
        before = most if above is None else above
        done = threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.wait(0.002):
                most = max(most, self.anonymous_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self(task, **arguments)
        finally:
            done.set()
            watcher.join()
        return max(most, self.anonymous_bytes()) - before


Call = tuple[Worker, str, dict[str, Any]]


Times = dict[str, list[float]]


def side_by_side(calls: Sequence[Call], repeats: int = REPEATS) -> list[Times]:
    """Times of each call, turn by turn, so that all meet the same machine. Call each once before, to warm up.

    ``wall`` are seconds as they pass; ``cpu`` are seconds of all threads together, which other programs on the machine
    disturb less.
    """
    times: list[Times] = [{"wall": [], "cpu": []} for _ in calls]
    for _ in range(repeats):
        for taken, (worker, task, arguments) in zip(times, calls, strict=True):
            worker(task, **arguments)
            taken["wall"].append(worker.seconds)
            taken["cpu"].append(worker.cpu)
    return times


def ratio(slow: Times, fast: Times, clock: str = "wall") -> float:
    """How many times faster, by medians."""
    return statistics.median(slow[clock]) / statistics.median(fast[clock])
