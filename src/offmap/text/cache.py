"""Embeddings on disk by the content of their texts, so that no text is encoded twice by one encoder."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Mapping, Sequence

import numpy as np

from offmap.errors import StoreError
from offmap.typing import Float32Array

_LOOKUP = 500
_DAMAGED = "rows of this cache of embeddings are damaged; delete it, and it is made again"


class EmbeddingCache:
    """A file of embeddings, each under a hash of the encoder and the text; the texts themselves are not kept.

    Parameters
    ----------
    path : path
        An SQLite file; made when it is not there. Several processes may use it.
    encoder : str
        The checksum of the encoder.
    """

    def __init__(self, path: str | os.PathLike[str], encoder: str) -> None:
        self._path, self._encoder = os.fspath(path), encoder.encode()
        with self._connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS embedding (key BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID")

    def get(self, texts: Sequence[str]) -> dict[str, Float32Array]:
        """Return the rows of those texts that are there."""
        keys = {self._key(text): text for text in texts}
        found: dict[str, Float32Array] = {}
        order = list(keys)
        with self._connect() as connection:
            for start in range(0, len(order), _LOOKUP):
                chunk = order[start : start + _LOOKUP]
                marks = ", ".join("?" * len(chunk))
                for key, row in connection.execute(f"SELECT key, row FROM embedding WHERE key IN ({marks})", chunk):
                    found[keys[key]] = self._read_row(row)
        if len({row.size for row in found.values()}) > 1:
            raise StoreError(f"{self._path}: {_DAMAGED}")
        return found

    def add(self, rows: Mapping[str, Float32Array]) -> None:
        """Keep the rows of texts; they are on disk on return."""
        values = [(self._key(text), row.astype("<f4").tobytes()) for text, row in rows.items()]
        with self._connect() as connection:
            connection.executemany("INSERT OR REPLACE INTO embedding VALUES (?, ?)", values)

    def _read_row(self, row: object) -> Float32Array:
        if not isinstance(row, bytes) or not row or len(row) % 4:
            raise StoreError(f"{self._path}: {_DAMAGED}")
        found = np.frombuffer(row, "<f4").astype(np.float32)
        if not np.isfinite(found).all():
            raise StoreError(f"{self._path}: {_DAMAGED}")
        return found

    def _key(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode(), digest_size=16, key=self._encoder[:64]).digest()

    def _connect(self) -> _Connection:
        return _Connection(self._path)


class _Connection:
    """One transaction on the file; what SQLite refuses becomes a sentence."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection = sqlite3.connect(self._path, timeout=30)
            self._connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: not a cache of embeddings that can be used ({error})") from error
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                self._connection.commit()
        finally:
            self._connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"{self._path}: not a cache of embeddings that can be used ({error})") from error
