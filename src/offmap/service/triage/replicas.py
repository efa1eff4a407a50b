"""What replicas of one service share: who edits, who works in the background, and the files of groups and versions.

A service on a folder is alone. Services on one PostgreSQL database share their journal, and each keeps a copy of the
files in its own folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from offmap.errors import StoreError
from offmap.service.request_errors import RequestError
from offmap.service.settings import Settings
from offmap.service.stores import PostgresDatabase
from offmap.service.triage.journal import Journal, SharedJournal
from offmap.service.unknowns import UnknownStore

_EDIT_LOCK, _TASK_LOCK = 0x6F66666D6172, 0x6F66666D6173  # advisory locks of PostgreSQL
BUSY = "another replica is working in the background; wait until it is done"
_TABLE = (
    "CREATE TABLE IF NOT EXISTS file (place TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, "
    "content BYTEA NOT NULL, PRIMARY KEY (place, name))"
)


class Alone:
    """A service that shares nothing; see `Replicas` for what its functions do for those that share."""

    shared = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Edit while no other replica does."""
        yield

    def begin_task(self) -> Callable[[], None]:
        """Reserve work in the background for this replica, and return what releases it."""
        return lambda: None

    def is_busy_elsewhere(self) -> bool:
        """Tell whether another replica works in the background."""
        return False

    def publish(self, folder: Path, place: str) -> None:
        """Share the files of a folder under the name of a place."""

    def fetch(self, place: str) -> None:
        """Bring the files of a place into this replica's folder, unless they are there."""

    def remove(self, places: list[str]) -> None:
        """Forget the files of places."""


class Replicas(Alone):
    """Services on one PostgreSQL database.

    Parameters
    ----------
    database : PostgresDatabase
        That of the unknown inputs.
    folder : Path
        The folder of this replica.
    """

    shared = True

    def __init__(self, database: PostgresDatabase, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._release: Callable[[], None] | None = None
        self._depth = 0
        self._checked: set[str] = set()
        with database.transaction() as session:
            session.execute("SELECT 1 FROM pg_advisory_xact_lock(?)", [_EDIT_LOCK + 2])
            session.execute(_TABLE)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Edit while no other replica does; one thread of this replica at a time, which may enter again."""
        if not self._depth:
            self._release = self._database.hold(_EDIT_LOCK, wait=True)
            if self._release is None:
                raise RequestError(503, "another replica has been editing for a while; try again")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and self._release is not None:
                self._release()

    def begin_task(self) -> Callable[[], None]:
        """Reserve work in the background for this replica; a replica that dies loses it."""
        release = self._database.hold(_TASK_LOCK, wait=False)
        if release is None:
            raise RequestError(409, BUSY)
        return release

    def is_busy_elsewhere(self) -> bool:
        """Tell whether another replica works in the background; asked while this one does not."""
        return self._database.is_held(_TASK_LOCK)

    def publish(self, folder: Path, place: str) -> None:
        """Share the files of a folder under the name of a place, instead of what was there."""
        with self._database.transaction() as session:
            session.execute("DELETE FROM file WHERE place = ?", [place])
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                content = file.read_bytes()
                row = [place, file.relative_to(folder).as_posix(), _digest(content), content]
                session.insert("INSERT INTO file VALUES (?, ?, ?, ?)", [row])
        self._checked.discard(place)

    def fetch(self, place: str) -> None:
        """Bring the files of a place into this replica's folder, whole, unless the same are there."""
        if place in self._checked:
            return
        with self._database.snapshot() as session:
            wanted = dict(session.execute("SELECT name, digest FROM file WHERE place = ?", [place]))
        if not wanted:
            return  # not there yet
        target = self._folder / place
        try:
            there = {
                path.relative_to(target).as_posix(): _digest(path.read_bytes())
                for path in target.rglob("*")
                if path.is_file()
            }
            if wanted != there:
                self._download(place, wanted, target)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{target}: the shared files cannot be written ({error.strerror})") from error
        self._checked.add(place)

    def remove(self, places: list[str]) -> None:
        """Forget the files of places."""
        with self._database.transaction() as session:
            for place in places:
                session.execute("DELETE FROM file WHERE place = ?", [place])
                self._checked.discard(place)

    def _download(self, place: str, wanted: dict[str, str], target: Path) -> None:
        fresh = target.parent / f".new-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            for name, digest in wanted.items():
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise StoreError(f"{place}: the database holds a file named {name[:80]!r}, outside of its folder")
                with self._database.snapshot() as session:
                    rows = session.execute("SELECT content FROM file WHERE place = ? AND name = ?", [place, name])
                if not rows or _digest(rows[0][0]) != digest:
                    raise StoreError(f"{place}/{name}: the shared file is damaged, or was replaced just now")
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).write_bytes(rows[0][0])
            shutil.rmtree(target, ignore_errors=True)
            os.replace(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)  # what a failure has left


def open_replicas(settings: Settings, unknowns: UnknownStore) -> Alone:
    """Return what this service shares with others on its database; nothing where its store is a folder."""
    database = unknowns.database
    return Replicas(database, settings.store_dir) if isinstance(database, PostgresDatabase) else Alone()


def open_journal(settings: Settings, unknowns: UnknownStore) -> Journal:
    """Open the journal of a service, beside its unknown inputs where replicas share them."""
    database = unknowns.database
    return SharedJournal(database) if isinstance(database, PostgresDatabase) else Journal(settings.store_dir)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
