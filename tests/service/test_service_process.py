"""The process around the service: the command, tokens, limits, signals, and two servers on one store."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest
from service_kit import KNOWN, UNKNOWN, WIDTH, call, make_guard, wait_until
from typer.testing import CliRunner

from offmap.cli import app
from offmap.errors import InputError
from offmap.service import Deployment, Service, bind_socket, create_app
from offmap.service.loading import DeploymentFiles
from offmap.service.settings import Settings, load_settings

TOKEN = "correct horse battery staple"


@pytest.fixture
def run():
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(scope="module")
def locked(launcher, tmp_path_factory):
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text(TOKEN + "\n")
    made = launcher.start(tmp_path_factory.mktemp("store"), token_file=str(secret))
    yield made
    made.end()


def test_a_token_opens_and_nothing_else_does(locked):
    for path in ("/v1/guard", "/metrics", "/v1/unknowns", "/openapi.json", "/nothing"):
        for headers in (
            {}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"},
            {"authorization": "Bearer " + base64.b64encode(TOKEN.encode()).decode()}, {"authorization": "Bearer é"},
        ):  # fmt: skip
            status, answered, answer = locked.call("GET", path, headers=headers)
            assert status == 401
            assert answered["www-authenticate"] == "Bearer"
            assert answer.keys() == {"error"}
            assert TOKEN not in answer["error"]
    assert locked.call("GET", "/v1/guard", headers={"authorization": f"Bearer {TOKEN}"})[0] == 200
    assert locked.call("POST", "/v1/score", {"features": KNOWN})[0] == 401
    for path in ("/healthz", "/readyz"):
        assert locked.call("GET", path)[0] == 200


def test_too_many_requests_are_asked_to_come_back(launcher, tmp_path):
    server = launcher.start(tmp_path, token=TOKEN, rate=2)
    found = [server.call("GET", "/v1/guard", headers={"authorization": "Bearer guess"}) for _ in range(4)]
    allowed = {"authorization": f"Bearer {TOKEN}"}
    found += [server.call("GET", "/v1/guard", headers=allowed) for _ in range(8)]
    assert {status for status, _, _ in found} >= {401, 429}, "guessing is limited too"
    _, headers, answer = next(one for one in found if one[0] == 429)
    assert int(headers["retry-after"]) >= 1
    assert "requests per second" in answer["error"]
    assert all(server.call("GET", "/healthz")[0] == 200 for _ in range(10))
    wait_until(lambda: server.call("GET", "/v1/guard", headers=allowed)[0] == 200)
    server.end()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_listening_beyond_this_machine_needs_a_token_or_a_word(host, monkeypatch):
    monkeypatch.delenv("OFFMAP_TOKEN", raising=False)
    with pytest.raises(InputError, match="token"):
        Settings(host=host).check_exposure()
    Settings(host=host, no_auth=True).check_exposure()
    Settings(host=host, token=TOKEN).check_exposure()
    monkeypatch.setenv("OFFMAP_TOKEN", TOKEN)
    Settings(host=host).check_exposure()
    assert Settings(host=host).requests_per_second == 100
    assert Settings(host=host, rate=0).requests_per_second is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_has_neither_token_nor_rate(host):
    Settings(host=host).check_exposure()
    assert Settings(host=host).requests_per_second is None


def test_settings_come_from_the_environment_and_the_command_line_wins(monkeypatch):
    monkeypatch.setenv("OFFMAP_PORT", "1234")
    monkeypatch.setenv("OFFMAP_INPUT_SHAPE", "[3, 32, 32]")
    assert load_settings().port == 1234
    assert load_settings(port=5).port == 5
    assert load_settings(port=None).input_shape == (3, 32, 32)
    monkeypatch.setenv("OFFMAP_MAX_ROWS", "many")
    with pytest.raises(InputError, match="OFFMAP_MAX_ROWS=many"):
        load_settings()
    with pytest.raises(InputError, match=r"^max_rows=0: "):
        load_settings(max_rows=0)


def test_lists_in_the_environment_are_written_as_on_the_command_line_or_as_json(monkeypatch):
    monkeypatch.setenv("OFFMAP_INPUT_SHAPE", "3,32,32")
    monkeypatch.setenv("OFFMAP_MEAN", "[0.5, 0.4, 0.3]")
    monkeypatch.setenv("OFFMAP_STD", ".5")
    found = load_settings()
    assert (found.input_shape, found.mean, found.std) == ((3, 32, 32), (0.5, 0.4, 0.3), (0.5,))
    monkeypatch.setenv("OFFMAP_MEAN", "half")
    with pytest.raises(InputError, match=r"^OFFMAP_MEAN=half: numbers with commas"):
        load_settings()
    monkeypatch.setenv("OFFMAP_MEAN", ".5,.5")
    with pytest.raises(InputError, match=r"^mean=.* one number, or one per channel"):
        load_settings()


def test_secrets_are_not_shown(tmp_path):
    assert TOKEN not in repr(Settings(token=TOKEN))
    with pytest.raises(InputError, match="cannot be read"):
        Settings(token_file=tmp_path / "none").read_token()


def test_a_misspelt_variable_is_named_at_the_start(monkeypatch, caplog):
    monkeypatch.setenv("OFFMAP_MAX_ROW", "7")
    monkeypatch.setenv("OFFMAP_SOMETHING", "7")
    monkeypatch.setenv("OFFMAP_DATA", "/data")
    monkeypatch.setenv("OFFMAP_MAX_BODY", "7")
    assert load_settings().max_body == 7
    assert [record.message for record in caplog.records] == [
        "OFFMAP_MAX_ROW is not a setting and is ignored; is OFFMAP_MAX_ROWS meant?",
        "OFFMAP_SOMETHING is not a setting and is ignored",
    ]


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY the second part of an answer waits until the client acknowledges the first."""

    async def accepted_option():
        found = asyncio.get_running_loop().create_future()

        def connected(_, writer):
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = bind_socket(Settings(port=0))
        async with await asyncio.start_server(connected, sock=bound):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            option = await found
            writer.close()
        return option

    assert asyncio.run(accepted_option()) == 1


