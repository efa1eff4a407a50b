"""A durable, bounded store of the inputs that were answered as unknown.

`UnknownStore` holds the rules and runs on any SQL database behind `Database`: SQLite by default, PostgreSQL by URL.
Items are on disk once `UnknownStore.add` has returned. Reading is done in pages and blocks, so that memory stays
bounded however large the store is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from offmap.detection.verdicts import limit_value
from offmap.errors import InputError
from offmap.service.unknown_inputs import OPEN, STATUSES, StoreLimits, StorePage, UnknownInput
from offmap.typing import Float32Array

_LOOKUP = 500  # ids in one query; databases limit the number of parameters
_TRIM = 1000
_EXPIRY_SECONDS = 60.0
_MIN_EXPIRY = 100  # items that may be dropped by age in a minute; a hundredth of the store when that is more
_BLOCK_BYTES = 64 * 2**20
_SMALL = "seq, id, time, score, p_value, class, guard, status, reference, content_type"


class Session(Protocol):
    """An open transaction; ``?`` marks a parameter."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and fetch its rows."""
        ...

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for every row."""
        ...


class Database(Protocol):
    """The interface between `UnknownStore` and a database; failures are raised as `StoreError`."""

    def transaction(self) -> AbstractContextManager[Session]:
        """Open a transaction: durable once the block is left, rolled back when an error leaves it."""
        ...

    def snapshot(self) -> AbstractContextManager[Session]:
        """Open a session for reading, from any thread."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class UnknownStore:
    """Unknown inputs in the order of arrival, within limits.

    Safe to use from several threads, and from several processes on one database.

    Parameters
    ----------
    database : Database
        Where the items are kept.
    limits : StoreLimits or None, default=None
        How much is kept; the defaults of `StoreLimits` when `None`.

    See Also
    --------
    offmap.service.open_unknown_store : Open the store of a folder or a database.

    Examples
    --------
    >>> import tempfile
    >>> from offmap.service.stores import open_unknown_store
    >>> store = open_unknown_store(tempfile.mkdtemp())
    >>> store.add([UnknownInput("a", 1e10, -3.0, 0.01), UnknownInput("b", 1e10, -4.0, 0.02)])
    {}
    >>> store.set_status(["a"], "resolved")
    1
    >>> [item.id for item in store.read_page(limit=10, status="open").items], store.count_by_status()
    (['b'], {'open': 1, 'resolved': 1, 'discarded': 0})
    >>> store.close()
    """

    def __init__(self, database: Database, limits: StoreLimits | None = None) -> None:
        self.database = database
        self.limits = limits or StoreLimits()
        self._expiry_began, self._expired = time.monotonic(), 0

    def add(self, items: Sequence[UnknownInput]) -> dict[str, int]:
        """Add items in one transaction; on return they are on disk.

        Parameters
        ----------
        items : sequence of UnknownInput
            In the order of arrival.

        Returns
        -------
        dict of str to int
            The number of old items dropped to stay within the limits, by reason: ``"size"`` and ``"age"``.
        """
        if not items:
            return {}
        rows = [
            (i.id, i.time, limit_value(i.score), i.p_value, json.dumps(i.predicted), i.guard, i.status, i.reference,
             i.content_type, i.bytes, None if i.features is None else i.features.astype("<f4").tobytes(), i.content)
            for i in items
        ]  # fmt: skip
        with self.database.transaction() as session:
            # First, because the row's lock makes writers of other processes wait: then the order of positions is the
            # order of commits, and a reader that continues after a position never skips one not committed yet.
            self._count(session, len(items), sum(item.bytes for item in items))
            session.insert(
                "INSERT INTO unknown (id, time, score, p_value, class, guard, status, reference, content_type, bytes, "
                "features, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return self._trim(session)

    def trim(self) -> dict[str, int]:
        """Drop items that have become too old, and count them by reason."""
        with self.database.transaction() as session:
            self._count(session, 0, 0)
            return self._trim(session)

    def set_status(self, ids: Sequence[str], status: str) -> int:
        """Set the status of items and return how many were found; nothing is deleted."""
        return self.set_statuses({status: ids})

    def set_statuses(self, changes: Mapping[str, Sequence[str]]) -> int:
        """Set several statuses in one transaction.

        Parameters
        ----------
        changes : mapping of str to sequence of str
            The ids of the items that get each status.

        Returns
        -------
        int
            How many items were found.
        """
        found = 0
        with self.database.transaction() as session:
            for status, ids in changes.items():
                if status not in STATUSES:
                    raise InputError(f"status {status!r}: choose one of {', '.join(STATUSES)}")
                for chunk in _chunks(ids):
                    marks = ", ".join("?" * len(chunk))
                    sql = f"UPDATE unknown SET status = ? WHERE id IN ({marks}) RETURNING seq"
                    found += len(session.execute(sql, [status, *chunk]))
        return found

    def delete(self, ids: Sequence[str]) -> int:
        """Delete items permanently and return how many were found."""
        found = 0
        with self.database.transaction() as session:
            self._count(session, 0, 0)
            for chunk in _chunks(ids):
                marks = ", ".join("?" * len(chunk))
                sizes = session.execute(f"DELETE FROM unknown WHERE id IN ({marks}) RETURNING bytes", chunk)
                self._count(session, -len(sizes), -sum(size for (size,) in sizes))
                found += len(sizes)
        return found

    def read_page(self, limit: int, after: int = 0, status: str | None = None) -> StorePage:
        """Read at most `limit` items after the position `after`, without features and contents.

        Parameters
        ----------
        limit : int
            At least one.
        after : int, default=0
            ``StorePage.next`` of the previous page.
        status : str or None, default=None
            Only items with this status.

        Returns
        -------
        StorePage
            The items, and the position to continue after.
        """
        if limit < 1:
            raise InputError(f"limit={limit}: a page has at least one item")
        where, values = _where(after, status)
        with self.database.snapshot() as session:
            rows = session.execute(
                f"SELECT {_SMALL} FROM unknown WHERE {where} ORDER BY seq LIMIT ?", [*values, limit + 1]
            )
        items = [_item(row) for row in rows[:limit]]
        return StorePage(items, items[-1].seq if len(rows) > limit else None)

    def find_position(self, id: str) -> int | None:
        """Find the position of an item, to continue after it; `None` when it is not stored."""
        with self.database.snapshot() as session:
            rows = session.execute("SELECT seq FROM unknown WHERE id = ?", [id])
        return int(rows[0][0]) if rows else None

    def find_next(self, position: int) -> tuple[int, str] | None:
        """Find the position and the id of the first item at or after a position; `None` when there is none."""
        sql = "SELECT seq, id FROM unknown WHERE seq >= ? ORDER BY seq LIMIT 1"
        with self.database.snapshot() as session:
            rows = session.execute(sql, [position])
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def find_newest(self, limit: int, status: str = OPEN) -> list[str]:
        """Find the ids of the newest items with a status, oldest first."""
        sql = "SELECT id FROM unknown WHERE status = ? ORDER BY seq DESC LIMIT ?"
        with self.database.snapshot() as session:
            return [str(id) for (id,) in reversed(session.execute(sql, [status, limit]))]

    def get(self, ids: Sequence[str], contents: bool = True) -> list[UnknownInput]:
        """Read items with their features and contents, in the given order; missing ones are left out."""
        found: dict[str, UnknownInput] = {}
        for chunk in _chunks(ids):
            marks = ", ".join("?" * len(chunk))
            with self.database.snapshot() as session:
                rows = session.execute(f"SELECT {_columns(contents)} FROM unknown WHERE id IN ({marks})", chunk)
            found |= {item.id: item for item in map(_item, rows)}
        return [found[id] for id in ids if id in found]

    def iter_blocks(
        self,
        size: int = 256,
        status: str | None = OPEN,
        after: int = 0,
        ids: Sequence[str] | None = None,
        contents: bool = True,
    ) -> Iterator[list[UnknownInput]]:
        """Iterate over items in blocks, in the order of arrival or of the given ids.

        Each block is a query of its own: items added meanwhile are included, items dropped meanwhile are not.

        Parameters
        ----------
        size : int, default=256
            Items per block, at most; fewer when they would take more than about 64 MB.
        status : str or None, default="open"
            Only items with this status; `None` for all. Ignored when `ids` is given.
        after : int, default=0
            The position to start after.
        ids : sequence of str or None, default=None
            Only these items, in this order.
        contents : bool, default=True
            Whether to read the inputs too; features are always read.

        Yields
        ------
        list of UnknownInput
            One block.
        """
        if size < 1:
            raise InputError(f"size={size}: a block has at least one item")
        if ids is not None:
            for start in range(0, len(ids), size):
                yield from self._iter_by_ids(ids[start : start + size], contents)
            return
        while True:
            where, values = _where(after, status)
            with self.database.snapshot() as session:
                rows = session.execute(
                    f"SELECT seq, bytes FROM unknown WHERE {where} ORDER BY seq LIMIT ?", [*values, size]
                )
                if not rows:
                    return
                last = _last_within_block(rows)
                rows = session.execute(
                    f"SELECT {_columns(contents)} FROM unknown WHERE {where} AND seq <= ? ORDER BY seq", [*values, last]
                )
            after = int(last)
            if rows:
                yield [_item(row) for row in rows]

    def _iter_by_ids(self, ids: Sequence[str], contents: bool) -> Iterator[list[UnknownInput]]:
        """Yield the items with these ids, cut where a block would take too much memory."""
        sizes: dict[str, int] = {}
        for chunk in _chunks(ids):
            with self.database.snapshot() as session:
                marks = ", ".join("?" * len(chunk))
                sizes |= dict(session.execute(f"SELECT id, bytes FROM unknown WHERE id IN ({marks})", chunk))
        left = [(id, sizes[id]) for id in ids if id in sizes]
        while left:
            last = _last_within_block(left)
            cut = [id for id, _ in left].index(last) + 1
            if block := self.get([id for id, _ in left[:cut]], contents):
                yield block
            left = left[cut:]

    def iter_features(
        self, size: int = 4096, status: str | None = OPEN, after: int = 0, ids: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], Float32Array]]:
        """Iterate over ids and feature rows of items that have features, in blocks of one width; see `iter_blocks`."""
        for block in self.iter_blocks(size, status, after, ids, contents=False):
            rows = [(item.id, item.features) for item in block if item.features is not None]
            for _, group in groupby(rows, key=lambda row: row[1].size):
                same = list(group)
                yield [id for id, _ in same], np.stack([features for _, features in same])

    def count_by_status(self) -> dict[str, int]:
        """Count the items of each status."""
        with self.database.snapshot() as session:
            rows = session.execute("SELECT status, count(*) FROM unknown GROUP BY status")
        return dict.fromkeys(STATUSES, 0) | {str(status): int(count) for status, count in rows}

    def read_totals(self) -> tuple[int, int]:
        """Read the number of items and their approximate size in bytes."""
        with self.database.snapshot() as session:
            items, size = session.execute("SELECT items, bytes FROM total")[0]
        return int(items), int(size)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _count(self, session: Session, items: int, size: int) -> None:
        session.execute("UPDATE total SET items = items + ?, bytes = bytes + ? RETURNING items", [items, size])

    def _trim(self, session: Session) -> dict[str, int]:
        dropped: dict[str, int] = {}
        oldest = time.time() - self.limits.seconds
        may_expire = self._expiry_allowance(session)
        while True:
            items, size = session.execute("SELECT items, bytes FROM total")[0]
            last, gone, freed = 0, 0, 0
            rows = session.execute("SELECT seq, time, bytes FROM unknown ORDER BY seq LIMIT ?", [_TRIM])
            for seq, when, own in rows:
                too_many = items - gone > self.limits.items or size - freed > self.limits.bytes
                if not too_many and (when >= oldest or dropped.get("age", 0) >= may_expire):
                    break
                reason = "size" if too_many else "age"
                dropped[reason] = dropped.get(reason, 0) + 1
                last, gone, freed = seq, gone + 1, freed + own
            if gone:
                session.execute("DELETE FROM unknown WHERE seq <= ? RETURNING seq", [last])
                self._count(session, -gone, -freed)
            if gone < _TRIM:
                self._expired += dropped.get("age", 0)
                return dropped

    def _expiry_allowance(self, session: Session) -> int:
        """Return how many items may still be dropped by age in this minute.

        A clock that jumps forward makes everything old at once; that must not empty the store before anyone notices.
        """
        now = time.monotonic()
        if now - self._expiry_began >= _EXPIRY_SECONDS:
            self._expiry_began, self._expired = now, 0
        items = int(session.execute("SELECT items FROM total")[0][0])
        return max(_MIN_EXPIRY, items // 100) - self._expired


def _where(after: int, status: str | None) -> tuple[str, list[Any]]:
    if status is None:
        return "seq > ?", [after]
    if status not in STATUSES:
        raise InputError(f"status {status!r}: choose one of {', '.join(STATUSES)}")
    return "status = ? AND seq > ?", [status, after]


def _columns(contents: bool) -> str:
    return f"{_SMALL}, features, content" if contents else f"{_SMALL}, features"


def _last_within_block(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the key of the last row up to which the sizes stay within a block; of the first row at least."""
    sizes = np.cumsum([size for _, size in rows])
    return rows[max(int(np.searchsorted(sizes, _BLOCK_BYTES, side="right")) - 1, 0)][0]


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _LOOKUP):
        yield list(ids[start : start + _LOOKUP])


def _item(row: Sequence[Any]) -> UnknownInput:
    seq, id, when, score, p_value, predicted, guard, status, reference, content_type = row[:10]
    features, content = (*row[10:], None, None)[:2]
    return UnknownInput(
        id, when, score, p_value, json.loads(predicted), guard,
        None if features is None else np.frombuffer(features, "<f4"),
        None if content is None else bytes(content), content_type, reference, status, int(seq),
    )  # fmt: skip
