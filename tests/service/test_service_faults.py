"""A kill at every write of deploying, rolling back, learning, editing and reloading: the old state or the new."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest
from triage_kit import Scenario

from offmap.errors import StoreError
from offmap.service import Deployment
from offmap.service.request_errors import RequestError
from offmap.service.stores import SqliteDatabase
from offmap.service.triage.journal import Journal
from offmap.service.triage.tasks import BackgroundTask


class Kill(BaseException):
    """The end of the process."""


class Faults:
    """Counts the writes to disk, and fails before or after one of them, and at all that follow."""

    def __init__(self, monkeypatch, at=None, after=False, error=Kill, only_once=False):
        self.writes, self._at, self._after, self._error, self._once = 0, at, after, error, only_once
        self._failed = False
        transactions = {Journal: "_transaction", SqliteDatabase: "transaction"}
        for owner, name in transactions.items():
            monkeypatch.setattr(owner, name, self._wrap_transaction(getattr(owner, name)))
        replace = os.replace
        monkeypatch.setattr(os, "replace", lambda *names: self._write(lambda: replace(*names)))

    def _wrap_transaction(self, transaction):
        @contextmanager
        def wrapped(owner):
            self._fail(after=False)
            with transaction(owner) as session:
                yield session
            self._fail(after=True)

        return wrapped

    def _write(self, work):
        self._fail(after=False)
        work()
        self._fail(after=True)

    def _fail(self, after):
        number = self.writes
        self.writes += after
        if self._at is None or after != self._after or number < self._at or (self._once and self._failed):
            return
        self._failed = True
        raise self._error("the disk is gone")


def learn(world):
    world.triage.tasks.current = BackgroundTask("learn", "", 0.0)
    world.triage._learn()


def group(world):
    world.triage.tasks.current = BackgroundTask("group", "", 0.0)
    world.triage._group()


def merge(world):
    board = world.triage.view()["board"]
    world.triage.apply_edit(board["number"], "merge", {"groups": [group["id"] for group in board["groups"]]})


OPERATIONS = {
    "deploy": ("learned", lambda world: world.triage.deploy(1)),
    "rollback": ("deployed", lambda world: world.triage.rollback()),
    "reload": ("deployed", lambda world: world.service.reload()),
    "merge": ("grouped", merge),
    "group": ("grouped", group),
    "learn": ("grouped", learn),
}


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Folders with groups, with a learned version, and with that version deployed."""
    folder = tmp_path_factory.mktemp("stages")
    world = Scenario(folder)
    world.meet()
    board = world.grouped()
    world.triage.apply_edit(board["number"], "name", {"group": board["groups"][0]["id"], "name": "eel"})
    world.triage.apply_edit(board["number"], "discard", {"group": board["groups"][1]["id"]})
    world.triage.undo(board["number"])
    found = {}

    def keep(name):
        world.close()
        found[name] = folder / name
        shutil.copytree(folder / "store", found[name])
        world.open()

    keep("grouped")
    world.learned()
    keep("learned")
    world.triage.deploy(1)
    keep("deployed")
    world.close()
    return world, found


def restore(stages, name):
    """The scenario as it was at a stage."""
    world, folders = stages
    shutil.rmtree(world.folder / "store")
    shutil.copytree(folders[name], world.folder / "store")
    world.open()
    world.service._load = lambda: Deployment(world.guard)
    return world


def whole_state(world):
    """What people and clients see, apart from times."""
    view = world.triage.view()
    return {
        "current": view["current"],
        "in service": world.service.deployment.version,
        "statuses": world.service.unknowns.count_by_status(),
        "board": view["board"],
        "versions": [version["id"] for version in view["versions"]],
        "intent": world.triage.journal.intent,
    }


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_leaves_the_old_state_or_the_new(stages, name, after):
    stage, operate = OPERATIONS[name]
    world = restore(stages, stage)
    old = whole_state(world)
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch)
        operate(world)
        writes = faults.writes
    world.again()
    new = whole_state(world)
    world.close()
    assert old != new
    assert writes >= 1
    reached = []
    for at in range(writes):
        world = restore(stages, stage)
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, after)
            with pytest.raises(Kill):
                operate(world)
        world.again()
        found = whole_state(world)
        assert found in (old, new), f"killed at write {at} of {writes}"
        reached.append(found == new)
        world.close()
    assert reached == sorted(reached), "once it is done it stays done"
    assert reached[-1] or not after


@pytest.mark.parametrize("name", ["deploy", "rollback"])
def test_a_store_that_cannot_be_written_leaves_the_old_state_and_a_second_try_works(stages, name):
    """Also without a restart: what is answered as failed is not done, or done by the second try."""
    stage, operate = OPERATIONS[name]
    world = restore(stages, stage)
    operate(world)
    new = whole_state(world)
    world.close()
    for at in range(3):
        for only_once in (True, False):
            world = restore(stages, stage)
            old = whole_state(world)
            with pytest.MonkeyPatch.context() as patch:
                Faults(patch, at, error=StoreError, only_once=only_once)
                with pytest.raises(StoreError):
                    operate(world)
                assert world.service.deployment.version == old["in service"]
            if only_once:
                assert whole_state(world) == old
            operate(world)
            assert whole_state(world) == new
            with pytest.raises(RequestError):
                operate(world)
            world.close()