def test_a_token_that_cannot_be_used_stops_the_start(run, tmp_path, monkeypatch):
    monkeypatch.delenv("OFFMAP_TOKEN", raising=False)
    guard = tmp_path / "guard.offmap"
    make_guard().save(guard)
    (tmp_path / "short").write_text("short")
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    for name, part in (
        ("gone", "cannot be read"),
        ("short", "5 characters"),
        ("binary", "cannot be read"),
        ("", "read"),
    ):
        words = ("--token-file", tmp_path / name, "--port", 0, "--store", tmp_path / "s")
        result = run("serve", guard, *words)
        assert result.exit_code == 1
        assert part in result.output
        assert len(result.output.strip().splitlines()) == 1
    short = Settings(store=str(tmp_path / "s"), token="short")
    with Service(Deployment(make_guard()), short) as service, pytest.raises(InputError, match="5 characters"):
        create_app(service)


def test_the_command_refuses_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.delenv("OFFMAP_TOKEN", raising=False)
    guard = tmp_path / "guard.offmap"
    make_guard().save(guard)
    (tmp_path / "none").write_text("")
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    for words, part in (
        (("--host", "0.0.0.0"), "--no-auth"),
        (("--host", "192.0.2.1", "--no-auth"), "cannot listen"),
        (("--store", tmp_path / "none", "--port", 0), "folder"),
        (("--weights", tmp_path / "w", "--port", 0), "--model"),
        (("--classes", tmp_path / "c", "--port", 0), "class names"),
        (("--model", guard, "--port", 0), "offmap.learn"),
        (("--mean", "x", "--port", 0), "numbers"),
        (("--model", tmp_path / "gone.onnx", "--port", 0), "no such file"),
        (("--model", tmp_path / "broken.onnx", "--port", 0), "not a readable ONNX model"),
        (("--model", "no.such.module:make", "--port", 0), "cannot be imported"),
    ):
        result = run("serve", guard, "--store", tmp_path / "s", *words)
        assert result.exit_code == 1, words
        assert part in result.output
        assert len(result.output.strip().splitlines()) == 1
    assert run("serve", tmp_path / "gone.offmap", "--port", 0).exit_code == 1


