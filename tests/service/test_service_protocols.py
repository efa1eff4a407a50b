"""Standards beside `/v1`: the Open Inference Protocol with a real client, CloudEvents to a real sink that fails."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from service_kit import KNOWN, UNKNOWN, WIDTH, wait_until

from offmap.errors import InputError
from offmap.service.events import CONTENT_TYPE, EventPublisher
from offmap.service.settings import load_settings
from offmap.service.stores import open_unknown_store
from offmap.service.unknown_inputs import UnknownInput


@pytest.fixture(scope="module")
def server(launcher, tmp_path_factory):
    made = launcher.start(tmp_path_factory.mktemp("protocols"))
    yield made
    made.end()


def infer(server, tensor, **more):
    return server.call("POST", "/v2/models/guard/infer", {"inputs": [tensor], **more})


def features(rows, **changed):
    return {"name": "features", "shape": [len(rows), WIDTH], "datatype": "FP32", "data": rows} | changed


def test_inference_by_the_documented_schema(server) -> None:
    assert server.call("GET", "/v2/health/live")[0] == 200
    assert server.call("GET", "/v2/health/ready")[2] == {"ready": True}
    _, _, model = server.call("GET", "/v2/models/guard")
    assert {"name": "features", "datatype": "FP32", "shape": [-1, WIDTH]} in model["inputs"]
    status, _, answer = infer(server, features(KNOWN + UNKNOWN), id="7", outputs=[{"name": "known"}, {"name": "score"}])
    assert status == 200, answer
    assert answer["id"] == "7"
    assert answer["model_version"] == model["versions"][0]
    known, score = answer["outputs"]
    assert known == {"name": "known", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    assert score["data"] == [row["score"] for row in server.score(features=KNOWN + UNKNOWN)]


@pytest.mark.parametrize(
    ("tensor", "status", "said"),
    [
        ({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}, 422, "the tensor is named"),
        (features(KNOWN, shape=[2, WIDTH]), 422, "12 numbers are needed"),
        (features(KNOWN, datatype="FP8"), 422, "choose one of FP16"),
        (features(KNOWN, data=["a"] * WIDTH), 422, "numbers are needed"),
        (features(KNOWN, shape=[-1]), 422, "whole numbers from 1"),
        (features(KNOWN, shape=[10**6, WIDTH]), 413, "the limit is"),
        (features([[1.0] * WIDTH], shape=[1, 2, 3]), 422, "two dimensions"),
        ({"name": "texts", "shape": [1], "datatype": "BYTES", "data": ["hello"]}, 422, "no text encoder"),
        ({"name": "texts", "shape": [1], "datatype": "BYTES", "data": ["\ud800"]}, 422, "half of a character"),
        ({"name": [[]], "shape": [1], "datatype": "FP32", "data": [1]}, 422, "the tensor is named"),
        (features(KNOWN, shape=[1] * 69 + [WIDTH]), 422, "1 to 8 whole numbers"),
        (features(KNOWN, shape=[2] * 10_000), 422, "1 to 8 whole numbers"),
        (features(KNOWN, data=[[]] * 500_000), 413, "lists in one request"),
        (features(KNOWN, datatype="INT32", data=[1.5] * WIDTH), 422, "whole numbers are needed for INT32"),
        (features(KNOWN, datatype="UINT8", data=[-1] * WIDTH), 422, "numbers beyond UINT8"),
    ],
)
def test_a_request_that_does_not_follow_the_protocol(server, tensor, status, said) -> None:
    got, _, answer = infer(server, tensor)
    assert got == status, answer
    assert said in answer["error"]


def test_another_model_output_or_body_is_refused(server) -> None:
    assert server.call("GET", "/v2/models/other")[0] == 404
    assert "there is no 'logits'" in infer(server, features(KNOWN), outputs=[{"name": "logits"}])[2]["error"]
    assert server.call("POST", "/v2/models/guard/infer", b"[1")[0] == 400
    headers = {"inference-header-content-length": "99"}
    assert server.call("POST", "/v2/models/guard/infer", b"{}", headers)[0] == 400


@pytest.mark.parametrize("length", ["\xb2", "0" * 5000, "-1", "1e1", ""])
def test_a_length_that_is_no_number_is_refused(server, length) -> None:
    headers = {"inference-header-content-length": length}
    status, _, answer = server.call("POST", "/v2/models/guard/infer", b"{}", headers)
    assert status == 400
    assert "inference-header-content-length" in answer["error"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"id": "\ud800"}, "id: a printable text"),
        ({"id": "x" * 201}, "id: a printable text"),
        ({"outputs": [{"name": []}]}, "there is no '[]'"),
        ({"outputs": [{}]}, "there is no 'None'"),
        ({"outputs": {}}, "outputs: a list"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_anything_is_stored(server, more, said) -> None:
    before = server.unknown_ids()
    status, _, answer = infer(server, features(UNKNOWN), **more)
    assert status in (400, 422), answer
    assert said in answer["error"]
    assert server.unknown_ids() == before


@pytest.mark.parametrize(
    ("binary", "said"),
    [
        (b"\x05\0\0\0hello\x09\0\0\0wor", "text 1 ends after the 16 binary bytes"),
        (b"\x05\0\0\0hello\x09\0", "text 1 ends after the 11 binary bytes"),
        (b"\x05\0\0\0hello", "texts: 1 for the shape [2]"),
        (b"\x01\0\0\0a" * 3, "texts: 3 for the shape [2]"),
        (b"\xff" * 4 + b"hello", "text 0 ends after the 9 binary bytes"),
        (b"\x05\0\0\0hello\x02\0\0\0\xff\xfe", "text 1 is not UTF-8 (at byte 0)"),
    ],
)
def test_binary_texts_are_read_as_they_were_sent_or_refused(server, binary, said) -> None:
    head = json.dumps({"inputs": [{"name": "texts", "shape": [2], "datatype": "BYTES"}]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    status, _, answer = server.call("POST", "/v2/models/guard/infer", head + binary, headers)
    assert status == 422
    assert said in answer["error"]


def test_an_output_that_is_asked_for_often_is_answered_once(server) -> None:
    status, _, answer = infer(server, features(KNOWN), outputs=[{"name": "score"}] * 10_000)
    assert status == 200
    assert [one["name"] for one in answer["outputs"]] == ["score"]


def test_a_client_of_triton(server) -> None:
    http = pytest.importorskip("tritonclient.http", reason="needs pip install tritonclient[http]")
    client = http.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("guard")
    assert client.get_model_metadata("guard")["platform"] == "offmap"
    rows = np.array(KNOWN + UNKNOWN, np.float32)
    for binary in (True, False):
        tensor = http.InferInput("features", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows, binary_data=binary)
        answer = client.infer("guard", [tensor])
        assert answer.as_numpy("known").tolist() == [True, False]
        assert np.allclose(answer.as_numpy("score"), [row["score"] for row in server.score(features=rows.tolist())])
    client.close()


class Sink:
    """A real HTTP server that can be told to fail."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.status, self.headers = 200, []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sink.headers.append(dict(self.headers))
                if sink.status == 200:
                    sink.events.append(json.loads(body))
                self.send_response(sink.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def sink():
    made = Sink()
    yield made
    made.close()


def test_events_are_sent_until_they_are_confirmed(sink, tmp_path) -> None:
    store = open_unknown_store(tmp_path)
    store.add([UnknownInput(f"id{i}", time.time(), -3.0, 0.01, "ant", "v1", reference=f"{i}.png") for i in range(3)])

    def publisher():
        return EventPublisher(store, sink.url, tmp_path / "events.json", token="secret-token-secret")

    sink.status = 503
    with pytest.raises(OSError, match="503"):
        publisher().publish()
    assert not sink.events
    sink.status = 200
    assert publisher().publish() == 3
    assert publisher().publish() == 0  # a new process goes on where the sink has confirmed
    assert [event["id"] for event in sink.events] == ["id0", "id1", "id2"]
    first = sink.events[0]
    assert {name: first[name] for name in ("specversion", "type", "source", "subject")} == {
        "specversion": "1.0", "type": "org.offmap.input.unknown", "source": "/offmap", "subject": "0.png",
    }  # fmt: skip
    assert first["data"]["class"] == "ant"
    assert sink.headers[-1]["Content-Type"] == CONTENT_TYPE
    assert sink.headers[-1]["Authorization"] == "Bearer secret-token-secret"
    store.add([UnknownInput("refused", time.time(), -3.0, 0.01)])
    sink.status = 422
    assert publisher().publish() == 1  # refused for good: it must not hold up the others
    (tmp_path / "events.json").write_text("{")
    sink.status = 200
    assert publisher().publish() == 4  # rather twice than never
    store.close()


def test_events_of_a_store_that_was_made_anew_are_sent_though_its_positions_begin_anew(sink, tmp_path) -> None:
    def run(*ids):
        store = open_unknown_store(tmp_path)
        store.add([UnknownInput(id, time.time(), -3.0, 0.01) for id in ids])
        EventPublisher(store, sink.url, tmp_path / "events.json").publish()
        store.close()
        return [event["id"] for event in sink.events]

    assert run("a", "b", "c") == ["a", "b", "c"]
    for file in tmp_path.glob("pile.sqlite*"):
        file.unlink()
    assert run("d", "e") == ["a", "b", "c", "d", "e"]  # fewer than were sent before
    for file in tmp_path.glob("pile.sqlite*"):
        file.unlink()
    assert run("f", "g", "h") == ["a", "b", "c", "d", "e", "f", "g", "h"]  # more than that
    for kept in ('{"after": 1e400}', '{"after": -5}', '{"after": 99999999999999999999999}', "3", '{"after": null}'):
        (tmp_path / "events.json").write_text(kept)
        sink.events.clear()
        assert run() == ["f", "g", "h"]  # rather twice than never


def test_a_running_service_sends_events(launcher, sink, tmp_path) -> None:
    sink.status = 500
    server = launcher.start(tmp_path, events_url=sink.url, events_seconds=0.05)
    (row,) = server.score(features=UNKNOWN)
    server.score(features=KNOWN)
    wait_until(lambda: sink.headers)
    sink.status = 200
    wait_until(lambda: sink.events)
    assert [event["id"] for event in sink.events] == [row["id"]]
    server.end()


HOSTILE = {
    "a redirect": (b"HTTP/1.1 302 Go\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n", "answers 302"),
    "a lasting redirect": (b"HTTP/1.1 308 Go\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n", "answers 308"),
    "no HTTP": (b"\x00\x01 hello\r\n\r\n", "no answer in HTTP"),
    "nothing": (b"", "no answer in HTTP|reset"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_event_that_was_not_confirmed_is_kept_and_its_token_goes_nowhere_else(sink, tmp_path, name) -> None:
    said, reason = HOSTILE[name]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100_000)
            self.request.sendall(said.replace(b"%s", sink.url.encode()))

    store = open_unknown_store(tmp_path)
    store.add([UnknownInput("id", time.time(), -3.0, 0.01)])
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as hostile:
        threading.Thread(target=hostile.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{hostile.server_address[1]}/"
        publisher = EventPublisher(store, url, tmp_path / "events.json", token="secret-token-secret", seconds=0.01)
        with pytest.raises(OSError, match=reason):
            publisher.publish()
        hostile.shutdown()
    assert publisher.read_position() == 0
    assert not sink.headers
    assert EventPublisher(store, sink.url, tmp_path / "events.json").publish() == 1
    store.close()


def test_sending_goes_on_after_any_failure_and_a_slow_sink_does_not_hold_up_the_end(tmp_path, monkeypatch) -> None:
    store = open_unknown_store(tmp_path)
    store.add([UnknownInput("id", time.time(), -3.0, 0.01)])
    monkeypatch.setattr("offmap.service.events._LONGEST_WAIT", 0.01)
    monkeypatch.setattr("offmap.service.events._STOP_SECONDS", 0.1)
    tries, released = [], threading.Event()

    def post(*_):
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("nobody thought of this one")
        released.wait(30)
        return 200, b""

    monkeypatch.setattr("offmap.service.events.post", post)
    publisher = EventPublisher(store, "http://sink", tmp_path / "events.json", seconds=0.01)
    publisher.start()
    wait_until(lambda: len(tries) == 2)
    publisher.stop()
    assert not released.is_set()
    released.set()
    publisher._thread.join()
    store.close()


@pytest.mark.parametrize("name", ["events_url", "otel_url", "naming_url"])
@pytest.mark.parametrize("url", ["", "ftp://x", "collector:4318", "http://me:password@host", "http://host:port"])
def test_only_addresses_of_http_are_taken_and_no_password_is_shown(name, url) -> None:
    with pytest.raises(InputError, match=f"{name}=") as error:
        load_settings(**{name: url})
    assert "password" not in str(error.value)
    with pytest.raises(InputError, match="events_url="):
        EventPublisher(None, url, Path("events.json"))


def test_tokens_for_other_services_fit_into_a_header_and_are_not_shown() -> None:
    found = load_settings(events_token="secret-token-secret\n", naming_token=" ")
    assert found.events_token.get_secret_value() == "secret-token-secret"
    assert found.naming_token is None
    for token in ("secret\r\nx-other: 1", "geheimnisträger"):
        with pytest.raises(InputError, match="events_token=") as error:
            load_settings(events_token=token)
        assert token not in str(error.value)
        assert "secret" not in str(error.value)
