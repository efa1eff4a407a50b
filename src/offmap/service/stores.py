"""Where a pile is kept: a folder with a SQLite file, or a PostgreSQL database; and the lock on a service's folder."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from offmap.errors import StoreError
from offmap.service.unknowns import Bounds, UnknownStore

FORMAT = 1
FILE = "pile.sqlite"
_BUSY_SECONDS = 30.0
_COLUMNS = (
    "id TEXT NOT NULL UNIQUE, time {real} NOT NULL, score {real} NOT NULL, p_value {real} NOT NULL, "
    "class TEXT NOT NULL, guard TEXT NOT NULL, status TEXT NOT NULL, reference TEXT, content_type TEXT, "
    "bytes BIGINT NOT NULL, features {blob}, content {blob}"
)
_TOTAL = "CREATE TABLE IF NOT EXISTS total (format INTEGER NOT NULL, items BIGINT NOT NULL, bytes BIGINT NOT NULL)"
_INDEX = "CREATE INDEX IF NOT EXISTS unknown_by_status ON unknown (status, seq)"


def is_url(store: str | os.PathLike[str]) -> bool:
    """Whether a store is named by a URL of PostgreSQL rather than by a folder.

    Examples
    --------
    >>> is_url("postgresql://db/offmap"), is_url("unknowns/")
    (True, False)
    """
    return str(store).startswith(("postgresql://", "postgres://"))


def open_pile(store: str | os.PathLike[str], bounds: Bounds | None = None) -> UnknownStore:
    """The pile in a folder, or in a PostgreSQL database given by URL; made when there is none.

    Examples
    --------
    >>> import tempfile
    >>> open_pile(tempfile.mkdtemp()).totals()
    (0, 0)
    """
    if is_url(store):
        from offmap.service.postgres import Postgres

        return UnknownStore(Postgres(str(store)), bounds)
    return UnknownStore(Sqlite(Path(store) / FILE), bounds)


class Sqlite:
    """A SQLite file in WAL mode; a commit waits for the disk (``synchronous=FULL``).

    Parameters
    ----------
    file
        Made when it does not exist, with its folder.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is unknown may be private
        except OSError as error:
            raise StoreError(f"{file.parent}: the store's folder cannot be made ({error.strerror})") from error
        self._lock = threading.Lock()
        with _failing(file):
            self._writer = self._connect()
        try:
            with self.writing() as session:
                create_tables(session, "seq INTEGER PRIMARY KEY AUTOINCREMENT", real="REAL", blob="BLOB")
                check_format(session, str(file))
        except BaseException:
            self._writer.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self.file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = FULL")
        except BaseException:
            made.close()
            raise
        return made

    @contextmanager
    def writing(self) -> Iterator[_SqliteSession]:
        """One transaction at a time; see `Database`."""
        with self._lock, _failing(self.file):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteSession(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[_SqliteSession]:
        """A connection of its own, so that readers neither wait for the writer nor for one another."""
        with _failing(self.file), closing(self._connect()) as connection:
            yield _SqliteSession(connection)

    def close(self) -> None:
        """Close the file; SQLite then folds its log into it."""
        with self._lock:
            self._writer.close()


class _SqliteSession:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)


@contextmanager
def _failing(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{file}: the pile cannot be read or written ({error})") from error


def create_tables(session: Any, key: str, **types: str) -> None:
    """Make the tables that are not there yet."""
    session.execute(f"CREATE TABLE IF NOT EXISTS unknown ({key}, {_COLUMNS.format(**types)})")
    session.execute(_INDEX)
    session.execute(_TOTAL)
    if not session.execute("SELECT format FROM total"):
        session.insert("INSERT INTO total VALUES (?, 0, 0)", [[FORMAT]])


def check_format(session: Any, name: str) -> None:
    """Refuse a pile that another version of offmap laid out in another way."""
    found = session.execute("SELECT format FROM total")[0][0]
    if found != FORMAT:
        raise StoreError(f"{name}: a pile of format {found}, this version of offmap reads format {FORMAT}")


class FolderLock:
    """Keeps a folder for one service at a time; the system lets go when the process ends, however it ends.

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
        """Let others have it."""
        os.close(self._file)
