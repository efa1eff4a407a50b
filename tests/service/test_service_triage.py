"""What the triage page stands on: edits that can be taken back, a journal that lasts, versions that come and go."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn
from service_kit import call, guard_of, make_network, npy, wait_until
from triage_kit import OLD, Scenario, rows_of

import offmap
from offmap.errors import InputError, StoreError
from offmap.network import Network
from offmap.service import Deployment, Service, Settings, create_app, unknowns
from offmap.service.loading import DeploymentFiles
from offmap.service.request_errors import RequestError, hide_folders
from offmap.service.requests import NPY
from offmap.service.stores import open_unknown_store
from offmap.service.triage.inputs import make_thumbnail, read_unknown_inputs
from offmap.service.triage.journal import Journal
from offmap.service.triage.process import TriageProcess, _lacks_memory
from offmap.service.triage.routes import create_triage_router
from offmap.service.triage.triage import Triage
from offmap.service.unknown_inputs import UnknownInput, new_ids


@pytest.fixture
def world(tmp_path):
    made = Scenario(tmp_path)
    yield made
    made.close()


def state(triage):
    board = triage.view()["board"]
    return [(g["id"], g["name"], g["size"]) for g in board["groups"]], board["known"], board["discarded"]


def test_groups_are_what_was_met(world):
    truth = world.meet()
    board = world.grouped()
    assert board["inputs"] == sum(1 for _ in truth) == 120
    assert len(board["groups"]) == 2
    for group in board["groups"]:
        assert len({truth[one] for one in group["exemplars"]}) == 1
        assert group["name"] is None
        assert set(group["nearest"]) <= {"ant", "bee", "cat"}
        assert 0 <= group["confidence"] <= 1


def test_every_edit_is_undone_and_redrawn_after_a_restart(world):
    world.meet()
    board = world.grouped()
    number, (one, two) = board["number"], [group["id"] for group in board["groups"]]
    edits = [
        ("name", {"group": one, "name": "eel"}),
        ("split", {"group": two, "parts": 2}),
        ("merge", {"groups": [one, two]}),
        ("known", {"group": min(one, two), "class": 1}),
        ("discard", {"group": max(one, two) + 1}),
    ]
    seen = [state(world.triage)]
    for action, details in edits:
        world.triage.apply_edit(number, action, details)
        seen.append(state(world.triage))
        world.again()
        assert state(world.triage) == seen[-1], f"{action} was lost"
    assert len({json.dumps(one) for one in seen}) == len(seen)
    for expected in seen[-2::-1]:
        world.triage.undo(number)
        assert state(world.triage) == expected
    with pytest.raises(RequestError, match="nothing to take back"):
        world.triage.undo(number)
    actions = [entry["action"] for entry in world.triage.view()["journal"]]
    assert actions == ["group", *(action for action, _ in edits), *["undo"] * len(edits)]


def test_a_merged_group_keeps_the_name_it_was_given(world):
    world.meet()
    board = world.grouped()
    one, two = sorted(group["id"] for group in board["groups"])
    world.triage.apply_edit(board["number"], "name", {"group": two, "name": "eel"})
    world.triage.apply_edit(board["number"], "merge", {"groups": [one, two]})
    assert state(world.triage)[0] == [(one, "eel", 120)]


def test_learn_deploy_restart_roll_back(world):
    truth = world.meet()
    board = world.grouped()
    for group in board["groups"]:
        world.triage.apply_edit(
            board["number"], "name", {"group": group["id"], "name": f"class {truth[group['exemplars'][0]]}"}
        )
    version = world.learned()
    assert version["accepted"], version["reason"]
    assert version["before"]["new"] == 0.0
    assert version["after"]["new"] > 0.9
    first = world.service.deployment.version
    assert world.service.unknowns.count_by_status()["open"] == 120, "nothing changes before it is deployed"

    world.triage.deploy(version["id"])
    fresh = OLD + np.arange(40) % 2
    check_named(world, fresh)
    assert world.service.unknowns.count_by_status()["resolved"] == 120
    assert world.triage.view()["board"] is None
    world.again()
    assert world.triage.view()["current"] == version["id"]
    check_named(world, fresh)

    world.triage.rollback()
    assert world.service.deployment.version == first
    assert world.service.unknowns.count_by_status()["resolved"] == 0
    assert not any(one["known"] for one in world.service.score(features=rows_of(fresh, 5)))
    assert len(world.triage.view()["board"]["groups"]) == 2
    world.again()
    assert world.triage.view()["current"] == 0
    world.triage.deploy(version["id"])
    check_named(world, fresh)


def named_groups(world):
    world.meet()
    board = world.grouped()
    for group in board["groups"]:
        world.triage.apply_edit(board["number"], "name", {"group": group["id"], "name": f"class {group['id']}"})
    return board["number"]


def test_grouping_and_learning_in_a_process_of_their_own_give_what_a_thread_gives(tmp_path):
    outcomes = []
    for from_files in (False, True):
        (tmp_path / str(from_files)).mkdir()
        world = Scenario(tmp_path / str(from_files), from_files=from_files)
        named_groups(world)
        assert (world.triage._process is not None) == from_files
        outcomes.append(state(world.triage))
        version = world.learned()
        outcomes.append({name: value for name, value in version.items() if name not in ("time", "settings")})
        world.triage.deploy(version["id"])
        check_counts(world)
        world.again()
        check_counts(world)
        world.close()
    assert outcomes[:2] == outcomes[2:]


def test_grouping_without_known_data_needs_neither_network_nor_guard(tmp_path):
    world = Scenario(tmp_path, known=False, from_files=True)
    world.meet()
    (tmp_path / "guard.offmap").unlink()  # as while another one is being written
    try:
        assert sum(group["size"] for group in world.grouped()["groups"]) == 120
    finally:
        world.close()


def use_processes(world, **settings):
    """From here on, group and learn in processes."""
    world.files, world.settings = DeploymentFiles(world.folder / "guard.offmap"), settings
    world.again()


def test_a_crash_of_grouping_keeps_the_earlier_groups(world, tmp_path):
    number = named_groups(world)
    before = world.triage.view()["board"]
    use_processes(world)
    world.triage.group()
    wait_until(lambda: world.triage._process is not None)
    world.triage._process._process.kill()
    world.triage.tasks.wait()
    view = world.triage.view()
    assert "grouping ended without a result" in view["job"]["error"]
    assert view["board"] == before
    assert world.grouped()["number"] == number + 1
    proposals = tmp_path / "store" / "proposals"
    (proposals / ".new-0-0").mkdir()  # of a kill in the middle
    world.again()
    assert [folder.name for folder in proposals.iterdir()] == [str(number + 1)]


def check_counts(world):
    assert world.service.unknowns.count_by_status() == {"open": 0, "resolved": 120, "discarded": 0}


def test_a_crash_of_learning_harms_nothing(world, monkeypatch):
    number = named_groups(world)
    use_processes(world)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    before = world.triage.view()
    world.triage.learn(number)
    wait_until(lambda: world.triage._process is not None)
    own, pid = os.getpriority(os.PRIO_PROCESS, 0), world.triage._process._process.pid
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == min(own + 10, 19), seconds=60)
    assert b"OMP_NUM_THREADS=3" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # one core is left to scoring
    world.triage._process._process.kill()
    world.triage.tasks.wait()
    view = world.triage.view()
    assert "without a result" in view["job"]["error"]
    assert {name: view[name] for name in ("board", "versions", "current")} == {
        name: before[name] for name in ("board", "versions", "current")
    }
    assert len(world.service.score(features=rows_of(np.arange(9) % OLD, 3))) == 9
    assert world.learned()["accepted"]


def test_grouping_or_learning_beyond_its_memory_ends_and_says_so(world):
    number = named_groups(world)
    before = world.triage.view()["board"]
    use_processes(world, learn_memory=50_000_000)
    for task in (lambda: world.triage.learn(number), world.triage.group):
        task()
        world.triage.tasks.wait()
        assert "OFFMAP_LEARN_MEMORY" in world.triage.view()["job"]["error"]
    assert world.triage.view()["versions"] == []
    assert world.triage.view()["board"] == before


def test_a_lack_of_memory_is_recognised_whatever_it_is_called():
    torchs = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes")
    wrapped = StoreError("not a whole detector")
    wrapped.__cause__ = torchs
    library = ImportError("libgomp.so.1: failed to map segment from shared object")
    module = SyntaxError("expected ':'")  # of a module compiled when memory ran out
    assert all(_lacks_memory(error) for error in (MemoryError(), torchs, wrapped, library, module))
    assert not _lacks_memory(StoreError("not a whole detector"))


def test_closing_stops_learning(world):
    number = named_groups(world)
    use_processes(world)
    world.triage.learn(number)
    wait_until(lambda: world.triage._process is not None)
    world.close()
    assert not world.triage.tasks.is_busy
    assert world.triage._process._process.poll() is not None
    world.open()
    assert world.triage.view()["versions"] == []


def test_learning_ends_with_the_service_however_that_ends(world):
    named_groups(world)
    use_processes(world)
    triage = world.triage
    made = TriageProcess("learn", world.files, triage._workspace, triage._base.version, triage._options)
    made._process.stdin.write(json.dumps(made._order) + "\n")
    made._process.stdin.close()  # as the system does for a process that was killed
    assert "folder" not in made._process.stdout.read()
    assert made._process.wait(60) == 1


def check_named(world, labels):
    results = world.service.score(features=rows_of(labels, 5))
    right = [one["class"] == f"class {label}" and one["known"] for one, label in zip(results, labels, strict=True)]
    assert np.mean(right) > 0.8


def test_a_second_round_stands_on_the_first(world):
    world.meet()
    board = world.grouped()
    world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
    world.triage.deploy(world.learned()["id"])
    assert world.service.unknowns.count_by_status()["resolved"] == board["groups"][0]["size"]
    board = world.grouped()
    assert {one["name"] for one in board["classes"]} == {"ant", "bee", "cat", "eel"}
    world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "fly"})
    version = world.learned()
    assert version["parent"] == 1
    assert version["classes"] == ["ant", "bee", "cat", "eel", "fly"]
    world.triage.deploy(version["id"])
    world.again()
    assert world.service.deployment.class_names == ("ant", "bee", "cat", "eel", "fly")
    world.triage.rollback()
    assert world.service.deployment.class_names == ("ant", "bee", "cat", "eel")


def test_forgetting_is_not_deployed(world):
    """A person takes a class between two old ones for one of them; the version says so and cannot be put in service."""
    world.triage._options["max_forgetting"] = 0.0
    between = rows_of(np.zeros(200, int), 3)
    between[:, 0] -= 3
    between[:, 1] += 3
    between[:, 5] += 2.5  # far enough to be a group of its own, too near to be told from all of both
    world.service.score(features=between)
    world.service.score(features=rows_of(np.full(60, OLD), 1))
    board = world.grouped()
    wrong, *new = sorted(board["groups"], key=lambda group: -group["size"])
    world.triage.apply_edit(board["number"], "known", {"group": wrong["id"], "class": 0})
    for group in new:
        world.triage.apply_edit(board["number"], "name", {"group": group["id"], "name": f"new {group['id']}"})
    version = world.learned()
    assert not version["accepted"], "chosen so that something is forgotten"
    assert version["after"]["known"] < version["before"]["known"]
    with pytest.raises(RequestError, match="is not deployed"):
        world.triage.deploy(version["id"])
    assert world.triage.view()["current"] == 0


def test_without_labelled_inputs_it_groups_and_says_what_is_missing(tmp_path):
    world = Scenario(tmp_path, known=False)
    try:
        world.meet()
        board = world.grouped()
        assert len(board["groups"]) == 2
        world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
        assert "--known" in world.triage.view()["missing"]
        with pytest.raises(RequestError, match="--known"):
            world.triage.learn(board["number"])
    finally:
        world.close()


def test_texts_name_their_groups(world):
    labels = OLD + np.arange(60) % 2
    words = [f"where is my {'card' if label == OLD else 'parcel'} number {i}" for i, label in enumerate(labels)]
    world.service.score(features=rows_of(labels, 1), references=words)
    board = world.grouped()
    suggestions = [group["suggestion"] for group in board["groups"]]
    assert all(any(word in one for one in suggestions) for word in ("card", "parcel")), suggestions


def test_a_learner_that_makes_new_features_needs_a_network(world):
    for learner, words in (("opencon", "give --model"), ("finetune", "give --model"), ("magic", "choose one of")):
        with pytest.raises(InputError, match=words):
            Triage(world.service, world.known, learner=learner)


def test_a_head_over_a_kernel_reads_the_same_features(world):
    world.triage.close()
    world.triage = Triage(world.service, world.known, learner="kernel")
    for learned, seed in enumerate((1, 2), 1):  # the second round begins with a deployment that maps features
        world.meet(seed=seed)
        board = world.grouped()
        group = board["groups"][0]["id"]
        world.triage.apply_edit(board["number"], "name", {"group": group, "name": f"eel {learned}"})
        world.triage.deploy(world.learned()["id"])
        assert world.service.deployment.maps_features
        assert world.service.deployment.width == rows_of([0], 0).shape[1]
        answers = world.service.score(features=rows_of(OLD + np.arange(40) % 2, 7))
        named = {one["class"] for one in answers if one["known"]}
        assert named == {f"eel {number}" for number in range(1, learned + 1)}


def test_a_reload_takes_what_was_learned_out_of_service(world):
    world.meet()
    board = world.grouped()
    world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
    version = world.learned()["id"]
    world.triage.deploy(version)
    world.service.deploy(Deployment(world.guard))
    assert world.triage.view()["current"] == 0
    world.triage.deploy(version)
    assert world.triage.view()["current"] == version
    acts = offmap.Activations(rows_of(np.arange(450) % OLD, 7))
    world.service.deploy(Deployment(offmap.detector("knn(3)").fit(acts[:225]).calibrate(acts[225:])))
    assert "another guard was read" in world.triage.view()["notice"]
    with pytest.raises(RequestError, match="another guard was read"):
        world.triage.deploy(version)


def test_another_guard_at_the_start_is_not_replaced(world):
    world.meet()
    board = world.grouped()
    world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
    world.triage.deploy(world.learned()["id"])
    acts = offmap.Activations(rows_of(np.arange(450) % OLD, 7))
    world.close()
    world.guard = offmap.detector("knn(3)").fit(acts[:225]).calibrate(acts[225:])
    world.open()
    assert world.service.deployment.detector is world.guard
    assert "another guard" in world.triage.view()["notice"]


@pytest.mark.parametrize(
    ("action", "details", "words"),
    [
        ("name", {"group": 3, "name": ""}, "a name is a text"),
        ("name", {"group": 3, "name": "x" * 81}, "a name is a text"),
        ("name", {"group": 3, "name": "a\nb"}, "a name is a text"),
        ("name", {"group": 3, "name": "ant"}, "a known class"),
        ("name", {"group": 99, "name": "x"}, "no such group"),
        ("name", {"group": True, "name": "x"}, "no such group"),
        ("merge", {"groups": [3]}, "two groups"),
        ("merge", {"groups": "34"}, "two groups"),
        ("merge", {"groups": [3, 0]}, "no such group"),
        ("split", {"group": 3, "parts": 1}, "2 to 10 parts"),
        ("split", {"group": 3, "parts": 1e9}, "2 to 10 parts"),
        ("known", {"group": 3, "class": 77}, "known classes"),
        ("known", {"group": 3, "class": [0]}, "known classes"),
        ("explode", {}, "choose one of"),
        ("discard", {"group": 3, "x": float("nan")}, "is not known"),
        ("name", {"group": 3, "name": "x", "\ud800": 1}, "is not known"),
        ("merge", {"groups": [3, 4], "group": 3}, "is not known"),
    ],
)
def test_edits_that_make_no_sense_are_refused_and_not_noted(board_world, action, details, words):
    board = board_world.triage.view()["board"]
    before = len(board_world.triage.view()["journal"])
    with pytest.raises(InputError, match=words):
        board_world.triage.apply_edit(board["number"], action, details)
    assert len(board_world.triage.view()["journal"]) == before


@pytest.fixture(scope="module")
def board_world(tmp_path_factory):
    made = Scenario(tmp_path_factory.mktemp("board"))
    made.meet()
    made.grouped()
    yield made
    made.close()


def test_the_interface_takes_json_only_and_answers_in_json(board_world):
    app = create_app(board_world.service, [create_triage_router(board_world.triage)], close=False)
    with running(app) as url:
        status, headers, _ = call(url, "GET", "/")
        assert (status, headers.get_content_type()) == (200, "text/html")
        assert "default-src 'none'" in headers["content-security-policy"]
        for name in ("/triage.css", "/triage.js"):
            assert call(url, "GET", name)[0] == 200
        number = call(url, "GET", "/v1/triage")[2]["board"]["number"]
        as_json = {"content-type": "application/json"}
        undo = "/v1/triage/undo"
        refused = {
            415: call(url, "POST", undo, '{"board": 1}', {"content-type": "text/plain"}),
            400: call(url, "POST", undo, "{", as_json),
            422: call(url, "POST", undo, {"board": "x"}),
            409: call(url, "POST", undo, {"board": number + 5}),
            413: call(url, "POST", undo, {"board": "x" * 200_000}),
            4220: call(url, "POST", undo, {"board": number, "x": 1}),
            4000: call(url, "POST", undo, '{"board": 1, "x": NaN}', as_json),
            4221: call(url, "POST", "/v1/triage/group", '{"\\ud800": 1}', as_json),
            404: call(url, "GET", "/v1/triage/items/nothing"),
            403: call(url, "POST", undo, {"board": number}, {"origin": "http://evil.example"}),
        }
        for status, (found, _, answer) in refused.items():
            assert str(status).startswith(str(found)), answer
            assert set(answer) == ({"error", "view"} if found == 409 else {"error"})
        first = call(url, "GET", "/v1/triage")[2]["board"]["groups"][0]
        edit = {"board": number, "action": "name", "group": first["id"], "name": "<b>&"}
        named = call(url, "POST", "/v1/triage/act", edit)[2]["board"]["groups"]
        assert named[0]["name"] == "<b>&"
        assert call(url, "POST", undo, {"board": number})[2]["board"]["groups"][0]["name"] is None
        item = call(url, "GET", "/v1/triage/items/" + first["exemplars"][0])[2]
        assert set(item) == {"text", "score", "time"}


@contextmanager
def running(app):
    """The application behind a real socket."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield "http://127.0.0.1:" + str(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


