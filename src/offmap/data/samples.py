"""The value that a reader returns: named arrays with one row per sample, and where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offmap.activations import Activations, Head
from offmap.errors import InputError, MissingError
from offmap.typing import Array

MAX_BYTES = 8 * 2**30  # what a reader brings into memory unless told otherwise
PARTS = ("inputs", "features", "logits", "labels")


@dataclass(frozen=True)
class Samples:
    """A data set as arrays of equal length.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        By name, one row per sample. ``inputs`` go into a network, ``features`` and ``logits`` come out;
        ``labels`` are class indices, −1 where the class is not known. Other names are kept.
    classes : tuple of str, default=()
        The names of the classes, by index, when the source has them.
    names : tuple of str, default=()
        One name per sample, such as its file, when the source has them.
    skipped : tuple of str, default=()
        Sources that could not be read and were left out on request.
    head : Head or None, default=None
        The last linear layer, when the source holds one.
    columns : tuple of str, default=()
        The names of the features, when the source is a table that has them.
    others : mapping of str to ndarray, default={}
        What a table says of each sample besides, such as an id; it goes into tables that are written about the samples.

    Examples
    --------
    >>> samples = Samples({"features": np.eye(3), "labels": np.array([0, 1, 1])})
    >>> len(samples), samples.labels, samples[1:].labels
    (3, array([0, 1, 1]), array([1, 1]))
    """

    arrays: Mapping[str, Array]
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    head: Head | None = field(default=None, compare=False)
    columns: tuple[str, ...] = ()
    others: Mapping[str, Array] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.arrays:
            raise InputError("no arrays: a data set holds at least one, such as inputs or features")
        rows = {name: len(array) for name, array in self.arrays.items()}
        if len(set(rows.values())) > 1:
            raise InputError(f"arrays of different lengths {rows}: each needs one row per sample")
        if self.names and len(self.names) != len(self):
            raise InputError(f"{len(self.names)} names for {len(self)} samples; give one each or none")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: Any) -> Samples:
        """Return a part, by slice, mask or indices."""
        where = np.arange(len(self))[index].reshape(-1)
        names = tuple(self.names[i] for i in where) if self.names else ()
        arrays = {name: array[index] for name, array in self.arrays.items()}
        others = {name: array[index] for name, array in self.others.items()}
        return Samples(arrays, self.classes, names, (), self.head, self.columns, others)

    @property
    def inputs(self) -> Array:
        """The array that goes into a network."""
        return self._part("inputs")

    @property
    def features(self) -> Array:
        """Penultimate features, samples × width."""
        return self._part("features")

    @property
    def labels(self) -> Array | None:
        """Class indices, or `None` when the source has no labels."""
        return self.arrays.get("labels")

    def activations(self, head: Head | None = None) -> Activations:
        """Return the features, logits and labels as `Activations`, with the source's own head unless one is given.

        Examples
        --------
        >>> Samples({"features": np.eye(3)}).activations(Head(np.ones((2, 3))))
        Activations(3 inputs, 3 features, 2 classes)
        """
        features, logits = self.arrays.get("features"), self.arrays.get("logits")
        if features is None and logits is None:
            self._part("features")
        acts = Activations(features, head or self.head, logits, self.labels)
        acts.columns = self.columns or None
        return acts

    def with_columns(self, wanted: Sequence[str] | None) -> Samples:
        """Return the features by name in the order that is wanted; the rest goes to `others`.

        Nothing changes where columns have no names or some that are wanted are missing.

        Examples
        --------
        >>> table = Samples({"features": np.array([[1, 2, 3]])}, columns=("a", "b", "c")).with_columns(["c", "a"])
        >>> table.features, table.others
        (array([[3, 1]]), {'b': array([2])})
        """
        if not self.columns or wanted is None or not set(wanted) <= set(self.columns):
            return self
        features = dict(zip(self.columns, self.features.T, strict=True))
        others = {name: column for name, column in features.items() if name not in wanted}
        arrays = {**self.arrays, "features": self.features[:, [self.columns.index(name) for name in wanted]]}
        return replace(self, arrays=arrays, columns=tuple(wanted), others={**self.others, **others})

    def _part(self, name: str) -> Array:
        if name not in self.arrays:
            run = (
                ", or run a network over the inputs: --model" if name == "features" and "inputs" in self.arrays else ""
            )
            raise MissingError(f"there are no {name} here, only {', '.join(self.arrays)}; name an array {name!r}{run}")
        return self.arrays[name]

    def __repr__(self) -> str:
        parts = [f"{name} {'×'.join(map(str, array.shape[1:])) or 'one each'}" for name, array in self.arrays.items()]
        return f"Samples({len(self)}: {', '.join(parts)})"


def check_size(size: int, what: str, max_bytes: int) -> None:
    """Raise an `InputError` for what would not fit, before any of it is read.

    Parameters
    ----------
    size : int
        Bytes.
    what : str
        What has that size, for the message.
    max_bytes : int
        The limit.
    """
    if size > max_bytes:
        raise InputError(
            f"{what}: {size / 2**30:.1f} GiB in memory, the limit is {max_bytes / 2**30:.1f} GiB; "
            "raise max_bytes, or split the data"
        )


def encode_labels(labels: Array, name: str) -> tuple[Array, tuple[str, ...]]:
    """Turn labels into class indices and class names; text labels are sorted, as scikit-learn does.

    Parameters
    ----------
    labels : ndarray
        Numbers or texts.
    name : str
        Where they come from, for messages.

    Returns
    -------
    indices : ndarray of int64
        Class indices.
    classes : tuple of str
        Class names; empty for numbers.

    Examples
    --------
    >>> encode_labels(np.array(["cat", "ant", "cat"]), "labels")
    (array([1, 0, 1]), ('ant', 'cat'))
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"{name} of shape {labels.shape}: one label per sample is needed")
    if labels.dtype.kind in "US":
        classes, indices = np.unique(labels.astype(str), return_inverse=True)
        return indices.astype(np.int64), tuple(classes.tolist())
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.floor(labels)):
        raise InputError(f"{name}: class indices are whole numbers; these are not")
    if labels.dtype.kind not in "iufb":
        raise InputError(f"{name} of type {labels.dtype}: class indices or text are needed")
    return labels.astype(np.int64), ()
