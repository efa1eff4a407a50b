"""Two services on one PostgreSQL database: pages agree, nothing is learned twice, no event is sent twice."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from service_kit import wait_until
from triage_kit import Scenario, rows_of

from offmap.errors import StoreError
from offmap.service import Deployment, Service, Settings
from offmap.service.request_errors import RequestError
from offmap.service.triage.triage import Triage


class Replica:
    """A server of the guard of a `Scenario`, on a shared database."""

    def __init__(self, server) -> None:
        self.server = server

    def call(self, path: str, body: dict | None = None) -> dict:
        """Call it; an `HTTPError` for a refusal."""
        request = urllib.request.Request(self.server.url + path)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def view(self) -> dict:
        return self.call("/v1/triage")

    def wait_for_task(self) -> dict:
        wait_until(lambda: not (self.view()["job"] or {}).get("running"), 120)
        return self.view()


@pytest.fixture
def sink():
    """Takes events, slowly enough that two senders would overlap."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            taken.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["id"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    taken: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", taken
    server.shutdown()
    server.server_close()


@pytest.fixture
def replicas(launcher, tmp_path, database, sink):
    Scenario(tmp_path).close()  # writes the guard and the known data
    files = {"guard": tmp_path / "guard.offmap", "known": str(tmp_path / "known.npz")}
    made: list[Replica] = []

    def start(name: str) -> Replica:
        events = {"events_url": sink[0], "events_seconds": 0.05}
        made.append(Replica(launcher.start(database, **files, folder=str(tmp_path / name), **events)))
        return made[-1]

    yield start
    for one in made:
        one.server.end(signal.SIGTERM)


def shared(view: dict) -> dict:
    """What both pages must show alike; counts of requests are those of one process."""
    guard = {name: view["guard"][name] for name in ("version", "class_names", "calibrated_on")}
    names = ("board", "can_undo", "current", "versions", "journal", "missing", "notice")
    return {name: view[name] for name in names} | {"guard": guard, "pile": view["stats"]["pile"]}


def test_two_replicas_are_one_service(replicas, database, sink):
    one, two = replicas("one"), replicas("two")
    rows = rows_of(3 + np.arange(120) % 2, 1).tolist()
    ids = [row["id"] for replica, part in ((one, rows[:60]), (two, rows[60:])) for row in score(replica, part)]
    assert len(set(ids)) == 120

    one.call("/v1/triage/group", {})
    board = one.wait_for_task()["board"]
    assert shared(two.view()) == shared(one.view())
    groups = [group["id"] for group in board["groups"]]
    for replica, group, name in ((one, groups[0], "dog"), (two, groups[1], "eel")):
        revision = replica.view()["board"]["revision"]
        replica.call(
            "/v1/triage/act",
            {"board": board["number"], "action": "name", "group": group, "name": name, "revision": revision},
        )
    for group in groups[2:]:
        two.call("/v1/triage/act", {"board": board["number"], "action": "merge", "groups": [groups[0], group]})
    assert shared(one.view()) == shared(two.view())
    late = {"board": board["number"], "action": "name", "group": groups[0], "name": "cow"}
    with pytest.raises(urllib.error.HTTPError) as outdated:  # the revision is that of before the other's edit
        one.call("/v1/triage/act", {**late, "revision": board["revision"]})
    assert outdated.value.code == 409

    answers = learn_at_once(board["number"], one, two)
    assert sorted(answers) == [200, 409]
    for replica in (one, two):
        replica.wait_for_task()
    assert [version["id"] for version in one.view()["versions"]] == [1]
    two.call("/v1/triage/deploy", {"version": 1})
    assert shared(one.view()) == shared(two.view())
    assert one.view()["current"] == 1
    for replica in (one, two):
        assert {row["class"] for row in score(replica, rows_of(np.array([3, 4] * 10), 2).tolist())} >= {"dog", "eel"}
    with pytest.raises(urllib.error.HTTPError) as again:
        one.call("/v1/triage/deploy", {"version": 1})
    assert again.value.code == 409

    wait_until(lambda: all_confirmed(database))  # a kill between an event and its confirmation would repeat it
    one.server.end()
    three = replicas("three")  # with an empty folder: all it knows comes from the database
    assert shared(three.view()) == shared(two.view())
    three.call("/v1/triage/rollback", {})
    wait_until(lambda: two.call("/v1/guard")["class_names"] == three.call("/v1/guard")["class_names"])
    assert shared(three.view()) == shared(two.view())
    (last,) = score(two, rows_of(np.array([7]), 5).tolist())
    wait_until(lambda: last["id"] in sink[1])
    assert len(sink[1]) == len(set(sink[1])), "an event was sent twice"
    assert set(ids) <= set(sink[1])


def score(replica: Replica, rows: list) -> list[dict]:
    return replica.call("/v1/score", {"features": rows})["results"]


def all_confirmed(database: str) -> bool:
    import psycopg

    with psycopg.connect(database) as connection:
        return connection.execute("SELECT (SELECT max(seq) FROM unknown) = (SELECT after FROM sent)").fetchone()[0]