def test_learning_that_was_cut_short_leaves_nothing(world):
    half = world.service.store_dir / "versions" / ".new-1-dead"
    half.mkdir(parents=True)
    (half / "guard.offmap").write_bytes(b"half")
    world.again()
    assert not half.exists()
    assert world.triage.view()["versions"] == []


def test_lines_of_the_journal_that_cannot_be_used_are_set_aside(world, caplog):
    """Such lines were written by earlier versions; after them the page must work, also after a restart."""
    world.meet()
    number = world.grouped()["number"]
    group = world.triage.view()["board"]["groups"][0]["id"]
    world.triage.apply_edit(number, "name", {"group": group, "name": "eel"})
    sql = "INSERT INTO entry (time, proposal, action, details, undone) VALUES (0, ?, 'discard', ?, 0)"
    for details in ('{"group": 3, "x": NaN}', '{"group": 3, "x": "\\ud800"}', "[", '{"group": 77}'):
        world.triage.journal._connection.execute(sql, [number, details])
    world.again()
    view = world.triage.view()
    json.dumps(view, ensure_ascii=False, allow_nan=False).encode()
    assert "eel" in [group["name"] for group in view["board"]["groups"]]
    words = " ".join(record.message for record in caplog.records)
    assert words.count("cannot be used and is set aside") == 3
    assert words.count("is skipped: group 77") == 1


