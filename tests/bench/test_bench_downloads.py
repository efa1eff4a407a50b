"""Downloads against a real server that breaks connections, forgets ranges and serves wrong bytes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from offmap.bench import downloads
from offmap.bench.downloads import Remote, checksum, fetch, fetch_set
from offmap.bench.suite_downloads import convert_weights, get_suite
from offmap.bench.suites import SetSpec, SuiteSources, list_built_in, load_suite
from offmap.errors import InputError, StoreError

BODY = bytes(range(256)) * 2000
SUM = hashlib.md5(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """What it serves, how it misbehaves, and what was asked of it."""

    cut: int | None = None
    ranges = True
    body = BODY
    status = 200
    failures = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.failures > 0:
            self.server.failures -= 1
            self.send_error(503)
            return
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start >= len(self.server.body):
            self.send_error(416)
            return
        rest = self.server.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest if self.server.cut is None else rest[: self.server.cut])

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def remote(server: Server, total: str = SUM) -> Remote:
    return Remote(f"http://127.0.0.1:{server.server_port}/set.bin", total)


def test_broken_connections_are_resumed_where_they_broke(server, tmp_path):
    server.cut = 100_000
    file = fetch(remote(server), tmp_path / "set.bin", pause=0)
    assert file.read_bytes() == BODY
    assert server.asked == [None, *(f"bytes={at}-" for at in range(100_000, len(BODY), 100_000))]
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.bin"]


def test_a_server_without_ranges_is_read_from_the_start(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(BODY[:1000])
    server.ranges = False
    assert fetch(remote(server), tmp_path / "set.bin", pause=0).read_bytes() == BODY


def test_wrong_bytes_are_never_kept(server, tmp_path):
    server.body = BODY[:-1] + b"x"
    with pytest.raises(StoreError, match="nothing was kept"):
        fetch(remote(server), tmp_path / "set.bin", pause=0)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_file_is_thrown_away_once(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(b"x" * 5000)
    assert fetch(remote(server), tmp_path / "set.bin", pause=0).read_bytes() == BODY


def test_a_part_that_is_already_whole_is_checked(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(BODY)
    assert fetch(remote(server), tmp_path / "set.bin", pause=0).read_bytes() == BODY
    assert server.asked == [f"bytes={len(BODY)}-"]


def test_a_busy_server_is_asked_again_a_missing_file_is_reported(server, tmp_path):
    server.failures = 2
    assert fetch(remote(server), tmp_path / "set.bin", pause=0).read_bytes() == BODY
    server.status = 404
    with pytest.raises(StoreError, match="404"):
        fetch(remote(server), tmp_path / "other.bin", attempts=2, pause=0)


def test_what_is_there_and_right_is_left_alone(server, tmp_path):
    (tmp_path / "set.bin").write_bytes(BODY)
    fetch(remote(server), tmp_path / "set.bin")
    assert server.asked == []


def test_only_http_is_fetched(tmp_path):
    with pytest.raises(InputError, match="http"):
        fetch(Remote("file:///etc/passwd", SUM), tmp_path / "x")
    with pytest.raises(InputError, match="not a set"):
        fetch_set("mnist2", tmp_path)


def test_a_set_comes_from_a_mirror_into_its_folder(server, tmp_path, monkeypatch):
    entry = downloads.Download((Remote("https://example.org/a/set.bin", SUM),), "sets", "free")
    monkeypatch.setitem(downloads.SETS, "some", entry)
    (file,) = fetch_set("some", tmp_path, mirror=f"http://127.0.0.1:{server.server_port}/")
    assert file == tmp_path / "sets" / "set.bin"
    assert checksum(file, "md5") == SUM


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def test_a_checkpoint_that_would_run_something_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"epoch": 1, "state_dict": {"fc.weight": Harm()}}, tmp_path / "bad.pth.tar")
    with pytest.raises(InputError, match="not readable as weights alone"):
        convert_weights(tmp_path / "bad.pth.tar", tmp_path / "out.safetensors")
    assert not (tmp_path / "harmed").exists()
    with pytest.raises(InputError, match="does not say where its sets are published"):
        get_suite(load_suite("digits"), tmp_path)


def test_the_published_weights_are_fetched_converted_and_checked(server, data_folder, tmp_path):
    """A checkpoint as DICE's authors publish it, written from the weights in the data folder."""
    held = data_folder / "weights" / "densenet100bc_cifar10.safetensors"
    torch.save({"epoch": 100, "state_dict": load_file(held)}, tmp_path / "checkpoint_100.pth.tar")
    server.body = (tmp_path / "checkpoint_100.pth.tar").read_bytes()
    suite = load_suite("cifar10-densenet")
    assert suite.sources.accuracy == 94.54
    few = SetSpec("known test", {"tiles": "cifar10_test", "at_most": 60})
    with np.load(data_folder / "features" / "cifar10-densenet__cifar10_test.npz") as kept:
        state = load_file(held)
        rows = np.sort(np.random.default_rng(0).permutation(10_000)[:60])
        logits = kept["features"][rows].astype(np.float32) @ state["fc.weight"].numpy().T + state["fc.bias"].numpy()
        right = 100 * float((logits.argmax(axis=1) == kept["labels"][rows]).mean())
    sources = SuiteSources((), suite.sources.weights, hashlib.sha256(server.body).hexdigest(), right)
    small = replace(suite, test=few, sources=sources)
    (tmp_path / "images").symlink_to(data_folder / "images")
    mirror = f"http://127.0.0.1:{server.server_port}"
    (file,), found = get_suite(small, tmp_path, mirror=mirror)
    assert file.read_bytes() == held.read_bytes()
    assert found == pytest.approx(right)
    with pytest.raises(StoreError, match=r"published are 12\.00 %"):
        get_suite(replace(small, sources=replace(sources, accuracy=12.0)), tmp_path, mirror=mirror)
    assert len(server.asked) == 1, "what is there is left alone"


def test_every_suite_names_sets_that_can_be_fetched():
    for name in list_built_in():
        sources = load_suite(name).sources
        assert set(sources.sets) <= downloads.SETS.keys(), name
        assert bool(sources.weights) == bool(sources.sha256), name


def test_the_command_lists_addresses_and_checksums():
    command = [sys.executable, "-m", "offmap.cli", "bench", "--downloads", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sets = json.loads(done.stdout)["downloads"]
    assert {"cifar10", "cifar100", "svhn", "textures", "fashion-mnist", "mnist"} <= sets.keys()
    for entry in sets.values():
        assert entry["licence"]
        assert all(file["url"].startswith("http") and len(file["md5"]) == 32 for file in entry["files"])
