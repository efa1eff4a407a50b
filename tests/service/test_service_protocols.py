"""Standards beside `/v1`: the Open Inference Protocol with a real client, CloudEvents to a real sink that fails."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from service_kit import KNOWN, UNKNOWN, WIDTH, make_guard, wait_until

from offmap.service import Deployment
from offmap.service.events import CONTENT_TYPE, EventPublisher
from offmap.service.service import Service
from offmap.service.settings import Settings
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


def test_a_sink_that_is_no_address_is_refused(tmp_path) -> None:
    from offmap.errors import InputError
    from offmap.service.events import start_publisher

    settings = Settings(store=str(tmp_path), events_url="ftp://x")
    with (
        Service(Deployment(make_guard()), settings) as service,
        pytest.raises(InputError, match="http://"),
    ):
        start_publisher(service)
