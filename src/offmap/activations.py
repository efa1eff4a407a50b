"""What a network says about a set of inputs: penultimate features, logits, labels, and extra passes.

Every detector, metric, plot and diagnostic starts from `Activations`; the network itself is run once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offmap import store
from offmap.activation_files import HEAD, check_mapped, map_arrays, read_meta, write_folder
from offmap.errors import InputError, MissingError
from offmap.typing import Array
from offmap.wording import format_count

BLOCK_BYTES = 16 * 2**20


class Head:
    """The last linear layer: ``logits = features @ weight.T + bias``.

    Parameters
    ----------
    weight : array-like
        One row per class, one column per feature.
    bias : array-like or None, default=None
        One number per class; zeros when absent.

    Examples
    --------
    >>> head = Head([[1.0, 0.0], [0.0, 2.0]], [0.0, 1.0])
    >>> head(np.array([[1.0, 1.0]]))
    array([[1., 3.]], dtype=float32)
    """

    def __init__(self, weight: Any, bias: Any = None) -> None:
        # torch warns of tensors over arrays that cannot be written, such as those of an ONNX file
        self.weight = np.require(as_array(weight, "the head's weight"), np.float32, "W")
        if self.weight.ndim != 2 or 0 in self.weight.shape:
            raise InputError(f"Head(weight of shape {self.weight.shape}): the weight must be classes × features")
        classes = len(self.weight)
        raw = np.zeros(classes, np.float32) if bias is None else as_array(bias, "the head's bias")
        self.bias = np.require(raw, np.float32, "W").reshape(-1)
        if len(self.bias) != classes:
            raise InputError(f"Head: {classes} rows of weights but {len(self.bias)} biases; give one per class")
        if not (np.isfinite(self.weight).all() and np.isfinite(self.bias).all()):
            raise InputError("Head: the weights hold NaN or infinity; check the trained network")

    @property
    def n_classes(self) -> int:
        """How many classes the head knows."""
        return int(self.weight.shape[0])

    @property
    def width(self) -> int:
        """How many features it reads."""
        return int(self.weight.shape[1])

    def arrays(self) -> dict[str, Array]:
        """Return weight and bias by name, as they are saved."""
        return {"weight": self.weight, "bias": self.bias}

    def __call__(self, features: Array) -> Array:
        """Return the logits of these features."""
        logits: Array = np.asarray(features, dtype=np.float32) @ self.weight.T + self.bias
        return logits

    def __repr__(self) -> str:
        return f"Head({format_count(self.n_classes, 'class', 'classes')}, {format_count(self.width, 'feature')})"


class Activations:
    """Features, logits and labels of a set of inputs, in memory or memory-mapped.

    Parameters
    ----------
    features : array-like
        Penultimate features, one row per input: NumPy, torch or a memory map. `None` when only logits are at hand.
    head : Head or None, default=None
        The last linear layer. With it logits need not be given, and shapers can recompute them.
    logits : array-like or None, default=None
        What the network answered, one row per input. Derived from the head when absent.
    labels : array-like or None, default=None
        Class indices from 0, one per input.
    extras : mapping of str to Any or None, default=None
        What some methods need beyond that, by name, filled by
        `Network.extract(..., requirements=detector.requirements)`.

    Attributes
    ----------
    columns : tuple of str or None
        The names of the features, where a DataFrame gave them.

    Examples
    --------
    >>> acts = Activations(np.eye(3, dtype=np.float32), head=Head(np.ones((2, 3))), labels=[0, 1, 0])
    >>> len(acts), acts.logits.shape, acts[1:].labels
    (3, (3, 2), array([1, 0]))
    """

    def __init__(
        self,
        features: Any,
        head: Head | None = None,
        logits: Any = None,
        labels: Any = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        if features is None and logits is None:
            raise InputError("Activations(None): give features, logits or both")
        self.columns = _column_names(features)
        self._features = None if features is None else _matrix(features, "features")
        self._logits = None if logits is None else _matrix(logits, "logits")
        self.head = head
        self._labels = None if labels is None else _as_labels(labels)
        self.extras: dict[str, Array] = {
            name: as_array(value, f"extras[{name!r}]") for name, value in (extras or {}).items()
        }
        self._check()

    def _check(self) -> None:
        rows = len(self)
        sized: dict[str, Array | None] = {
            "features": self._features,
            "logits": self._logits,
            "labels": self._labels,
            **{f"extras[{name!r}]": value for name, value in self.extras.items()},
        }
        for name, value in sized.items():
            if value is not None and (value.ndim == 0 or len(value) != rows):
                given = "one number" if value.ndim == 0 else f"{len(value)} rows"
                raise InputError(f"Activations: {rows} inputs but {given} of {name}; they must agree")
        if self.head is not None and self._features is not None and self.head.width != self._features.shape[1]:
            raise InputError(
                f"Activations: the head reads {self.head.width} features, but each input has "
                f"{self._features.shape[1]}; pass what goes into that head"
            )
        if self.head is not None and self._logits is not None and self.head.n_classes != self._logits.shape[1]:
            raise InputError(
                f"Activations: the head has {self.head.n_classes} classes, the logits {self._logits.shape[1]} columns"
            )

    def __len__(self) -> int:
        array = self._features if self._features is not None else self._logits
        assert array is not None
        return len(array)

    def __repr__(self) -> str:
        parts = [format_count(len(self), "input")]
        if self._features is not None:
            parts.append(format_count(self._features.shape[1], "feature"))
        if self.has_logits:
            parts.append(format_count(self.n_classes, "class", "classes"))
        if self._labels is not None:
            parts.append("labels")
        return f"Activations({', '.join([*parts, *self.extras])})"

    @property
    def has_features(self) -> bool:
        """Whether features are there."""
        return self._features is not None

    @property
    def has_logits(self) -> bool:
        """Whether logits are there, given or derivable."""
        return self._logits is not None or (self.head is not None and self._features is not None)

    @property
    def features(self) -> Array:
        """Penultimate features, inputs × width."""
        if self._features is None:
            raise MissingError("these activations hold logits only; pass features to Activations(features, ...)")
        return check_mapped(self._features)

    @property
    def given_logits(self) -> Array | None:
        """The logits as they were given; `None` when they would have to be derived from the head."""
        return None if self._logits is None else check_mapped(self._logits)

    @property
    def labels(self) -> Array | None:
        """Class indices from 0, one per input; `None` without labels."""
        return None if self._labels is None else check_mapped(self._labels)

    @property
    def logits(self) -> Array:
        """The logits, given or computed by the head (then computed anew at each access: use blocks for large sets)."""
        if self._logits is not None:
            return check_mapped(self._logits)
        if self.head is None or self._features is None:
            raise MissingError(
                "these activations have neither logits nor a head to compute them; "
                "pass logits=... or head=offmap.Head(weight, bias)"
            )
        return self.head(check_mapped(self._features))

    @property
    def n_classes(self) -> int:
        """How many classes the network knows."""
        if self._logits is not None:
            return int(self._logits.shape[1])
        if self.head is not None:
            return self.head.n_classes
        raise MissingError("these activations have neither logits nor a head, so the classes are not known")

    @property
    def predictions(self) -> Array:
        """The class with the largest logit, per input."""
        return np.concatenate([np.argmax(part.logits, axis=1) for part in self.blocks()] or [np.empty(0, int)])

    def __getitem__(self, index: Any) -> Activations:
        """Return a part, by slice, mask or indices. One integer gives a part of one input."""
        if isinstance(index, int | np.integer):
            where = int(index) + len(self) if index < 0 else int(index)
            if not 0 <= where < len(self):
                raise IndexError(f"input {index} of {len(self)}")
            index = slice(where, where + 1)
        part = object.__new__(Activations)
        part.columns = self.columns
        part._features = None if self._features is None else check_mapped(self._features)[index]
        part._logits = None if self._logits is None else check_mapped(self._logits)[index]
        part._labels = None if self._labels is None else check_mapped(self._labels)[index]
        part.extras = {name: check_mapped(value)[index] for name, value in self.extras.items()}
        part.head = self.head
        return part

    def blocks(self, size: int | None = None) -> Iterator[Activations]:
        """Yield parts of at most `size` inputs, in order; by default as many as keep a block near 16 MB."""
        rows = self.block_rows() if size is None else size
        if rows < 1:
            raise InputError(f"blocks({size}): a block holds at least one input")
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def block_rows(self) -> int:
        """Return how many rows make a block of about 16 MB in float32."""
        arrays = [self._features, self._logits, *self.extras.values()]
        width = sum(int(np.prod(array.shape[1:])) for array in arrays if array is not None)
        if self.head is not None:
            width += self.head.n_classes
        return int(np.clip(BLOCK_BYTES // (4 * max(width, 1)), 64, 16384))

    def save(self, folder: str | os.PathLike[str], dtype: str | None = None) -> None:
        """Write a folder that `Activations.open` maps into memory, with a checksum of every block.

        Parameters
        ----------
        folder : str or path
            Made when it does not exist; one that already holds activations, or a file of such a name, is refused.
        dtype : str or None, default=None
            ``"float32"`` or ``"float16"`` for features, logits and extras; as they are when absent.

        Raises
        ------
        StoreError
            If the folder holds such files already, or cannot be written: the files of this call are removed then.
        """
        write_folder(Path(folder), self._arrays(), dtype, None if self.head is None else self.head.arrays())

    def _arrays(self) -> dict[str, Array]:
        arrays = {"features": self._features, "logits": self._logits, "labels": self._labels}
        arrays |= {f"extra.{name}": value for name, value in self.extras.items()}
        return {name: check_mapped(value) for name, value in arrays.items() if value is not None}

    @classmethod
    def open(cls, folder: str | os.PathLike[str], verify: bool | None = None) -> Activations:
        """Map a saved folder into memory.

        A file that is cut short afterwards, while it is mapped, raises `StoreError` at the next use of these
        activations. An array taken out of them earlier is NumPy's own memory map, which cannot tell.

        Parameters
        ----------
        folder : str or path
            From `save`, or from `Network.extract`.
        verify : bool or None, default=None
            Compare the checksums of all blocks (`True`), of none (`False`), or, by default, of all in a folder of up to
            256 MB and of the first, the last and three others of each array in a larger one. Sizes are always checked.

        Raises
        ------
        StoreError
            If anything is missing, cut short or altered.
        """
        source = Path(folder)
        meta = read_meta(source)
        arrays = map_arrays(source, meta, verify)
        with store.restoring("activations"):
            tensors = store.load(source / HEAD, kind="head").tensors if meta["head"] else None
            head = None if tensors is None else Head(tensors["weight"], tensors["bias"])
            extras = {name.removeprefix("extra."): arrays[name] for name in arrays if name.startswith("extra.")}
            return cls(arrays.get("features"), head, arrays.get("logits"), arrays.get("labels"), extras)


def as_array(value: Any, name: str) -> Array:
    """Convert an array-like to NumPy; torch tensors are detached and brought to the CPU.

    Parameters
    ----------
    value : array-like
        Numbers.
    name : str
        What it is, for messages.

    Returns
    -------
    ndarray
        Not copied where possible.
    """
    if hasattr(value, "detach"):
        value = _from_torch(value, name)
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name}: all inputs need equally many numbers ({error})") from error
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: numbers are needed, not {array.dtype}")
    return array


def _from_torch(tensor: Any, name: str) -> Array:
    """A tensor's numbers; torch is not imported for that."""
    if str(tensor.layout) != "torch.strided":
        raise InputError(f"{name}: a tensor of the layout {tensor.layout}; pass its to_dense()")
    if tensor.is_meta:
        raise InputError(f"{name}: a tensor on the device 'meta' holds no numbers; load the weights first")
    tensor = (tensor.dequantize() if tensor.is_quantized else tensor).detach().cpu()
    too_small = str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8"))  # NumPy does not know them
    array: Array = (tensor.float() if too_small else tensor).numpy()
    return array


