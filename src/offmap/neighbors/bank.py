"""A bank of vectors that answers how far the k-th nearest one is."""

from __future__ import annotations

import os
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.neighbors import approximate, exact, files
from offmap.neighbors.half import PATIENCE, HalfCopy
from offmap.neighbors.ranking import NEAR, rank
from offmap.neighbors.vectors import BLOCK_ELEMENTS, Frame, as_rows, directions, distances, is_mapped, unit_and_length
from offmap.typing import Array, Float32Array

Engine = Literal["auto", "exact", "faiss", "hnsw", "ivf"]
APPROXIMATE = ("hnsw", "ivf")


class Bank:
    """Vectors and their nearest neighbours, in Euclidean distance.

    Answers are exact unless an approximate engine is asked for. Distances to the k-th neighbour are computed
    from the difference of the two vectors: near copies keep their digits, and it does not matter how many
    queries are asked at once. Rows so near that rounding would rank them are ranked in float64.

    Parameters
    ----------
    normalize : bool, default=True
        Scale every vector to length 1, once when it is added; queries are scaled too (thesis: k-NN detection
        depends on it).
    dtype : str, default="float32"
        How vectors are stored: ``"float32"``, or ``"float16"`` for half the memory.
    engine : Engine, default="auto"
        ``"auto"`` and ``"exact"`` search exactly with blocked matrix products, ``"faiss"`` with faiss Flat;
        ``"hnsw"`` and ``"ivf"`` are approximate, `recall` says how well they do.

    Examples
    --------
    >>> import numpy as np
    >>> bank = Bank()
    >>> _ = bank.add(np.array([[2.0, 0.0], [0.0, 1.0]]))
    >>> bank.kth_distance(np.array([[5.0, 0.0]]), k=1)
    array([0.], dtype=float32)
    >>> distances, rows = bank.search(np.array([[5.0, 0.0]]), k=2)
    >>> rows
    array([[0, 1]])
    """

    def __init__(
        self,
        normalize: bool = True,
        dtype: str = "float32",
        engine: Engine = "auto",
    ) -> None:
        if dtype not in ("float32", "float16"):
            raise InputError(f"Bank(dtype={dtype!r}): vectors are stored as 'float32' or 'float16'")
        if engine not in get_args(Engine):
            raise InputError(f"Bank(engine={engine!r}): the engines are {', '.join(get_args(Engine))}")
        self.normalize = normalize
        self.dtype = dtype
        self.engine = engine
        self._parts: list[Array] = []
        self._grows = False  # whether the last part is an array of the bank's own
        self._frame: Frame | None = None  # worked out at the first search, like the index
        self._index: approximate.Index | None = None
        self._half: HalfCopy | None = None  # made when single queries keep coming
        self._single = 0

    @classmethod
    def of(cls, vectors: Array, normalize: bool = True, engine: Engine = "auto") -> Bank:
        """Make a bank around an array or memory map that is already as it should be; nothing is copied or checked.

        With `normalize`, the rows must have length 1.

        Parameters
        ----------
        vectors : ndarray of shape (n, d)
            The rows; of length 1 with `normalize`.
        normalize : bool, default=True
            Whether queries are scaled to length 1.
        engine : Engine, default="auto"
            What searches.

        Returns
        -------
        Bank
            Around these rows.

        Examples
        --------
        >>> import numpy as np
        >>> len(Bank.of(np.eye(3, dtype=np.float32)))
        3
        """
        if vectors.ndim != 2 or vectors.dtype.name not in ("float32", "float16"):
            raise InputError(
                f"Bank.of(array of shape {vectors.shape}, {vectors.dtype}): give rows × columns in float32 "
                f"or float16; Bank().add(...) takes other kinds"
            )
        bank = cls(normalize, vectors.dtype.name, engine)
        bank._parts = [vectors]
        return bank

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __repr__(self) -> str:
        size = f"{len(self)} × {self.width}" if self._parts else "empty"
        return f"Bank({size}, normalize={self.normalize}, dtype={self.dtype!r}, engine={self.engine!r})"

    @property
    def width(self) -> int:
        """How many columns a vector has; 0 while the bank is empty."""
        return int(self._parts[0].shape[1]) if self._parts else 0

    @property
    def vectors(self) -> Array:
        """All vectors as one array, as stored: normalised if the bank normalises."""
        if not self._parts:
            return np.empty((0, 0), self.dtype)
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
            self._grows, self._frame = True, None
        return self._parts[0]

    def add(self, block: Any) -> Self:
        """Add rows, or none of them: NaN, infinity, a wrong width and, when normalising, zeros are refused.

        Parameters
        ----------
        block : array-like
            Rows × columns; the first block sets the width.
        """
        rows = as_rows(block, "Bank.add", self.width)
        if not len(rows):
            return self
        if self.normalize:
            rows = directions(rows, "Bank.add")
        with np.errstate(over="ignore"):
            stored = rows.astype(self.dtype)  # a copy: the caller may reuse the array
        if self.dtype == "float16" and not np.isfinite(stored).all():
            raise InputError(
                f"Bank.add: the value {float(rows[~np.isfinite(stored)][0]):.6g} does not fit float16; "
                f"use Bank(dtype='float32')"
            )
        self._append(stored, own=True)
        return self

    def merge(self, other: Bank) -> Self:
        """Take in the rows of another bank of the same kind, after one's own."""
        if (other.normalize, other.dtype) != (self.normalize, self.dtype):
            raise InputError(f"{self!r}.merge({other!r}): the banks must agree on normalize and dtype")
        if self.width and other.width and self.width != other.width:
            raise InputError(f"{self!r}.merge({other!r}): the banks must have vectors of the same width")
        for part in list(other._parts):
            self._append(part, own=False)
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
        asked, lost = self._queries(queries, k)
        found, _ = self._nearest(asked, k, last_only=not average)
        result: Float32Array = found.mean(axis=1, dtype=np.float64).astype(np.float32) if average else found[:, -1]
        result[lost] = np.inf
        return result

    def search(self, queries: Any, k: int) -> tuple[Float32Array, Array]:
        """Find the k nearest rows of each query.

        A query without direction (all zeros, when normalising) has distance infinity and row −1.

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
        asked, lost = self._queries(queries, k)
        found, rows = self._nearest(asked, k, last_only=False)
        found[lost], rows[lost] = np.inf, -1
        return found, rows

    def recall(self, k: int, queries: Any = None) -> float:
        """Return the share of the true k nearest rows that the engine finds; 1 for the exact engines.

        Parameters
        ----------
        k : int
            How many neighbours.
        queries : array-like or None, default=None
            Held-out queries; without them, 200 points halfway between rows of the bank stand in.
        """
        asked, _ = self._queries(approximate.between(self._parts) if queries is None else queries, k)
        if self.engine not in APPROXIMATE:
            return 1.0
        true = Bank(self.normalize, self.dtype, "exact").merge(self)
        return approximate.overlap(self._nearest(asked, k, False)[1], true._nearest(asked, k, False)[1])

    def explain(self, k: int = 50) -> str:
        """Return which engine answers and why; for an approximate one, the recall it reaches on this bank."""
        size = f"{len(self)} × {self.width} vectors in {self.dtype}"
        if self.engine in APPROXIMATE:
            if not len(self):
                return f"{size}: {self.engine} when there are rows"
            few = min(k, len(self))
            return (
                f"{size}: approximate with faiss {self.engine.upper()}, because engine={self.engine!r} was "
                f"asked for; recall {self.recall(few):.3f} at k={few}, measured against the exact answer"
            )
        if self.engine == "faiss":
            return f"{size}: exact with faiss Flat, which copies the bank, because engine='faiss' was asked for"
        memory = "mapped from disk" if any(map(is_mapped, self._parts)) else "in memory"
        return (
            f"{size}, {memory}: exact with matrix products in place, measured fastest at every size; up to "
            f"{exact.FEW_QUERIES} queries at once cost one reading of the bank, single ones after a while that of "
            f"a float16 copy; more use tiles with a guessed and checked bound on the k-th distance"
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the bank to a folder, whole or not at all, one block at a time."""
        files.save(folder, self._parts, {"normalize": self.normalize, "dtype": self.dtype, "engine": self.engine})

    @classmethod
    def open(cls, folder: str | os.PathLike[str], mmap: bool = True) -> Bank:
        """Read a folder that `save` wrote; mapped into memory, so that it may be larger than memory.

        Parameters
        ----------
        folder : str or path
            The folder.
        mmap : bool, default=True
            Whether to map the rows instead of reading them.

        Returns
        -------
        Bank
            As it was saved.
        """
        vectors, config = files.load(folder, mmap)
        bank = cls(config["normalize"], config["dtype"], config["engine"])
        bank._parts = [vectors] if len(vectors) else []
        return bank

    def _append(self, part: Array, own: bool) -> None:
        """Put rows at the end: into the array the bank owns, or beside it when that would copy a mapped file."""
        self._frame = self._index = self._half = None
        self._single = 0
        if is_mapped(part) or not self._grows:
            self._grows = not is_mapped(part)
            self._parts.append(part if own or is_mapped(part) else part.copy())
            return
        array = self._parts.pop()
        start = len(array)
        try:
            array.resize((start + len(part), array.shape[1]))  # moves pages, not data
            array[start:] = part
        except ValueError:  # someone holds a view of the array, which must stay as it is
            array = np.concatenate([array, part])
        self._parts.append(array)

    def _queries(self, queries: Any, k: int) -> tuple[Float32Array, npt.NDArray[np.bool_]]:
        """Return checked and normalised queries, and which of them have no direction."""
        if not self._parts:
            raise InputError("Bank: it is empty; add rows before asking for neighbours")
        if not 1 <= k <= len(self):
            raise InputError(f"k={k}: the bank holds {len(self)} rows, so k must be from 1 to {len(self)}")
        rows = as_rows(queries, "Bank: the queries", self.width)
        if not self.normalize:
            return rows, np.zeros(len(rows), bool)
        rows, length = unit_and_length(rows)
        return rows, length == 0

    def _nearest(self, queries: Float32Array, k: int, last_only: bool) -> tuple[Float32Array, Array]:
        """Distances and row numbers from whichever engine the bank uses."""
        if self.engine in ("faiss", *APPROXIMATE):
            if self._index is None:
                self._index = approximate.Index(self.engine, self._parts)
            return self._index.search(queries, k)
        if self._frame is None:
            # float16 rounds a unit vector to almost length 1, which is not close enough for the short cut
            short_cut = self.normalize and self.dtype == "float32"
            self._frame = Frame() if short_cut else Frame.of(self._parts)
        frame, shifted = self._frame, self._frame.shift(queries)
        found_by_half = self._by_half(queries[0], k) if len(queries) == 1 and frame.center is None else None
        closeness, rows = found_by_half or exact.nearest(self._parts, shifted, k, frame.penalties, last_only)
        if last_only:
            rows = rows[:, -1:]
            found = distances(self._parts, queries, rows[:, 0])[:, None]
        else:
            squared, close = frame.squared(shifted, closeness)
            found = np.sqrt(squared, out=squared)
            asked = np.nonzero(close)
            found[asked] = distances(self._parts, queries[asked[0]], rows[asked])
        near = np.flatnonzero(np.square(found[:, -1], dtype=np.float64) < NEAR * frame.sizes(shifted))
        columns = found.shape[1]
        step = max(1, BLOCK_ELEMENTS // (columns * self.width))
        for some in (near[start : start + step] for start in range(0, len(near), step)):
            rows[some] = rank(self._parts, queries[some], k)[:, -columns:]
            asked_each = np.repeat(queries[some], columns, axis=0)
            found[some] = distances(self._parts, asked_each, rows[some].reshape(-1)).reshape(-1, columns)
        mixed = np.flatnonzero((found[:, 1:] < found[:, :-1]).any(axis=1))
        order = np.argsort(found[mixed], axis=1, kind="stable")
        found[mixed] = np.take_along_axis(found[mixed], order, axis=1)
        rows[mixed] = np.take_along_axis(rows[mixed], order, axis=1)
        return found, rows

    def _by_half(self, query: Float32Array, k: int) -> tuple[Float32Array, Array] | None:
        """Return the answer to a single unit query from a float16 copy, if there is one and it can tell."""
        self._single += 1
        if self._single == PATIENCE and HalfCopy.pays(self._parts):
            self._half = HalfCopy(self._parts)
        return None if self._half is None else self._half.nearest(query, k)
