"""A pile in PostgreSQL, which several services may share."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from offmap.errors import DependencyError, StoreError
from offmap.service.stores import check_format, create_tables

_MAKING = 0x6F66666D6170  # the number of the lock under which tables are made: two services may start at once


class Postgres:
    """A database given by URL: one connection for writing, opened again after a failure, and one per reading.

    Parameters
    ----------
    url
        What psycopg connects to, such as ``"postgresql://user@host/database"``.
    """

    def __init__(self, url: str) -> None:
        self._psycopg = _driver()
        self._url = url
        self._lock = threading.Lock()
        self._connection: Any = None
        with self.writing() as session:
            session.execute("SELECT 1 FROM pg_advisory_xact_lock(?)", [_MAKING])
            key = "seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
            create_tables(session, key, real="DOUBLE PRECISION", blob="BYTEA")
            check_format(session, "the database")

    @contextmanager
    def writing(self) -> Iterator[_PostgresSession]:
        """One transaction at a time; see `Database`."""
        with self._lock, self._failing():
            if self._connection is None or self._connection.closed:
                self._connection = self._psycopg.connect(self._url)
                self._connection.execute("SET synchronous_commit = on")
                self._connection.commit()
            try:
                with self._connection.transaction():
                    yield _PostgresSession(self._connection)
            except self._psycopg.OperationalError:
                self._connection.close()
                raise

    @contextmanager
    def reading(self) -> Iterator[_PostgresSession]:
        """A connection of its own, so that reading never waits for writing."""
        with self._failing(), self._psycopg.connect(self._url) as connection:
            connection.read_only = True
            yield _PostgresSession(connection)

    def close(self) -> None:
        """Close the connection for writing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(f"the pile's database cannot be read or written ({reason})") from error


class _PostgresSession:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.replace("?", "%s"), values, binary=True)
        return cursor.fetchall() if cursor.description is not None else []

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), rows)


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise DependencyError(
            "a pile in PostgreSQL needs psycopg, which is not installed: pip install 'offmap[pg]'"
        ) from error
    return psycopg
