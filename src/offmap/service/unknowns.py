"""The pile: every input that was answered as unknown, kept durably until someone has looked at it.

One class holds the rules, on any SQL database behind `Database`: SQLite by default, PostgreSQL by URL. What `add` has
returned from is on disk. Reading is done in pages and blocks, so that memory stays bounded however large the pile is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError

Floats = npt.NDArray[np.float32]

OPEN, RESOLVED, DISCARDED = "open", "resolved", "discarded"
STATUSES = (OPEN, RESOLVED, DISCARDED)
ID_LENGTH = 32
_LOOKUP = 500  # ids in one query; databases limit the number of parameters
_TRIM = 1000
_BLOCK_BYTES = 64 * 2**20
_SMALL = "seq, id, time, score, p_value, class, guard, status, reference, content_type"


def new_ids(n: int) -> list[str]:
    """`n` ids that no other process makes: 48 bits of time, so that they sort roughly by age, and 80 random bits.

    Examples
    --------
    >>> ids = new_ids(3)
    >>> len(set(ids)), len(ids[0])
    (3, 32)
    """
    start = f"{time.time_ns() // 1_000_000 & (1 << 48) - 1:012x}"
    noise = os.urandom(10 * n).hex()
    return [start + noise[20 * i : 20 * (i + 1)] for i in range(n)]


@dataclass(frozen=True)
class Unknown:
    """One input on the pile.

    Parameters
    ----------
    id
        As it was answered to the client.
    time
        Seconds since 1970.
    score, p_value, predicted
        The guard's verdict; `predicted` is the nearest known class, a name or an index, `None` without a head.
    guard
        The version of the guard that said so (`Deployed.version`): features of other versions may not compare.
    features
        What the network says about it, `None` when it was not kept.
    content, content_type
        The input itself: a picture as it was sent, or an array as ``.npy``; `None` when only features came.
    reference
        What the client calls the input. It is text, and never opened.
    status
        ``"open"``, ``"resolved"`` or ``"discarded"``.
    seq
        Its place on the pile, growing; given by the pile.
    """

    id: str
    time: float
    score: float
    p_value: float
    predicted: str | int | None = None
    guard: str = ""
    features: Floats | None = field(default=None, compare=False)
    content: bytes | None = field(default=None, repr=False)
    content_type: str | None = None
    reference: str | None = None
    status: str = OPEN
    seq: int = 0

    @property
    def bytes(self) -> int:
        """Roughly what it takes on disk."""
        features = 0 if self.features is None else 4 * self.features.size
        return 200 + features + len(self.content or b"") + len(self.reference or "")


@dataclass(frozen=True)
class Bounds:
    """How much is kept: so many items, so many bytes, so many seconds. The oldest go first."""

    items: int = 100_000
    bytes: int = 2**30
    seconds: float = 90 * 86400.0


@dataclass(frozen=True)
class Page:
    """Some items in the order they came in, and where to go on: `None` at the end."""

    items: list[Unknown]
    next: int | None


class Session(Protocol):
    """An open transaction; ``?`` marks a parameter."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and fetch what it gives."""
        ...

    def insert(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for every row."""
        ...


class Database(Protocol):
    """What a pile needs of a database; failures come out as `StoreError`."""

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction that is durable once the block is left, and void when an error leaves it."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """A consistent view of what is there; may be used from any thread."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class UnknownStore:
    """Unknown inputs, bounded, in the order they came in.

    Safe to use from several threads, and from several processes on one database.

    Parameters
    ----------
    database
        Where it is kept; see `offmap.service.open_pile`.
    bounds
        How much is kept.

    Examples
    --------
    >>> import tempfile
    >>> from offmap.service.stores import open_pile
    >>> pile = open_pile(tempfile.mkdtemp())
    >>> pile.add([Unknown("a", 1e10, -3.0, 0.01), Unknown("b", 1e10, -4.0, 0.02)])
    {}
    >>> pile.mark(["a"], "resolved")
    1
    >>> [item.id for item in pile.page(limit=10, status="open").items], pile.counts()
    (['b'], {'open': 1, 'resolved': 1, 'discarded': 0})
    >>> pile.close()
    """

    def __init__(self, database: Database, bounds: Bounds | None = None) -> None:
        self.database = database
        self.bounds = bounds or Bounds()

    def add(self, items: Sequence[Unknown]) -> dict[str, int]:
        """Put items on the pile in one transaction. On return they are on disk; what was dropped for them is counted.

        Returns
        -------
        dict
            How many old items were dropped, by reason: ``"size"`` and ``"age"``.
        """
        if not items:
            return {}
        rows = [
            (i.id, i.time, i.score, i.p_value, json.dumps(i.predicted), i.guard, i.status, i.reference,
             i.content_type, i.bytes, None if i.features is None else i.features.astype("<f4").tobytes(), i.content)
            for i in items
        ]  # fmt: skip
        with self.database.writing() as session:
            # First, because the row's lock makes writers of other processes wait: then order of places is order of
            # commits, and a reader that goes on after a place never passes over one that was still on its way.
            self._count(session, len(items), sum(item.bytes for item in items))
            session.insert(
                "INSERT INTO unknown (id, time, score, p_value, class, guard, status, reference, content_type, bytes, "
                "features, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return self._trim(session)

    def trim(self) -> dict[str, int]:
        """Drop what has become too old, and say how many were dropped."""
        with self.database.writing() as session:
            self._count(session, 0, 0)
            return self._trim(session)

    def mark(self, ids: Sequence[str], status: str) -> int:
        """Set the status of items; nothing is deleted, so it can be set back. Returns how many there were."""
        if status not in STATUSES:
            raise InputError(f"status {status!r}: choose one of {', '.join(STATUSES)}")
        found = 0
        with self.database.writing() as session:
            for part in _parts(ids):
                marks = ", ".join("?" * len(part))
                found += len(
                    session.execute(
                        f"UPDATE unknown SET status = ? WHERE id IN ({marks}) RETURNING seq", [status, *part]
                    )
                )
        return found

    def forget(self, ids: Sequence[str]) -> int:
        """Delete items for good, as someone may have the right to ask. Returns how many there were."""
        found = 0
        with self.database.writing() as session:
            self._count(session, 0, 0)
            for part in _parts(ids):
                marks = ", ".join("?" * len(part))
                sizes = session.execute(f"DELETE FROM unknown WHERE id IN ({marks}) RETURNING bytes", part)
                self._count(session, -len(sizes), -sum(size for (size,) in sizes))
                found += len(sizes)
        return found

    def page(self, limit: int, after: int = 0, status: str | None = None) -> Page:
        """At most `limit` items behind the place `after`, without features and contents.

        Parameters
        ----------
        limit
            At least one.
        after
            ``Page.next`` of the page before; 0 at the beginning.
        status
            Only items with this status.
        """
        if limit < 1:
            raise InputError(f"limit={limit}: a page has at least one item")
        where, values = _where(after, status)
        with self.database.reading() as session:
            rows = session.execute(
                f"SELECT {_SMALL} FROM unknown WHERE {where} ORDER BY seq LIMIT ?", [*values, limit + 1]
            )
        items = [_item(row) for row in rows[:limit]]
        return Page(items, items[-1].seq if len(rows) > limit else None)

    def place(self, id: str) -> int | None:
        """The place of an item, to go on after it; `None` when it is not on the pile."""
        with self.database.reading() as session:
            rows = session.execute("SELECT seq FROM unknown WHERE id = ?", [id])
        return int(rows[0][0]) if rows else None

    def get(self, ids: Sequence[str], contents: bool = True) -> list[Unknown]:
        """Whole items, with features and contents, in the order asked for; those that are not there are left out."""
        found: dict[str, Unknown] = {}
        for part in _parts(ids):
            marks = ", ".join("?" * len(part))
            with self.database.reading() as session:
                rows = session.execute(f"SELECT {_columns(contents)} FROM unknown WHERE id IN ({marks})", part)
            found |= {item.id: item for item in map(_item, rows)}
        return [found[id] for id in ids if id in found]

    def blocks(
        self,
        size: int = 256,
        status: str | None = OPEN,
        after: int = 0,
        ids: Sequence[str] | None = None,
        contents: bool = True,
    ) -> Iterator[list[Unknown]]:
        """Whole items in blocks, in the order they came in; or those with the given ids, in that order.

        Each block is read by itself: items that come in meanwhile are seen, those dropped meanwhile are not.

        Parameters
        ----------
        size
            Items in a block, at most; fewer when they would take more than about 64 MB.
        status
            Only items with this status; `None` for all. Not looked at when there are ids.
        after
            The place to begin behind.
        ids
            Which items.
        contents
            Whether to read the inputs too; features always are.
        """
        if size < 1:
            raise InputError(f"size={size}: a block has at least one item")
        if ids is not None:
            for start in range(0, len(ids), size):
                yield from self._within(ids[start : start + size], contents)
            return
        while True:
            where, values = _where(after, status)
            with self.database.reading() as session:
                rows = session.execute(
                    f"SELECT seq, bytes FROM unknown WHERE {where} ORDER BY seq LIMIT ?", [*values, size]
                )
                if not rows:
                    return
                last = _last_within(rows)
                rows = session.execute(
                    f"SELECT {_columns(contents)} FROM unknown WHERE {where} AND seq <= ? ORDER BY seq", [*values, last]
                )
            after = int(last)
            if rows:
                yield [_item(row) for row in rows]

    def _within(self, ids: Sequence[str], contents: bool) -> Iterator[list[Unknown]]:
        """The items with these ids, cut where a block would take too much memory."""
        sizes: dict[str, int] = {}
        for part in _parts(ids):
            with self.database.reading() as session:
                marks = ", ".join("?" * len(part))
                sizes |= dict(session.execute(f"SELECT id, bytes FROM unknown WHERE id IN ({marks})", part))
        left = [(id, sizes[id]) for id in ids if id in sizes]
        while left:
            last = _last_within(left)
            cut = [id for id, _ in left].index(last) + 1
            if block := self.get([id for id, _ in left[:cut]], contents):
                yield block
            left = left[cut:]

    def features(
        self, size: int = 4096, status: str | None = OPEN, after: int = 0, ids: Sequence[str] | None = None
    ) -> Iterator[tuple[list[str], Floats]]:
        """Ids and feature rows of items that have features, in blocks of one width each; see `blocks`."""
        for block in self.blocks(size, status, after, ids, contents=False):
            rows = [(item.id, item.features) for item in block if item.features is not None]
            for _, group in groupby(rows, key=lambda row: row[1].size):
                same = list(group)
                yield [id for id, _ in same], np.stack([features for _, features in same])

    def counts(self) -> dict[str, int]:
        """How many items have each status."""
        with self.database.reading() as session:
            rows = session.execute("SELECT status, count(*) FROM unknown GROUP BY status")
        return dict.fromkeys(STATUSES, 0) | {str(status): int(count) for status, count in rows}

    def totals(self) -> tuple[int, int]:
        """How many items there are, and roughly how many bytes they take."""
        with self.database.reading() as session:
            items, size = session.execute("SELECT items, bytes FROM total")[0]
        return int(items), int(size)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _count(self, session: Session, items: int, size: int) -> None:
        session.execute("UPDATE total SET items = items + ?, bytes = bytes + ? RETURNING items", [items, size])

    def _trim(self, session: Session) -> dict[str, int]:
        dropped: dict[str, int] = {}
        oldest = time.time() - self.bounds.seconds
        while True:
            items, size = session.execute("SELECT items, bytes FROM total")[0]
            last, gone, freed = 0, 0, 0
            rows = session.execute("SELECT seq, time, bytes FROM unknown ORDER BY seq LIMIT ?", [_TRIM])
            for seq, when, own in rows:
                too_many = items - gone > self.bounds.items or size - freed > self.bounds.bytes
                if not too_many and when >= oldest:
                    break
                reason = "size" if too_many else "age"
                dropped[reason] = dropped.get(reason, 0) + 1
                last, gone, freed = seq, gone + 1, freed + own
            if gone:
                session.execute("DELETE FROM unknown WHERE seq <= ? RETURNING seq", [last])
                self._count(session, -gone, -freed)
            if gone < _TRIM:
                return dropped


def _where(after: int, status: str | None) -> tuple[str, list[Any]]:
    if status is None:
        return "seq > ?", [after]
    if status not in STATUSES:
        raise InputError(f"status {status!r}: choose one of {', '.join(STATUSES)}")
    return "status = ? AND seq > ?", [status, after]


def _columns(contents: bool) -> str:
    return f"{_SMALL}, features, content" if contents else f"{_SMALL}, features"


def _last_within(rows: Sequence[tuple[Any, ...]]) -> Any:
    """The key of the last row up to which the sizes stay within a block; of the first row at least."""
    sizes = np.cumsum([size for _, size in rows])
    return rows[max(int(np.searchsorted(sizes, _BLOCK_BYTES, side="right")) - 1, 0)][0]


def _parts(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _LOOKUP):
        yield list(ids[start : start + _LOOKUP])


def _item(row: Sequence[Any]) -> Unknown:
    seq, id, when, score, p_value, predicted, guard, status, reference, content_type = row[:10]
    features, content = (*row[10:], None, None)[:2]
    return Unknown(
        id, when, score, p_value, json.loads(predicted), guard,
        None if features is None else np.frombuffer(features, "<f4"),
        None if content is None else bytes(content), content_type, reference, status, int(seq),
    )  # fmt: skip