def _matrix(value: Any, name: str) -> Array:
    array = as_array(value, name)
    if array.ndim != 2:
        raise InputError(f"{name} of shape {array.shape}: two dimensions are needed, inputs × {name}")
    if array.shape[1] == 0:
        raise InputError(f"{name} of shape {array.shape}: each input needs at least one number")
    return array


def _column_names(table: Any) -> tuple[str, ...] | None:
    """The names of the columns of a DataFrame, of whichever library; `None` for arrays and for columns by number."""
    names = getattr(table, "columns", None)
    if names is None or isinstance(names, str):
        return None
    found = tuple(names)
    return found if all(isinstance(name, str) for name in found) else None


def name_probabilities(logits: Array) -> str | None:
    """Tell whether what is given as logits are probabilities or their logarithms.

    Parameters
    ----------
    logits : ndarray of shape (n, c)
        A few rows are enough.

    Returns
    -------
    {"probabilities", "log-probabilities"} or None
        `None` for logits.

    Examples
    --------
    >>> shares = np.array([[0.7, 0.3], [0.2, 0.8]])
    >>> name_probabilities(shares), name_probabilities(np.log(shares)), name_probabilities(9 * shares)
    ('probabilities', 'log-probabilities', None)
    """
    rows = np.asarray(logits, np.float64)
    if len(rows) == 0 or rows.shape[1] < 2:
        return None
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        return "probabilities"
    if (rows <= 0).all() and np.allclose(np.exp(rows).sum(axis=1), 1, atol=1e-3):
        return "log-probabilities"
    return None


def _as_labels(value: Any) -> Array:
    if np.asarray(value).dtype.kind in "OUS" and not hasattr(value, "detach"):
        raise InputError(
            "labels: names are given, class numbers are needed, counted as the network's outputs are. Where no network "
            "has numbered them: names, labels = numpy.unique(labels, return_inverse=True). "
            "offmap.sklearn.OpenWorldClassifier takes names as they are"
        )
    array = as_array(value, "labels")
    if array.ndim != 1:
        raise InputError(f"labels of shape {array.shape}: one class index per input is needed")
    if array.dtype.kind == "f":
        if not (np.isfinite(array).all() and np.array_equal(array, np.floor(array))):
            raise InputError("labels: class indices are whole numbers")
        array = array.astype(np.int64)
    return array
