"""A bank in PostgreSQL with pgvector, which many processes share. For sharing, not for speed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from offmap.errors import DependencyError, InputError, StoreError
from offmap.neighbors.vectors import as_rows, directions, unit_and_length
from offmap.typing import Array, Float32Array

MAX_WIDTH = 16_000  # of pgvector's type vector
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_FETCH_ROWS = 4096


class PgBank:
    """Vectors in a table, and their nearest neighbours, in Euclidean distance; the same answers as `Bank`.

    Nothing is indexed, so the server compares each query with every row and the answer is exact. Each `add` is one
    transaction: other processes see all of a block or nothing of it.

    Parameters
    ----------
    connection : str
        What psycopg connects to: ``"postgresql://user@host/database"``.
    table : str
        The table's name: lower-case letters, digits and underscores. Made at the first `add`.
    normalize : bool, default=True
        Scale every vector to length 1 when it is added, and queries too. A table remembers how it was made.

    Examples
    --------
    >>> PgBank("postgresql://localhost/banks", "known")
    PgBank('known', normalize=True)
    """

    def __init__(self, connection: str, table: str, normalize: bool = True) -> None:
        if not _NAME.fullmatch(table):
            raise InputError(
                f"PgBank(table={table!r}): a name has lower-case letters, digits and underscores, at most 51 of them"
            )
        self.connection = connection
        self.table = table
        self.normalize = normalize

    def __repr__(self) -> str:
        return f"PgBank({self.table!r}, normalize={self.normalize})"

    def __len__(self) -> int:
        with self._session() as session:
            if self._width(session) == 0:
                return 0
            return int(session.execute(f"SELECT count(*) FROM {self.table}").fetchone()[0])

    @property
    def width(self) -> int:
        """How many columns a vector has; 0 before the first `add`."""
        with self._session() as session:
            return self._width(session)

    @property
    def vectors(self) -> Float32Array:
        """All vectors as one array, in the order of their numbers."""
        with self._session() as session:
            width = self._width(session)
            found = [block for _, block in self._blocks(session, width)] if width else []
        return np.concatenate(found) if found else np.empty((0, width), np.float32)

    def add(self, block: Any) -> Self:
        """Add rows in one transaction, through COPY: all of them or, on any error, none."""
        rows = as_rows(block, "PgBank.add")
        if not len(rows):
            return self
        if rows.shape[1] > MAX_WIDTH:
            raise InputError(f"PgBank.add: {rows.shape[1]} columns, pgvector holds at most {MAX_WIDTH}")
        if self.normalize:
            rows = directions(rows, "PgBank.add")
        with self._session() as session:
            self._make(session, rows.shape[1])
            self._copy(session, rows)
        return self

    def merge(self, other: PgBank | Any) -> Self:
        """Take in the rows of another bank, in this database, another one, or memory, in one transaction."""
        if other.normalize != self.normalize:
            raise InputError(f"{self!r}.merge({other!r}): the banks must agree on normalize")
        if not len(other):
            return self
        with self._session() as session:
            self._make(session, other.width)
            if isinstance(other, PgBank):
                with other._session() as theirs:
                    for _, block in other._blocks(theirs, other.width):
                        self._copy(session, block)
            else:
                for start in range(0, len(other), _FETCH_ROWS):
                    self._copy(session, other.vectors[start : start + _FETCH_ROWS].astype(np.float32))
        return self

    def kth_distance(self, queries: Any, k: int, average: bool = False) -> Float32Array:
        """Compute the distance of each query to its k-th nearest row, or the mean distance to the k nearest.

        A query without direction (all zeros, when normalising) is infinitely far from everything.

        Parameters
        ----------
        queries : array-like of shape (n, d)
            The queries.
        k : int
            Which neighbour.
        average : bool, default=False
            Whether to average over the k nearest.

        Returns
        -------
        ndarray of float32 of shape (n,)
            The distances.
        """
        distances, _ = self.search(queries, k)
        if average:
            return distances.mean(axis=1, dtype=np.float64).astype(np.float32)
        return distances[:, -1]

    def search(self, queries: Any, k: int) -> tuple[Float32Array, Array]:
        """Find the k nearest rows of each query.

        Parameters
        ----------
        queries : array-like of shape (n, d)
            The queries.
        k : int
            How many rows.

        Returns
        -------
        distances : ndarray of float32 of shape (n, k)
            Nearest first.
        rows : ndarray of int64 of shape (n, k)
            Their numbers.
        """
        with self._session() as session:
            width = self._width(session)
            if not width:
                raise InputError(f"{self!r}: it is empty; add rows before asking for neighbours")
            asked = as_rows(queries, f"{self!r}: the queries", width)
            held = int(session.execute(f"SELECT count(*) FROM {self.table}").fetchone()[0])
            if not 1 <= k <= held:
                raise InputError(f"k={k}: the bank holds {held} rows, so k must be from 1 to {held}")
            lost = np.zeros(len(asked), bool)
            if self.normalize:
                asked, length = unit_and_length(asked)
                lost = length == 0
            distances = np.full((len(asked), k), np.inf, np.float32)
            rows = np.full((len(asked), k), -1, np.int64)
            statement = f"SELECT number, vector <-> %s AS far FROM {self.table} ORDER BY far, number LIMIT %s"
            for place in np.flatnonzero(~lost):
                found = session.execute(statement, (_vector(asked[place]), k), prepare=True).fetchall()
                rows[place] = [number for number, _ in found]
                distances[place] = [far for _, far in found]
        return distances, rows

    def recall(self, k: int) -> float:
        """Return 1: every row is looked at."""
        return 1.0

    def explain(self) -> str:
        """Return which engine answers and why."""
        return (
            f"table {self.table}: exact, PostgreSQL compares each query with every row; made for sharing a bank among "
            f"processes, a bank in memory is many times faster"
        )

    def drop(self) -> None:
        """Remove the table and its rows."""
        with self._session() as session:
            session.execute(f"DROP TABLE IF EXISTS {self.table}")

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """One connection and one transaction, committed at the end or rolled back."""
        psycopg, register = _drivers()
        try:
            with psycopg.connect(self.connection) as session:
                if session.execute("SELECT 1 FROM pg_type WHERE typname = 'vector'").fetchone():
                    register(session)
                yield session
        except psycopg.Error as error:
            raise StoreError(f"{self!r}: the database said: {str(error).strip()}; nothing was changed") from error

    def _width(self, session: Any) -> int:
        """Return the table's width; 0 if there is none. The table says itself how it was made."""
        found = session.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", (self.table,)).fetchone()[0]
        exists = session.execute("SELECT to_regclass(%s) IS NOT NULL", (self.table,)).fetchone()[0]
        if not exists:
            return 0
        try:
            made = json.loads(found or "")
            width, normalize = int(made["width"]), bool(made["normalize"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self!r}: there is such a table, but not one that offmap made") from error
        if normalize != self.normalize:
            raise InputError(f"{self!r}: the table was made with normalize={normalize}; open it the same way")
        return width

    def _make(self, session: Any, width: int) -> None:
        # Two processes may make the table at once: the lock lets the second one find it made.
        session.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"offmap.{self.table}",))
        held = self._width(session)
        if held and held != width:
            raise InputError(f"{self!r}: {width} columns, but the bank has {held}")
        if held:
            return
        psycopg, register = _drivers()
        try:
            session.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error as error:
            raise StoreError(
                f"{self!r}: the extension vector cannot be made ({str(error).strip()}); install pgvector on the server "
                f"or let its owner run CREATE EXTENSION vector"
            ) from error
        register(session)
        session.execute(f"CREATE TABLE {self.table} (number bigint PRIMARY KEY, vector vector({int(width)}) NOT NULL)")
        made = json.dumps({"width": width, "normalize": self.normalize})
        session.execute(f"COMMENT ON TABLE {self.table} IS '{made}'")

    def _copy(self, session: Any, rows: Float32Array) -> None:
        """Append rows; the lock of the transaction keeps their numbers without gaps."""
        start = int(session.execute(f"SELECT coalesce(max(number) + 1, 0) FROM {self.table}").fetchone()[0])
        with session.cursor().copy(f"COPY {self.table} (number, vector) FROM STDIN WITH (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "vector"])
            for offset, row in enumerate(rows):
                copy.write_row((start + offset, _vector(row)))

    def _blocks(self, session: Any, width: int) -> Iterator[tuple[Array, Float32Array]]:
        with session.cursor(name="rows") as cursor:
            cursor.itersize = _FETCH_ROWS
            cursor.execute(f"SELECT number, vector FROM {self.table} ORDER BY number")
            while found := cursor.fetchmany(_FETCH_ROWS):
                numbers = np.array([number for number, _ in found])
                yield numbers, np.stack([_array(value) for _, value in found]).reshape(-1, width)


def _vector(row: Float32Array) -> Any:
    from pgvector import Vector

    return Vector(row)


def _array(value: Any) -> Float32Array:
    found: Float32Array = np.asarray(value if isinstance(value, np.ndarray) else value.to_numpy(), np.float32)
    return found


def _drivers() -> tuple[Any, Any]:
    try:
        import psycopg
        from pgvector.psycopg import register_vector
    except ImportError as error:
        raise DependencyError("a bank in PostgreSQL needs psycopg and pgvector: pip install offmap[pg]") from error
    return psycopg, register_vector
