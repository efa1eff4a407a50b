"""The inputs of a round: labelled ones in three parts with different duties, and the rows they are grouped by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from offmap.activations import as_array
from offmap.errors import InputError
from offmap.typing import Array

Space = Literal["auto", "inputs", "features"]
SMALL_INPUT = 1024  # numbers in one input: 28 × 28 pixels are few enough to be compared as they are, a photo is not
SHARES = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class LabeledInputs:
    """Some inputs: what the network says about them, and the inputs themselves where they were kept.

    Parameters
    ----------
    features : ndarray
        What goes into the network's last layer, one row per input.
    labels : ndarray of int64
        Class numbers from 0, -1 where the class is not known.
    inputs : ndarray or None, default=None
        As the network takes them; `None` when only features are at hand.
    texts : ndarray of str or None, default=None
        What each input says, where inputs are texts: their keywords name new classes.

    Examples
    --------
    >>> part = LabeledInputs(np.zeros((3, 2)), np.array([0, 1, -1]))
    >>> len(part), len(part[part.labels >= 0])
    (3, 2)
    """

    features: Array
    labels: npt.NDArray[np.int64]
    inputs: Array | None = None
    texts: Array | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 2:
            raise InputError(f"features of shape {self.features.shape}: rows × columns are needed")
        for name, value in (("labels", self.labels), ("inputs", self.inputs), ("texts", self.texts)):
            if value is not None and len(value) != len(self.features):
                raise InputError(f"{len(self.features)} rows of features but {len(value)} of {name}; they must agree")

    @classmethod
    def of(cls, features: Any, labels: Any = None, inputs: Any = None, texts: Any = None) -> Self:
        """From arrays or tensors; without labels all are -1."""
        rows = as_array(features, "features").astype(np.float32, copy=False)
        own = np.full(len(rows), -1) if labels is None else as_array(labels, "labels")
        if own.dtype.kind not in "iu":
            raise InputError(f"labels of type {own.dtype}: class numbers are needed, -1 where unknown")
        made = None if inputs is None else as_array(inputs, "inputs")
        return cls(rows, own.astype(np.int64), made, None if texts is None else np.array(texts, object))

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: Any) -> LabeledInputs:
        """Return a part of it, by slice, mask or indices."""
        inputs, texts = (None if kept is None else kept[index] for kept in (self.inputs, self.texts))
        return LabeledInputs(self.features[index], self.labels[index], inputs, texts)

    def __add__(self, other: LabeledInputs) -> LabeledInputs:
        """Both together; inputs and texts are kept when both have them."""
        inputs, texts = (
            None if mine is None or theirs is None else np.concatenate([mine, theirs])
            for mine, theirs in ((self.inputs, other.inputs), (self.texts, other.texts))
        )
        features = np.concatenate([self.features, other.features])
        return LabeledInputs(features, np.concatenate([self.labels, other.labels]), inputs, texts)

    def rows(self, space: Space = "auto") -> Array:
        """Return the rows to group by: the inputs themselves while they are small, else the features.

        A network's features have seen the labels: they set known classes apart and press the others together. Small
        inputs still hold what the network has thrown away.
        """
        use = space
        if space == "auto":
            small = self.inputs is not None and self.inputs[:1].size <= SMALL_INPUT
            use = "inputs" if small else "features"
        if use == "features":
            return self.features
        if self.inputs is None:
            raise InputError("space='inputs': there are only features here; give inputs, or group by features")
        return np.asarray(self.inputs, np.float32).reshape(len(self), -1)


@dataclass(frozen=True)
class KnownSplits:
    """Labelled inputs of the classes a network knows.

    Parameters
    ----------
    train : LabeledInputs
        To learn from: the head, the encoder, the detector's statistics, and what new classes are told apart from.
    calibration : LabeledInputs
        For the detector's threshold, and for how far new classes are held back.
    held_out : LabeledInputs
        To see whether anything was forgotten, and to hold a class back that does harm.
    class_names : tuple of str
        One per class.

    Examples
    --------
    >>> known = KnownSplits.split(np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 2, ("ant", "bee"))
    >>> known
    KnownSplits(2 classes: 60 to train, 20 to calibrate, 20 held out)
    """

    train: LabeledInputs
    calibration: LabeledInputs
    held_out: LabeledInputs
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.class_names)) != len(self.class_names):
            raise InputError("two known classes have the same name; give each its own")
        for name, part in (("train", self.train), ("calibration", self.calibration), ("held_out", self.held_out)):
            if not len(part):
                raise InputError(f"known: there are no inputs to {name}; give more labelled inputs")
            if part.labels.min() < 0 or part.labels.max() >= len(self.class_names):
                raise InputError(
                    f"known: labels of {name} from {part.labels.min()} to {part.labels.max()}, "
                    f"but there are {len(self.class_names)} classes, counted from 0"
                )
        missing = sorted(set(range(len(self.class_names))) - set(self.train.labels.tolist()))
        if missing:
            raise InputError(f"known: no input of class {self.class_names[missing[0]]!r} to train on")

    @classmethod
    def split(
        cls,
        features: Any,
        labels: Any,
        class_names: Sequence[str] | None = None,
        inputs: Any = None,
        shares: tuple[float, float, float] = SHARES,
        seed: int = 0,
    ) -> Self:
        """Divide labelled inputs into the three parts at random, every class alike.

        Parameters
        ----------
        features, labels, inputs : array-like
            One row each per input; rows labelled -1 are left out.
        class_names : sequence of str or None, default=None
            One per class; numbers when absent.
        shares : tuple of 3 float, default=SHARES
            Of train, calibration and held-out inputs.
        seed : int, default=0
            Seed of the split.
        """
        whole = LabeledInputs.of(features, labels, inputs)
        whole = whole[whole.labels >= 0]
        if not len(whole):
            raise InputError("known: no input has a label")
        n = int(whole.labels.max()) + 1
        names = tuple(str(i) for i in range(n)) if class_names is None else tuple(map(str, class_names))
        return cls(*stratified_split(whole, shares, seed), names)

    @classmethod
    def of(cls, train: LabeledInputs, held_out: LabeledInputs, class_names: Sequence[str], seed: int = 0) -> Self:
        """From inputs that the network was trained on and others that it was not: half of those calibrate.

        What a network was trained on looks more familiar to it than anything it will meet, so a threshold set on such
        inputs flags too much. Where there are others, keep the two apart.
        """
        inside = held_out[held_out.labels >= 0]
        _, calibration, rest = stratified_split(inside, (0.0, 0.5, 0.5), seed)
        return cls(train[train.labels >= 0], calibration, rest, tuple(map(str, class_names)))

    def __repr__(self) -> str:
        return (
            f"KnownSplits({len(self.class_names)} classes: {len(self.train)} to train, "
            f"{len(self.calibration)} to calibrate, "
            f"{len(self.held_out)} held out)"
        )

    def add_groups(self, candidates: LabeledInputs, class_names: tuple[str, ...], seed: int = 0) -> KnownSplits:
        """Return the splits with inputs that were given a class added; those without one are left out.

        New classes are divided into the three parts. Inputs of old classes are for training only: nobody labelled
        them, so they are no fair sample to calibrate or to measure with.
        """
        old = (candidates.labels >= 0) & (candidates.labels < len(self.class_names))
        train, calibration, held_out = stratified_split(
            candidates[candidates.labels >= len(self.class_names)], seed=seed
        )
        return KnownSplits(
            self.train + candidates[old] + train, self.calibration + calibration, self.held_out + held_out, class_names
        )

    def read_by(self, features_of: Callable[[LabeledInputs], Array]) -> KnownSplits:
        """Return the same inputs with features from `features_of(part)`."""
        train, calibration, held_out = (
            replace(part, features=features_of(part)) for part in (self.train, self.calibration, self.held_out)
        )
        return KnownSplits(train, calibration, held_out, self.class_names)


def stratified_split(
    whole: LabeledInputs, shares: tuple[float, float, float] = SHARES, seed: int = 0
) -> tuple[LabeledInputs, LabeledInputs, LabeledInputs]:
    """Three parts of given shares, every class divided alike; of a small class the first part gets at least one row.

    Examples
    --------
    >>> [len(part) for part in stratified_split(LabeledInputs.of(np.zeros((10, 1)), np.zeros(10, int)))]
    [6, 2, 2]
    """
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"shares={shares}: three parts of 1 are needed, such as {SHARES}")
    rng = np.random.default_rng(seed)
    chosen: tuple[list[Array], ...] = ([], [], [])
    for label in np.unique(whole.labels):
        rows = rng.permutation(np.flatnonzero(whole.labels == label))
        cuts = [int(len(rows) * shares[0] + 0.5), int(len(rows) * (shares[0] + shares[1]) + 0.5)]
        if shares[0] > 0:
            cuts = [max(cut, 1) for cut in cuts]
        for into, piece in zip(chosen, np.split(rows, cuts), strict=True):
            into.append(piece)
    none = [np.empty(0, np.int64)]
    one, two, three = (whole[np.sort(np.concatenate(none + rows))] for rows in chosen)
    return one, two, three
