"""Samples that do not depend on how the data was cut: a row's chance is a seeded hash of what is in it.

A reservoir filled block by block, or on many machines and merged, holds the rows of one filled in one go.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import numpy.typing as npt

from offmap.errors import InputError
from offmap.typing import Array

_STEP = 0x9E3779B97F4A7C15
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_COMPANION = "companion."


def priorities(rows: Array, seed: int) -> npt.NDArray[np.uint64]:
    """Hash each row to a uniform 64-bit number, the same wherever the row stands; equal rows get equal numbers.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        The rows.
    seed : int
        Seed of the hash.

    Returns
    -------
    ndarray of uint64 of shape (n,)
        The numbers.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    >>> bool((priorities(rows, 0)[::-1] == priorities(rows[::-1], 0)).all())
    True
    """
    return _hash(_canonical(rows).view(np.uint32), seed)


class _Lowest:
    """The rows with the smallest priorities, with whatever belongs to them, whichever way they arrive.

    Two rules say what must be remembered: the `floor` lowest rows, and every row below `threshold`.
    """

    def __init__(self, floor: int, threshold: int, seed: int) -> None:
        self.seed = seed
        self.seen = 0
        self._floor = floor
        self._threshold = np.uint64(min(threshold, 2**64 - 1))
        self._bound: np.uint64 | None = None  # rows above it cannot be in the sample any more
        self._parts: list[tuple[npt.NDArray[np.uint64], Array, dict[str, Array]]] = []

    def update(self, rows: Array, **companions: Array) -> Self:
        """Offer a block of rows, each with its entry of every companion array (labels, logits, …)."""
        if np.ndim(rows) != 2:
            raise InputError(f"{self!r}.update(array of shape {np.shape(rows)}): give rows × columns")
        values = _canonical(rows)
        beside = {name: np.asarray(value) for name, value in companions.items()}
        for name, value in beside.items():
            if len(value) != len(values):
                raise InputError(f"{self!r}: {len(values)} rows but {len(value)} entries of {name}; give one per row")
        self._check_like(values, beside)
        self._keep(_hash(values.view(np.uint32), self.seed), values, beside)
        self.seen += len(values)
        return self

    def merge(self, other: Self) -> Self:
        """Take in what another sample holds; the result is as if this one had seen all rows."""
        if type(other) is not type(self) or repr(other) != repr(self):
            raise InputError(f"{self!r}.merge({other!r}): only samples made with the same parameters merge")
        for part in other._parts:
            self._check_like(part[1], part[2])
            self._keep(*part)
        self.seen += other.seen
        return self

    @property
    def rows(self) -> Array:
        """The sampled rows in float32, in the order of their priorities."""
        self._compact()
        return self._parts[0][1][: self._final()] if self._parts else np.empty((0, 0), np.float32)

    @property
    def companions(self) -> dict[str, Array]:
        """The values given beside the rows, in the same order."""
        self._compact()
        held = self._parts[0][2] if self._parts else {}
        return {name: value[: self._final()] for name, value in held.items()}

    def state(self) -> dict[str, Array]:
        """Return everything remembered, as named arrays that `from_state` reads back."""
        self._compact()
        state: dict[str, Array] = {"seen": np.array([self.seen], np.int64)}
        for _, rows, beside in self._parts:
            state["rows"] = rows
            state.update({_COMPANION + name: value for name, value in beside.items()})
        return state

    def _restore(self, state: dict[str, Array]) -> Self:
        if "rows" in state:
            start = len(_COMPANION)
            beside = {name[start:]: value for name, value in state.items() if name.startswith(_COMPANION)}
            self.update(state["rows"], **beside)
        self.seen = int(state["seen"][0])
        return self

    def _final(self) -> int:
        """How many of the remembered rows make up the sample."""
        raise NotImplementedError

    def _check_like(self, rows: Array, beside: dict[str, Array]) -> None:
        if not self._parts:
            return
        _, held, held_beside = self._parts[0]
        if held.shape[1] != rows.shape[1]:
            raise InputError(f"{self!r}: holds rows of {held.shape[1]} columns, got {rows.shape[1]}")
        if held_beside.keys() != beside.keys():
            raise InputError(f"{self!r}: holds {sorted(held_beside)} beside the rows, got {sorted(beside)}")

    def _keep(self, keys: npt.NDArray[np.uint64], rows: Array, beside: dict[str, Array]) -> None:
        if self._bound is not None:
            chosen = np.flatnonzero(keys <= self._bound)
            keys, rows = keys[chosen], rows[chosen]
            beside = {name: value[chosen] for name, value in beside.items()}
        self._parts.append((keys, rows, beside))
        waiting = sum(len(part[0]) for part in self._parts[1:])
        # Sorting only when as much waits as is held keeps the work linear, the memory within a factor of two.
        if waiting > max(len(self._parts[0][0]), self._floor, 1024) or len(self._parts) > 1000:
            self._compact()

    def _compact(self) -> None:
        """Bring the parts into one, in order, and forget what can no longer be chosen."""
        if not self._parts:
            return
        keys = np.concatenate([part[0] for part in self._parts])
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        kept = max(self._floor, int(np.searchsorted(ranked, self._threshold)))
        if self._parts[0][2] and bool((ranked[1:] == ranked[:-1]).any()):
            # Equal rows: their companions decide, never the order of arrival.
            ties = sum(
                (
                    _hash(_words(np.concatenate([part[2][name] for part in self._parts])), self.seed + 1 + place)
                    for place, name in enumerate(sorted(self._parts[0][2]))
                ),
                start=np.zeros(len(keys), np.uint64),
            )
            order = np.lexsort((ties, keys))
        order = order[:kept]
        if len(self._parts) > 1 or len(order) < len(keys) or bool((order[1:] < order[:-1]).any()):
            rows = _pick([part[1] for part in self._parts], order)
            names = self._parts[0][2]
            beside = {name: _pick([part[2][name] for part in self._parts], order) for name in names}
            self._parts = [(keys[order], rows, beside)]
        if len(order) >= self._floor:
            self._bound = max(self._threshold, ranked[self._floor - 1])


class Reservoir(_Lowest):
    """A uniform sample of a fixed number of rows from a stream of any length.

    Equal rows have equal priorities, so all copies of a row stand or fall together.

    Parameters
    ----------
    size : int
        How many rows to hold.
    seed : int, default=0
        Another seed gives another sample; the same seed always gives the same one.

    Examples
    --------
    >>> import numpy as np
    >>> data = np.random.default_rng(0).normal(size=(100, 3))
    >>> whole = Reservoir(size=5, seed=0).update(data, label=np.arange(100))
    >>> first, second = Reservoir(5, 0), Reservoir(5, 0)
    >>> _ = first.update(data[60:], label=np.arange(60, 100))
    >>> merged = first.merge(second.update(data[:60], label=np.arange(60)))
    >>> bool((whole.rows == merged.rows).all())
    True
    >>> whole.companions["label"].tolist() == merged.companions["label"].tolist()
    True
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        if size < 1:
            raise InputError(f"Reservoir(size={size}): the size must be at least 1")
        self.size = size
        super().__init__(size, 0, seed)

    def __repr__(self) -> str:
        return f"Reservoir(size={self.size}, seed={self.seed})"

    def state(self) -> dict[str, Array]:
        """Return everything remembered, as named arrays that `from_state` reads back."""
        return super().state() | {"size": np.array([self.size]), "seed": np.array([self.seed])}

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Reservoir:
        """Return the reservoir that gave this state."""
        return cls(int(state["size"][0]), int(state["seed"][0]))._restore(state)

    def _final(self) -> int:
        return self.size


