"""Databases for `UnknownStore` (a SQLite file in a folder, or PostgreSQL), and the lock on a service's folder."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from offmap.errors import DependencyError, StoreError
from offmap.service.unknown_inputs import StoreLimits
from offmap.service.unknowns import Session, UnknownStore

FORMAT = 1
FILE = "pile.sqlite"
_BUSY_SECONDS = 30.0
_LOCK_SECONDS = 15
_SET_LOCK_TIMEOUT = f"SET lock_timeout = '{_LOCK_SECONDS}s'"
# a server that does not answer, or whose network is gone, is noticed within these seconds
_PATIENCE = {"connect_timeout": 10, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
_CREATE_LOCK = 0x6F66666D6170  # advisory lock of PostgreSQL: two services may create the tables at the same time
_COLUMNS = (
    "id TEXT NOT NULL UNIQUE, time {real} NOT NULL, score {real} NOT NULL, p_value {real} NOT NULL, "
    "class TEXT NOT NULL, guard TEXT NOT NULL, status TEXT NOT NULL, reference TEXT, content_type TEXT, "
    "bytes BIGINT NOT NULL, features {blob}, content {blob}"
)
_TOTAL = "CREATE TABLE IF NOT EXISTS total (format INTEGER NOT NULL, items BIGINT NOT NULL, bytes BIGINT NOT NULL)"
_INDEX = "CREATE INDEX IF NOT EXISTS unknown_by_status ON unknown (status, seq)"


def is_url(store: str | os.PathLike[str]) -> bool:
    """Tell whether a store is named by a URL of PostgreSQL rather than by a folder.

    Parameters
    ----------
    store : str or path
        As given to ``--store``.

    Returns
    -------
    bool
        `True` for ``postgresql://…`` and ``postgres://…``.

    Examples
    --------
    >>> is_url("postgresql://db/offmap"), is_url("unknowns/")
    (True, False)
    """
    return str(store).startswith(("postgresql://", "postgres://"))


def open_unknown_store(store: str | os.PathLike[str], limits: StoreLimits | None = None) -> UnknownStore:
    """Open the store of unknown inputs in a folder or a PostgreSQL database, and create it if needed.

    Parameters
    ----------
    store : str or path
        A folder, or a URL such as ``"postgresql://user@host/database"``.
    limits : StoreLimits or None, default=None
        How much is kept.

    Returns
    -------
    UnknownStore
        Close it after use.

    Raises
    ------
    StoreError
        If the folder or database cannot be used, or holds a store of another format.

    Examples
    --------
    >>> import tempfile
    >>> open_unknown_store(tempfile.mkdtemp()).read_totals()
    (0, 0)
    """
    database = PostgresDatabase(str(store)) if is_url(store) else SqliteDatabase(Path(store) / FILE)
    return UnknownStore(database, limits)


class SqliteDatabase:
    """A SQLite file in WAL mode; a commit waits for the disk (``synchronous=FULL``).

    Parameters
    ----------
    file : Path
        Created with its folder when it does not exist.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # unknown inputs may be private
        except OSError as error:
            raise StoreError(f"{file.parent}: the store's folder cannot be made ({error.strerror})") from error
        self._lock = threading.Lock()
        with self._translate_errors():
            self._writer = self._connect()
        try:
            with self.transaction() as session:
                _create_tables(session, "seq INTEGER PRIMARY KEY AUTOINCREMENT", real="REAL", blob="BLOB")
                _check_format(session, str(file))
        except BaseException:
            self._writer.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[_SqliteSession]:
        """Open a transaction, one at a time; see `Database`."""
        with self._lock, self._translate_errors():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteSession(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[_SqliteSession]:
        """Open a connection for reading, so that readers wait neither for the writer nor for one another."""
        with self._translate_errors(), closing(self._connect()) as connection:
            yield _SqliteSession(connection)

    def close(self) -> None:
        """Close the file; SQLite then merges its log into it."""
        with self._lock:
            self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.file}: the unknown inputs cannot be read or written ({error})") from error


class _SqliteSession:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)


