"""Groups in labelling tools and labels back: the documented requests against real local servers, and a real round."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

import numpy as np
import pytest
from service_kit import wait_until
from triage_kit import Scenario, rows_of

from offmap.errors import InputError, MissingError
from offmap.service.labelling import ArgillaDataset, LabelStudioProject, TriageClient, export_fiftyone
from offmap.service.labelling.client import DISCARD, OTHER, LabelTask, ask

NAMES = ["dog", "eel"]


class Tool:
    """A labelling tool that keeps what it is sent, and whose annotator knows the truth by the text of an input."""

    def __init__(self, routes) -> None:
        self.kept: dict[str, list] = {}
        self.headers: list[dict[str, str]] = []
        tool = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "null")
                tool.headers.append({name.lower(): value for name, value in self.headers.items()})
                for pattern, respond in routes:
                    if re.fullmatch(pattern, f"{self.command} {self.path}"):
                        found = json.dumps(respond(tool.kept, body)).encode()
                        self.send_response(200)
                        self.send_header("content-type", "application/json")
                        self.send_header("content-length", str(len(found)))
                        self.end_headers()
                        self.wfile.write(found)
                        return
                self.send_error(404, f"{self.command} {self.path}")

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def keep(name, answer):
    def respond(kept, body):
        kept.setdefault(name, []).append(body)
        return answer

    return respond


def label_studio_export(kept, body):
    """Annotated tasks, as https://labelstud.io/guide/task_format describes them; one of them was skipped."""
    tasks = []
    for number, task in enumerate(kept["tasks"][0]):
        result = [
            {"from_name": "class", "to_name": "input", "type": "choices", "value": {"choices": [OTHER]}},
            {"from_name": "other", "to_name": "input", "type": "textarea", "value": {"text": [task["data"]["input"]]}},
        ]
        tasks.append({"data": task["data"], "annotations": [{"was_cancelled": number == 0, "result": result}]})
    return tasks


LABEL_STUDIO = [
    (r"POST /api/projects/", keep("project", {"id": 7})),
    (r"POST /api/projects/7/import", keep("tasks", {"task_count": 1})),
    (r"GET /api/projects/7/export\?exportType=JSON", label_studio_export),
]


def argilla_records(kept, body):
    records = [record for part in kept["records"] for record in part["items"]]
    answers = {"class": {"value": OTHER}}
    return {
        "items": [
            {
                "external_id": record["external_id"],
                "responses": [
                    {"status": "discarded", "values": None},
                    {"status": "submitted", "values": {**answers, "other": {"value": record["fields"]["input"]}}},
                ],
            }
            for record in records
        ]
    }


ARGILLA = [
    (r"POST /api/v1/datasets", keep("dataset", {"id": "d1"})),
    (r"POST /api/v1/datasets/d1/fields", keep("fields", {"id": "f1"})),
    (r"POST /api/v1/datasets/d1/questions", keep("questions", {"id": "q1"})),
    (r"PUT /api/v1/datasets/d1/publish", keep("published", {})),
    (r"POST /api/v1/datasets/d1/records/bulk", keep("records", {"items": []})),
    (r"GET /api/v1/datasets/d1/records\?include=responses&offset=0&limit=100", argilla_records),
]


@pytest.fixture
def client(launcher, tmp_path):
    """A service with grouped unknown inputs of two classes, whose references are their true names."""
    Scenario(tmp_path).close()
    files = {"guard": tmp_path / "guard.offmap", "known": str(tmp_path / "known.npz")}
    server = launcher.start(tmp_path / "labelled", **files)
    labels = np.arange(80) % 2
    body = {"features": rows_of(3 + labels, 1).tolist(), "references": [NAMES[label] for label in labels]}
    made = TriageClient(server.url)
    with pytest.raises(MissingError, match="group the unknown inputs"):
        made.make_tasks()
    ask(server.url + "/v1/score", {}, body)
    ask(server.url + "/v1/triage/group", {}, {})
    wait_until(lambda: made._ask("/v1/triage")[0]["board"] is not None, 60)
    yield made
    server.end()


def names_on_page(client):
    return sorted(group["name"] or "-" for group in client.read_board()["groups"])


def test_labels_of_label_studio_become_a_round(client):
    tool = Tool(LABEL_STUDIO)
    project = LabelStudioProject(tool.url, "secret")
    number = project.push(client, per_group=6)
    view = ElementTree.fromstring(tool.kept["project"][0]["label_config"])
    assert {choice.get("value") for choice in view.iter("Choice")} >= {"ant", "bee", "cat", DISCARD, OTHER}
    assert view[0].tag == "Text"
    task = tool.kept["tasks"][0][0]
    assert task["predictions"][0]["result"][0]["value"]["choices"][0] in client.list_choices()
    assert all(headers["authorization"] == "Token secret" for headers in tool.headers)

    labels = project.pull(number)
    assert len(labels) == len(tool.kept["tasks"][0]) - 1  # one was skipped
    done = client.apply_labels(labels)
    assert sorted(set(done.named.values())) == NAMES
    assert not done.disputed
    assert names_on_page(client) == NAMES
    client.learn()
    wait_until(lambda: client._ask("/v1/triage")[0]["versions"], 60)
    assert client._ask("/v1/triage")[0]["versions"][0]["accepted"]
    tool.close()