def test_a_learned_model_brings_its_network_and_its_names(tmp_path):
    import offmap

    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(60, 5)) + 6 * np.eye(5)[np.arange(60) % 3]).astype(np.float32)
    labels = np.where(np.arange(60) % 3 < 2, np.arange(60) % 3, -1)
    model = offmap.learn(rows, labels, objective="opencon", n_classes=3, epochs=1)
    model.save(tmp_path / "model.offmap")
    acts = model.network.extract(rows, progress=False)
    offmap.detector("energy").fit(acts).calibrate(acts).save(tmp_path / "guard.offmap")
    loaded = DeploymentFiles(tmp_path / "guard.offmap", str(tmp_path / "model.offmap")).load()
    assert loaded.class_names == tuple(model.class_names)
    np.testing.assert_allclose(loaded.network(rows).logits, acts.logits, rtol=1e-5)
    (tmp_path / "names.json").write_text(json.dumps(["a", "b", "c"]))
    own = DeploymentFiles(tmp_path / "guard.offmap", str(tmp_path / "model.offmap"), classes=tmp_path / "names.json")
    assert own.load().class_names == ("a", "b", "c")
    assert loaded.detector.n_classes == len(loaded.class_names)


MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
"""


def test_the_command_from_start_to_end(tmp_path):
    """A real `offmap serve --model`: it says where it is, takes pictures, reloads on SIGHUP, ends on SIGTERM."""
    from service_kit import guard_of

    from offmap.models import load_network

    (tmp_path / "own_model.py").write_text(MODEL)
    sys.path.insert(0, str(tmp_path))
    try:
        guard_of(load_network("own_model:make")).save(tmp_path / "guard.offmap")
    finally:
        sys.path.remove(str(tmp_path))
    words = ["serve", "guard.offmap", "--model", "own_model:make", "--port", "0", "--store", "store"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "offmap.cli", *words], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stderr.readline()
        assert "energy on http://127.0.0.1:" in line, line
        url = next(word for word in line.split() if word.startswith("http")).rstrip(",")
        status, _, answer = call(url, "POST", "/v1/score", {"inputs": np.zeros((1, 3, 4, 4)).tolist()})
        assert status == 200
        assert not answer["results"][0]["known"]
        before = call(url, "GET", "/v1/guard")[2]["since"]
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: call(url, "GET", "/v1/guard")[2]["since"] != before)
        (tmp_path / "guard.offmap").write_bytes(b"broken")
        status, _, answer = call(url, "POST", "/v1/guard/reload")
        assert status == 409
        assert "stays" in answer["error"]
        assert str(tmp_path) not in answer["error"]
        assert call(url, "GET", "/readyz")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_new_store_is_for_its_owner_only(launcher, tmp_path):
    server = launcher.start(tmp_path / "store")
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    server.end()


def test_two_servers_on_one_folder_are_refused_but_one_after_the_other_is_fine(launcher, tmp_path):
    first = launcher.start(tmp_path)
    with pytest.raises(AssertionError, match="another service uses this folder"):
        launcher.start(tmp_path)
    ids = [row["id"] for row in first.score(features=UNKNOWN * 3)]
    first.end(signal.SIGTERM)
    second = launcher.start(tmp_path)
    assert second.unknown_ids() == ids
    second.end()


def test_a_stop_signal_lets_accepted_requests_finish(launcher, tmp_path):
    """Clients send while the server is told to stop: every answer that began is whole, and what it said is kept."""
    server = launcher.start(tmp_path)
    where = urlsplit(server.url)
    acknowledged, broken = [], []

    def ask():
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        try:
            while True:
                connection.request("POST", "/v1/score", json.dumps({"features": UNKNOWN * 20}))
                answer = connection.getresponse()
                if answer.status != 200:
                    return
                acknowledged.extend(row["id"] for row in json.loads(answer.read())["results"])
        except http.client.IncompleteRead as error:
            broken.append(error)
        except (OSError, http.client.HTTPException):
            pass  # the connection was closed between requests

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(acknowledged) > 500)
    server.end(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert not broken
    again = launcher.start(tmp_path)
    assert set(acknowledged) <= set(again.unknown_ids())
    again.end()


def test_a_stop_signal_resets_no_connection(launcher, tmp_path):
    """Every request comes over a connection of its own: it is answered, or the connection is refused.

    One or two may be established between the last accept and the close, which no call of the kernel excludes.
    """
    server = launcher.start(tmp_path)
    where = urlsplit(server.url)
    answered, broken = [], []

    def ask():
        while True:
            connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
            try:
                connection.connect()
            except OSError:
                return  # nobody listens any more
            try:
                connection.request("POST", "/v1/score", json.dumps({"features": KNOWN}))
                answered.append(connection.getresponse().status)
            except (OSError, http.client.HTTPException) as error:
                broken.append(error)
            finally:
                connection.close()

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answered) > 100)
    server.end(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert len(broken) <= 2
    assert set(answered) == {200}


def test_reload_under_load_loses_no_request(launcher, tmp_path):
    guard = tmp_path / "guard.offmap"
    make_guard(0).save(guard)
    server = launcher.start(tmp_path / "store", guard=guard)
    statuses, versions, stop = [], set(), threading.Event()

    def ask():
        while not stop.is_set():
            statuses.append(server.call("POST", "/v1/score", {"features": KNOWN + UNKNOWN})[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for seed in range(1, 9):
        make_guard(seed).save(guard)
        status, _, answer = server.call("POST", "/v1/guard/reload")
        assert status == 200
        versions.add(answer["version"])
    stop.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}
    assert len(versions) == 8
    assert len(set(server.unknown_ids())) == len(statuses)
    guards = {item["guard"] for item in server.call("GET", "/v1/unknowns?limit=10000")[2]["items"]}
    assert len(guards) > 1
    server.end()


def test_more_requests_than_can_be_handled_are_asked_to_come_back(launcher, tmp_path):
    server = launcher.start(tmp_path, max_memory=3_000, body_seconds=3.0)
    where = urlsplit(server.url)
    slow = http.client.HTTPConnection(where.hostname, where.port)
    slow.putrequest("POST", "/v1/score")
    slow.putheader("content-length", "2900")
    slow.endheaders(b"{" + b" " * 2800)
    answers = []

    def refused():
        answers.append(server.call("POST", "/v1/score", {"features": [[1.0] * WIDTH] * 20}))
        return answers[-1][0] == 503

    wait_until(refused)  # once the slow one's bytes have arrived
    assert "retry-after" in answers[-1][1]
    assert slow.getresponse().status == 408
    slow.close()
    assert server.score(features=KNOWN)[0]["known"]
    server.end()


def test_clients_that_declare_much_and_send_nothing_starve_nobody(launcher, tmp_path):
    server = launcher.start(tmp_path, max_memory=100_000, max_body=50_000)
    where = urlsplit(server.url)
    idle = [socket.create_connection((where.hostname, where.port)) for _ in range(8)]
    for sock in idle:
        sock.sendall(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50000\r\n\r\n{")
    running = b"offmap_requests_running 9.0"  # those, and the one that asks
    wait_until(lambda: running in server.call("GET", "/metrics")[2])
    assert server.score(features=KNOWN)[0]["known"]
    for sock in idle:
        sock.close()
    server.end()


def test_answers_that_nobody_reads_count_as_memory_in_use(launcher, tmp_path):
    server = launcher.start(tmp_path, max_memory=16_000_000, answer_seconds=60)
    for _ in range(3):
        server.score(features=UNKNOWN * 4000, references=["x" * 1000] * 4000)
    where = urlsplit(server.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((where.hostname, where.port))
        sock.sendall(b"GET /v1/unknowns?limit=10000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
        status, headers, answer = server.call("GET", "/v1/unknowns?limit=10000")
        assert status == 503, "two of these answers are more than it may hold"
        assert "come back" in answer["error"]
        assert headers["x-content-type-options"] == "nosniff"
        assert server.call("GET", "/v1/unknowns?limit=10")[0] == 200
    wait_until(lambda: server.call("GET", "/v1/unknowns?limit=10000")[0] == 200)
    server.end()


def test_a_client_that_does_not_read_its_answer_is_cut_off(launcher, tmp_path):
    server = launcher.start(tmp_path, answer_seconds=0.5)
    for _ in range(3):
        server.score(features=UNKNOWN * 4000, references=["x" * 1000] * 4000)
    where = urlsplit(server.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((where.hostname, where.port))
        sock.sendall(b"GET /v1/unknowns?limit=10000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answered = b'offmap_requests_total{path="/v1/unknowns",status="200"}'
        wait_until(lambda: answered in server.call("GET", "/metrics")[2], seconds=60)  # the service has given up
        read = 0
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1 << 20):
                read += len(data)
    whole = len(json.dumps(server.call("GET", "/v1/unknowns?limit=10000")[2]))
    assert read < whole / 2
    server.end()