def test_undo_passes_over_lines_that_cannot_be_used(world):
    world.meet()
    number = world.grouped()["number"]
    group = world.triage.view()["board"]["groups"][0]["id"]
    world.triage.apply_edit(number, "name", {"group": group, "name": "eel"})
    world.triage.journal._connection.execute(
        "INSERT INTO entry (time, proposal, action, details, undone) VALUES (0, ?, 'name', '[', 0)", [number]
    )
    world.again()
    world.triage.undo(number)
    assert "eel" not in [group["name"] for group in world.triage.view()["board"]["groups"]]
    with pytest.raises(RequestError, match="nothing to take back"):
        world.triage.undo(number)


VERSION = (0, "g", 1, '{"accepted": true, "reason": ""}', "[]", "[]")


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1), (3, "["), (3, '{"accepted": true, "reason": NaN}'), (3, "{}"), (4, "[1]"), (5, '["\\ud800"]')],
)
def test_versions_of_the_journal_that_cannot_be_used_are_set_aside(world, caplog, place, value):
    damaged = [value if at == place else usual for at, usual in enumerate(VERSION)]
    connection = world.triage.journal._connection
    sql = "INSERT INTO version (time, parent, base, proposal, outcome, learned, discarded) VALUES (0, ?, ?, ?, ?, ?, ?)"
    connection.execute(sql, damaged)
    connection.execute("INSERT INTO meta VALUES ('current', '1')")
    world.again()
    assert "version 1 cannot be used and is set aside" in " ".join(record.message for record in caplog.records)
    view = world.triage.view()
    assert view["versions"] == []
    assert "no usable record of version 1" in view["notice"]
    assert world.meet(), "scoring goes on"
    world.triage.group()
    world.triage.tasks.wait()
    assert world.triage.view()["job"]["error"] == "version 1 is not in the journal"


