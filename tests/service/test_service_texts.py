"""Texts through the service: scores with known examples, stored texts, groups with keywords, learning, naming."""

from __future__ import annotations

import json
import logging
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from service_kit import make_guard

import offmap
from offmap.data import read_texts
from offmap.errors import InputError
from offmap.service import Deployment, Service, Settings
from offmap.service.parsing import parse_request
from offmap.service.request_errors import RequestError
from offmap.service.settings import load_settings
from offmap.service.triage.inputs import KnownData
from offmap.service.triage.naming import name_by_model
from offmap.service.triage.triage import Triage
from offmap.service.unknown_inputs import UnknownInput, new_ids
from text_kit import FOREIGN, encode_words, unknown_texts, write_known


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_known(folder / "known.csv")
    guard = offmap.guard(offmap.TextEncoder(encode_words), read_texts(folder / "known.csv"), detector="knn(3)")
    return folder / "known.csv", guard


def test_texts_are_scored_beside_known_examples_and_stored(tmp_path, guarded, caplog):
    caplog.set_level(logging.DEBUG)
    with Service(guarded[1], Settings(store=str(tmp_path))) as service:
        assert service.describe()["takes_texts"]
        known, *unknown = service.score(texts=["repay loan early today", *FOREIGN], references=list("abcde"))
        assert known["known"]
        assert known["class"] == "loan"
        assert known["nearest"][0]["text"].startswith("repay loan early")
        assert known["nearest"][0]["class"] == "loan"
        assert known["nearest"][0]["similarity"] >= known["nearest"][2]["similarity"]
        assert not any(one["known"] for one in unknown)
        items = service.unknowns.get([one["id"] for one in unknown])
        assert [item.content.decode() for item in items] == FOREIGN
        assert items[0].reference == "b"
    assert not any(text in caplog.text for text in FOREIGN)


def test_bodies_of_texts():
    parsed = parse_request('{"texts": ["שלום 🙂"]}'.encode(), "application/json", "features", Settings())
    assert (parsed.kind, parsed.rows, parsed.content(0)) == (
        "texts", ["שלום 🙂"], ("שלום 🙂".encode(), "text/plain; charset=utf-8"),
    )  # fmt: skip
    for body, message in (
        ('{"texts": [""]}', "text 0 is empty"),
        ('{"texts": ["a", 3]}', "text 1 is a int"),
        ('{"texts": ["half \\ud83d"]}', "half of a character"),
        ('{"texts": "one"}', "a list"),
        (json.dumps({"texts": ["x" * 100_001]}), "the limit is 100,000"),
    ):
        with pytest.raises(InputError, match=message):
            parse_request(body.encode(), "application/json", "features", Settings())
    with pytest.raises(RequestError, match="more than 1,000,000 characters in one request"):
        parse_request(json.dumps({"texts": ["x" * 1001] * 1000}).encode(), "application/json", "features", Settings())


def test_texts_need_an_encoder(tmp_path):
    with (
        Service(Deployment(make_guard()), Settings(store=str(tmp_path))) as service,
        pytest.raises(InputError, match="no text encoder"),
    ):
        service.score(texts=["hello"])


