"""Searching with faiss: Flat (exact), HNSW and IVF (approximate, with the recall they reach)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offmap.errors import DependencyError
from offmap.neighbors.vectors import distances, take
from offmap.typing import Array, Float32Array

_ADD_ROWS = 65536
_LINKS = 32
_TRAIN_PER_LIST = 64


class Index:
    """A faiss index over the rows of a bank, which it copies.

    Examples
    --------
    >>> import numpy as np
    >>> Index("faiss", [np.eye(3, dtype=np.float32)]).search(np.eye(3, dtype=np.float32)[:1], 1)
    (array([[0.]], dtype=float32), array([[0]]))
    """

    def __init__(self, engine: str, parts: Sequence[Array]) -> None:
        self.engine = engine
        self._parts = parts
        self._faiss = _faiss()
        self._index = self._build()

    def search(self, queries: Float32Array, k: int) -> tuple[Float32Array, Array]:
        """Find the k nearest rows that the index knows of.

        Parameters
        ----------
        queries : ndarray of float32 of shape (n, d)
            The queries.
        k : int
            How many rows.

        Returns
        -------
        distances : ndarray of float32 of shape (n, k)
            Nearest first; infinity for what the index could not find.
        rows : ndarray of int64 of shape (n, k)
            Their numbers; −1 for what it could not find.
        """
        if self.engine == "hnsw":
            self._index.hnsw.efSearch = max(128, 2 * k)
        if not len(queries):
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        squared, rows = self._index.search(np.ascontiguousarray(queries), k)
        found = np.sqrt(np.maximum(squared, 0))
        scale = np.square(queries, dtype=np.float64).sum(axis=1)
        asked = np.nonzero((squared < 0.01 * scale[:, None]) & (rows >= 0))
        found[asked] = distances(self._parts, queries[asked[0]], rows[asked])
        found[rows < 0] = np.inf
        order = np.argsort(found, axis=1, kind="stable")
        return np.take_along_axis(found, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def _build(self) -> Any:
        total, width = sum(len(part) for part in self._parts), self._parts[0].shape[1]
        lists = int(np.clip(4 * np.sqrt(total), 1, max(1, total // 39)))
        kinds = {"faiss": "Flat", "hnsw": f"HNSW{_LINKS},Flat", "ivf": f"IVF{lists},Flat"}
        index = self._faiss.index_factory(width, kinds[self.engine])
        if self.engine == "ivf":
            chosen = np.linspace(0, total - 1, min(total, _TRAIN_PER_LIST * lists)).astype(np.int64)
            index.train(np.ascontiguousarray(take(self._parts, chosen), dtype=np.float32))
            index.nprobe = max(8, lists // 16)
        for part in self._parts:
            for start in range(0, len(part), _ADD_ROWS):
                index.add(np.ascontiguousarray(part[start : start + _ADD_ROWS], dtype=np.float32))
        return index


def between(parts: Sequence[Array], count: int = 200) -> Float32Array:
    """Make queries like a bank's rows but none of them: points halfway between rows that lie far apart in it.

    Parameters
    ----------
    parts : sequence of ndarray
        The bank.
    count : int, default=200
        How many points.

    Returns
    -------
    ndarray of float32 of shape (count, d)
        The points.

    Examples
    --------
    >>> import numpy as np
    >>> between([np.array([[0.0], [2.0]], dtype=np.float32)], 1)
    array([[1.]], dtype=float32)
    """
    total = sum(len(part) for part in parts)
    first = np.linspace(0, total - 1, min(count, total)).astype(np.int64)
    second = (first + max(1, total // 2)) % total
    both = take(parts, first).astype(np.float32) + take(parts, second).astype(np.float32)
    return both * np.float32(0.5)


def overlap(found: Array, true: Array) -> float:
    """Compute the share of the true neighbours that were found, the recall.

    Parameters
    ----------
    found, true : ndarray of int of shape (n, k)
        Row numbers.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> overlap(np.array([[1, 2]]), np.array([[2, 3]]))
    0.5
    """
    hits = [len(np.intersect1d(a, b)) for a, b in zip(found, true, strict=True)]
    return sum(hits) / max(1, true.size)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise DependencyError("this engine needs faiss: pip install offmap[faiss]") from error
    return faiss