def test_groups_of_the_journal_that_cannot_be_used_are_made_anew(world, caplog):
    world.meet()
    world.grouped()
    world.triage.journal._connection.execute("UPDATE proposal SET ids = '[NaN]'")
    world.again()
    assert "the groups 1 cannot be used" in " ".join(record.message for record in caplog.records)
    assert world.triage.view()["board"] is None
    assert world.grouped()["number"] == 2


@pytest.mark.parametrize("intent", ['["deploy", 7]', '["deploy"]', "[", '["explode", 1]'])
def test_a_deployment_that_the_journal_cannot_tell_stops_the_start_in_one_sentence(world, intent):
    world.triage.journal._connection.execute("INSERT INTO meta VALUES ('intent', ?)", [intent])
    world.close()
    with pytest.raises(StoreError, match=r"has begun, but .* put back the file from a backup"):
        world.open()
    Journal(world.folder / "store")._connection.execute("DELETE FROM meta WHERE key = 'intent'")
    world.service.close()
    world.open()


def test_an_edit_of_groups_that_someone_else_has_changed_is_refused_with_the_new_state(board_world):
    app = create_app(board_world.service, [create_triage_router(board_world.triage)], close=False)
    with running(app) as url:
        board = call(url, "GET", "/v1/triage")[2]["board"]
        one, two = (group["id"] for group in board["groups"][:2])
        seen = {"board": board["number"], "revision": board["revision"]}
        first = call(url, "POST", "/v1/triage/act", {**seen, "action": "name", "group": one, "name": "eel"})
        assert first[0] == 200
        assert first[2]["board"]["revision"] > board["revision"]
        second = {**seen, "action": "discard", "group": one}
        for path, body in (("act", second), ("undo", seen), ("learn", seen)):
            status, _, answer = call(url, "POST", "/v1/triage/" + path, body)
            assert status == 409
            assert "someone else" in answer["error"]
            assert answer["view"]["board"] == first[2]["board"]
        now = {**seen, "revision": first[2]["board"]["revision"]}
        status, _, view = call(url, "POST", "/v1/triage/undo", now)
        assert status == 200
        assert view["board"]["groups"] == board["groups"]
        assert two in [group["id"] for group in view["board"]["groups"]]


