"""The journal of the triage page: proposals, every action on them, learned versions, and which one is in service.

It is one SQLite file in the service's folder, in WAL mode, or, where replicas share their unknown inputs, tables in the
same PostgreSQL database; a change is on disk once its method has returned.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offmap.errors import StoreError
from offmap.service.stores import PostgresDatabase
from offmap.service.triage.records import Entry, Intent, Version, parse_details, parse_ids

FILE = "triage.sqlite"
FORMAT = 1
_WRITE_LOCK = 0x6F66666D6171  # advisory lock of PostgreSQL
_log = logging.getLogger(__name__)
EDITS = ("name", "merge", "split", "discard", "known")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS proposal (id {key}, time DOUBLE PRECISION NOT NULL, "
    "ids TEXT NOT NULL, open INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entry (id {key}, time DOUBLE PRECISION NOT NULL, "
    "proposal INTEGER, action TEXT NOT NULL, details TEXT NOT NULL, undone INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS version (id {key}, time DOUBLE PRECISION NOT NULL, "
    "parent INTEGER NOT NULL, base TEXT NOT NULL, proposal INTEGER NOT NULL, outcome TEXT NOT NULL, "
    "learned TEXT NOT NULL, discarded TEXT NOT NULL)",
)
_VERSIONS = "SELECT id, time, parent, base, proposal, outcome, learned, discarded FROM version ORDER BY id"
_SET_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


class Journal:
    """The journal of a service's folder.

    Parameters
    ----------
    folder : Path
        The folder of the service; created when it does not exist.

    Examples
    --------
    >>> import tempfile
    >>> journal = Journal(Path(tempfile.mkdtemp()))
    >>> number = journal.propose(["a", "b"])
    >>> _ = journal.note("name", {"group": 6, "name": "eel"}, number)
    >>> journal.undo(number).details["name"], journal.edits(number)
    ('eel', [])
    >>> journal.close()
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.file, timeout=30, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self.file}: the journal cannot be opened ({error})") from error
        self._create_tables("INTEGER PRIMARY KEY AUTOINCREMENT")

    def _create_tables(self, key: str) -> None:
        with self._transaction() as write:
            for table in _TABLES:
                write(table.format(key=key))
            write("INSERT INTO meta VALUES ('format', ?) ON CONFLICT DO NOTHING", [str(FORMAT)])
        if self._meta("format") != str(FORMAT):
            raise StoreError(f"{self.file}: a journal of another version of offmap")
        lines = self._read("SELECT id, details FROM entry")
        self._unusable = {int(number) for number, details in lines if parse_details(details) is None}
        for number in sorted(self._unusable):
            _log.warning("%s: line %d cannot be used and is set aside", self.file, number)
        for row in self._read(_VERSIONS):
            if Version.parse(row) is None:
                _log.warning("%s: version %s cannot be used and is set aside", self.file, row[0])
        for number, ids in self._read("SELECT id, ids FROM proposal WHERE open = 1"):
            if parse_ids(ids) is None:
                _log.warning("%s: the groups %s cannot be used and are set aside", self.file, number)

    def propose(self, ids: Sequence[str]) -> int:
        """Add a proposal over these inputs and return its number; earlier ones are closed."""
        with self._transaction() as write:
            write("UPDATE proposal SET open = 0")
            number = _insert(write, "proposal", time=time.time(), ids=json.dumps(list(ids)), open=1)
            self._note(write, "group", {"inputs": len(ids)}, number)
        return number

    @property
    def next_proposal(self) -> int:
        """The number of the next proposal."""
        return int(self._read("SELECT coalesce(max(id), 0) + 1 FROM proposal")[0][0])

    @property
    def next_version(self) -> int:
        """The number of the next version."""
        return int(self._read("SELECT coalesce(max(id), 0) + 1 FROM version")[0][0])

    @property
    def open_number(self) -> int | None:
        """The number of the proposal that people work on; `None` without one."""
        rows = self._read("SELECT id FROM proposal WHERE open = 1 ORDER BY id DESC LIMIT 1")
        return int(rows[0][0]) if rows else None

    def open_proposal(self) -> tuple[int, list[str]] | None:
        """Return the number of the proposal that people work on and the ids of its inputs; `None` without one."""
        rows = self._read("SELECT id, ids FROM proposal WHERE open = 1 ORDER BY id DESC LIMIT 1")
        ids = parse_ids(rows[0][1]) if rows else None
        return None if ids is None else (int(rows[0][0]), ids)

    def note(self, action: str, details: dict[str, Any], proposal: int | None = None) -> int:
        """Add a line and return its number."""
        with self._transaction() as write:
            return self._note(write, action, details, proposal)

    def revision(self, proposal: int) -> int:
        """Return the number of the last line about a proposal: it grows with every edit and undo."""
        return int(self._read("SELECT coalesce(max(id), 0) FROM entry WHERE proposal = ?", [proposal])[0][0])

    def edits(self, proposal: int) -> list[Entry]:
        """Return the edits that were not undone, in order."""
        return [e for e in self.entries(proposal=proposal) if e.action in EDITS and not e.undone]

    def undo(self, proposal: int) -> Entry | None:
        """Undo the last edit that was not undone, and return it; `None` when there is none."""
        with self._transaction() as write:
            marks = ", ".join("?" * len(EDITS))
            rows = write(
                f"SELECT id FROM entry WHERE proposal = ? AND undone = 0 AND action IN ({marks}) ORDER BY id DESC",
                [proposal, *EDITS],
            )
            number = next((int(row[0]) for row in rows if row[0] not in self._unusable), None)
            if number is None:
                return None
            write("UPDATE entry SET undone = 1 WHERE id = ?", [number])
            self._note(write, "undo", {"entry": number}, proposal)
        return next(entry for entry in self.entries(proposal=proposal) if entry.id == number)

    def entries(self, limit: int = 10_000, proposal: int | None = None) -> list[Entry]:
        """Return the last lines of the journal, oldest first."""
        where, values = ("WHERE proposal = ?", [proposal]) if proposal is not None else ("", [])
        rows = self._read(
            f"SELECT id, time, proposal, action, details, undone FROM entry {where} ORDER BY id DESC LIMIT ?",
            [*values, limit],
        )
        usable = [(*row, parse_details(row[4])) for row in reversed(rows) if row[0] not in self._unusable]
        return [Entry(i, t, p, a, details, bool(u)) for i, t, p, a, _, u, details in usable if details is not None]

    def add_version(
        self,
        parent: int,
        base: str,
        proposal: int,
        outcome: dict[str, Any],
        learned: Sequence[str],
        discarded: Sequence[str],
    ) -> int:
        """Add a learned version and return its number."""
        with self._transaction() as write:
            lists = {"learned": json.dumps(list(learned)), "discarded": json.dumps(list(discarded))}
            facts = {
                "parent": parent,
                "base": base,
                "proposal": proposal,
                "outcome": json.dumps(outcome, allow_nan=False),
            }
            number = _insert(write, "version", time=time.time(), **facts, **lists)
            self._note(write, "learned", {"version": number, "accepted": outcome["accepted"]}, proposal)
        return number

    def version(self, number: int) -> Version | None:
        """Return one version; `None` when there is none of this number."""
        found = [one for one in self.versions() if one.id == number]
        return found[0] if found else None

    def versions(self) -> list[Version]:
        """Return all versions that can be used, oldest first."""
        found = (Version.parse(row) for row in self._read(_VERSIONS))
        return [version for version in found if version is not None]

    @property
    def current(self) -> int:
        """The version in service; 0 is what the service was started with."""
        return int(self._meta("current") or 0)

    def set_current(self, number: int, action: str) -> None:
        """Record which version is in service, and by which action."""
        with self._transaction() as write:
            self._set_current(write, number, action)

    def begin(self, intent: Intent) -> None:
        """Record that a deployment or rollback has begun, before anything else is changed."""
        with self._transaction() as write:
            write(_SET_META, ["intent", json.dumps([intent.action, intent.version])])

    def finish(self, intent: Intent) -> None:
        """Record in one transaction that it is done: the version in service and the open proposal."""
        version = self.intended_version(intent)
        with self._transaction() as write:
            if intent.action == "deploy":
                self._set_current(write, version.id, intent.action)
                write("UPDATE proposal SET open = 0")  # the known classes have changed
            else:
                self._set_current(write, version.parent, intent.action)
                write("UPDATE proposal SET open = CASE WHEN id = ? THEN 1 ELSE 0 END", [version.proposal])
            write("DELETE FROM meta WHERE key = 'intent'")

    def intended_version(self, intent: Intent) -> Version:
        """Return the version that is deployed or rolled back; raise `StoreError` when its record cannot be used."""
        version = self.version(intent.version)
        if version is None:
            raise StoreError(
                f"{self.file}: the {intent.action} of version {intent.version} has begun, but the journal holds no "
                "usable record of it; put back the file from a backup"
            )
        return version

    def abandon(self) -> None:
        """Record that it was not done, after everything was changed back."""
        with self._transaction() as write:
            write("DELETE FROM meta WHERE key = 'intent'")

    @property
    def intent(self) -> Intent | None:
        """The deployment or rollback that has begun and is not done; `None` when there is none."""
        text = self._meta("intent")
        if text is None:
            return None
        if (intent := Intent.parse(text)) is None:
            raise StoreError(
                f"{self.file}: a deployment or rollback has begun, but what it says of it cannot be used; put back the "
                "file from a backup"
            )
        return intent

    def _set_current(self, write: Any, number: int, action: str) -> None:
        rows = write("SELECT value FROM meta WHERE key = 'current'")
        self._note(write, action, {"version": number, "instead_of": int(rows[0][0]) if rows else 0}, None)
        write(_SET_META, ["current", str(number)])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _note(self, write: Any, action: str, details: dict[str, Any], proposal: int | None) -> int:
        text = json.dumps(details, allow_nan=False)
        return _insert(write, "entry", time=time.time(), proposal=proposal, action=action, details=text, undone=0)

    def _meta(self, key: str) -> str | None:
        rows = self._read("SELECT value FROM meta WHERE key = ?", [key])
        return str(rows[0][0]) if rows else None

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.file}: the journal cannot be read ({error})") from error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        def write(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            return self._connection.execute(sql, values).fetchall()

        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield write
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"{self.file}: the journal cannot be written ({error})") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


class SharedJournal(Journal):
    """The journal that replicas of a service share, in their PostgreSQL database.

    Parameters
    ----------
    database : PostgresDatabase
        That of the unknown inputs.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self.file = Path("the shared journal")  # named in messages
        self._database = database
        self._create_tables("INTEGER PRIMARY KEY")

    def close(self) -> None:
        """Do nothing: the database is closed with the unknown inputs."""

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._database.snapshot() as session:
            return session.execute(sql, values)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._database.transaction() as session:
            session.execute("SELECT 1 FROM pg_advisory_xact_lock(?)", [_WRITE_LOCK])  # numbers are given one by one
            yield session.execute


def _insert(write: Any, table: str, **values: Any) -> int:
    """Insert a row under the next number, and return it; a sequence would leave gaps after a failure."""
    marks = ", ".join("?" * len(values))
    sql = (
        f"INSERT INTO {table} (id, {', '.join(values)}) "
        f"VALUES ((SELECT coalesce(max(id), 0) + 1 FROM {table}), {marks}) RETURNING id"
    )
    return int(write(sql, list(values.values()))[0][0])