class PostgresDatabase:
    """A PostgreSQL database, which several services may share.

    One connection is for writing, opened again after a failure; each snapshot has its own. None of them waits for
    ever: neither for a server that is gone, nor for a lock that another service holds and does not give back.

    Parameters
    ----------
    url : str
        What psycopg connects to, such as ``"postgresql://user@host/database"``.
    """

    def __init__(self, url: str) -> None:
        self._psycopg = _import_psycopg()
        self._url = url
        self._patience = self._read_patience(url)
        self._lock = threading.Lock()
        self._connection: Any = None
        with self.transaction() as session:
            session.execute("SELECT 1 FROM pg_advisory_xact_lock(?)", [_CREATE_LOCK])
            key = "seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
            _create_tables(session, key, real="DOUBLE PRECISION", blob="BYTEA")
            _check_format(session, "the database")

    @contextmanager
    def transaction(self) -> Iterator[_PostgresSession]:
        """Open a transaction, one at a time; see `Database`."""
        with self._lock, self._translate_errors():
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
                self._connection.execute("SET synchronous_commit = on")
                self._connection.execute(_SET_LOCK_TIMEOUT)
                # the transaction of a service that was stopped in the middle ends, so that others can write again
                self._connection.execute(f"SET idle_in_transaction_session_timeout = '{4 * _LOCK_SECONDS}s'")
                self._connection.commit()
            try:
                with self._connection.transaction():
                    yield _PostgresSession(self._connection)
            except self._psycopg.OperationalError:
                self._connection.close()
                raise

    @contextmanager
    def snapshot(self) -> Iterator[_PostgresSession]:
        """Open a connection for reading, so that reading never waits for writing."""
        with self._translate_errors(), self._connect() as connection:
            connection.read_only = True
            yield _PostgresSession(connection)

    def hold(self, key: int, wait: bool) -> Callable[[], None] | None:
        """Take a lock that all services on this database respect, on a connection of its own.

        Parameters
        ----------
        key : int
            The lock.
        wait : bool
            Whether to wait for some seconds while another holds it.

        Returns
        -------
        callable or None
            Releases the lock, as the end of this process does; `None` when another holds it.
        """
        with self._translate_errors():
            connection = self._connect(autocommit=True)
            try:
                taken = True
                if wait:
                    connection.execute(_SET_LOCK_TIMEOUT)
                    connection.execute("SELECT pg_advisory_lock(%s)", [key])
                else:
                    (taken,) = connection.execute("SELECT pg_try_advisory_lock(%s)", [key]).fetchone()
            except self._psycopg.errors.LockNotAvailable:
                taken = False
            except BaseException:
                connection.close()
                raise

        def release() -> None:
            with suppress(self._psycopg.Error):  # a connection that was cut holds nothing any more
                connection.execute("SELECT pg_advisory_unlock_all()")
            connection.close()

        if taken:
            return release
        connection.close()
        return None

    def is_held(self, key: int) -> bool:
        """Tell whether any service holds a lock, without taking it."""
        sql = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = ? AND objid = ? "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with self.snapshot() as session:
            return bool(session.execute(sql, [key >> 32, key & 0xFFFFFFFF]))

    def close(self) -> None:
        """Close the connection for writing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _read_patience(self, url: str) -> dict[str, Any]:
        """Return the time limits of connections that the address does not name itself."""
        try:
            given = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.Error:  # whose message repeats the address, with the password
            raise StoreError(
                "the address of the database cannot be read; postgresql://user@host:port/name is needed, with special "
                "characters of a password in percent encoding"
            ) from None
        return {name: value for name, value in _PATIENCE.items() if name not in given}

    def _connect(self, **options: Any) -> Any:
        return self._psycopg.connect(self._url, **self._patience, **options)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(f"the database of unknown inputs cannot be read or written ({reason})") from error


class _PostgresSession:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.replace("?", "%s"), values, binary=True)
        return cursor.fetchall() if cursor.description is not None else []

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), rows)


def _import_psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise DependencyError(
            "a store in PostgreSQL needs psycopg, which is not installed: pip install 'offmap[pg]'"
        ) from error
    return psycopg


def _create_tables(session: Session, key: str, **types: str) -> None:
    session.execute(f"CREATE TABLE IF NOT EXISTS unknown ({key}, {_COLUMNS.format(**types)})")
    session.execute(_INDEX)
    session.execute(_TOTAL)
    if not session.execute("SELECT format FROM total"):
        session.insert("INSERT INTO total VALUES (?, 0, 0)", [[FORMAT]])


def _check_format(session: Session, name: str) -> None:
    found = session.execute("SELECT format FROM total")[0][0]
    if found != FORMAT:
        raise StoreError(f"{name}: unknown inputs of format {found}; this version of offmap reads format {FORMAT}")


class FolderLock:
    """Reserve a folder for one service at a time; the system releases it when the process ends.

    Parameters
    ----------
    folder : Path
        Created when it does not exist.

    Raises
    ------
    StoreError
        If another service holds the folder, or it cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> held = FolderLock(folder)
    >>> FolderLock(folder)
    Traceback (most recent call last):
    offmap.errors.StoreError: ...: another service uses this folder; stop it, or name another one with --store
    >>> held.release()
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{folder}: the folder cannot be used ({error.strerror})") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise StoreError(
                f"{folder}: another service uses this folder; stop it, or name another one with --store"
            ) from None

    def release(self) -> None:
        """Release the folder."""
        os.close(self._file)