def test_inputs_of_the_most_frequent_shape_are_grouped_and_only_the_newest_are_read(tmp_path, monkeypatch):
    network = make_network()
    settings = Settings(store=str(tmp_path))
    rng = np.random.default_rng(0)
    with Service(Deployment(guard_of(network), network), settings) as service:
        added = [
            UnknownInput(id, 1e10, 0.0, 0.1, content=npy(rng.random(shape, np.float32)), content_type=NPY)
            for shape, n in (((3, 4, 4), 60), ((3, 8, 8), 1))
            for id in new_ids(n)
        ]
        service.unknowns.add(added)
        expected = [item.id for item in added[:60]]
        assert read_unknown_inputs(service.unknowns, network, None, settings)[0] == expected
        monkeypatch.setattr("offmap.service.triage.inputs.LIMIT", 20)
        monkeypatch.setattr("offmap.service.unknowns._item", count := Counting(unknowns._item))
        ids, inputs = read_unknown_inputs(service.unknowns, network, None, settings)
        assert ids == expected[-19:]
        assert inputs.inputs.shape == (19, 3, 4, 4)
        assert count.calls == 20
        again, features = read_unknown_inputs(service.unknowns, network, None, settings, keep_inputs=False)
        assert (again, features.inputs.shape) == (ids, (19, 3, 4, 4))  # so small that groups are made by them
        monkeypatch.setattr("offmap.service.triage.inputs.SMALL_INPUT", 10)
        again, features = read_unknown_inputs(service.unknowns, network, None, settings, keep_inputs=False)
        assert (again, features.inputs) == (ids, None)
        np.testing.assert_allclose(features.features, inputs.features, rtol=1e-5)


