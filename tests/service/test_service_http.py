"""The service over real sockets: the contract, and everything a client can do wrong."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from service_kit import CLASSES, KNOWN, UNKNOWN, WIDTH, guard_of, make_guard, make_network, npy
from starlette.testclient import TestClient

from offmap.service import Deployment, Service, Settings, create_app, open_unknown_store
from offmap.service.unknown_inputs import UnknownInput, new_ids

JSON = {"content-type": "application/json"}
NPY = {"content-type": "application/x-npy"}


@pytest.fixture(scope="module")
def server(launcher, tmp_path_factory):
    limits = {"max_body": 200_000, "max_rows": 50, "header_seconds": 1.5, "body_seconds": 1.5, "idle_seconds": 5}
    made = launcher.start(tmp_path_factory.mktemp("store"), **limits)
    yield made
    assert made.call("GET", "/healthz")[0] == 200, "the server must survive everything in here"
    made.end()


@pytest.fixture(scope="module")
def network_server(launcher, tmp_path_factory):
    made = launcher.start(tmp_path_factory.mktemp("store"), guard="network", image_size=4, max_pixels=10_000)
    yield made
    assert made.call("GET", "/healthz")[0] == 200, "the server must survive everything in here"
    made.end()


def picture(size=(4, 4), color="red", kind="PNG"):
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, kind)
    return out.getvalue()


def raw(server, *parts):
    """Bytes sent as they are; everything that comes back."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as sock:
        for part in parts:
            sock.sendall(part)
        found = b""
        while data := sock.recv(65536):
            found += data
    return found


def test_known_and_unknown_are_told_apart_and_the_unknown_is_stored(server):
    before = set(server.unknown_ids())
    results = server.score(features=KNOWN + UNKNOWN)
    assert [result["known"] for result in results] == [True, False]
    assert all(result.keys() == {"id", "score", "p_value", "known", "class"} for result in results)
    assert results[0]["class"] == 0
    assert set(server.unknown_ids()) - before == {results[1]["id"]}


def test_the_answers_are_the_guards(network_server):
    network = make_network()
    guard = guard_of(network)
    inputs = np.random.default_rng(5).random((40, 3, 4, 4), np.float32)
    expected = guard(network(inputs))
    assert 0 < expected.known.sum() < 40
    for headers, body in ((NPY, npy(inputs)), (JSON, json.dumps({"inputs": inputs.tolist()}))):
        status, _, answer = network_server.call("POST", "/v1/score", body, headers)
        assert status == 200
        results = answer["results"]
        np.testing.assert_allclose([result["score"] for result in results], expected.score, rtol=1e-5)
        np.testing.assert_allclose([result["p_value"] for result in results], expected.p_value)
        assert [result["known"] for result in results] == expected.known.tolist()
        assert [result["class"] for result in results] == [("ant", "bee", "cat")[k] for k in expected.predicted]


def test_features_to_a_network_service_by_name(network_server):
    rows = np.random.default_rng(0).random((2, WIDTH), np.float32)
    status, _, answer = network_server.call("POST", "/v1/score?kind=features", npy(rows), NPY)
    assert status == 200
    assert len(answer["results"]) == 2


def test_pictures_are_scored_and_kept_as_they_came(network_server):
    black, red = picture(color="black"), picture((9, 7), kind="JPEG")
    _, _, single = network_server.call("POST", "/v1/score", black, {"content-type": "image/png"})
    many = {"images": [base64.b64encode(content).decode() for content in (black, red)], "references": ["b", "r"]}
    results = network_server.score(**many)
    assert results[0]["score"] == single["results"][0]["score"]
    assert not results[0]["known"]
    _, _, item = network_server.call("GET", f"/v1/unknowns/{results[0]['id']}")
    assert base64.b64decode(item["content"]) == black
    assert item["reference"] == "b"
    assert len(item["features"]) == WIDTH


def test_pictures_of_phones_that_hold_several_jpegs_are_scored(network_server):
    out = io.BytesIO()
    second = Image.open(io.BytesIO(picture(color="white")))
    Image.open(io.BytesIO(picture(color="black"))).save(out, "MPO", save_all=True, append_images=[second])
    status, _, answer = network_server.call("POST", "/v1/score", out.getvalue(), {"content-type": "image/jpeg"})
    assert status == 200, answer
    (result,) = network_server.score(images=[base64.b64encode(out.getvalue()).decode()])
    assert not result["known"]
    assert network_server.call("GET", f"/v1/unknowns/{result['id']}")[2]["content_type"] == "image/jpeg"