def learn_at_once(board: int, *replicas: Replica) -> list[int]:
    found: list[int] = []

    def ask(replica: Replica) -> None:
        try:
            replica.call("/v1/triage/learn", {"board": board})
            found.append(200)
        except urllib.error.HTTPError as error:
            found.append(error.code)

    threads = [threading.Thread(target=ask, args=[replica]) for replica in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Kill(BaseException):
    """The end of a replica."""


class KilledAt:
    """Fails before or after one write of a replica to its database, and at all that follow."""

    def __init__(self, triage: Triage, at: int, after: bool) -> None:
        self.writes, self._at, self._after = 0, at, after
        database = triage.service.unknowns.database
        self._transaction = database.transaction
        database.transaction = self.transaction

    @contextmanager
    def transaction(self):
        number, self.writes = self.writes, self.writes + 1
        if number >= self._at and not self._after:
            raise Kill
        with self._transaction() as session:
            yield session
        if number >= self._at and self._after:
            raise Kill


@pytest.fixture
def start_triage(tmp_path, database):
    """Make triage pages on one database, in this process, each with a folder of its own."""
    world = Scenario(tmp_path)
    world.close()
    made: list[Triage] = []

    def start(name: str) -> Triage:
        settings = Settings(store=database, folder=tmp_path / name)
        made.append(Triage(Service(Deployment(world.guard), settings), world.known))
        return made[-1]

    def end(triage: Triage) -> None:
        made.remove(triage)
        triage.close()
        triage.service.close()

    start.end = end
    yield start
    for triage in made:
        end(triage)


def whole_state(triage: Triage) -> dict:
    view = triage.view()
    names = ("current", "board", "versions")
    return {name: view[name] for name in names} | {
        "statuses": triage.service.unknowns.count_by_status(), "in service": triage.service.deployment.version,
    }  # fmt: skip


def test_what_a_killed_replica_had_begun_is_finished_by_those_that_live(start_triage):
    two = start_triage("two")
    two.service.score(features=rows_of(3 + np.arange(120) % 2, 1))
    two.group()
    two.tasks.wait()
    board = two.view()["board"]
    two.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
    two.learn(board["number"])
    two.tasks.wait()
    old = whole_state(two)
    two.deploy(1)
    new = whole_state(two)
    operations = {"deploy": (old, new), "rollback": (new, old)}
    undo = {"deploy": two.rollback, "rollback": lambda: two.deploy(1)}
    two.rollback()
    for name, (before, afterwards) in operations.items():
        reached = []
        for at in range(3):
            for after in (False, True):
                one = start_triage("one")
                assert whole_state(one) == before
                one._closing.set()  # it dies, so it does not look at what others do either
                KilledAt(one, at, after)
                with pytest.raises(Kill):
                    one.deploy(1) if name == "deploy" else one.rollback()
                wait_until(lambda: two.journal.intent is None)
                found = whole_state(two)
                assert found in (before, afterwards), f"{name}, killed {'after' if after else 'before'} write {at}"
                reached.append(found == afterwards)
                if reached[-1]:
                    undo[name]()
                start_triage.end(one)
        assert reached == sorted(reached)
        assert reached[0] is False
        assert reached[-1] is True
        if name == "deploy":
            two.deploy(1)


def test_shared_files_that_are_damaged_or_lie_elsewhere_are_refused(start_triage, tmp_path):
    one, two = start_triage("one"), start_triage("two")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.txt").write_text("whole")
    one._replicas.publish(tmp_path / "made", "proposals/7")
    two._replicas.fetch("proposals/8")  # not there yet
    one._replicas.publish(tmp_path / "made", "proposals/8")
    for place in ("proposals/7", "proposals/8"):
        two._replicas.fetch(place)
        assert (tmp_path / "two" / place / "a.txt").read_text() == "whole"
    for change, said in (("name = '../../a.txt'", "outside of its folder"), ("content = 'other'", "damaged")):
        one._replicas.publish(tmp_path / "made", "proposals/9")
        with one.service.unknowns.database.transaction() as session:
            session.execute(f"UPDATE file SET {change} WHERE place = 'proposals/9'")
        with pytest.raises(StoreError, match=said):
            two._replicas.fetch("proposals/9")
    assert not (tmp_path / "a.txt").exists()
    assert sorted(path.name for path in (tmp_path / "two" / "proposals").iterdir()) == ["7", "8"]


def test_a_replica_that_edits_for_ever_is_not_waited_for(start_triage, monkeypatch):
    one, two = start_triage("one"), start_triage("two")
    monkeypatch.setattr("offmap.service.stores._SET_LOCK_TIMEOUT", "SET lock_timeout = '300ms'")
    with one._replicas.exclusive(), pytest.raises(RequestError, match="has been editing"):
        two.rollback()
    with pytest.raises(RequestError, match="nothing to roll back"):
        two.rollback()


def test_following_goes_on_after_any_failure(start_triage, monkeypatch, caplog):
    monkeypatch.setattr("offmap.service.triage.triage._FOLLOW_SECONDS", 0.01)
    one = start_triage("one")
    calls = []

    def fail():
        calls.append(1)
        raise RuntimeError("nobody thought of this one")

    monkeypatch.setattr(one, "_follow", fail)
    wait_until(lambda: len(calls) > 1)
    assert "nobody thought of this one" in caplog.text