@pytest.mark.parametrize("counts", [(12, 3), (3, 12)])
def test_of_several_shapes_that_a_network_takes_the_most_frequent_one_is_grouped(tmp_path, counts):
    pooled = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 3))
    store = open_unknown_store(tmp_path)
    by_side = {
        side: [
            UnknownInput(id, 1e10, 0.0, 0.1, content=npy(np.zeros((3, side, side), np.float32)), content_type=NPY)
            for id in new_ids(n)
        ]
        for side, n in zip((4, 8), counts, strict=True)
    }
    store.add([item for items in by_side.values() for item in items])
    ids, inputs = read_unknown_inputs(store, Network(pooled), None, Settings(store=str(tmp_path)))
    side = 4 if counts[0] > counts[1] else 8
    assert ids == [item.id for item in by_side[side]]
    assert inputs.inputs.shape == (12, 3, side, side)
    store.close()


class Counting:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


def test_files_of_closed_proposals_are_removed_except_those_a_rollback_needs(world):
    world.meet()
    folder = world.service.store_dir / "proposals"
    world.grouped()
    board = world.grouped()
    assert [path.name for path in folder.iterdir()] == ["2"]
    world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
    world.triage.deploy(world.learned()["id"])
    world.grouped()
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
    world.triage.rollback()
    assert len(world.triage.view()["board"]["groups"]) == len(board["groups"])