def test_arrays_are_kept_as_npy(network_server):
    zeros = np.zeros((1, 3, 4, 4), np.float32)
    (result,) = network_server.score(inputs=zeros.tolist())
    assert not result["known"]
    _, _, item = network_server.call("GET", f"/v1/unknowns/{result['id']}")
    assert item["content_type"] == "application/x-npy"
    kept = np.load(io.BytesIO(base64.b64decode(item["content"])), allow_pickle=False)
    np.testing.assert_array_equal(kept, zeros[0])


def test_unknown_inputs_are_read_in_pages_without_gaps_or_repeats(server):
    for _ in range(5):
        server.score(features=UNKNOWN * 3)
    everything = server.unknown_ids()
    assert len(set(everything)) == len(everything) >= 15
    for size in (1, 4, len(everything), 10_000):
        ids, after = [], None
        while True:
            _, _, page = server.call("GET", f"/v1/unknowns?limit={size}" + (f"&after={after}" if after else ""))
            assert len(page["items"]) <= size
            ids += [item["id"] for item in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert ids == everything
    _, _, page = server.call("GET", f"/v1/unknowns?limit=2&after={everything[2]}")
    assert [item["id"] for item in page["items"]] == everything[3:5]
    times = [item["time"] for item in server.call("GET", "/v1/unknowns?limit=10000")[2]["items"]]
    assert times == sorted(times)


def test_probes_guard_metrics_and_document(server):
    assert server.call("GET", "/healthz")[2] == {"status": "ok"}
    assert server.call("GET", "/readyz")[2] == {"status": "ready"}
    described = server.call("GET", "/v1/guard")[2]
    assert described["detector"] == "energy"
    assert (described["features"], described["classes"], described["takes_inputs"]) == (WIDTH, CLASSES, False)
    _, headers, text = server.call("GET", "/metrics")
    assert headers.get_content_type() == "text/plain"
    for name in (
        b"offmap_requests_total{", b"offmap_request_seconds_bucket{", b"offmap_unknown_share ", b"offmap_score_bucket{",
        b"offmap_drift_alarm ", b"offmap_drift_evidence_log10 ", b"offmap_pile_items ", b"offmap_p_value_bucket{",
    ):  # fmt: skip
        assert name in text
    document = server.call("GET", "/openapi.json")[2]
    assert {"/v1/score", "/v1/unknowns", "/v1/guard", "/healthz", "/readyz", "/metrics"} <= document["paths"].keys()
    assert "application/x-npy" in document["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    stats = server.call("GET", "/v1/stats")[2]
    assert sum(stats["scores"]["counts"]) == stats["scored"]


def _npy_claiming(shape, content=b"\0" * 16):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def _pickled():
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return out.getvalue()


BAD = {
    "no body": (b"", JSON, 400),
    "not JSON": (b"{features", JSON, 400),
    "not an object": (b"[[1]]", JSON, 400),
    "nothing asked": (b"{}", JSON, 400),
    "two things asked": ({"features": KNOWN, "inputs": KNOWN}, JSON, 400),
    "an unknown key": ({"features": KNOWN, "path": "/etc/passwd"}, JSON, 400),
    "an empty batch": ({"features": []}, JSON, 400),
    "deep nesting": (b'{"features": ' + b"[" * 90_000, JSON, 400),
    "a number of many digits": (b'{"features": [[' + b"9" * 5000 + b"]]}", JSON, 400),
    "empty rows": ({"features": [[]]}, JSON, 422),
    "one dimension": ({"features": KNOWN[0]}, JSON, 422),
    "three dimensions": ({"features": [KNOWN]}, JSON, 422),
    "rows of two lengths": ({"features": [KNOWN[0], [1.0]]}, JSON, 422),
    "a wrong width": ({"features": [[1.0] * (WIDTH + 1)]}, JSON, 422),
    "text": ({"features": [["a"] * WIDTH]}, JSON, 422),
    "a long text among many": ({"features": [["a" * 100_000] + ["b"] * 10_000]}, JSON, 422),
    "numbers beyond 64 bits": ({"features": [[2**70] * WIDTH]}, JSON, 422),
    "null": ({"features": [[None] * WIDTH]}, JSON, 422),
    "true": ({"features": [[True] * WIDTH]}, JSON, 422),
    "an object": ({"features": {"a": 1}}, JSON, 422),
    "NaN": (b'{"features": [[NaN, 1, 1, 1, 1, 1]]}', JSON, 422),
    "Infinity": (b'{"features": [[1, 1, 1, 1, 1, -Infinity]]}', JSON, 422),
    "a number beyond float64": (b'{"features": [[1e999, 1, 1, 1, 1, 1]]}', JSON, 422),
    "a number beyond float32": ({"features": [[1e300] * WIDTH]}, JSON, 422),
    "inputs without a network": ({"inputs": [[1.0]]}, JSON, 422),
    "too many rows": ({"features": KNOWN * 51}, JSON, 413),
    "references that do not match": ({"features": KNOWN, "references": []}, JSON, 422),
    "a reference that is not text": ({"features": KNOWN, "references": [1]}, JSON, 422),
    "a reference with a lone surrogate": (b'{"features": [[1,1,1,1,1,1]], "references": ["\\ud800"]}', JSON, 422),
    "a long reference": ({"features": KNOWN, "references": ["x" * 1025]}, JSON, 422),
    "an unknown type": (b"a,b", {"content-type": "text/csv"}, 415),
    "a compressed body": (zlib.compress(b"0" * 10**6), JSON | {"content-encoding": "deflate"}, 415),
    "a long body": (b" " * 200_001, JSON, 413),
    "a very long body": (b" " * 3_000_000, JSON, 413),
    "npy: not one": (b"hello", NPY, 400),
    "npy: cut short": (npy(np.ones((2, WIDTH)))[:-1], NPY, 400),
    "npy: a huge claim": (_npy_claiming((10**9, 10**9)), NPY, 400),
    "npy: a negative claim": (_npy_claiming((-1, 4)), NPY, 400),
    "npy: no rows of a huge width": (_npy_claiming((0, 2**70), b""), NPY, 400),
    "npy: a length that is a truth value": (_npy_claiming((True, 4)), NPY, 400),
    "npy: seventy dimensions": (_npy_claiming((1,) * 69 + (4,)), NPY, 400),
    "npy: nine dimensions": (_npy_claiming((1,) * 8 + (4,)), NPY, 400),
    "npy: a pickle": (_pickled(), NPY, 422),
    "npy: text": (npy(np.array(["a"])), NPY, 422),
    "npy: complex": (npy(np.ones((1, WIDTH), complex)), NPY, 422),
    "npy: NaN": (npy(np.full((1, WIDTH), np.nan)), NPY, 422),
    "npy: infinity in float16": (npy(np.full((1, WIDTH), np.inf, np.float16)), NPY, 422),
    "npy: no rows": (npy(np.ones((0, WIDTH))), NPY, 400),
    "npy: a single number": (npy(np.float32(1)), NPY, 400),
    "npy: a wrong width": (npy(np.ones((1, 2))), NPY, 422),
    "npy: a shape to compute": (_npy_claiming("(0, 2**70)", b""), NPY, 400),
    "npy: a header that is code": (
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 64) + b"__import__('os').system('true')".ljust(64), NPY, 400,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_in_one_sentence(server, name):
    body, headers, expected = BAD[name]
    body = json.dumps(body) if isinstance(body, dict) else body
    status, answered, answer = server.call("POST", "/v1/score", body, headers)
    assert status == expected, answer
    assert answered.get_content_type() == "application/json"
    assert answer.keys() == {"error"}
    assert isinstance(answer["error"], str)
    assert 10 < len(answer["error"]) < 500
    assert "\n" not in answer["error"]
    assert "0x" not in answer["error"], "addresses in memory are nobody's business"
    assert server.score(features=KNOWN)[0]["known"], "the next request must be answered"


def _bomb_png(side):
    """A small file that claims, and would unpack to, a huge picture."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 10_000_000, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


BAD_PICTURES = {
    "not a picture": (b"hello", "image/png", 422),
    "cut short": (picture((60, 60))[:-40], "image/png", 422),
    "a bomb": (_bomb_png(30_000), "image/png", 413),
    "a larger bomb": (_bomb_png(60_000), "image/png", 413),
    "too many pixels": (picture((101, 100)), "image/png", 413),
    "another format": (picture(kind="TIFF"), "image/png", 422),
    "a type not taken": (picture(kind="TIFF"), "image/tiff", 415),
    "base64 of nothing": (json.dumps({"images": [""]}), "application/json", 422),
    "not base64": (json.dumps({"images": ["§"]}), "application/json", 422),
    "a wrong shape": (json.dumps({"inputs": np.ones((1, 3, 5, 5)).tolist()}), "application/json", 422),
    "wrong features": (json.dumps({"features": [[1.0]]}), "application/json", 422),
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_bad_picture_is_refused_in_one_sentence(network_server, name):
    body, content_type, expected = BAD_PICTURES[name]
    status, _, answer = network_server.call("POST", "/v1/score", body, {"content-type": content_type})
    assert status == expected, answer
    assert answer.keys() == {"error"}
    assert "\n" not in answer["error"]
    assert "0x" not in answer["error"], "addresses in memory are nobody's business"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["features", "inputs", "images"]), inner),
            max_leaves=15,
        ).map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=100).map(lambda tail: npy(np.ones((1, WIDTH)))[:90] + tail),
    ),
    st.sampled_from(["application/json", "application/x-npy", "image/png", "image/jpeg", ""]),
)
def test_no_body_makes_it_fail(server, body, content_type):
    status, _, answer = server.call("POST", "/v1/score", body, {"content-type": content_type})
    assert status in (200, 400, 413, 415, 422)
    assert answer.keys() in ({"error"}, {"results"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404), ("GET", "/v1/score", 405), ("DELETE", "/v1/unknowns", 405), ("GET", "/docs", 404),
        ("GET", "/v1/unknowns?limit=0", 422), ("GET", "/v1/unknowns?limit=10001", 422),
        ("GET", "/v1/unknowns?limit=x", 422), ("GET", "/v1/unknowns?after=-1", 422),
        ("GET", "/v1/unknowns?after=" + "0" * 32, 422), ("GET", "/v1/unknowns?status=x", 422),
        ("GET", "/v1/unknowns/x", 404), ("GET", "/v1/unknowns/..%2f..%2fetc%2fpasswd", 404),
        ("POST", "/v1/score?kind=x", 422), ("GET", "/../../etc/passwd", 404),
    ],
)  # fmt: skip
def test_other_refusals_are_json_too(server, method, path, status):
    found, headers, answer = server.call(method, path)
    assert found == status
    assert headers.get_content_type() == "application/json"
    assert answer.keys() == {"error"}


def test_what_is_not_http_is_refused_in_json(server):
    for garbage in (b"\x16\x03\x01\x02\x00 tls?\r\n\r\n", b"GET\r\n\r\n", b"A" * 100_000):
        answer = raw(server, garbage)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2]).keys() == {"error"}


def test_a_client_that_sends_its_head_slowly_is_sent_away(server):
    answer = raw(server, b"POST /v1/score HT")
    assert answer.startswith(b"HTTP/1.1 408 ")
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n")
        sock.settimeout(0.05)
        answer, end = None, time.monotonic() + 60
        while answer is None and time.monotonic() < end:  # something comes all the time, and the head never ends
            try:
                sock.sendall(b"x: y\r\n")
                answer = sock.recv(65536)
            except TimeoutError:
                pass
            except OSError:
                answer = b""  # cut off
    assert answer is not None
    assert b"200" not in answer


def test_a_client_that_sends_its_body_slowly_is_sent_away(server):
    head = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for body in (b"content-length: 100\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"):
        answer = raw(server, head + body)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'{"error":' in answer


def test_a_client_that_leaves_in_the_middle_harms_nobody(server):
    where = urlsplit(server.url)
    for _ in range(20):
        with socket.create_connection((where.hostname, where.port)) as sock:
            sock.sendall(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
    assert server.score(features=KNOWN)[0]["known"]


def test_chunked_bodies_are_measured(server):
    head = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    body = json.dumps({"features": KNOWN}).encode()
    good = raw(server, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    assert good.startswith(b"HTTP/1.1 200 ")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert raw(server, head + 4 * chunk).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_end_is_refused_and_then_cut(server):
    head = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as sock:
        sock.sendall(head + 4 * chunk)
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
        end = time.monotonic() + 60
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                sock.sendall(chunk)
        assert time.monotonic() < end, "it must not be read for ever"


def test_images_are_counted_as_decoded_and_their_shape_is_read_from_the_header(launcher, tmp_path):
    server = launcher.start(tmp_path / "a", guard="network", max_memory=2_000_000)
    status, _, answer = server.call("POST", "/v1/score", picture((500, 500)), {"content-type": "image/png"})
    assert status == 413, answer
    assert "once decoded" in answer["error"]
    assert server.call("POST", "/v1/score", picture((4, 4)), {"content-type": "image/png"})[0] == 200
    server.end()
    server = launcher.start(tmp_path / "b", guard="network", input_shape=[3, 4, 4])
    only_header = picture((500, 500))[:60]
    status, _, answer = server.call("POST", "/v1/score", only_header, {"content-type": "image/png"})
    assert status == 422, answer
    assert "500×500 pixels; the network takes inputs of shape 3×4×4" in answer["error"]
    server.end()


def test_many_small_files_of_huge_images_do_not_fill_the_memory(launcher, tmp_path):
    """One of these images is 48 MB when decoded: together, and with their copies, they would be more than 2 GB."""
    server = launcher.start(tmp_path, guard="network", max_memory=64_000_000)
    bomb, statuses = picture((2000, 2000)), []

    def ask():
        statuses.append(server.call("POST", "/v1/score", bomb, {"content-type": "image/png"}, timeout=120)[0])

    before = peak_memory(server)
    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {422, 503}
    assert statuses.count(422) >= 1, "one at a time is decoded, and does not fit the network"
    assert peak_memory(server) - before < 600e6
    server.end()


def peak_memory(server):
    """The most bytes that the server's process ever held."""
    text = Path(f"/proc/{server.pid}/status").read_text()
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])


def test_every_answer_keeps_browsers_from_guessing_framing_and_reading(server):
    for method, path in (("GET", "/v1/guard"), ("GET", "/nothing"), ("GET", "/healthz"), ("POST", "/v1/score")):
        headers = server.call(method, path)[1]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_a_failure_of_the_service_is_answered_with_the_same_headers_and_logged(tmp_path, caplog):
    with Service(Deployment(make_guard()), Settings(store=str(tmp_path))) as service:
        app = create_app(service, close=False)

        @app.get("/fails")
        async def fail():
            raise RuntimeError("nobody thought of this one")

        with TestClient(app, base_url="http://localhost") as client:
            answer = client.get("/fails")
    assert answer.status_code == 500
    assert answer.json() == {"error": "the service failed on this request; its log says why"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "nobody thought of this one" in caplog.text


def test_many_readers_of_large_inputs_do_not_fill_the_memory(launcher, tmp_path):
    store, ids = open_unknown_store(tmp_path), new_ids(4)
    for id in ids:
        store.add([UnknownInput(id, time.time(), -3.0, 0.01, content=bytes(8 * 2**20), content_type="image/png")])
    store.close()
    server = launcher.start(tmp_path)
    before, answers = peak_memory(server), []

    def read(number):
        answers.append(server.call("GET", f"/v1/unknowns/{ids[number % 4]}", timeout=120)[0])

    threads = [threading.Thread(target=read, args=[number]) for number in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 503}
    assert answers.count(200) >= 4
    assert peak_memory(server) - before < 600 * 2**20  # four that are read, and 256 MiB of answers
    server.end()


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://", "\xff"])
def test_an_origin_that_is_no_address_is_refused(server, origin):
    status, _, answer = server.call("GET", "/v1/guard", headers={"origin": origin})
    assert (status, set(answer)) == (403, {"error"})


def test_pages_of_other_sites_are_refused(server):
    assert server.call("GET", "/v1/guard", headers={"origin": "http://evil.example"})[0] == 403
    assert server.call("GET", "/v1/guard", headers={"host": "evil.example"})[0] == 403
    own = urlsplit(server.url).netloc
    assert server.call("GET", "/v1/guard", headers={"origin": f"http://{own}"})[0] == 200


def test_many_clients_get_each_their_own_answers(server):
    rng = np.random.default_rng(3)
    asked = [rng.random((rng.integers(1, 9), WIDTH)).round(3) + 1 for _ in range(60)]
    alone = [[row["score"] for row in server.score(features=rows.tolist())] for rows in asked]
    together: list = [None] * len(asked)

    def ask(place):
        together[place] = [row["score"] for row in server.score(features=asked[place].tolist())]

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_one_connection_serves_many_requests(server):
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    for body, status in (({"features": KNOWN}, 200), ({"features": []}, 400), ({"features": KNOWN}, 200)):
        connection.request("POST", "/v1/score", json.dumps(body), JSON)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()
