"""Known texts kept beside a deployment, so that an answer can show which of them an input is most like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from offmap import store
from offmap.errors import InputError, StoreError
from offmap.typing import Array, Float32Array, IntArray

MAX_EXAMPLES = 20_000
_BLOCK = 256


@dataclass(frozen=True)
class KnownExamples:
    """Texts of known classes with their features.

    Parameters
    ----------
    texts : sequence of str
        The texts.
    features : array
        One row per text.
    labels : array of int
        Class numbers, -1 for none.

    Examples
    --------
    >>> known = KnownExamples(["red", "green"], np.eye(2), np.array([0, 1]))
    >>> places, cosines = known.find_nearest(np.array([[3.0, 1.0]]), 1)
    >>> known.texts[places[0, 0]], round(float(cosines[0, 0]), 3)
    ('red', 0.949)
    """

    texts: Sequence[str]
    features: Array
    labels: IntArray

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.features) == len(self.labels):
            raise InputError(
                f"{len(self.texts)} texts, {len(self.features)} rows of features and {len(self.labels)} labels; "
                "they must agree"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def sample(self, n: int = MAX_EXAMPLES, seed: int = 0) -> KnownExamples:
        """Return at most `n` of the examples, drawn at random and in their order."""
        if len(self) <= n:
            return self
        kept = np.sort(np.random.default_rng(seed).choice(len(self), n, replace=False))
        return KnownExamples([self.texts[i] for i in kept], self.features[kept], self.labels[kept])

    def add(self, other: KnownExamples) -> KnownExamples:
        """Return both together."""
        features = np.concatenate([self.features, other.features])
        return KnownExamples([*self.texts, *other.texts], features, np.concatenate([self.labels, other.labels]))

    def find_nearest(self, features: Array, k: int = 3) -> tuple[IntArray, Float32Array]:
        """Find the examples with the largest cosine to each row.

        Parameters
        ----------
        features : array
            One row per input.
        k : int, default 3
            How many examples; fewer when there are not as many.

        Returns
        -------
        places : array of int
            Of the examples, the nearest first, one row per input.
        cosines : array of float
            To each of them.
        """
        k = min(k, len(self))
        places = np.empty((len(features), k), np.int64)
        cosines = np.empty((len(features), k), np.float32)
        for start in range(0, len(features), _BLOCK):
            block = slice(start, start + _BLOCK)
            found = _scale(features[block]) @ self._directions.T
            order = _largest(found, k)
            places[block], cosines[block] = order, np.take_along_axis(found, order, axis=1)
        return places, cosines

    def find_nearest_texts(self, features: Array) -> list[str]:
        """Return the text of the example nearest to each row."""
        return [self.texts[place] for place in self.find_nearest(features, 1)[0][:, 0]]

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return plain values and tensors, for a file."""
        return {"texts": list(self.texts)}, {"features": self.features, "labels": self.labels}

    @classmethod
    def from_parts(cls, config: dict[str, Any], tensors: dict[str, Array]) -> KnownExamples:
        """Build examples again from what `to_parts` returned."""
        store.check_fields("set of examples", config, {"texts": list})
        kinds = {"features": ("f", 2), "labels": ("i", 1)}
        store.check_arrays("set of examples", tensors, kinds, tuple(kinds))
        if not all(isinstance(text, str) for text in config["texts"]) or not np.isfinite(tensors["features"]).all():
            raise StoreError("not a whole set of examples (texts that are no texts, or features that are no numbers)")
        return cls(config["texts"], tensors["features"], tensors["labels"])

    @cached_property
    def _directions(self) -> Float32Array:
        return _scale(self.features)


def _largest(values: Float32Array, k: int) -> IntArray:
    """Return the places of the `k` largest values of each row, largest first; not all are sorted for a few."""
    places = np.sort(np.argpartition(values, -k, axis=1)[:, -k:], axis=1)  # of equals the first comes first
    order = np.argsort(-np.take_along_axis(values, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def _scale(rows: Array) -> Float32Array:
    rows = np.asarray(rows, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