def test_labels_of_argilla_name_the_groups(client):
    tool = Tool(ARGILLA)
    dataset = ArgillaDataset(tool.url, "secret", "w1")
    place = dataset.push(client, per_group=6)
    assert tool.kept["dataset"] == [{"name": "unknown-inputs", "workspace_id": "w1"}]
    assert tool.kept["fields"][0]["settings"] == {"type": "text"}
    label, other = tool.kept["questions"]
    assert {option["value"] for option in label["settings"]["options"]} >= {"ant", DISCARD, OTHER}
    assert other["settings"] == {"type": "text"}
    assert not other["required"]
    assert tool.kept["published"] == [None]
    assert all(headers["x-argilla-api-key"] == "secret" for headers in tool.headers)
    done = client.apply_labels(dataset.pull(place))
    assert sorted(set(done.named.values())) == NAMES
    assert names_on_page(client) == NAMES
    tool.close()


def test_known_classes_discarded_disputed_and_missing_labels(client, tmp_path):
    with pytest.raises(InputError, match="is no picture; FiftyOne takes groups of pictures"):
        export_fiftyone(client, tmp_path / "fo")
    tasks = client.make_tasks(6)
    by_group: dict[int, list[str]] = {}
    for task in tasks:
        by_group.setdefault(task.group, []).append(task.id)
    first, second = sorted(by_group)[:2]
    split = {id: "xyz"[place % 3] for place, id in enumerate(by_group[first])}
    left = client.apply_labels(split)
    assert (left.disputed, second in left.unlabelled) == ([first], True)
    labels = dict.fromkeys(by_group[first], "bee") | dict.fromkeys(by_group[second], DISCARD)
    done = client.apply_labels(labels)
    assert (done.known, done.discarded) == ({first: "bee"}, [second])
    with pytest.raises(InputError, match="a share above one half"):
        client.apply_labels({}, agreement=0.2)
    with pytest.raises(InputError, match=r"cannot be reached"):
        TriageClient("http://127.0.0.1:1").make_tasks()


def test_labels_do_not_overwrite_what_someone_does_meanwhile(client, monkeypatch):
    labels = {task.id: "dog" for task in client.make_tasks(6)}
    board = client.read_board()
    first = board["groups"][0]["id"]

    def read_then_someone_edits():
        monkeypatch.undo()
        client._act(dict(board), "name", group=first, name="theirs")
        return dict(board)

    monkeypatch.setattr(client, "read_board", read_then_someone_edits)
    with pytest.raises(InputError, match="answered 409"):
        client.apply_labels(labels)
    assert "theirs" in names_on_page(client)
    client.apply_labels(labels)
    assert "theirs" not in names_on_page(client)


@pytest.mark.parametrize("answer", [None, 3, "x", [3], {}, [{}], [{"annotations": 1}], {"items": [[]]}, {"items": 1}])
def test_a_tool_that_answers_otherwise_than_documented_gets_a_sentence(answer):
    tool = Tool([(".*", lambda kept, body: answer)])
    for pull in (
        lambda: LabelStudioProject(tool.url, "t").pull(1),
        lambda: ArgillaDataset(tool.url, "k", "w").pull("d"),
    ):
        try:
            assert pull() == {}
        except InputError as error:
            told = str(error)
            assert "another form" in told
    tool.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_token_follows_a_redirect(status):
    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("location", elsewhere.url + "/caught")
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    elsewhere = Tool([(".*", lambda kept, body: {})])
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for body in (None, {}):
            with pytest.raises(InputError, match=f"answered {status}"):
                ask(f"http://127.0.0.1:{server.server_port}/", {"Authorization": "Token secret"}, body)
        server.shutdown()
    elsewhere.close()
    assert elsewhere.headers == []


@pytest.mark.parametrize(
    ("id", "kind"), [("../../escaped", "image/png"), ("a", "image/../../png"), ("/etc/x", "image/png")]
)
def test_a_service_names_no_file_outside_of_the_folder(tmp_path, id, kind):
    class Hostile(TriageClient):
        def make_tasks(self, per_group=10):
            return [LabelTask(id, 0, "x", image=b"1", content_type=kind)]

    with pytest.raises(InputError, match="the service names an input"):
        export_fiftyone(Hostile("http://x"), tmp_path / "inside")
    assert not list(tmp_path.rglob("*.*"))


def test_pictures_become_a_folder_that_fiftyone_reads(launcher, tmp_path):
    from PIL import Image

    server = launcher.start(tmp_path / "pictures", guard="network", known="", image_size=4)
    rng = np.random.default_rng(0)
    pictures = []
    for place in range(60):
        pixels = np.clip(255 * (place % 2) + rng.normal(0, 30, (4, 4, 3)), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        pictures.append(base64.b64encode(file.getvalue()).decode())
    results = ask(server.url + "/v1/score", {}, {"images": pictures})[0]["results"]
    assert sum(not row["known"] for row in results) >= 10
    ask(server.url + "/v1/triage/group", {}, {})
    client = TriageClient(server.url)
    wait_until(lambda: client._ask("/v1/triage")[0]["board"] is not None, 60)
    count = export_fiftyone(client, tmp_path / "fo", per_group=3)
    labels = json.loads((tmp_path / "fo" / "labels.json").read_text())
    files = {file.stem: file for file in (tmp_path / "fo" / "data").iterdir()}
    assert labels["classes"] is None
    assert labels["labels"].keys() == files.keys()
    assert len(files) == count > 0
    assert all(Image.open(file).size[0] > 0 for file in files.values())
    assert {one["label"] for one in labels["labels"].values()} <= set(client.list_choices())
    server.end()
