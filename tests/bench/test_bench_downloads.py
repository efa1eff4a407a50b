"""Downloads against a real server that breaks connections, forgets ranges and serves wrong bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from offmap.bench import downloads
from offmap.bench.downloads import Remote, checksum, fetch, fetch_set
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


def test_the_command_lists_addresses_and_checksums():
    command = [sys.executable, "-m", "offmap.cli", "bench", "--downloads", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sets = json.loads(done.stdout)["downloads"]
    assert {"cifar10", "cifar100", "svhn", "textures", "fashion-mnist", "mnist"} <= sets.keys()
    for entry in sets.values():
        assert entry["licence"]
        assert all(file["url"].startswith("http") and len(file["md5"]) == 32 for file in entry["files"])