def test_grouping_says_how_far_it_is(world):
    world.meet()
    told = []
    report = world.triage.tasks.report_progress
    world.triage.tasks.report_progress = lambda words, share: (told.append((words, share)), report(words, share))
    world.grouped()
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert len(told) >= 6
    assert told[0] == ("reading the labelled inputs", 0.02)
    assert told[-1][1] == 0.95


def test_the_error_of_a_task_names_no_folder(world):
    world.meet()
    (world.folder / "known.npz").write_bytes(b"broken")
    world.triage.group()
    world.triage.tasks.wait()
    error = world.triage.view()["job"]["error"]
    assert "known.npz" in error
    assert str(world.folder) not in error


def test_messages_for_clients_name_no_folder():
    for folders in ("/srv/data/", "'/srv/data/", '("/srv/data/', "(/srv/"):
        assert "srv" not in hide_folders(f"cannot be read: {folders}guard.offmap'), try again")
        assert "guard.offmap" in hide_folders(f"cannot be read: {folders}guard.offmap'), try again")
    assert hide_folders("see http://host/a/b or 3/4, and/or") == "see http://host/a/b or 3/4, and/or"


def test_the_journal_lasts(tmp_path):
    journal = Journal(tmp_path)
    number = journal.propose(["a"])
    journal.note("name", {"group": 1, "name": "x"}, number)
    journal.note("name", {"group": 1, "name": "y"}, number)
    assert journal.undo(number).details["name"] == "y"
    # no close: as after a kill, the file is all there is
    again = Journal(tmp_path)
    assert [entry.details["name"] for entry in again.edits(number)] == ["x"]
    assert again.open_proposal() == (number, ["a"])
    again.close()
    journal.close()


def test_arrays_are_shown_as_pictures_where_they_are(tmp_path):
    import io

    from PIL import Image

    def item(array):
        out = io.BytesIO()
        np.save(out, array)
        return UnknownInput("a", 0.0, 0.0, 0.0, content=out.getvalue(), content_type=NPY)

    for shape, size in (((1, 6, 5), (5, 6)), ((3, 6, 5), (5, 6)), ((6, 5), (5, 6))):
        content, kind = make_thumbnail(item(np.random.default_rng(0).normal(size=shape)))
        assert kind == "image/png"
        assert Image.open(io.BytesIO(content)).size == size
    assert make_thumbnail(item(np.zeros(7))) is None
    assert make_thumbnail(UnknownInput("a", 0.0, 0.0, 0.0)) is None