class Sample(_Lowest):
    """A uniform share of a stream whose length is not known: ``round(alpha * rows seen)`` rows, at least one.

    Twice the share is remembered while streaming, and always the 256 lowest rows, so that the final cut is
    the exact one (thousands of copies of one row can leave it short: copies stand or fall together).

    Parameters
    ----------
    alpha : float
        The share, above 0 and at most 1; the thesis finds .01 of a k-NN bank enough.
    seed : int, default=0
        Another seed gives another sample; the same seed always gives the same one.

    Examples
    --------
    >>> import numpy as np
    >>> data = np.random.default_rng(0).normal(size=(1000, 3))
    >>> Sample(alpha=0.05, seed=0).update(data[:300]).update(data[300:]).rows.shape
    (50, 3)
    """

    def __init__(self, alpha: float, seed: int = 0) -> None:
        if not 0 < alpha <= 1:
            raise InputError(f"Sample(alpha={alpha}): the share must be above 0 and at most 1")
        self.alpha = alpha
        super().__init__(256, int(2 * alpha * 2**64), seed)

    def __repr__(self) -> str:
        return f"Sample(alpha={self.alpha}, seed={self.seed})"

    def state(self) -> dict[str, Array]:
        """Return everything remembered, as named arrays that `from_state` reads back."""
        return super().state() | {"alpha": np.array([self.alpha]), "seed": np.array([self.seed])}

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Sample:
        """Return the sample that gave this state."""
        return cls(float(state["alpha"][0]), int(state["seed"][0]))._restore(state)

    def _final(self) -> int:
        return max(1, round(self.alpha * self.seen))


def _canonical(rows: Array) -> npt.NDArray[np.float32]:
    values = np.ascontiguousarray(rows, dtype=np.float32)
    values = values.reshape(len(values), math.prod(values.shape[1:]))
    return values + np.float32(0)  # -0.0 and 0.0 are one value; always a copy


def _words(values: Array) -> npt.NDArray[np.uint32]:
    """Any array as rows of 32-bit words."""
    flat = np.ascontiguousarray(values).reshape(len(values), math.prod(values.shape[1:]))
    raw = flat.view(np.uint8)
    padded = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 4)))
    return np.ascontiguousarray(padded).view(np.uint32)


def _pick(parts: list[Array], order: npt.NDArray[np.intp]) -> Array:
    """``concatenate(parts)[order]`` without the whole concatenation in memory beside its parts."""
    picked = np.empty((len(order), *parts[0].shape[1:]), np.result_type(*parts))
    start = 0
    for part in parts:
        here = np.flatnonzero((order >= start) & (order < start + len(part)))
        picked[here] = part[order[here] - start]
        start += len(part)
    return picked


def _hash(words: npt.NDArray[np.uint32], seed: int) -> npt.NDArray[np.uint64]:
    """One well-spread 64-bit number per row of words."""
    generator = np.random.default_rng(seed)
    factors: npt.NDArray[np.uint64] = generator.integers(1, 2**63, (words.shape[1],), np.uint64) * 2 + 1
    first = np.uint64((seed + 1) * _STEP % 2**64)
    total: npt.NDArray[np.uint64] = np.full(len(words), first, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, words.shape[1], 256):  # bounds the 64-bit copy to 256 columns
            part = words[:, start : start + 256].astype(np.uint64) + np.uint64(1)
            total += part @ factors[start : start + 256]
        return _mix(total)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread every input bit over every output bit (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))