class Namer(BaseHTTPRequestHandler):
    """A language model of one rule: cakes are baking; it keeps what it was asked."""

    asked: list[dict] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Namer.asked.append({**body, "token": self.headers.get("authorization")})
        name = '"Baking cakes."' if "cake" in body["messages"][0]["content"] else "Football"
        answer = json.dumps({"choices": [{"message": {"content": name}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def namer():
    server = HTTPServer(("127.0.0.1", 0), Namer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    server.shutdown()
    server.server_close()


def group(triage):
    triage.group()
    triage.tasks.wait()
    view = triage.view()
    assert view["job"]["error"] is None, view["job"]
    return view["board"]


def test_groups_have_keywords_and_are_learned_and_deployed(tmp_path, guarded):
    file, guard = guarded
    with Service(guard, Settings(store=str(tmp_path))) as service:
        service.score(texts=unknown_texts())
        triage = Triage(service, KnownData(file), max_forgetting=0.1)
        board = group(triage)
        for word, name in (("cake", "baking"), ("football", "football")):
            some = [one for one in board["groups"] if word in one["keywords"].split()]
            assert word in some[0]["suggestion"]
            ids = [one["id"] for one in some]
            if len(ids) > 1:
                triage.apply_edit(board["number"], "merge", {"groups": ids})
            triage.apply_edit(board["number"], "name", {"group": min(ids), "name": name})
        named = {one["name"]: one for one in triage.view()["board"]["groups"]}
        assert "cake" in named["baking"]["keywords"]
        assert sum(named[name]["size"] for name in ("baking", "football")) >= 36
        triage.learn(board["number"])
        triage.tasks.wait()
        version = triage.view()["versions"][-1]
        assert version["accepted"], version["reason"]
        triage.deploy(version["id"])
        answers = service.score(texts=["lemon cake recipe help", "repay loan early today"])
        assert [one["class"] for one in answers] == ["baking", "loan"]
        assert [one["known"] for one in answers] == [True, True]
        assert answers[0]["nearest"][0]["class"] == "baking"  # the texts it was learned from are known ones now
        assert "cake" in answers[0]["nearest"][0]["text"]
        assert answers[1]["nearest"][0]["class"] == "loan"


def test_known_texts_are_read_from_named_columns(tmp_path, guarded):
    file, guard = guarded
    renamed = tmp_path / "known.csv"
    renamed.write_text("id,asked,about\n" + "".join(f"0,{line}\n" for line in file.read_text().splitlines()[1:]))
    known = KnownData(renamed, None, "asked", "about")
    known.check_columns()
    splits = known.read(None, guard.class_names, Settings(store=str(tmp_path)), guard.encoder)
    assert len(splits.train) == len(KnownData(file).read(None, None, Settings(), guard.encoder).train)
    with pytest.raises(InputError, match="has no such column"):
        KnownData(renamed, None, "answered").check_columns()


def test_a_language_model_proposes_names_where_it_was_asked_for(tmp_path, guarded, namer):
    Namer.asked.clear()
    settings = Settings(store=str(tmp_path), naming_url=namer, naming_model="small", naming_token="secret")
    with Service(guarded[1], settings) as service:
        service.score(texts=unknown_texts())
        board = group(Triage(service))
        assert {"Baking cakes", "Football"} <= {one["suggestion"] for one in board["groups"]}
        assert all(one["name"] is None for one in board["groups"])  # a person decides
    assert Namer.asked[0]["model"] == "small"
    assert Namer.asked[0]["token"] == "Bearer secret"


def test_a_language_model_that_does_not_answer_leaves_the_keywords(tmp_path, guarded):
    settings = Settings(store=str(tmp_path), naming_url="http://127.0.0.1:9/nothing")
    with Service(guarded[1], settings) as service:
        service.score(texts=unknown_texts())
        assert any("cake" in one["suggestion"] for one in group(Triage(service))["groups"])


class Hostile(socketserver.BaseRequestHandler):
    """A language model that answers with the bytes of `said`, and then, where asked to, a byte now and then."""

    said = b""
    drips = False
    heard: list[bytes] = []

    def handle(self):
        Hostile.heard.append(self.request.recv(100_000))
        try:
            self.request.sendall(self.said)
            while self.drips:
                time.sleep(0.05)
                self.request.sendall(b"x")
        except OSError:
            pass


DEEP = b"[" * 100_000
HOSTILE = {
    "a redirect": b"HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:%d/elsewhere\r\ncontent-length: 0\r\n\r\n",
    "no HTTP": b"\x00\x01\x02 hello\r\n\r\n",
    "half an answer": b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{",
    "deep nesting": b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + DEEP,
    "no choices": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
    "no end": b"HTTP/1.1 200 OK\r\n\r\n",
    "no end of headers": b"HTTP/1.1 200 OK\r\nx-a: ",
}


@pytest.fixture(scope="module")
def discovered():
    texts = unknown_texts()
    return offmap.discover(encode_words(texts), texts=texts), texts


@pytest.mark.parametrize("name", HOSTILE)
def test_no_answer_of_a_language_model_breaks_grouping_or_takes_the_token_elsewhere(discovered, monkeypatch, name):
    found, texts = discovered
    elsewhere: list[object] = []
    monkeypatch.setattr(Namer, "do_POST", lambda handler: elsewhere.append(handler.headers))
    with HTTPServer(("127.0.0.1", 0), Namer) as other, socketserver.TCPServer(("127.0.0.1", 0), Hostile) as server:
        said = HOSTILE[name]
        monkeypatch.setattr(Hostile, "said", said % other.server_port if b"%d" in said else said)
        monkeypatch.setattr(Hostile, "drips", name.startswith("no end"))
        monkeypatch.setattr(Hostile, "heard", [])
        for one in (other, server):
            threading.Thread(target=one.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        named = name_by_model(found, texts, Settings(naming_url=url, naming_token="secret", naming_seconds=0.3))
        for one in (other, server):
            one.shutdown()
    assert named.names == found.names
    assert b"authorization: bearer secret" in Hostile.heard[0].lower()
    assert elsewhere == []


def test_a_slow_language_model_is_given_up(discovered, namer, monkeypatch, caplog):
    monkeypatch.setattr("offmap.service.triage.naming.MAX_SECONDS", -1.0)
    assert name_by_model(*discovered, Settings(naming_url=namer)).names == discovered[0].names
    assert "is slow" in caplog.text


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "host:80", "http://", "http://u:p@h", "http://h:x"]
)
def test_only_addresses_of_http_are_asked_for_names(url):
    with pytest.raises(InputError, match="naming_url=") as error:
        load_settings(naming_url=url)
    assert "\n" not in str(error.value)


def test_keywords_of_images_do_not_read_the_images(tmp_path, guarded, monkeypatch):
    with Service(guarded[1], Settings(store=str(tmp_path))) as service:
        triage = Triage(service)
        items = [
            UnknownInput(
                id, 1e10, 0.0, 0.1, content=b"x" * 1000, content_type="image/png", features=encode_words(["a"])[0]
            )
            for id in new_ids(20)
        ]
        service.unknowns.add(items)
        monkeypatch.setattr(type(service.unknowns), "iter_blocks", None)  # what reads contents
        assert triage._workspace.read_texts([item.id for item in items]) is None
        seen = service.unknowns.get([items[0].id], contents=False)
        assert seen[0].content is None
